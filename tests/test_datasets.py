"""Data of a fine-tuning: no text on both sides, lengths the model has, every bad line named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.datasets import DataFiles, Sets, hold_out, read_sets
from bertie.errors import UserError
from bertie.tasks.classify import Classify, TextExample
from bertie.tasks.tag import Tag
from bertie.tasks.task import Dataset
from tests.tuned import (
    make_model,
    write_choices,
    write_classes,
    write_csv,
    write_questions,
    write_tags,
    write_task,
)


def read(model: Path, task: str, train: Path, dev: Path | None = None, **settings: object) -> Sets:
    named = {
        name: settings.pop(name) for name in ("test", "skip_bad", "dev_share") & settings.keys()
    }
    return read_sets(
        {"name": task, **settings},
        DataFiles(train=train, dev=dev, **named),  # type: ignore[arg-type]
        model,
    )


# --- held out ---


def dataset(texts: list[str]) -> Dataset[TextExample]:
    examples = [
        TextExample(place=f"line {n}", id=str(n), first=text, label="ab"[n % 2])
        for n, text in enumerate(texts)
    ]
    return Dataset(path=Path("x.csv"), format="", examples=examples)


@given(
    texts=st.lists(st.text(max_size=4), min_size=2, max_size=60).filter(lambda t: len(set(t)) > 1),
    share=st.floats(0.01, 0.99),
)
def test_no_text_is_on_both_sides_and_none_is_lost(texts: list[str], share: float) -> None:
    try:
        train, dev = hold_out(Classify(), dataset(texts), share)
    except UserError as error:
        assert "one text only" in str(error) and round(share * len(set(texts))) == len(set(texts))
        return
    sides = [{example.first for example in side.examples} for side in (train, dev)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    assert len(train.examples) + len(dev.examples) == len(texts)
    assert len(sides[1]) == max(1, round(share * len(set(texts))))


def test_what_is_held_out_depends_on_the_text_alone() -> None:
    texts = [f"text {n}" for n in range(50)]
    held = [
        {example.first for example in hold_out(Classify(), dataset(order), 0.1)[1].examples}
        for order in (texts, texts[::-1])
    ]
    assert held[0] == held[1] and len(held[0]) == 5


def test_of_documents_that_are_read_as_a_whole_whole_ones_are_held_out(
    model: Path, tmp_path: Path
) -> None:
    data = write_tags(tmp_path / "a.conll", 23)
    sets = read(model, "tag", data, context="document", dev_share=0.4)
    sides = [{e.document for e in side.examples} for side in (sets.train, sets.dev)]
    assert not sides[0] & sides[1] and len(sides[1]) == 2
    assert isinstance(sets.task, Tag) and sets.task.context == "document"


def test_questions_about_one_text_stay_together(model: Path, tmp_path: Path) -> None:
    sets = read(model, "span", write_questions(tmp_path / "a.json", 20, unanswerable=True))
    contexts = [{e.context for e in side.examples} for side in (sets.train, sets.dev)]
    assert not contexts[0] & contexts[1]
    assert len(sets.dev.examples) == 2 * len(contexts[1])


def test_a_single_text_cannot_be_divided(model: Path, tmp_path: Path) -> None:
    rows = [("the cat", "a"), ("the cat", "b")]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    with pytest.raises(UserError, match="one text only; give examples to choose by: --dev FILE"):
        read(model, "classify", data)


# --- lengths ---


def test_a_length_left_open_is_what_the_model_can_read(model: Path, tmp_path: Path) -> None:
    for task, usual in (("classify", 128), ("tag", 128), ("span", 384), ("choice", 128)):
        data = write_task(task, tmp_path)
        sets = read(model, task, data)
        assert sets.task.max_length == 48
        assert sets.notes[0] == "inputs of up to 48 pieces: the model has no more positions"
        assert max(sets.train_instances.lengths) > 0
        large = make_model(tmp_path / task, max_positions=512)
        assert read(large, task, data).task.max_length == usual


@pytest.mark.parametrize("task", ["classify", "tag", "span", "choice"])
def test_a_length_that_is_asked_for_is_had_or_refused(
    task: str, model: Path, tmp_path: Path
) -> None:
    data = write_task(task, tmp_path)
    more = {"max_question": 10} if task == "span" else {}
    assert read(model, task, data, max_length=20, **more).task.max_length == 20
    message = f"task.max_length 49 is more than the 48 positions of {model}; lower it: --set task"
    with pytest.raises(UserError, match=message):
        read(model, task, data, max_length=49, **more)


def test_long_texts_become_windows_and_cutting_is_counted(model: Path, tmp_path: Path) -> None:
    rows = [("the cat " * 50, "a"), ("the dog", "b"), ("the sea " * 30, "a"), ("a film", "b")]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    windows = read(model, "classify", data, data)
    assert "train: 2 texts in windows" in windows.remarks
    assert len(windows.train_instances.draws) - 1 == 4 and len(windows.train_instances) > 6
    cut = read(model, "classify", data, data, truncate=True)
    assert "train: 2 texts cut off" in cut.remarks and "dev: 2 texts cut off" in cut.remarks
    assert "train: 68 pieces cut off" in cut.remarks
    assert len(cut.train_instances.bounds) - 1 == 4


# --- labels ---


def test_a_dev_without_labels_is_refused(model: Path, tmp_path: Path) -> None:
    train = write_classes(tmp_path / "a.csv")
    dev = write_csv(tmp_path / "dev.csv", ("text",), [("the cat",)])
    with pytest.raises(UserError, match=r"dev.csv has no labels to choose by; leave --dev out"):
        read(model, "classify", train, dev)
    words = tmp_path / "dev.conll"
    words.write_text("the\ncat\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dev.conll has no labels to choose by"):
        read(model, "tag", write_tags(tmp_path / "a.conll"), words)
    questions = json.loads(write_questions(tmp_path / "a.json").read_text())
    for article in questions["data"]:
        del article["paragraphs"][0]["qas"][0]["answers"]
        article["paragraphs"][0]["qas"][0].pop("is_impossible")
    (tmp_path / "dev.json").write_text(json.dumps(questions))
    with pytest.raises(UserError, match=r"dev.json has no labels to choose by"):
        read(model, "span", tmp_path / "a.json", tmp_path / "dev.json")


def test_a_test_without_labels_is_fine(model: Path, tmp_path: Path) -> None:
    train = write_classes(tmp_path / "a.csv")
    test = write_csv(tmp_path / "test.csv", ("text",), [("the cat",), ("",)])
    sets = read(model, "classify", train, test=(test,))
    assert len(sets.tests[0].examples) == 2 and not sets.tests[0].is_labelled


def test_labels_that_an_example_lacks_are_told(model: Path, tmp_path: Path) -> None:
    rows = [("the cat", "a"), ("a dog", "b"), ("the sea", "c")]
    train = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    dev = write_csv(tmp_path / "dev.csv", ("text", "label"), rows[1:2])
    assert read(model, "classify", train, train).remarks == ()
    assert read(model, "classify", train, dev).remarks == ("dev: no example has the label a, c",)
    held_out = read(model, "classify", train)  # one of three
    (gone,) = held_out.dev.examples
    assert f"train: no example has the label {gone.label}" in held_out.remarks
    (tmp_path / "a.conll").write_text("ann B-PER\nlee I-PER\nin O\nrome B-LOC\n\nann B-PER\n")
    (tmp_path / "dev.conll").write_text("in O\nrome B-LOC\n")
    (remark,) = read(model, "tag", tmp_path / "a.conll", tmp_path / "dev.conll").remarks
    assert remark == "dev: no example has the label PER"  # a B without an I is nothing special


def test_what_is_held_out_does_not_repeat_what_was_left_out(model: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "a.csv", 12)
    data.write_text(data.read_text() + ",good\n", encoding="utf-8")
    remarks = read(model, "classify", data, skip_bad=True).remarks
    assert [line.partition(":")[0] for line in remarks if "left out" in line] == ["train"]
    remarks = read(model, "classify", data, data, skip_bad=True).remarks
    assert [line.partition(":")[0] for line in remarks if "left out" in line] == ["train", "dev"]


def test_a_file_without_documents_says_that_sentences_are_alone(
    model: Path, tmp_path: Path
) -> None:
    data = write_tags(tmp_path / "a.conll")
    assert read(model, "tag", data, data, context="document").remarks == ()
    text = data.read_text(encoding="utf-8").replace("-DOCSTART- -X- O\n\n", "")
    bare = tmp_path / "bare.conll"
    bare.write_text(text, encoding="utf-8")
    (remark,) = read(model, "tag", data, bare, context="document").remarks
    assert remark.startswith("dev: 12 sentences are read without their neighbours")
    assert "-DOCSTART-" in remark
    assert read(model, "tag", bare, bare).remarks == ()


def test_a_column_that_training_lacks_is_named(model: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"a.csv has no column 'number' for id"):
        read(model, "classify", data, columns={"id": "number"})


# --- bad input ---


def bad_label(folder: Path) -> Path:
    return write_csv(
        folder / "dev.csv", ("text", "label"), [("the cat", "good"), ("a dog", "ugly")]
    )


def bad_text(folder: Path) -> Path:
    return write_csv(folder / "dev.csv", ("text", "label"), [("the cat", "good"), (" ", "good")])


def bad_row(folder: Path) -> Path:
    (folder / "dev.csv").write_text("text,label\nthe cat,good\na,b,c\n", encoding="utf-8")
    return folder / "dev.csv"


def bad_missing_label(folder: Path) -> Path:
    return write_csv(folder / "dev.csv", ("text", "label"), [("the cat", "good"), ("a dog", "")])


def bad_columns(folder: Path) -> Path:
    (folder / "dev.conll").write_text("the X O\ncat X O\n\nthe O\n", encoding="utf-8")
    return folder / "dev.conll"


def bad_tag(folder: Path) -> Path:
    (folder / "dev.conll").write_text("the X O\n\ncat X B-MISC\n", encoding="utf-8")
    return folder / "dev.conll"


def bad_option(folder: Path) -> Path:
    path = write_choices(folder / "dev.csv", 2)
    path.write_text(path.read_text().removesuffix("1\n") + "7\n", encoding="utf-8")
    return path


BAD: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "an unknown label": (
        "classify",
        bad_label,
        "dev.csv, line 3: a label that the model does not have; found 'ugly', the model's are: "
        "bad, good",
    ),
    "an empty text": ("classify", bad_text, "dev.csv, line 3: empty text in the column 'text'"),
    "a ragged row": ("classify", bad_row, "dev.csv, line 3: not as many columns"),
    "no label": ("classify", bad_missing_label, "dev.csv, line 3: no label in the column 'label'"),
    "a broken line": ("tag", bad_columns, "dev.conll, line 4: not as many columns"),
    "an unknown tag": (
        "tag",
        bad_tag,
        "dev.conll, line 3: a tag that the model does not have; found 'B-MISC'",
    ),
    "no such option": ("choice", bad_option, "dev.csv, line 3: a label that is not an option"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_and_can_be_left_out(name: str, model: Path, tmp_path: Path) -> None:
    task, write, message = BAD[name]
    train = write_task(task, tmp_path)
    folder = tmp_path / "bad"
    folder.mkdir()
    dev = write(folder)
    with pytest.raises(UserError) as caught:
        read(model, task, train, dev)
    assert message in str(caught.value) and "--skip-bad" in str(caught.value)
    assert "\n" not in str(caught.value)
    sets = read(model, task, train, dev, skip_bad=True)
    assert len(sets.dev.examples) == 1
    (remark,) = [line for line in sets.remarks if line.startswith("dev: left out")]
    kind = message.split(": ")[1].split(";")[0]
    assert remark.startswith(f"dev: left out 1: {kind}") and str(dev) in remark


def test_an_answer_that_is_not_at_its_offset(model: Path, tmp_path: Path) -> None:
    train = write_questions(tmp_path / "a.json")
    train.write_text(train.read_text().replace('"answer_start": 1', '"answer_start": 9', 1))
    with pytest.raises(UserError, match=r"question 0-where: an answer that is not at its offset"):
        read(model, "span", train)
    sets = read(model, "span", train, skip_bad=True)
    assert any("left out 1: an answer that is not at its offset" in line for line in sets.remarks)


def test_a_missing_column_is_named_with_those_there_are(model: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "a.csv", ("words", "label"), [("the cat", "a"), ("a dog", "b")])
    with pytest.raises(UserError, match=r"which column is the text\? There are: words, label"):
        read(model, "classify", data)
    sets = read(model, "classify", data, columns={"first": "words"})
    assert "columns: label = label, first = words" in sets.notes[1]
    unlabelled = write_csv(tmp_path / "b.csv", ("text", "kind"), [("the cat", "a")])
    with pytest.raises(UserError, match=r"no column of labels; there are: text, kind"):
        read(model, "classify", unlabelled)


def test_a_bad_test_file_is_found_before_anything_is_trained(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dev.csv, line 3"):
        read(model, "classify", write_classes(tmp_path / "a.csv"), test=(bad_label(tmp_path),))
