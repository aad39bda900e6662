"""A file read for predictions gives the examples that the task itself reads, without labels."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.data import blocks
from bertie.errors import UserError
from bertie.infer import file_examples
from bertie.infer.file_examples import find_format, read_column, read_examples
from bertie.tasks import KnownTask
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.sentences import Level
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tasks.task import Rejects
from tests.tasks.toys import TOKENIZER

CLASSES = Classify(kind="classes", labels=("0", "1"))
TAGS = Tag(kind="spans", labels=("O", "B-X", "I-X"), level="word")
FILES: dict[str, tuple[KnownTask, str, list[dict]]] = {
    "texts": (CLASSES, "a.csv", [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}]),
    "named": (
        replace(CLASSES, columns={"first": "body", "label": "stars"}),
        "a.jsonl",
        [{"body": "a", "title": "t", "id": "x7"}, {"body": "b", "title": "u", "id": "x8"}],
    ),
    "pairs": (
        replace(CLASSES, benchmark="RTE"),
        "RTE/dev.tsv",
        [{"index": "3", "sentence1": "a", "sentence2": 'b "', "label": "entailment"}],
    ),
    "words": (TAGS, "a.jsonl", [{"tokens": ["the", "cat"], "tags": ["O", "B-X"]}]),
    "marked": (TAGS, "b.jsonl", [{"text": "the cat.", "entities": [[4, 7, "X"]]}]),
    "characters": (
        replace(TAGS, level="character"),
        "c.jsonl",
        [{"tokens": ["中", "国"], "tags": ["B-X", "I-X"]}],
    ),
    "questions": (Span(), "a.jsonl", [{"question": "q", "context": "c", "answer": "c", "id": "i"}]),
    "choices": (Choice(), "a.csv", [{"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d"}]),
}


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        return path
    joint = "," if path.suffix == ".csv" else "\t"
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    path.write_text("".join(joint.join(map(str, line)) + "\n" for line in lines), "utf-8")
    return path


def without_labels(example: object) -> object:
    for name in ("label", "tags", "answers"):
        if hasattr(example, name):
            return replace(example, **{name: None})  # type: ignore[type-var]
    return example


@pytest.mark.parametrize("name", FILES)
def test_examples_are_those_of_the_task(name: str, tmp_path: Path) -> None:
    task, file, rows = FILES[name]
    path = write(tmp_path / file, rows)
    found = list(read_examples(path, task, TOKENIZER, Rejects()))
    asked = [
        {k: v for k, v in row.items() if k not in ("label", "tags", "entities")} for row in rows
    ]
    again = write(tmp_path / "again" / path.name, asked)
    wanted = map(without_labels, task.read(again).examples)
    assert [replace(one, place="") for one in found] == [replace(one, place="") for one in wanted]
    assert len(found) == len(rows)


def test_lines_of_text_need_no_column(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\n\nx\n")
    task = replace(CLASSES, columns={"first": "review", "label": "stars"})
    found = list(read_examples(tmp_path / "a.txt", task, TOKENIZER, Rejects()))
    assert [(e.id, e.first) for e in found] == [("0", "the cat"), ("1", ""), ("2", "x")]
    tagged = list(read_examples(tmp_path / "a.txt", TAGS, TOKENIZER, Rejects()))
    assert [e.words for e in tagged] == [("the", "cat"), (), ("x",)]


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        (Span(), "a.txt", "q\n", "lines of text; the model wants a question and a context"),
        (Choice(), "a.txt", "q\n", "the model wants a context and options"),
        (CLASSES, "a.csv", "x,y\n1,2\n", r"which column is the text\? There are: x, y"),
        (TAGS, "a.csv", "x,y\n1,2\n", "no column of words or texts; there are: x, y"),
        (Span(), "a.csv", "x,y\n1,2\n", "no column of the question"),
        (
            replace(CLASSES, columns={"first": "a", "second": "b"}),
            "a.txt",
            "x\n",
            r"fine-tuned on pairs; .*a\.txt \(lines of text\) has single texts",
        ),
    ],
)
def test_what_does_not_fit_the_task_is_said(
    task: KnownTask, name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_examples(tmp_path / name, task, TOKENIZER, Rejects()))


CONLL = """-DOCSTART- -X- O

the DT O
cat NN B-X

a DT O

-DOCSTART- -X- O

dog NN B-X
"""
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": f"t{n}",
            "paragraphs": [
                {
                    "context": "ein Käse, a [dog] {x}",
                    "qas": [
                        {"id": f"{n}-{m}", "question": "what?", "answers": []} for m in range(2)
                    ],
                }
            ],
        }
        for n in range(3)
    ],
}
CMRC = [
    {"context_id": "D", "context_text": "c", "qas": [{"query_id": "q", "query_text": "?"}]},
    {"context_id": "E", "context_text": "d", "qas": []},
]


@pytest.mark.parametrize("level", ["word", "character"])
@pytest.mark.parametrize("name", ["a.conll", "eng.testa", "a.txt", "a.conll.gz", "words.conll"])
def test_columns_are_the_sentences_that_a_tagger_reads(
    name: str, level: Level, tmp_path: Path
) -> None:
    text = CONLL if name != "words.conll" else "the\ncat\n\na\n"
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    task = replace(TAGS, level=level)
    found = list(read_examples(tmp_path / name, task, TOKENIZER, Rejects()))
    assert found == [without_labels(one) for one in task.read(tmp_path / name).examples]
    assert found[0].words == ("the", "cat") and found[0].tags is None
    assert find_format(tmp_path / name, task) == "conll"


@pytest.mark.parametrize("text", ["the cat\nB-12 vitamin\n", "plan B\nplan O\n", "", "O\nO\n"])
def test_lines_of_text_are_no_columns(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert find_format(tmp_path / "a.txt", TAGS) == "text"
    tables = {"a.tsv": "text\tlabel\na\tO\n", "b.tsv": "text_a\tlabel\na\x02b\tO\x02O\n"}
    for name, table in tables.items():
        (tmp_path / name).write_text(table)
        assert find_format(tmp_path / name, TAGS) == "tsv"


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(("tree", "format"), [(SQUAD, "squad"), (CMRC, "cmrc")])
def test_questions_of_squad_and_cmrc_are_those_that_the_task_reads(
    tree: object, format: str, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(tree, indent=indent, ensure_ascii=indent is None), "utf-8")
    monkeypatch.setattr(blocks, "CHUNK", 7)  # letters and articles are cut anywhere
    monkeypatch.setattr(file_examples, "PEEKED", 60)
    assert find_format(path, Span(), format) == format
    found = list(read_examples(path, Span(), TOKENIZER, Rejects(), format=format))
    assert found == [without_labels(one) for one in Span().read(path).examples]
    assert all(one.answers is None for one in found)
    monkeypatch.undo()
    assert find_format(path, Span()) == format
    assert list(read_examples(path, Span(), TOKENIZER, Rejects())) == found
    cut = path.read_text("utf-8")[:-20]
    path.write_text(cut, "utf-8")
    with pytest.raises(UserError, match=r"a\.json is not JSON, or ends too early; is it complete"):
        list(read_examples(path, Span(), TOKENIZER, Rejects()))


def test_a_format_of_another_task_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}')
    with pytest.raises(UserError, match="conll is for taggers; the model does something else"):
        find_format(path, CLASSES, "conll")
    with pytest.raises(UserError, match="does not begin as SQuAD's and CMRC's files do"):
        list(read_examples(path, Span(), TOKENIZER, Rejects(), format="squad"))
    with pytest.raises(
        UserError, match=r"no format 'xml'; there are: text, .*, conll, squad, cmrc"
    ):
        find_format(path, TAGS, "xml")
    for format in (None, "conll"):
        with pytest.raises(UserError, match=r"no file .*none\.conll"):
            find_format(tmp_path / "none.conll", TAGS, format)


def test_a_column_of_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"review": "a", "other": "b"}])
    assert list(read_column(path, Rejects())) == ["a"]
    assert list(read_column(path, Rejects(), column="other")) == ["b"]
    with pytest.raises(UserError, match=r"which column is the text.*--column NAME"):
        list(read_column(path, Rejects(), column="none"))
