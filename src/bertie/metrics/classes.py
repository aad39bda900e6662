"""Scores of classes: one label an example, or any number of them.

N examples   C labels
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertie.errors import UserError


@dataclass(frozen=True, slots=True)
class ClassScore:
    """How well one class is found; `support` counts the examples that are truly of it."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Bin:
    """The examples whose confidence is above `low` and at most `high`."""

    low: float
    high: float
    num_examples: int
    confidence: float  # mean; 0.0 if the bin is empty, and so is the accuracy
    accuracy: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Whether a confidence of 70% is right 70% of the time."""

    bins: tuple[Bin, ...]
    error: float  # expected calibration error: mean |accuracy - confidence| over the examples


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    true, guess = same_length(gold, predicted)
    return float((true == guess).mean()) if len(true) else 0.0


def confusion(gold: ArrayLike, predicted: ArrayLike, num_labels: int) -> NDArray[np.int64]:
    """(C, C) counts: a row is a gold label, a column a predicted one."""
    true, guess = same_length(gold, predicted)
    true, guess = true.astype(np.int64), guess.astype(np.int64)
    both = np.concatenate([true, guess])
    if len(both) and not 0 <= both.min() <= both.max() < num_labels:
        raise UserError(f"labels are 0 to {num_labels - 1}; found {both.min()} to {both.max()}")
    return np.bincount(true * num_labels + guess, minlength=num_labels**2).reshape(
        num_labels, num_labels
    )


def class_table(confusion: ArrayLike) -> list[ClassScore]:
    """The scores of each class of a (C, C) confusion."""
    counts = np.asarray(confusion)
    return [
        class_score(int(right), int(num_predicted), int(num_gold))
        for right, num_predicted, num_gold in zip(
            counts.diagonal(), counts.sum(0), counts.sum(1), strict=True
        )
    ]


def class_score(num_right: int, num_predicted: int, num_gold: int) -> ClassScore:
    """Precision, recall and F1 from counts."""
    return ClassScore(
        precision=num_right / num_predicted if num_predicted else 0.0,
        recall=num_right / num_gold if num_gold else 0.0,
        f1=2 * num_right / (num_predicted + num_gold) if num_predicted + num_gold else 0.0,
        support=num_gold,
    )


def f1(gold: ArrayLike, predicted: ArrayLike, positive: int = 1) -> float:
    """F1 of one class against the rest."""
    true, guess = same_length(gold, predicted)
    is_gold, is_predicted = true == positive, guess == positive
    num_right = int((is_gold & is_predicted).sum())
    return class_score(num_right, int(is_predicted.sum()), int(is_gold.sum())).f1


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The mean F1 of the labels that occur, in gold or predicted."""
    counts = confusion_of_present(gold, predicted)
    return float(np.mean([score.f1 for score in class_table(counts)])) if len(counts) else 0.0


def matthews(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Matthews' correlation of two or more classes; 0.0 if either side is of a single class."""
    counts = confusion_of_present(gold, predicted).astype(np.float64)
    num_gold, num_predicted, total = counts.sum(1), counts.sum(0), counts.sum()
    covariance = counts.trace() * total - num_gold @ num_predicted
    spread = (total**2 - num_gold @ num_gold) * (total**2 - num_predicted @ num_predicted)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def multi_label_scores(gold: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Of (N, C) booleans: F1 of all decisions, mean F1 of the labels, share of rows all right."""
    true, guess = same_length(gold, predicted)
    is_gold, is_predicted = true.astype(bool), guess.astype(bool)
    right, num_predicted, num_gold = (
        part.sum(0) for part in (is_gold & is_predicted, is_predicted, is_gold)
    )
    labels = [
        class_score(int(a), int(b), int(c)).f1
        for a, b, c in zip(right, num_predicted, num_gold, strict=True)
    ]
    return {
        "micro_f1": class_score(int(right.sum()), int(num_predicted.sum()), int(num_gold.sum())).f1,
        "macro_f1": float(np.mean(labels)) if labels else 0.0,
        "exact": float((is_gold == is_predicted).all(1).mean()) if len(is_gold) else 0.0,
    }


def fit_thresholds(gold: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """(C,) per label the threshold of the best F1; a label is given where its value is >= it.

    Thresholds lie half-way between neighbouring values, or the lowest and 0, as one of the values
    would be decided by rounding; of equally good ones the nearest to 0.5 is taken, and 0.5 for a
    label that never occurs.
    """
    true, values = same_length(gold, probabilities)
    columns = zip(true.astype(bool).T, values.astype(np.float64).T, strict=True)
    return np.array([fit_threshold(*column) for column in columns])


def fit_threshold(is_gold: NDArray[np.bool_], values: NDArray[np.float64]) -> float:
    if not is_gold.any():
        return 0.5
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    num_right = np.cumsum(is_gold[order])
    scores = 2 * num_right / (np.arange(1, len(ranked) + 1) + is_gold.sum())
    below = np.append(ranked[1:], 0.0)  # the next value, which must not be taken along
    scores[:-1][ranked[:-1] == below[:-1]] = -1  # equal values cannot be told apart
    middles = np.maximum((ranked + below) / 2, np.nextafter(below, np.inf))
    middles = np.minimum(middles, ranked)  # the lowest may be 0 itself
    best = np.flatnonzero(scores == scores.max())
    return float(middles[best[np.abs(middles[best] - 0.5).argmin()]])


def calibration(probabilities: ArrayLike, gold: ArrayLike, num_bins: int = 10) -> Calibration:
    """(N, C), (N,) -> how far the probability of the predicted label is from its accuracy."""
    values, true = same_length(probabilities, gold)
    if not len(true):
        return Calibration((), 0.0)
    confidence = values.max(1)  # (N,)
    is_right = values.argmax(1) == true
    edges = np.linspace(0, 1, num_bins + 1)
    places = np.clip(np.searchsorted(edges, confidence) - 1, 0, num_bins - 1)  # (N,)
    bins, error = [], 0.0
    for place in range(num_bins):
        inside = places == place
        count = int(inside.sum())
        mean = float(confidence[inside].mean()) if count else 0.0
        right = float(is_right[inside].mean()) if count else 0.0
        bins.append(Bin(float(edges[place]), float(edges[place + 1]), count, mean, right))
        error += count / len(true) * abs(right - mean)
    return Calibration(tuple(bins), error)


def confusion_of_present(gold: ArrayLike, predicted: ArrayLike) -> NDArray[np.int64]:
    """The confusion of the labels that occur, whatever their numbers."""
    true, guess = same_length(gold, predicted)
    labels, numbers = np.unique(np.concatenate([true, guess]), return_inverse=True)
    return confusion(numbers[: len(true)], numbers[len(true) :], len(labels))


def same_length(one: ArrayLike, two: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(one), np.asarray(two)
    if len(first) != len(second):
        raise UserError(f"{len(first)} and {len(second)} examples cannot be compared one by one")
    return first, second
