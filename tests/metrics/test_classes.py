"""Scores of classes equal scikit-learn's, on labels that miss, repeat, and are never said."""

import warnings
from collections import Counter

import numpy as np
import pytest
from sklearn import metrics as theirs

from bertie.errors import UserError
from bertie.metrics.classes import (
    ClassScore,
    accuracy,
    calibration,
    class_table,
    confusion,
    f1,
    fit_thresholds,
    macro_f1,
    matthews,
    multi_label_scores,
)

RNG = np.random.default_rng


def labels(chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Some labels are never gold, some never predicted; often all are one."""
    num_labels = int(chance.integers(1, 8))
    size = int(chance.integers(1, 30))
    gold = chance.choice(num_labels, size, p=chance.dirichlet(np.full(num_labels, 0.5)))
    guess = np.where(chance.random(size) < 0.5, gold, chance.integers(num_labels, size=size))
    return gold, (guess if chance.random() < 0.9 else np.zeros_like(gold)), num_labels


def test_scores_equal_scikit_learns(compared: Counter[str]) -> None:
    chance = RNG(1)
    for _ in range(500):
        gold, guess, num_labels = labels(chance)
        zero = {"zero_division": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert accuracy(gold, guess) == pytest.approx(theirs.accuracy_score(gold, guess))
            expected = theirs.f1_score(gold == 1, guess == 1, **zero)
            assert f1(gold, guess) == pytest.approx(expected)
            expected = theirs.f1_score(gold, guess, average="macro", **zero)
            assert macro_f1(gold, guess) == pytest.approx(expected)
            expected = theirs.matthews_corrcoef(gold, guess)
            assert matthews(gold, guess) == pytest.approx(expected, abs=1e-12)
            table = theirs.precision_recall_fscore_support(
                gold, guess, labels=range(num_labels), **zero
            )
            counts = theirs.confusion_matrix(gold, guess, labels=range(num_labels))
        ours = confusion(gold, guess, num_labels)
        np.testing.assert_array_equal(ours, counts)
        rows = [(s.precision, s.recall, s.f1, s.support) for s in class_table(ours)]
        np.testing.assert_allclose(rows, np.transpose(table), atol=1e-12)
        compared["sets of class labels"] += 1


def test_multi_label_scores_equal_scikit_learns(compared: Counter[str]) -> None:
    chance = RNG(2)
    for _ in range(300):
        shape = tuple(chance.integers(1, 9, size=2))
        gold = chance.random(shape) < chance.random()
        guess = np.where(chance.random(shape) < 0.7, gold, chance.random(shape) < 0.5)
        ours = multi_label_scores(gold, guess)
        # One column reads as two classes there, so a column of nothing goes along for micro.
        wide = [np.hstack([part, np.zeros((len(part), 1), bool)]) for part in (gold, guess)]
        expected = theirs.f1_score(*wide, average="micro", zero_division=0)
        assert ours["micro_f1"] == pytest.approx(expected)
        columns = zip(gold.T, guess.T, strict=True)
        each = [theirs.f1_score(a, b, pos_label=True, zero_division=0) for a, b in columns]
        assert ours["macro_f1"] == pytest.approx(np.mean(each))
        assert ours["exact"] == pytest.approx(theirs.accuracy_score(*wide))
        compared["sets of multi-label rows"] += 1


def test_no_threshold_is_better_than_the_fitted_one() -> None:
    chance = RNG(3)
    for _ in range(300):
        gold = chance.random((int(chance.integers(1, 20)), 3)) < [0.0, 0.4, 0.9]
        values = chance.random(gold.shape).round(int(chance.integers(1, 4)))  # many are equal
        for label, threshold in enumerate(fit_thresholds(gold, values)):
            column = values[:, label]
            tried = [0.0, 0.5, 1.1, *column, *np.nextafter(column, 2)]
            best = max(f1(gold[:, label], column >= t) for t in tried)
            assert f1(gold[:, label], column >= threshold) == pytest.approx(best)


def test_thresholds_lie_half_way_and_near_the_middle() -> None:
    gold = np.array([[1, 0, 1], [1, 0, 1], [0, 0, 1]], bool)
    values = np.array([[0.9, 0.1, 0.7], [0.6, 0.2, 0.8], [0.2, 0.9, 0.3]])
    np.testing.assert_allclose(fit_thresholds(gold, values), [0.4, 0.5, 0.15])


def test_rounding_takes_no_label_away() -> None:
    """Of a label that all examples have, too: none of them lies on the threshold."""
    chance = RNG(5)
    for _ in range(200):
        gold = chance.random((int(chance.integers(1, 20)), 3)) < [0.3, 0.9, 1.0]
        values = chance.uniform(0.01, 1, gold.shape)
        thresholds = fit_thresholds(gold, values)
        assert np.abs(values - thresholds).min() > 1e-9
        assert thresholds[2] == pytest.approx(values[:, 2].min() / 2)


def plain_calibration_error(values: np.ndarray, gold: np.ndarray, num_bins: int) -> float:
    groups: dict[int, list[tuple[float, bool]]] = {}
    edges = np.linspace(0, 1, num_bins + 1)
    for row, label in zip(values, gold, strict=True):
        place = next(b for b in range(num_bins) if row.max() <= edges[b + 1])
        groups.setdefault(place, []).append((row.max(), row.argmax() == label))
    gaps = [abs(sum(r for _, r in g) - sum(c for c, _ in g)) for g in groups.values()]
    return float(sum(gaps) / len(gold))


def test_calibration_error_is_the_mean_gap(compared: Counter[str]) -> None:
    chance = RNG(4)
    for _ in range(300):
        size, num_labels, num_bins = (int(chance.integers(1, limit)) for limit in (40, 6, 15))
        values = chance.dirichlet(np.ones(num_labels), size).round(1)
        gold = chance.integers(num_labels, size=size)
        found = calibration(values, gold, num_bins)
        expected = plain_calibration_error(values, gold, num_bins)
        assert found.error == pytest.approx(expected)
        assert sum(bin.num_examples for bin in found.bins) == size
        assert all(0 <= b.low < b.high <= 1 and 0 <= b.accuracy <= 1 for b in found.bins)
        compared["calibration tables"] += 1


def test_perfect_confidence_is_calibrated() -> None:
    found = calibration(np.eye(3), [0, 1, 2])
    assert found.error == 0 and found.bins[-1].num_examples == 3
    assert calibration(np.eye(3), [1, 2, 0]).error == 1


def test_of_nothing_all_scores_are_zero() -> None:
    for score in (accuracy, f1, macro_f1, matthews):
        assert score([], []) == 0.0
    assert calibration(np.zeros((0, 2)), []).error == 0.0
    assert multi_label_scores(np.zeros((0, 3)), np.zeros((0, 3)))["exact"] == 0.0
    assert class_table(confusion([], [], 1)) == [ClassScore(0.0, 0.0, 0.0, 0)]


def test_wrong_labels_and_lengths_are_named() -> None:
    with pytest.raises(UserError, match="3 and 2 examples"):
        accuracy([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match="labels are 0 to 1; found 0 to 2"):
        confusion([0, 1], [2, 1], 2)
    with pytest.raises(UserError, match="found -1 to 1"):
        confusion([0, -1], [0, 1], 2)


def test_labels_may_be_any_numbers() -> None:
    gold, guess = np.array([10**9, 5, 5]), np.array([10**9, 5, 10**9])
    assert macro_f1(gold, guess) == pytest.approx(theirs.f1_score(gold, guess, average="macro"))
    assert matthews(gold, guess) == pytest.approx(theirs.matthews_corrcoef(gold, guess))
