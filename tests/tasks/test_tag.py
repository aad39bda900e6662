"""Tags: whatever the words, the windows and the context, gold tags come back, as valid spans."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.metrics.spans import Span, tags_of
from bertie.objectives import IGNORED
from bertie.tasks.instances import Instances
from bertie.tasks.sentences import TagExample, make_example, split_words
from bertie.tasks.steps import TaskLoader, predict
from bertie.tasks.tag import Entity, Tag
from bertie.tasks.task import Dataset
from tests.tasks.toys import TOKENIZER, WORDS, tiny_model

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
BIOES = ("O", *(f"{x}-{name}" for name in ("LOC", "PER") for x in "BIES"))


def sentence(words: Sequence[str], tags: Sequence[str] | None, document: int = -1) -> TagExample:
    return make_example(words, tags, place="here", id="0", document=document)


def gold_outputs(task: Tag, instances: Instances) -> list[np.ndarray]:
    rows = 9.0 * (np.arange(task.num_labels) == instances.labels[:, None])  # (T, C)
    return np.split(rows, instances.bounds[1:-1])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Words that may give no piece, and spans that may touch."""
    words = draw(st.lists(WORDS, min_size=1, max_size=20))
    spans, place = [], 0
    while place < len(words):
        end = draw(st.integers(place + 1, len(words)))
        label = draw(st.sampled_from(["", "PER", "LOC"]))
        if label:
            spans.append(Span(label, place, end))
        place = end
    return words, tags_of(spans, len(words), "IOB2")


@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
@given(found=st.lists(sentences(), min_size=1, max_size=4), max_length=st.integers(8, 40))
@settings(max_examples=25)
def test_gold_tags_come_back(
    context: str, scheme: str, found: list[tuple[list[str], list[str]]], max_length: int
) -> None:
    labels = LABELS if scheme == "IOB2" else BIOES
    task = Tag(
        kind="spans", labels=labels, model_scheme=scheme, context=context, max_length=max_length
    )  # type: ignore[arg-type]
    examples = [sentence(words, tags, document=n // 2) for n, (words, tags) in enumerate(found)]
    instances = task.encode(examples, TOKENIZER)
    assert np.diff(instances.bounds).max() <= max_length
    predictions = task.decode(examples, instances, gold_outputs(task, instances))
    assert [list(prediction.tags) for prediction in predictions] == [tags for _, tags in found]
    assert task.score(examples, predictions)["accuracy"] == 1
    num_words = sum(len(words) for words, _ in found)
    assert (instances.labels != IGNORED).sum() == num_words == instances.weights.sum()
    for example, prediction in zip(examples, predictions, strict=True):
        for entity in prediction.entities:
            assert example.text[entity.start : entity.end] == entity.text


@pytest.mark.parametrize(
    ("scheme", "learned"),
    [
        ("IOB2", "B-PER I-PER I-PER O B-LOC"),
        ("BIOES", "B-PER I-PER E-PER O S-LOC"),
        ("BMES", "B-PER M-PER E-PER O S-LOC"),
        ("BILOU", "B-PER I-PER L-PER O U-LOC"),
    ],
)
def test_the_model_learns_the_letters_of_its_own_scheme(scheme: str, learned: str) -> None:
    found = sentence(["a", "b", "the", "q", "c"], ["B-PER", "I-PER", "I-PER", "O", "B-LOC"])
    data = Dataset(path=Path("x"), format="", examples=[found])
    task = Tag(model_scheme=scheme).settle(data)  # type: ignore[arg-type]
    labels = task.encode([found], TOKENIZER).labels
    assert [task.labels[n] for n in labels if n != IGNORED] == learned.split()


@given(rows=st.lists(st.sampled_from(LABELS), min_size=1, max_size=9))
def test_any_prediction_makes_valid_spans(rows: list[str]) -> None:
    task = Tag(kind="spans", labels=LABELS)
    example = sentence(["the"] * len(rows), None)
    logits = 9.0 * np.array([[label == tag for label in LABELS] for tag in rows])
    prediction = task.decide(example, logits)
    for before, tag in zip(("O", *prediction.tags), prediction.tags, strict=False):
        assert not tag.startswith("I") or before[1:] == tag[1:]


def test_a_word_is_decided_where_it_is_most_central() -> None:
    task = Tag(kind="words", labels=("x",), max_length=12, stride=5)
    words = [str(n % 10) for n in range(20)]
    instances = task.encode([sentence(words, ["x"] * 20)], TOKENIZER)
    decided = [instances.places_of(n) for n in instances.inputs_of(0)]
    assert len(decided) == 3  # pieces 0 .. 10, 5 .. 15, 10 .. 20
    assert [[w for w in row.tolist() if w >= 0] for row in decided] == [
        list(range(8)),
        list(range(8, 13)),
        list(range(13, 20)),
    ]


def test_a_sentence_that_fits_has_one_window_and_its_own_pieces() -> None:
    task = Tag(kind="words", labels=("x",), max_length=12)
    words = ["the", "running", "cat"]
    instances = task.encode([sentence(words, ["x"] * 3)], TOKENIZER)
    assert instances.ids.tolist() == TOKENIZER.encode(" ".join(words)).ids.tolist()


def test_the_document_fills_both_sides_and_has_no_labels() -> None:
    task = Tag(kind="words", labels=("x",), max_length=9, context="document")
    texts = [["a", "b", "c"], ["d", "e"], ["f", "g", "h"], ["k"]]
    examples = [sentence(words, ["x"] * len(words), n // 3) for n, words in enumerate(texts)]
    instances = task.encode(examples, TOKENIZER)
    seen = [TOKENIZER.decode(ids) for ids in np.split(instances.ids, instances.bounds[1:-1])]
    assert seen == ["a b c d e f g", "b c d e f g h", "b c d e f g h", "k"]
    assert instances.weights.tolist() == [3, 2, 3, 1]
    alone = Tag(kind="words", labels=("x",), max_length=9).encode(examples, TOKENIZER)
    assert TOKENIZER.decode(alone.ids) == "a b c d e f g h k"


CONLL = """-DOCSTART- -X- O O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER

Rome NNP I-NP I-LOC
Paris NNP I-NP B-LOC
-DOCSTART- -X- O O

End NN I-NP O
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.pq"])
def test_lists_are_read_from_parquet(name: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"tokens": [["in", "Rome"]], "tags": [["O", "B-LOC"]]}
    parquet.write_table(pa.table(columns), tmp_path / name)
    (example,) = Tag().read(tmp_path / name).examples
    assert (example.text, example.tags) == ("in Rome", ("O", "B-LOC"))


def test_columns_are_read_with_documents_and_become_iob2(tmp_path: Path) -> None:
    data = Tag().read(write(tmp_path / "eng.train", CONLL), needs_labels=True)
    assert [example.tags for example in data.examples] == [
        ("B-ORG", "O", "B-PER"),
        ("B-LOC", "B-LOC"),
        ("O",),
    ]
    assert [example.document for example in data.examples] == [0, 0, 1]
    assert data.examples[0].text == "U.N. official Ekeus"
    task = Tag().settle(data)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert (task.kind, task.level, task.metric) == ("spans", "word", "f1")
    assert Tag(model_scheme="BIOES").settle(data).num_labels == 13


@pytest.mark.parametrize(
    ("name", "text", "words", "tags"),
    [
        ("a.txt", "中 B-LOC\n国 I-LOC\n\u3000 O\n", "中国\u3000", "B-LOC I-LOC O"),
        ("a.tsv", "text_a\tlabel\n中\x02国\tB-LOC\x02I-LOC\n", "中国", "B-LOC I-LOC"),
        ("a.jsonl", '{"words": ["a", "-", "b"], "tags": ["S-X", "O", "S-X"]}', "a-b", "B-X O B-X"),
        ("a.tsv", "a\tDT\nb\tNN\n", "ab", "DT NN"),
        ("a.txt", "a\nb\n\n", "ab", ""),
        (
            "a.jsonl",
            '{"text": "In New York.", "entities": [{"start": 3, "end": 11, "label": "LOC"}]}',
            "InNewYork.",
            "O B-LOC I-LOC O",
        ),
    ],
)  # fmt: skip
def test_many_kinds_of_files(tmp_path: Path, name: str, text: str, words: str, tags: str) -> None:
    (example,) = Tag().read(write(tmp_path / name, text)).examples
    assert "".join(example.words) == words
    assert (example.tags or ()) == tuple(tags.split())
    for word, start in zip(example.words, example.starts, strict=True):
        assert example.text[start : start + len(word)] == word


def test_places_are_those_of_the_text(tmp_path: Path) -> None:
    text = '{"text": "In  New\\tYork."}'
    (example,) = Tag().read(write(tmp_path / "a.jsonl", text)).examples
    task = Tag(kind="spans", labels=LABELS)
    logits = 9.0 * np.array(
        [[label == t for label in LABELS] for t in ("O", "B-LOC", "I-LOC", "O")]
    )
    prediction = task.decide(example, logits)
    assert prediction.entities == (Entity("LOC", 4, 12, "New\tYork"),)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a O\nb\n\nc O\n", 2, "not as many columns"),
        ("a O\nb B-LOC\n\nc B-XXX\n", 4, "a tag that the model does not have"),
        ("a O\nb B-LOC\n\nc S-LOC\n", 4, "a tag that is not IOB2"),
    ],
)
def test_broken_sentences_are_named_or_skipped(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    path = write(tmp_path / "a.txt", text)
    task = Tag(kind="spans", labels=LABELS, scheme="IOB2")
    with pytest.raises(UserError, match=rf"a\.txt, line {line}: {what}.*--skip-bad"):
        task.read(path)
    data = task.read(path, skip_bad=True)
    assert len(data.examples) == 1 and data.problems.num_skipped == 1


def test_lists_that_do_not_match_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}')
    with pytest.raises(UserError, match=r"line 1: not as many tags as words; found 2 words and 1"):
        Tag().read(path)
    path = write(tmp_path / "a.jsonl", '{"text": "ab c", "entities": [[0, 1, "X"]]}')
    with pytest.raises(UserError, match=r"line 1: a marked span that is not made of whole words"):
        Tag().read(path)
    path = write(tmp_path / "a.txt", "a\nb\n")
    with pytest.raises(UserError, match="no tags"):
        Tag().read(path, needs_labels=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("In New-York, 1999.", "In New - York , 1999 ."),
        ("他在Windows 10上工作。", "他 在 Windows 10 上 工 作 。"),
        ("हिन्दी में", "हिन्दी में"),
        ("cafe\u0301 x\u200dy", "cafe\u0301 x\u200dy"),
        ("€50 ❤\ufe0f中\ufe00国", "€ 50 ❤\ufe0f 中\ufe00 国"),
        ("カタカナ a_b", "カタカナ a _ b"),
        (" \u0301 ", "\u0301"),
        ("", ""),
    ],
)
def test_words_of_a_plain_text(text: str, words: str) -> None:
    assert [text[start:end] for start, end in split_words(text, "word")] == words.split(" ") * bool(
        words
    )


def test_marks_in_chinese_are_read_as_they_are(tmp_path: Path) -> None:
    """Without a setting; and a model of them splits a new text in the same way."""
    rows = [
        {"id": 1, "text": "中国人在Paris 2024。", "label": [[0, 2, "LOC"], [4, 9, "LOC"]]},
        {"id": 2, "text": "人在中国", "label": [[2, 4, "LOC"]]},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    data = Tag().read(path, needs_labels=True)
    assert data.examples[0].tags == ("B-LOC", "I-LOC", "O", "O", "B-LOC", "O", "O")
    task = Tag().settle(data)
    assert task.level == "word" and task.read(path).examples == data.examples


def test_a_mark_inside_a_word_says_what_to_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "カタカナ", "entities": [[0, 2, "X"]]}')
    with pytest.raises(UserError, match=r"line 1: a marked span that.*--set task.level=character"):
        Tag().read(path)
    assert Tag(level="character").read(path).examples[0].tags == ("B-X", "I-X", "O", "O")


@pytest.mark.parametrize(
    ("row", "given"),
    [
        ('{"tokens": ["a"], "ner": ["O"], "gold": ["B-X"]}', {"tags": "gold"}),
        ('{"satz": ["a"], "gold": ["B-X"]}', {"words": "satz", "tags": "gold"}),
        ('{"satz": ["a"], "ner": ["B-X"]}', {"words": "satz"}),
        ('{"tokens": ["b"], "satz": "a", "spans": [[0, 1, "X"]]}', {"text": "satz"}),
        ('{"text": "a", "gold": [[0, 1, "X"]]}', {"entities": "gold"}),
        ('{"tokens": ["b"], "text": "a", "gold": [[0, 1, "X"]]}', {"entities": "gold"}),
    ],
)
def test_what_is_not_named_is_guessed(tmp_path: Path, row: str, given: dict[str, str]) -> None:
    data = Tag(columns=given).read(write(tmp_path / "a.jsonl", row), needs_labels=True)
    (example,) = data.examples
    assert (example.words, example.tags) == (("a",), ("B-X",))
    assert data.columns.items() >= given.items()


def test_columns_that_are_known_may_be_without_tags(tmp_path: Path) -> None:
    """The model knows their names from training; a file to predict has none."""
    for row, columns in (
        ('{"tokens": ["a", "b"]}', {"words": "tokens", "tags": "ner", "id": "id"}),
        ('{"text": "a b"}', {"text": "text", "entities": "spans"}),
    ):
        data = Tag(columns=columns).read(write(tmp_path / "a.jsonl", row))
        assert not data.is_labelled and data.examples[0].words == ("a", "b")


def test_a_tiny_model_learns_its_sentences() -> None:
    examples = [
        sentence(["the", "cat", "中国", "人"], ["O", "O", "B-LOC", "I-LOC"]),
        sentence(["running", "q", "中国"] * 4, ["O", "B-PER", "B-LOC"] * 4),
    ]
    task = Tag(max_length=16).settle(Dataset(path=Path(), format="", examples=examples))
    instances = task.encode(examples, TOKENIZER)
    torch.manual_seed(0)
    model = tiny_model("token", task.num_labels).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in TaskLoader(instances, batch_size=2, micro_tokens=20, end_step=80):
        for batch in step.micro_batches:
            term = task.objective(model, batch)["task"]
            (term.total / step.num_targets["task"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    predictions = task.decode(examples, instances, predict(model, instances))
    assert task.score(examples, predictions)["f1"] > 0.9


@pytest.mark.parametrize(
    ("path", "num_sentences", "num_words"),
    [
        ("CoNLL-2003/eng.testa", 3250, 51362),
        ("CoNLL-2003/eng.testb", 3453, 46435),
        ("CoNLL-2003/iob2/valid.txt", 3250, 51362),
        ("PeoplesDaily-NER/dev.txt", 4631, 172601),
        ("MSRA-NER/dev.tsv", 2318, 109870),
    ],
)
def test_real_files_have_all_their_words(
    unpacked: Callable[[str], Path], path: str, num_sentences: int, num_words: int
) -> None:
    name, _, rest = path.partition("/")
    data = Tag().read(unpacked(name) / rest, needs_labels=True)
    assert len(data.examples) == num_sentences
    assert sum(len(example.words) for example in data.examples) == num_words


def test_both_schemes_of_conll_are_the_same_spans(unpacked: Callable[[str], Path]) -> None:
    folder = unpacked("CoNLL-2003")
    one, two = (Tag().read(folder / name).examples for name in ("eng.testa", "iob2/valid.txt"))
    assert [example.tags for example in one] == [example.tags for example in two]
