"""What the answers show: tables, confusions, sureness, intervals and the worst errors of a task."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertie.findings import find_interval, find_majority, make_findings
from bertie.metrics.classes import ClassScore
from bertie.metrics.intervals import bootstrap_interval
from bertie.tasks.choice import Choice, ChoiceExample, ChoicePrediction
from bertie.tasks.classify import Classify, TextExample, TextPrediction
from bertie.tasks.questions import Answer, SpanExample
from bertie.tasks.sentences import TagExample, make_example
from bertie.tasks.span import Candidate, Span, SpanPrediction
from bertie.tasks.tag import Tag, TagPrediction
from tests.report.checker import check_page
from tests.tuned import TASKS, make_model, tune, write_task, write_words

CLASSES = Classify(kind="classes", labels=("no", "yes"), metric="accuracy")


def text(number: int, label: object, second: str | None = None) -> TextExample:
    return TextExample(
        place=f"a.csv, line {number}",
        id=str(number),
        first=f"t{number}",
        second=second,
        label=label,
    )


def guess(*scores: float) -> TextPrediction:
    return TextPrediction(label=("no", "yes")[int(np.argmax(scores))], scores=np.array(scores))


def test_of_classes() -> None:
    examples = [text(1, "no"), text(2, "yes", "more"), text(3, "yes"), text(4, "yes")]
    predictions = [guess(0.9, 0.1), guess(0.6, 0.4), guess(0.8, 0.2), guess(0.2, 0.8)]
    found = make_findings(CLASSES, examples, predictions)
    assert found.labels == ("no", "yes") and found.confusion == ((1, 0), (2, 1))
    assert found.class_scores["yes"].recall == pytest.approx(1 / 3)
    assert found.class_scores["yes"].support == 3
    assert [(e.text, e.gold, e.predicted) for e in found.errors] == [
        ("t3", "yes", "no"),  # the surest first
        ("t2 | more", "yes", "no"),
    ]
    assert found.errors[0].place == "a.csv, line 3" and found.errors[0].confidence == 0.8
    assert found.calibration is not None
    assert sum(bin.num_examples for bin in found.calibration.bins) == 4
    low, high = found.interval or (2, 2)
    assert 0 <= low <= 0.5 <= high <= 1
    assert make_findings(CLASSES, examples, predictions) == found  # no chance in it


def test_of_numbers_the_farthest_off_come_first() -> None:
    task = Classify(kind="regression", metric="pearson")
    examples = [text(1, 1.0), text(2, 2.0), text(3, 3.0)]
    predictions = [TextPrediction(label=v, scores=np.array([v])) for v in (1.5, 0.0, 3.25)]
    found = make_findings(task, examples, predictions)
    assert found.gold_and_predicted == ((1.0, 1.5), (2.0, 0.0), (3.0, 3.25))
    assert [error.text for error in found.errors] == ["t2", "t1", "t3"]
    assert found.calibration is None and found.confusion == ()


def test_of_several_labels() -> None:
    task = Classify(
        kind="multi-label", labels=("a", "b", "c"), metric="micro_f1", thresholds={"a": 0.25}
    )
    examples = [text(1, ("a", "b"), "pair"), text(2, ()), text(3, ("c",))]
    answers = [(("a",), 0.9), (("a", "b"), 0.7), (("c",), 0.6)]
    predictions = [TextPrediction(label=n, scores=np.array([s, 0, 0])) for n, s in answers]
    found = make_findings(task, examples, predictions)
    assert [(e.text, e.gold, e.predicted) for e in found.errors] == [
        ("t1 | pair", "a, b", "a"),
        ("t2", "(none)", "a, b"),
    ]
    assert found.class_scores["a"] == ClassScore(precision=0.5, recall=1, f1=2 / 3, support=1)
    assert found.class_scores["b"].f1 == 0 and found.class_scores["c"].f1 == 1
    assert found.thresholds == {"a": 0.25}


def sentence(*pairs: str) -> TagExample:
    words, tags = zip(*(pair.split("/") for pair in pairs), strict=True)
    return make_example(words, tags, place="a.conll, line 1", id="1")


def test_of_spans() -> None:
    task = Tag(kind="spans", labels=("O", "B-X", "I-X", "B-Y", "I-Y"), metric="f1")
    examples = [sentence("a/B-X", "b/I-X", "c/O"), sentence("a/B-Y")]
    predictions = [
        TagPrediction(tags=("B-X", "I-X", "O"), scores=np.array([0.9, 0.8, 0.7])),
        TagPrediction(tags=("B-X",), scores=np.array([0.6])),
    ]
    found = make_findings(task, examples, predictions)
    assert found.class_scores.keys() == {"X", "Y"}
    assert found.class_scores["X"].precision == 0.5 and found.class_scores["Y"].recall == 0
    assert [(e.gold, e.predicted, e.confidence) for e in found.errors] == [("B-Y", "B-X", 0.6)]
    assert found.calibration is not None
    right = [one.accuracy for one in found.calibration.bins if one.num_examples]
    assert right == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("metric", ["f1", "accuracy"])
def test_the_interval_of_tags_is_that_of_their_score(metric: str) -> None:
    chance = np.random.default_rng(2)
    labels = ("O", "B-X", "I-X", "B-Y")
    drawn = chance.integers(len(labels), size=(2, 9, 6))
    gold, guessed = ([[labels[n] for n in row] for row in side] for side in drawn)
    task = Tag(kind="spans", labels=labels, metric=metric)
    examples = [sentence(*(f"w/{tag}" for tag in tags)) for tags in gold]
    predictions = [TagPrediction(tags=tuple(tags), scores=np.ones(6)) for tags in guessed]

    def score(numbers: np.ndarray) -> float:
        return task.score([examples[n] for n in numbers], [predictions[n] for n in numbers])[metric]

    assert find_interval(task, examples, predictions) == bootstrap_interval(score, len(examples))


def test_of_words() -> None:
    task = Tag(kind="words", labels=("N", "V"), metric="accuracy")
    predictions = [TagPrediction(tags=("N", "N"), scores=np.array([0.9, 0.5]))]
    found = make_findings(task, [sentence("a/N", "b/V")], predictions)
    assert found.confusion == ((1, 0), (1, 0)) and found.class_scores["V"].recall == 0


def question(number: int, *answers: str) -> SpanExample:
    found = tuple(Answer(text=answer, start=0) for answer in answers)
    place = f"a.json, question {number}"
    return SpanExample(place=place, id=str(number), question="q?", context="c", answers=found)


def answer(said: str, *scores: float, no_answer: float = 0.0) -> SpanPrediction:
    candidates = tuple(Candidate(text=said, start=0, end=1, score=score) for score in scores)
    return SpanPrediction(text=said, start=0, end=1, no_answer=no_answer, candidates=candidates)


def test_of_answers() -> None:
    task = Span(may_be_unanswerable=True, language="english", threshold=1.5)
    examples = [question(1, "the cat", "cat"), question(2), question(3, "dog")]
    predictions = [answer("cat", 2.0, 1.0), answer("sea", 1.0, 1.0)]
    predictions.append(answer("", 3.0, -9.0, no_answer=2.0))
    found = make_findings(task, examples, predictions)
    assert [(e.gold, e.predicted) for e in found.errors] == [
        ("dog", "(no answer)"),
        ("(no answer)", "sea"),
    ]
    # Shares of the candidates and of no answer, whose score is 2 or 0 above the best one's here.
    none = np.exp(2) / (np.exp(2) + 1)
    assert [e.confidence for e in found.errors] == pytest.approx([none, 1 / 3], abs=1e-5)
    assert found.thresholds == {"no_answer": 1.5}
    assert found.interval is not None and found.interval[0] <= 1 / 3 <= found.interval[1]


def option(number: int, label: int, *options: str) -> ChoiceExample:
    return ChoiceExample(
        place="a.csv, line 2", id=str(number), context="c", options=options, label=label
    )


def test_of_choices_of_any_number() -> None:
    examples = [option(1, 0, "a", "b"), option(2, 2, "a", "b", "c")]
    predictions = [
        ChoicePrediction(label=0, scores=np.array([0.7, 0.3])),
        ChoicePrediction(label=1, scores=np.array([0.1, 0.8, 0.1])),
    ]
    found = make_findings(Choice(), examples, predictions)
    assert [(e.gold, e.predicted) for e in found.errors] == [("c", "b")]
    assert found.calibration is not None
    assert found.calibration.error == pytest.approx((0.3 + 0.8) / 2)


def test_errors_are_the_worst_thirty() -> None:
    examples = [text(n, "yes") for n in range(60)]
    predictions = [guess(0.5 + n / 200, 0.5 - n / 200) for n in range(60)]
    found = make_findings(CLASSES, examples, predictions)
    assert [error.text for error in found.errors] == [f"t{n}" for n in range(59, 29, -1)]


# --- always the same answer ---


def test_the_majority_of_each_task() -> None:
    train, dev = [text(1, "no"), text(2, "yes"), text(3, "yes")], [text(4, "yes"), text(5, "no")]
    assert find_majority(CLASSES, train, dev) == 0.5
    matthews = Classify(kind="classes", labels=("no", "yes"), metric="matthews")
    assert find_majority(matthews, train, dev) == 0
    sets = Classify(kind="multi-label", labels=("a", "b"), metric="micro_f1")
    labels = [text(1, ("a",)), text(2, ("a",)), text(3, ("a", "b"))]
    assert find_majority(sets, labels, labels) == pytest.approx(6 / 7)  # 3 right, 1 missed
    labels += [text(4, ()), text(5, ()), text(6, ())]  # no label is most frequent: F1 0
    assert find_majority(sets, labels, labels) == pytest.approx(6 / 10)  # a: 3 right, 3 too many
    macro = Classify(kind="multi-label", labels=("a", "b"), metric="macro_f1")
    assert find_majority(macro, labels, labels) == pytest.approx((6 / 9 + 2 / 7) / 2)  # a and b
    exact = Classify(kind="multi-label", labels=("a", "b"), metric="exact")
    assert find_majority(exact, labels, labels) == 0.5  # none
    rare = Classify(kind="classes", labels=("no", "yes"), metric="f1", positive="no")
    assert find_majority(rare, train, train) == pytest.approx(2 / 4)  # always no: 1 right of 3
    assert find_majority(Classify(kind="regression", metric="pearson"), train, dev) is None
    words = [sentence("a/N", "b/N", "c/V")]
    nouns = Tag(kind="words", labels=("N", "V"), metric="accuracy")
    assert find_majority(nouns, words, words) == pytest.approx(2 / 3)
    spans = [sentence("a/O", "b/O", "c/B-X")]
    tags = Tag(kind="spans", labels=("O", "B-X", "I-X"), metric="f1")
    assert find_majority(tags, spans, spans) == 0
    options = [option(1, 1, "a", "b"), option(2, 1, "a", "b"), option(3, 0, "a", "b")]
    assert find_majority(Choice(), options, options) == pytest.approx(2 / 3)
    asked = [question(1, "x"), question(2), question(3)]
    may = Span(may_be_unanswerable=True, language="english")
    assert find_majority(may, asked, asked) == pytest.approx(2 / 3)
    assert find_majority(Span(may_be_unanswerable=False), asked, asked) is None


# --- in the report ---

SHOWN = {
    "classify": ("Labels", "Confusion", "How far to trust its confidence"),
    "tag": ("Labels", "LOC", "How far to trust its confidence"),
    "span": ("Runs",),
    "choice": ("How far to trust its confidence",),
    "words": ("Labels", "Confusion", "NOUN", "How far to trust its confidence"),
}


@pytest.mark.parametrize("task", [*TASKS, "words"])
def test_the_report_of_a_task_has_all_its_parts(task: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    name = "tag" if task == "words" else task
    data = write_words(tmp_path / "a.conll") if task == "words" else write_task(task, tmp_path)
    sets = ("train.budget=2 steps", "tune.seeds=2", "optim.peak=1e-9")  # nothing is learned
    made = tune(name, *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    values = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert values["summary"].keys() >= {"mean", "spread", "best", "seconds", "num_seeds"}
    assert values["summary"]["num_seeds"] == 2
    assert values["interval"] and values["command"] and values["cost"]["device"]
    assert all(run["seconds"] > 0 and run["curve"] for run in values["runs"])
    assert values["settings"]["tune.freeze"] == 0 and values["settings"]["optim.warmup"] == 0.1
    has_errors = values["summary"]["best"] < 1
    assert bool(values["errors"]) == has_errors
    assert bool(values["calibration"]) == ("How far to trust its confidence" in SHOWN[task])
    texts = check_page(made.report.read_text(encoding="utf-8")).texts
    worst = ["The worst errors"] if has_errors else []
    for shown in (*SHOWN[task], *worst, "How to repeat it", "time of all runs"):
        assert shown in texts, shown
    assert any("bootstrap interval on dev" in shown for shown in texts)
