"""The engine answers as the tasks decode, as transformers' pipelines do, alone or among others."""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import bertie
from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from bertie.evaluate import predict_all
from bertie.infer import batches, verb
from bertie.infer.answers import CutOff, to_json
from bertie.infer.engine import Engine
from bertie.infer.examples import make_choice, make_pair, make_question, make_tagged, make_text
from bertie.tasks import KnownTask
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import SENTENCES, make_directory, make_foreign, make_tuned
from tests.tasks.toys import TEXTS as ODD_TEXTS

LONG = " ".join(SENTENCES * 4)
TEXTS = [*SENTENCES, "", "Paris", LONG, "\ud800\0 of", "[SEP] [MASK]"]
PAIRS = [(SENTENCES[0], SENTENCES[1]), ("", "Paris"), (LONG, "the city"), (LONG, LONG), ("a", "")]
QUESTIONS = [("Which city is it?", text) for text in TEXTS]
CHOICES = [(text, ["Paris", "the capital of France", ""]) for text in TEXTS] + [
    ("Paris", ["is", "the capital"])
]
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")

CASES: dict[str, tuple[KnownTask, str, Sequence[object]]] = {
    "classes": (Classify(kind="classes", labels=("a", "b", "c"), max_length=20), "classify", TEXTS),
    "labels": (
        Classify(kind="multi-label", labels=("x", "y"), thresholds={"x": 0.7}, max_length=24),
        "classify",
        TEXTS,
    ),
    "number": (Classify(kind="regression", center=3, spread=2, max_length=16), "classify", TEXTS),
    "pairs": (Classify(kind="classes", labels=("a", "b"), max_length=32), "classify_pairs", PAIRS),
    "spans": (Tag(kind="spans", labels=TAGS, level="word", max_length=20), "tag", TEXTS),
    "characters": (Tag(kind="spans", labels=TAGS, level="character", max_length=20), "tag", TEXTS),
    "words": (Tag(kind="words", labels=("N", "V"), level="word", max_length=20), "tag", TEXTS),
    "answers": (
        Span(max_length=30, max_question=9, stride=7, may_be_unanswerable=True, threshold=-0.3),
        "answer",
        QUESTIONS,
    ),
    "choices": (Choice(max_length=40), "choose", CHOICES),
}


def ask_all(engine: Engine, name: str, items: Sequence[object]) -> list:
    """Many at once, by the verb's form for many."""
    if name in ("answer", "choose"):
        return getattr(engine, name)([one for one, _ in items], [two for _, two in items])
    return getattr(engine, name)(items)


def ask_one(engine: Engine, name: str, item: object) -> object:
    return (
        getattr(engine, name)(*item)
        if name in ("answer", "choose")
        else getattr(engine, name)(item)
    )


def check_close(one: object, two: object) -> None:
    """Equal but for 1e-5 in the numbers."""
    one, two = to_json(one), to_json(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = list(one.values()), list(two.values())
    if isinstance(one, list):
        assert len(one) == len(two)
        for pair in zip(one, two, strict=True):
            check_close(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(two, rel=1e-5, abs=1e-5)
    else:
        assert one == two


@pytest.fixture(autouse=True)
def choices_may_be_cut() -> None:
    warnings.simplefilter("ignore", CutOff)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("answers")
    return {
        name: bertie.load(make_tuned(folder / name, task)) for name, (task, *_) in CASES.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_the_task_decodes(case: str, engines: dict[str, Engine]) -> None:
    task, name, items = CASES[case]
    engine = engines[case]
    assert engine.task == task
    make = {
        "classify": make_text,
        "classify_pairs": make_pair,
        "tag": lambda text: make_tagged(text, task.level, engine.tokenizer),
        "answer": make_question,
        "choose": make_choice,
    }
    examples = [make[name](item) for item in items]
    instances = task.encode(examples, engine.tokenizer)
    model = open_model(engine.source).model
    wanted = predict_all(model, task, examples, instances).predictions
    found = ask_all(engine, name, items)
    assert len(found) == len(wanted) == len(items)
    for answer, prediction in zip(found, wanted, strict=True):
        if name.startswith("classify"):
            check_close(answer.label, prediction.label)
            if task.kind != "regression":
                assert tuple(answer.scores) == task.labels
                check_close(list(answer.scores.values()), prediction.scores.tolist())
        elif name == "tag":
            assert tuple(word.tag for word in answer.words) == prediction.tags
            check_close([word.score for word in answer.words], prediction.scores.tolist())
            entities = [(e.label, e.start, e.end, e.text) for e in prediction.entities]
            assert [(s.label, s.start, s.end, s.text) for s in answer.spans] == entities
        elif name == "answer":
            assert (answer.text, answer.start, answer.end) == (
                prediction.text,
                prediction.start,
                prediction.end,
            )
            check_close(answer.no_answer, prediction.no_answer)
            assert len(answer.candidates) == len(prediction.candidates)
        else:
            assert answer.label == prediction.label
            check_close(list(answer.scores), prediction.scores.tolist())


@pytest.mark.parametrize("case", CASES)
def test_neighbours_order_and_batches_change_nothing(
    case: str, engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, name, items = CASES[case]
    engine = engines[case]
    alone = [ask_one(engine, name, item) for item in items]
    check_close(ask_all(engine, name, items), alone)
    check_close(ask_all(engine, name, items[::-1]), alone[::-1])
    monkeypatch.setattr(batches, "BATCH_TOKENS", 30)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 20)
    check_close(ask_all(engine, name, items), alone)
    check_close(list(getattr(engine, f"{name}_each")(iter(items))), alone)


@pytest.mark.parametrize("case", ["classes", "spans", "answers"])
def test_eight_threads_get_the_same_answers(case: str, engines: dict[str, Engine]) -> None:
    _, name, items = CASES[case]
    engine = engines[case]
    alone = ask_all(engine, name, items)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: ask_all(engine, name, items), range(16)):
            check_close(found, alone)


@pytest.mark.parametrize("case", ["classes", "spans", "characters"])
@given(text=ODD_TEXTS | st.text(max_size=80))
@settings(max_examples=25)
def test_places_are_those_of_any_text(case: str, engines: dict[str, Engine], text: str) -> None:
    _, name, _ = CASES[case]
    answer = ask_one(engines[case], name, text)
    if name == "tag":
        assert answer.text == text
        for one in (*answer.words, *answer.spans):
            assert text[one.start : one.end] == one.text
            assert 0 < one.score <= 1
        assert "".join(word.text for word in answer.words) == "".join(
            text[w.start : w.end] for w in answer.words
        )
    else:
        assert sum(answer.scores.values()) == pytest.approx(1)


@given(question=st.text(min_size=1).filter(str.strip), context=ODD_TEXTS | st.text(max_size=80))
@settings(max_examples=25)
def test_answers_are_cut_from_the_text(
    engines: dict[str, Engine], question: str, context: str
) -> None:
    answer = engines["answers"].answer(question, context)
    assert context[answer.start : answer.end] == answer.text
    for candidate in answer.candidates:
        assert context[candidate.start : candidate.end] == candidate.text
    total = sum(candidate.probability for candidate in answer.candidates)
    assert total <= 1 + 1e-9 and 0 < answer.probability <= 1


# Models that were fine-tuned elsewhere.


def pipeline(kind: type, model: str, directory: Path, **options: object) -> Callable:
    return kind(
        model=open_theirs(model, directory),
        tokenizer=transformers.AutoTokenizer.from_pretrained(directory),
        device="cpu",
        **options,
    )


def test_classes_equal_the_pipeline_of_transformers(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "sequence", ("dull", "bright", "odd"))
    ask = pipeline(
        transformers.TextClassificationPipeline, "BertForSequenceClassification", made, top_k=None
    )
    for text, found in zip(SENTENCES, bertie.load(made).classify(SENTENCES), strict=True):
        wanted = {one["label"]: one["score"] for one in ask([text])[0]}
        assert found.scores == pytest.approx(wanted, abs=1e-5)
        assert found.label == max(wanted, key=wanted.__getitem__)


def test_tags_equal_the_pipeline_of_transformers(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "token", TAGS)
    ask = pipeline(
        transformers.TokenClassificationPipeline,
        "BertForTokenClassification",
        made,
        aggregation_strategy="first",
    )
    num_spans = 0
    for text, found in zip(SENTENCES, bertie.load(made).tag(SENTENCES), strict=True):
        wanted = [(e["entity_group"], e["start"], e["end"], float(e["score"])) for e in ask(text)]
        assert [(s.label, s.start, s.end) for s in found.spans] == [one[:3] for one in wanted]
        check_close([s.score for s in found.spans], [one[3] for one in wanted])
        num_spans += len(wanted)
    assert num_spans > 3


def test_answers_of_a_foreign_model_are_the_best_pair_of_its_logits(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "span")
    theirs = open_theirs("BertForQuestionAnswering", made)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    question, context = "Which city?", SENTENCES[0]
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    output = theirs(**inputs)
    scores = (output.start_logits[0][:, None] + output.end_logits[0][None]).detach().numpy()
    inside = np.array([kind == 1 for kind in inputs.sequence_ids(0)])
    allowed = np.triu(inside[:, None] & inside[None])
    first, last = np.unravel_index(np.where(allowed, scores, -np.inf).argmax(), scores.shape)
    found = bertie.load(made).answer(question, context)
    assert (found.start, found.end) == (offsets[first][0], offsets[last][1])
    assert found.candidates[0].score == pytest.approx(float(scores[first, last]), abs=1e-4)


def test_choices_equal_the_model_of_transformers(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "choice")
    theirs = open_theirs("BertForMultipleChoice", made)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    options = ["the capital", "Paris is large", "of"]
    inputs = tokenizer(["Paris"] * 3, options, return_tensors="pt", padding=True)
    logits = theirs(**{name: value[None] for name, value in inputs.items()}).logits[0]
    found = bertie.load(made).choose("Paris", options)
    assert found.scores == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
    assert found.option == options[found.label]


@pytest.mark.parametrize(
    "labels",
    [
        ("O", "B-X", "M-X", "E-X", "S-X"),
        ("O", "B-X", "I-X", "L-X", "U-X"),
        ("O", "I-X", "I-Y"),
        ("O", "B", "I"),
        ("NOUN", "VERB"),
        ("LABEL_0", "LABEL_1"),
    ],
)
def test_foreign_tags_of_any_scheme_make_spans(labels: tuple[str, ...], tmp_path: Path) -> None:
    found = bertie.load(make_foreign(tmp_path, "token", labels)).tag(LONG)
    assert bool(found.spans) == ("O" in labels)
    assert len(found.words) > 100
    for before, after in zip(found.spans, found.spans[1:], strict=False):
        assert before.end <= after.start


def test_a_foreign_regression_gives_its_number(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "sequence", ("LABEL_0",))
    config = made / "config.json"
    config.write_text(config.read_text().replace("single_label_classification", "regression"))
    theirs = open_theirs("BertForSequenceClassification", made)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    found = bertie.load(made).classify(SENTENCES[0])
    wanted = theirs(**tokenizer(SENTENCES[0], return_tensors="pt")).logits.item()
    assert found.label == pytest.approx(wanted, abs=1e-5) and found.scores == {}


def test_what_is_odd_in_a_directory_is_said(tmp_path: Path) -> None:
    made = make_foreign(tmp_path, "sequence", ("dull", "bright"))
    values = json.loads((made / "config.json").read_text())
    values |= {"id2label": {"0": "a"}, "label2id": {"a": 0}}
    (made / "config.json").write_text(json.dumps(values))
    with pytest.warns(UserWarning, match="names 1 labels, the weights have 2"):
        engine = bertie.load(made)
    assert engine.classify("Paris").label in ("LABEL_0", "LABEL_1")


# What cannot be asked.


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("classify", "BertForSequenceClassification"),
        ("classify_pairs", "--task classify"),
        ("tag", "--task tag"),
        ("answer", "BertForQuestionAnswering"),
        ("choose", "--task choice"),
        ("score", "BertForMaskedLM"),
    ],
)
def test_a_model_without_the_head_says_which_could(verb: str, name: str, tmp_path: Path) -> None:
    heads = ("next_sentence",)
    engine = bertie.load(make_directory(tmp_path, heads))
    arguments = ("a", "b") if verb in ("answer", "choose") else ("a",)
    with pytest.raises(UserError, match=rf"cannot .* head \(heads: next_sentence\); take .*{name}"):
        getattr(engine, verb)(*arguments)


def test_a_model_of_pairs_takes_no_single_texts(tmp_path: Path) -> None:
    task = replace(CASES["pairs"][0], columns={"first": "a", "second": "b"})
    engine = bertie.load(make_tuned(tmp_path / "pairs", task))
    with pytest.raises(UserError, match="was fine-tuned on pairs; ask it with classify_pairs"):
        engine.classify("a")
    assert engine.classify_pairs(("a", "b")).label in ("a", "b")
    task = replace(CASES["classes"][0], columns={"first": "text"})
    engine = bertie.load(make_tuned(tmp_path / "single", task))
    with pytest.raises(UserError, match=r"was fine-tuned on single texts; ask it with classify$"):
        engine.classify_pairs([("a", "b")])


WRONG = {
    "nothing": ("classes", "classify", (None,), "wanted texts, or one; found NoneType"),
    "bytes": ("classes", "classify", (b"x",), "found bytes"),
    "a number": ("spans", "tag", (3,), "found int"),
    "bytes among texts": (
        "spans",
        "tag",
        (["a", b"x"],),
        "text 2: the text must be a str",
    ),
    "none in a pair": ("pairs", "classify_pairs", ([("a", None)],), "pair 1: the second text must"),
    "three texts": ("pairs", "classify_pairs", ([("a", "b", "c")],), "pair 1: wanted two texts"),
    "no question": ("answers", "answer", ("", "x"), "wanted a question; found ''"),
    "no context": ("answers", "answer", ("x?", None), "found NoneType"),
    "more questions": ("answers", "answer", (["a", "b"], ["c"]), "one side ends after 1"),
    "one option": ("choices", "choose", ("a", ["b"]), "wanted two options or more"),
    "options in a str": ("choices", "choose", ("a", "bc"), "wanted two options or more"),
    "a bad option": (
        "choices",
        "choose",
        (["a"], [["b", 1]]),
        "prompt 1: the option must",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_is_refused(name: str, engines: dict[str, Engine]) -> None:
    case, verb, arguments, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        getattr(engines[case], verb)(*arguments)


def test_nothing_asked_nothing_answered(engines: dict[str, Engine]) -> None:
    for case, (_, name, _) in CASES.items():
        assert ask_all(engines[case], name, []) == []
    assert (
        engines["answers"].answer(["Who?", "Where?"], "")
        == [engines["answers"].answer("Who?", "")] * 2
    )


def test_ten_megabytes_of_text(engines: dict[str, Engine]) -> None:
    word = "x" * 10_000_000
    assert engines["classes"].classify(word).label in "abc"
    assert engines["spans"].tag(word).words[0].end == 10_000_000
    assert engines["answers"].answer("Who?", word).text in ("", word)
    many = "Paris is the capital " * 2_000
    assert len(engines["spans"].tag(many).words) == 8_000
    assert engines["classes"].classify(many).label in "abc"


def test_what_is_cut_off_is_said(engines: dict[str, Engine]) -> None:
    with pytest.warns(CutOff, match="1 questions cut off to fit"):
        engines["answers"].answer("Paris " * 20, "Paris")


def test_each_answer_says_how_much_of_it_was_cut_off(tmp_path: Path) -> None:
    tasks = {
        "classify": Classify(kind="classes", labels=("a", "b"), max_length=8, truncate=True),
        "answer": Span(max_length=30, max_question=6),
        "choose": Choice(max_length=12, truncate=True),
    }
    opened = {name: bertie.load(make_tuned(tmp_path / name, task)) for name, task in tasks.items()}
    assert len(opened["answer"].tokenizer.ids("the")) == 1
    short, long = "the the", "the " * 20
    for _ in range(2):  # the second time, Python's default filter shows no warning
        texts = opened["classify"].classify([short, long])
        questions = opened["answer"].answer([short, long], "Paris")
        choices = opened["choose"].choose([short, long], [["the", "the"]] * 2)
        assert [one.num_cut for one in texts] == [0, 20 - 6]
        assert [one.num_cut for one in questions] == [0, 20 - 6]
        assert [one.num_cut for one in choices] == [0, 2 * (20 + 1 + 3 - 12)]
    assert to_json(questions[1])["num_cut"] == 14


def test_a_bar_only_on_a_terminal(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    engines["classes"].classify(SENTENCES)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("bertie.infer.progress.PATIENCE_S", -1.0)
    assert len(engines["classes"].classify(SENTENCES)) == len(SENTENCES)
    assert "4/4" in capsys.readouterr().err
