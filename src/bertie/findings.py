"""What the answers of a task show: per class, where wrong, how sure; for its report."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

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
from bertie.tasks.classify import Classify, TextExample, TextPrediction, as_names
from bertie.tasks.sentences import TagExample
from bertie.tasks.span import Span, SpanPrediction
from bertie.tasks.tag import Tag, TagPrediction
from bertie.tasks.task import Task

T = TypeVar("T")
MOST_ERRORS = 30
MOST_SURE = 100.0  # of a difference of logits: e**-100 is nothing
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
        kinds = {"classes": of_classes, "regression": of_numbers, "multi-label": of_label_sets}
        found = kinds[task.kind or "classes"](task, pairs)
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
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task, Span):  # a mean over the questions, each of which takes long to score
        each = np.array([task.score([e], [p])[task.metric] for e, p in pairs])
        return bootstrap_interval(lambda numbers: float(each[numbers].mean()), len(pairs))
    if isinstance(task, Tag) and task.metric in ("f1", "accuracy"):
        counts = np.array([count_right(task, e, p) for e, p in pairs])  # (sentences, 2)

        def share(numbers: np.ndarray) -> float:
            right, both = counts[numbers].sum(0)
            return 2 * float(right) / max(1.0, float(both))

        return bootstrap_interval(share, len(pairs))

    def score(numbers: np.ndarray) -> float:
        drawn = [pairs[number] for number in numbers]
        return task.score([e for e, _ in drawn], [p for _, p in drawn])[task.metric]

    num_samples = max(50, min(1000, MOST_SAMPLED // len(pairs)))
    return bootstrap_interval(score, len(pairs), num_samples=num_samples)


def count_right(task: Tag, example: TagExample, prediction: TagPrediction) -> tuple[int, int]:
    """Spans (words, for the accuracy) that are right, and those of gold and prediction together."""
    gold, guess = example.tags or (), prediction.tags
    if task.metric == "accuracy":
        return sum(a == b for a, b in zip(gold, guess, strict=True)), len(gold) + len(guess)
    true, guessed = set(spans_of(gold, "IOB2")), set(spans_of(guess, "IOB2"))
    return len(true & guessed), len(true) + len(guessed)


def of_classes(task: Classify, pairs: Sequence[tuple[Any, TextPrediction]]) -> Findings:
    gold = [str(example.label) for example, _ in pairs]
    guess = [str(prediction.label) for _, prediction in pairs]
    shares = np.stack([prediction.scores for _, prediction in pairs])
    wrong = [
        WrongExample(
            text=text_of(example),
            gold=str(example.label),
            predicted=str(prediction.label),
            confidence=float(prediction.scores.max()),
            place=example.place,
        )
        for example, prediction in pairs
        if str(example.label) != str(prediction.label)
    ]
    return replace(
        compare(task.labels, gold, guess),
        calibration=calibration(shares, [task.labels.index(label) for label in gold]),
        errors=surest_first(wrong),
    )


def compare(labels: Sequence[str], gold: Sequence[str], guess: Sequence[str]) -> Findings:
    """The table of the labels, and what is taken for what."""
    number = {label: n for n, label in enumerate(labels)}
    sides = [[number[label] for label in side] for side in (gold, guess)]
    matrix = confusion(sides[0], sides[1], len(labels))
    return Findings(
        class_scores=dict(zip(labels, class_table(matrix), strict=True)),
        labels=tuple(labels),
        confusion=tuple(tuple(int(n) for n in row) for row in matrix),
    )


def of_numbers(task: Classify, pairs: Sequence[tuple[Any, TextPrediction]]) -> Findings:
    values = [(task.number_of(e), float(p.scores[0]), e) for e, p in pairs]
    worst = sorted(values, key=lambda one: -abs(one[0] - one[1]))
    return Findings(
        gold_and_predicted=tuple((gold, guess) for gold, guess, _ in values),
        errors=tuple(
            WrongExample(
                text=text_of(example),
                gold=f"{gold:g}",
                predicted=f"{guess:.2f}",
                confidence=math.nan,
                place=example.place,
            )
            for gold, guess, example in worst
        ),
    )


def of_label_sets(task: Classify, pairs: Sequence[tuple[Any, TextPrediction]]) -> Findings:
    """Of several labels each; the most certain of the labels says how sure it was."""
    named = [(example, as_names(prediction.label), prediction) for example, prediction in pairs]
    gold = np.array([task.indicators(example.label) for example, _, _ in named], int)
    guess = np.array([task.indicators(names) for _, names, _ in named], int)
    wrong = [
        WrongExample(
            text=text_of(example),
            gold=", ".join(example.label) or "(none)",
            predicted=", ".join(names) or "(none)",
            confidence=float(prediction.scores.max()),
            place=example.place,
        )
        for example, names, prediction in named
        if set(example.label) != set(names)
    ]
    return Findings(
        class_scores={
            label: class_table(confusion(gold[:, n], guess[:, n], 2))[1]
            for n, label in enumerate(task.labels)
        },
        thresholds=task.thresholds,
        errors=surest_first(wrong),
    )


def of_tags(task: Tag, pairs: Sequence[tuple[Any, TagPrediction]]) -> Findings:
    """Of spans a table of their types; of words one of the tags, and what is taken for what."""
    wrong = [
        WrongExample(
            text=example.text,
            gold=" ".join(example.tags),
            predicted=" ".join(prediction.tags),
            confidence=float(prediction.scores.min()),
            place=example.place,
        )
        for example, prediction in pairs
        if tuple(example.tags) != tuple(prediction.tags)
    ]
    if task.kind == "spans":
        gold_spans = [spans_of(example.tags, "IOB2") for example, _ in pairs]
        guessed_spans = [spans_of(prediction.tags, "IOB2") for _, prediction in pairs]
        found = Findings(class_scores=span_scores(gold_spans, guessed_spans).by_label)
    else:
        gold = [tag for example, _ in pairs for tag in example.tags]
        guess = [tag for _, prediction in pairs for tag in prediction.tags]
        found = compare(task.labels, gold, guess)
    is_right = [
        one == other
        for example, prediction in pairs
        for one, other in zip(example.tags, prediction.tags, strict=True)
    ]
    scores = np.concatenate([prediction.scores for _, prediction in pairs])
    return replace(found, calibration=sureness(scores, is_right), errors=surest_first(wrong))


def of_answers(task: Span, pairs: Sequence[tuple[Any, Any]]) -> Findings:
    wrong = []
    for example, prediction in pairs:
        if task.score([example], [prediction]).get("exact", 1.0) < 1:
            gold = " / ".join(dict.fromkeys(a.text for a in example.answers or ()))
            wrong.append(
                WrongExample(
                    text=f"{example.question} | {example.context}",
                    gold=gold or "(no answer)",
                    predicted=prediction.text or "(no answer)",
                    confidence=sureness_of(task, prediction),
                    place=example.place,
                )
            )
    thresholds = {"no_answer": task.threshold} if task.may_be_unanswerable else {}
    return Findings(errors=surest_first(wrong), thresholds=thresholds)


def sureness_of(task: Span, prediction: SpanPrediction) -> float:
    """What was answered, as a share of the candidates and of no answer, if there may be none."""
    scores = [candidate.score for candidate in prediction.candidates]
    best = max(scores, default=0.0)
    if task.may_be_unanswerable or not scores:
        scores.append(best + min(prediction.no_answer, MOST_SURE))
    shares = np.exp(np.array(scores) - max(scores))
    return float(shares[0 if prediction.text else -1] / shares.sum())


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
    is_right = [example.label == prediction.label for example, prediction in pairs]
    sure = np.array([prediction.scores.max() for _, prediction in pairs])
    return Findings(calibration=sureness(sure, is_right), errors=surest_first(wrong))


def sureness(scores: np.ndarray, is_right: Sequence[bool]) -> Calibration:  # (N,), (N,)
    """Of the probability of what was chosen, whatever else there was to choose."""
    return calibration(scores[:, None], np.where(is_right, 0, 1))


def text_of(example: TextExample) -> str:
    return example.first if example.second is None else f"{example.first} | {example.second}"


def surest_first(wrong: Sequence[WrongExample]) -> tuple[WrongExample, ...]:
    return tuple(sorted(wrong, key=lambda one: -one.confidence))


def find_majority(task: Task[Any, Any], train: Sequence[Any], dev: Sequence[Any]) -> float | None:
    """The score on dev of always giving one answer: the one that does best on the training data.

    None where there is no such thing: of numbers, of answers that are always there.
    """
    always: Any
    if isinstance(task, Classify) and task.kind != "regression":
        labels = constants(task, [example.label for example in train])
        answers = [TextPrediction(label=label, scores=np.zeros(0)) for label in labels]
        best = max(answers, key=lambda one: task.score(train, [one] * len(train))[task.metric])
        always = [best] * len(dev)
    elif isinstance(task, Tag):
        tag = most_frequent(tag for example in train for tag in example.tags)
        always = [TagPrediction(tags=(tag,) * len(e.words), scores=np.zeros(0)) for e in dev]
    elif isinstance(task, Choice):
        number = most_frequent(example.label for example in train)
        always = [ChoicePrediction(label=number, scores=np.zeros(0))] * len(dev)
    elif isinstance(task, Span) and task.may_be_unanswerable:
        nothing = SpanPrediction(text="", start=0, end=0, no_answer=0.0, candidates=())
        always = [nothing] * len(dev)
    else:
        return None
    return task.score(dev, always)[task.metric]


def constants(task: Classify, gold: Sequence[Any]) -> list[Any]:
    """Labels to give always: by each metric, one of them is as good as any other."""
    frequent = most_frequent(gold)
    if task.kind == "classes":
        return [frequent, *task.labels] if len(task.labels) == 2 else [frequent]
    return [frequent, often_given(gold), task.labels]


def often_given(sets: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The set of labels whose F1 over all decisions is best, if it is given to every example.

    >>> often_given([("a",), ("a", "b"), (), ("a", "b", "c")])
    ('a', 'b')
    """
    counts = Counter(label for labels in sets for label in labels).most_common()
    total = sum(count for _, count in counts)
    best_f1, best_size, num_right = 0.0, 0, 0
    for size, (_, count) in enumerate(counts, 1):
        num_right += count
        f1 = 2 * num_right / (size * len(sets) + total)
        best_f1, best_size = max((best_f1, best_size), (f1, size))
    return tuple(label for label, _ in counts[:best_size])


def most_frequent(values: Iterable[T]) -> T:
    return Counter(values).most_common(1)[0][0]
