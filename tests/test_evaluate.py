"""A fine-tuned model on files: the run's scores, answers as files, `transformers` says the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertie.errors import UserError
from bertie.evaluate import evaluate_file, open_task
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from tests.tuned import (
    TASKS,
    tune,
    write_classes,
    write_csv,
    write_questions,
    write_task,
)

FEW = ("train.budget=12 epochs",)


@pytest.fixture(scope="module")
def tuned(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Task -> data, and the folder of a fine-tuning on them."""
    found = {}
    for task in TASKS:
        folder = tmp_path_factory.mktemp(task)
        data = write_task(task, folder)
        tune(task, *FEW, model=model, train=data, dev=data, out=folder / "out")
        found[task] = data, folder / "out"
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def softmax(logits: torch.Tensor) -> np.ndarray:
    return logits.double().softmax(-1).numpy()


# --- transformers answers the same ---


@torch.no_grad()
@pytest.mark.parametrize("task", TASKS)
def test_transformers_answers_the_same(task: str, tuned: dict[str, tuple[Path, Path]]) -> None:
    data, out = tuned[task]
    tokenizer = transformers.BertTokenizer.from_pretrained(out / "model")
    examples = open_task(out / "model").read(data).examples
    answers = lines_of(out / "predictions" / "dev.jsonl")
    assert len(examples) == len(answers) > 0
    kind = {
        "classify": transformers.BertForSequenceClassification,
        "tag": transformers.BertForTokenClassification,
        "span": transformers.BertForQuestionAnswering,
        "choice": transformers.BertForMultipleChoice,
    }[task]
    theirs = kind.from_pretrained(out / "model").eval()
    for example, answer in zip(examples, answers, strict=True):
        compare = {"classify": of_text, "tag": of_words, "span": of_question, "choice": of_options}
        compare[task](theirs, tokenizer, example, answer)


def of_text(theirs: Any, tokenizer: Any, example: Any, answer: dict[str, Any]) -> None:
    logits = theirs(**tokenizer(example.first, return_tensors="pt")).logits[0]
    np.testing.assert_allclose(answer["scores"], softmax(logits), atol=1e-5)
    assert answer["label"] == theirs.config.id2label[int(logits.argmax())] == answer["label"]


def of_words(theirs: Any, tokenizer: Any, example: Any, answer: dict[str, Any]) -> None:
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", *example.words, "[SEP]"])  # all are one piece
    shares = softmax(theirs(input_ids=torch.tensor([ids])).logits[0, 1:-1])
    np.testing.assert_allclose(answer["scores"], shares.max(-1), atol=1e-5)


def of_question(theirs: Any, tokenizer: Any, example: Any, answer: dict[str, Any]) -> None:
    found = theirs(**tokenizer(example.question, example.context, return_tensors="pt"))
    start, end = found.start_logits[0], found.end_logits[0]
    null = float(start[0] + end[0])
    best = answer["candidates"][0]["score"]
    assert answer["no_answer"] == pytest.approx(null - best, abs=1e-4)
    first = len(tokenizer(example.question)["input_ids"])
    sums = [
        float(start[i] + end[j])
        for i in range(first, len(start) - 1)
        for j in range(i, len(start) - 1)
    ]
    assert best == pytest.approx(max(sums), abs=1e-4)


def of_options(theirs: Any, tokenizer: Any, example: Any, answer: dict[str, Any]) -> None:
    contexts = [example.context] * len(example.options)
    batch = tokenizer(contexts, list(example.options), padding=True, return_tensors="pt")
    logits = theirs(**{name: value[None] for name, value in batch.items()}).logits[0]
    np.testing.assert_allclose(answer["scores"], softmax(logits), atol=1e-5)


# --- thresholds ---


def test_thresholds_fitted_on_dev_are_kept_and_used(model: Path, tmp_path: Path) -> None:
    rows = [
        {"text": f"the {'cat' if n % 2 else 'sea'} is {'good' if n % 3 else 'bad'}", "labels": own}
        for n in range(12)
        for own in [["cat"] * (n % 2) + ["good"] * (n % 3 > 0)]
    ]
    data = tmp_path / "a.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    made = tune("classify", *FEW, model=model, train=data, dev=data, out=tmp_path / "out")
    task = open_task(made.model)
    assert isinstance(task, Classify)
    assert task.kind == "multi-label" and task.thresholds.keys() == {"cat", "good"}
    card = json.loads((made.model / "task.json").read_text(encoding="utf-8"))
    assert card["thresholds"] == task.thresholds == made.results.thresholds
    assert set(task.thresholds.values()) != {0.5}
    _, evaluated, _ = evaluate_file(made.model, data)
    assert evaluated.scores == made.results.best().scores
    for prediction in evaluated.predictions:
        scores = dict(zip(task.labels, prediction.scores, strict=True))
        above = tuple(label for label in task.labels if scores[label] >= task.thresholds[label])
        assert prediction.label == above
    plain = evaluate_file(made.model, data, sets=["task.thresholds={cat=0.0, good=0.0}"])[1]
    assert all(prediction.label == ("cat", "good") for prediction in plain.predictions)


def test_the_threshold_of_no_answer_is_kept_and_used(model: Path, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "a.json", unanswerable=True)
    made = tune("span", *FEW, model=model, train=data, dev=data, out=tmp_path / "out")
    task = open_task(made.model)
    assert isinstance(task, Span) and task.may_be_unanswerable
    assert made.results.thresholds == {"no_answer": task.threshold}
    _, evaluated, written = evaluate_file(made.model, data, tmp_path / "answers")
    assert evaluated.scores == made.results.best().scores
    answers = json.loads(written[1].read_text(encoding="utf-8"))  # as SQuAD's scorer takes them
    assert written[1].name == "a.answers.json" and len(answers) == 16
    is_none = [prediction.no_answer > task.threshold for prediction in evaluated.predictions]
    assert [text == "" for text in answers.values()] == is_none


# --- files without labels ---


def test_a_file_without_labels_is_answered_and_not_scored(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    _, out = tuned["classify"]
    data = write_csv(tmp_path / "new.csv", ("text",), [("the cat",), ("",), ("a " * 90,)])
    read, evaluated, written = evaluate_file(out / "model", data, tmp_path / "answers")
    assert evaluated.scores == {} and not read.is_labelled
    answers = lines_of(written[0])
    assert [answer["id"] for answer in answers] == ["0", "1", "2"]
    assert all(answer["label"] in ("good", "bad") for answer in answers)


def test_a_test_file_of_glue_becomes_a_submission(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "RTE"
    folder.mkdir()
    rows = [
        (n, f"the cat {n % 2}", "is good", ("entailment", "not_entailment")[n % 2])
        for n in range(8)
    ]
    header = ("index", "sentence1", "sentence2", "label")
    for name, kept in (("train", 4), ("dev", 4), ("test", 3)):
        lines = ["\t".join(map(str, row[:kept])) for row in [header, *rows]]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    test = folder / "test.tsv"
    made = tune(
        *("classify", *FEW, f"data.test=['{test}']"),
        model=model,
        train=folder / "train.tsv",
        dev=folder / "dev.tsv",
        out=tmp_path / "out",
    )
    assert made.results.name == "RTE" and made.results.tests == {str(test): {}}
    submitted = (tmp_path / "out" / "predictions" / "RTE.tsv").read_text().splitlines()
    submission = dict(line.split("\t") for line in submitted[1:])
    answers = lines_of(tmp_path / "out" / "predictions" / "test.jsonl")
    assert submission == {answer["id"]: answer["label"] for answer in answers}
    assert list(submission) == [str(n) for n in range(8)]
    again = evaluate_file(made.model, test, tmp_path / "again")[2]
    assert [path.name for path in again] == ["test.jsonl", "RTE.tsv"]


def test_files_of_one_name_do_not_overwrite_each_other(model: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "a.csv")
    tests = []
    for count in (3, 5):
        (tmp_path / str(count)).mkdir()
        tests.append(write_classes(tmp_path / str(count) / "dev.csv", count))
    sets = ("train.budget=1 step", f"data.test={[str(path) for path in tests]}")
    tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    folder = tmp_path / "out" / "predictions"
    counts = {path.stem: len(lines_of(path)) for path in folder.iterdir()}
    assert counts == {"dev": 12, "dev-2": 3, "dev-3": 5}


# --- where answers go ---


def test_answers_never_replace_the_data(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by another way to its name either; and it is said before anything is predicted."""
    model = tuned["classify"][1] / "model"
    data = tmp_path / "ow" / "reviews.jsonl"
    data.parent.mkdir()
    before = '{"text": "the cat is good", "label": "good"}\n'
    data.write_text(before, encoding="utf-8")
    (tmp_path / "link").symlink_to(data.parent)
    monkeypatch.setattr("bertie.evaluate.predict_all", None)
    for out in (data.parent, tmp_path / "link", data.parent / ".." / "ow"):
        with pytest.raises(UserError, match=r"would replace .*reviews.jsonl; take another --out"):
            evaluate_file(model, data, out)
    assert data.read_text(encoding="utf-8") == before


def test_a_folder_that_cannot_be_one_is_refused_before_anything_is_predicted(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tuned["classify"]
    (tmp_path / "isafile").write_text("x", encoding="utf-8")
    monkeypatch.setattr("bertie.evaluate.predict_all", None)
    with pytest.raises(UserError, match="isafile cannot be a folder: File exists; take another"):
        evaluate_file(out / "model", data, tmp_path / "isafile")


def test_the_scores_are_there_before_the_answers(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    data, out = tuned["classify"]
    seen = []

    def note(read: Any, evaluated: Any) -> None:
        seen.append((len(read.examples), evaluated.scores, list(tmp_path.iterdir())))

    _, evaluated, written = evaluate_file(out / "model", data, tmp_path, on_scores=note)
    assert seen == [(12, evaluated.scores, [])] and written == [tmp_path / "set.jsonl"]


# --- mistakes ---


def test_a_model_that_was_not_fine_tuned_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say what it was fine-tuned for"):
        evaluate_file(model, write_classes(tmp_path / "a.csv"))


def test_labels_that_are_not_the_models_are_named(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    model = tuned["classify"][1] / "model"
    data = write_csv(tmp_path / "a.csv", ("text", "label"), [("the cat", "bad"), ("a dog", "x")])
    with pytest.raises(UserError, match=r"a.csv, line 3: a label that the model does not have"):
        evaluate_file(model, data)
    read, evaluated, _ = evaluate_file(model, data, skip_bad=True)
    assert len(evaluated.predictions) == 1 and read.problems.num_skipped == 1


def test_columns_of_another_name_can_be_named(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    data, out = tuned["classify"]
    other = tmp_path / "b.csv"
    other.write_text(data.read_text().replace("text,label", "body,kind", 1), encoding="utf-8")
    with pytest.raises(UserError, match="has no column 'text' for first; there are: body, kind"):
        evaluate_file(out / "model", other)
    sets = ["task.columns.first=body", "task.columns.label=kind"]
    again = evaluate_file(out / "model", other, sets=sets)[1].scores
    assert again == evaluate_file(out / "model", data)[1].scores
    with pytest.raises(UserError, match=r"only task.\* can be set; found 'train.seed=1'"):
        evaluate_file(out / "model", other, sets=["train.seed=1"])


def test_a_column_of_labels_that_is_not_there_is_named(
    tuned: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Not taken for a file without labels; which it may be, if nothing was asked for."""
    data, out = tuned["classify"]
    with pytest.raises(UserError, match=r"set.csv has no column 'lable' for label"):
        evaluate_file(out / "model", data, sets=["task.columns.label=lable"])
    bare = write_csv(tmp_path / "a.csv", ("text",), [("the cat",)])
    assert not evaluate_file(out / "model", bare)[0].is_labelled


def test_entities_are_written_with_their_places(tuned: dict[str, tuple[Path, Path]]) -> None:
    data, out = tuned["tag"]
    texts = [example.text for example in open_task(out / "model").read(data).examples]
    found = [answer["entities"] for answer in lines_of(out / "predictions" / "dev.jsonl")]
    assert any(found)
    for text, entities in zip(texts, found, strict=True):
        assert all(text[one["start"] : one["end"]] == one["text"] for one in entities)
        assert all(one["label"] in ("LOC", "PER") for one in entities)
