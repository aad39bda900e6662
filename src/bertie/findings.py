"""What the answers of a task show: per class, where wrong, how sure; for its report."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from bertie.metrics.classes import (
    Calibration,
    ClassScore,
    calibration,
    class_table,
    confusion,
)
from bertie.metrics.intervals import bootstrap_interval
from bertie.metrics.spans import span_scores, spans_of
from bertie.report.results import WrongExample
from bertie.tasks.choice import Choice, ChoicePrediction
from bertie.tasks.classify import Classify, TextPrediction
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tasks.task import Task

MOST_ERRORS = 30
MOST_SAMPLED = 400_000  # examples scored in all, to find the interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The parts of a fine-tuning report that come from answers; what does not apply is empty."""

    interval: tuple[float, float] | None = None
    class_scores: Mapping[str, ClassScore] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    calibration: Calibration | None = None
    gold_and_predicted: tuple[tuple[float, float], ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    errors: tuple[WrongExample, ...] = ()

    def as_fields(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def make_findings(
    task: Task[Any, Any], examples: Sequence[Any], predictions: Sequence[Any]
) -> Findings:
    interval = find_interval(task, examples, predictions)
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task, Classify):
        found = of_classes(task, pairs) if task.kind == "classes" else of_values(task, pairs)
    elif isinstance(task, Tag):
        found = of_tags(task, pairs)
    elif isinstance(task, Span):
        found = of_answers(task, pairs)
    else:
        assert isinstance(task, Choice)
        found = of_choices(pairs)
    return replace(found, interval=interval, errors=found.errors[:MOST_ERRORS])


def find_interval(
    task: Task[Any, Any], examples: Sequence[Any], predictions: Sequence[Any]
) -> tuple[float, float]:
    """Where the score would lie on other examples of the same kind."""

    def score(numbers: np.ndarray) -> float:
        # An example that is drawn twice counts twice.
        drawn = [replace(examples[n], id=str(place)) for place, n in enumerate(numbers)]
        return task.score(drawn, [predictions[n] for n in numbers])[task.metric]

    num_samples = max(50, min(1000, MOST_SAMPLED // len(examples)))
    return bootstrap_interval(score, len(examples), num_samples=num_samples)


def of_classes(task: Classify, pairs: Sequence[tuple[Any, TextPrediction]]) -> Findings:
    number = {label: n for n, label in enumerate(task.labels)}
    gold = [number[str(example.label)] for example, _ in pairs]
    guess = [number[str(prediction.label)] for _, prediction in pairs]
    shares = np.stack([prediction.scores for _, prediction in pairs])
    matrix = confusion(gold, guess, len(task.labels))
    wrong = [
        WrongExample(
            text=example.first if example.second is None else f"{example.first} | {example.second}",
            gold=str(example.label),
            predicted=str(prediction.label),
            confidence=float(prediction.scores.max()),
            place=example.place,
        )
        for example, prediction in pairs
        if str(example.label) != str(prediction.label)
    ]
    return Findings(
        class_scores=dict(zip(task.labels, class_table(matrix), strict=True)),
        labels=task.labels,
        confusion=tuple(tuple(int(n) for n in row) for row in matrix),
        calibration=calibration(shares, gold),
        errors=surest_first(wrong),
    )


def of_values(task: Classify, pairs: Sequence[tuple[Any, TextPrediction]]) -> Findings:
    """Of numbers, or of several labels."""
    if task.kind == "regression":
        values = [(task.number_of(e), float(p.scores[0]), e) for e, p in pairs]
        worst = sorted(values, key=lambda one: -abs(one[0] - one[1]))
        return Findings(
            gold_and_predicted=tuple((gold, guess) for gold, guess, _ in values),
            errors=tuple(
                WrongExample(
                    text=e.first if e.second is None else f"{e.first} | {e.second}",
                    gold=f"{gold:g}",
                    predicted=f"{guess:.2f}",
                    confidence=math.nan,
                    place=e.place,
                )
                for gold, guess, e in worst[:MOST_ERRORS]
            ),
        )
    gold_rows = np.array([task.indicators(e.label) for e, _ in pairs]) > 0
    guess_rows = np.array([task.indicators(p.label) for _, p in pairs]) > 0
    tables = [
        class_table(confusion(gold_rows[:, n].astype(int), guess_rows[:, n].astype(int), 2))[1]
        for n in range(len(task.labels))
    ]
    wrong = [
        WrongExample(
            text=e.first,
            gold=", ".join(map(str, e.label)),
            predicted=", ".join(map(str, p.label)),  # type: ignore[arg-type]
            confidence=float(p.scores.max()),
            place=e.place,
        )
        for e, p in pairs
        if set(e.label) != set(p.label)  # type: ignore[arg-type]
    ]
    return Findings(
        class_scores=dict(zip(task.labels, tables, strict=True)),
        thresholds=task.thresholds,
        errors=surest_first(wrong),
    )


def of_tags(task: Tag, pairs: Sequence[tuple[Any, Any]]) -> Findings:
    wrong = [
        WrongExample(
            text=example.text,
            gold=" ".join(example.tags),
            predicted=" ".join(prediction.tags),
            confidence=float(prediction.scores.min()),
            place=example.place,
        )
        for example, prediction in pairs
        if example.tags is not None and tuple(example.tags) != tuple(prediction.tags)
    ]
    if task.kind != "spans":
        return Findings(errors=surest_first(wrong))
    gold = [spans_of(example.tags, "IOB2") for example, _ in pairs]
    guess = [spans_of(prediction.tags, "IOB2") for _, prediction in pairs]
    return Findings(class_scores=span_scores(gold, guess).by_label, errors=surest_first(wrong))


def of_answers(task: Span, pairs: Sequence[tuple[Any, Any]]) -> Findings:
    wrong = []
    for example, prediction in pairs:
        if task.score([example], [prediction]).get("exact", 1.0) < 1:
            gold = " / ".join(dict.fromkeys(a.text for a in example.answers or ()))
            scores = np.array([candidate.score for candidate in prediction.candidates])
            sure = 1 / np.exp(scores - scores[0]).sum() if len(scores) else math.nan
            wrong.append(
                WrongExample(
                    text=f"{example.question} | {example.context}",
                    gold=gold or "(no answer)",
                    predicted=prediction.text or "(no answer)",
                    confidence=float(sure),
                    place=example.id,
                )
            )
    thresholds = {"no_answer": task.threshold} if task.may_be_unanswerable else {}
    return Findings(errors=surest_first(wrong), thresholds=thresholds)


def of_choices(pairs: Sequence[tuple[Any, ChoicePrediction]]) -> Findings:
    wrong = [
        WrongExample(
            text=example.context,
            gold=example.options[example.label],
            predicted=example.options[prediction.label],
            confidence=float(prediction.scores.max()),
            place=example.place,
        )
        for example, prediction in pairs
        if example.label is not None and example.label != prediction.label
    ]
    return Findings(errors=surest_first(wrong))


def surest_first(wrong: Sequence[WrongExample]) -> tuple[WrongExample, ...]:
    return tuple(sorted(wrong, key=lambda one: -one.confidence))


def find_majority(task: Task[Any, Any], train: Sequence[Any], dev: Sequence[Any]) -> float | None:
    """The score on dev of always giving what is most frequent in the training data."""
    if isinstance(task, Classify) and task.kind == "classes":
        label = Counter(str(example.label) for example in train).most_common(1)[0][0]
        scores = np.array([float(one == label) for one in task.labels])
        return task.score(dev, [TextPrediction(label=label, scores=scores)] * len(dev))[task.metric]
    if isinstance(task, Choice):
        counts = Counter(example.label for example in train)
        label_number = counts.most_common(1)[0][0]
        always = [ChoicePrediction(label=label_number, scores=np.ones(1)) for _ in dev]
        return task.score(dev, always)[task.metric]
    if isinstance(task, Span) and task.may_be_unanswerable:
        return sum(not example.answers for example in dev) / len(dev)
    return None
