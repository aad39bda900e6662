"""Correlations equal SciPy's; with a constant they are 0.0."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from bertie.metrics.regression import pearson, ranks, spearman


def test_correlations_equal_scipys(compared: Counter[str]) -> None:
    chance = np.random.default_rng(1)
    for _ in range(1500):
        size = int(chance.integers(2, 40))
        gold = chance.normal(size=size).round(int(chance.integers(0, 4)))  # many are equal
        guess = (gold * chance.normal() + chance.normal(size=size)).round(1)
        guess *= 10.0 ** chance.integers(-12, 12)
        if np.ptp(gold) == 0 or np.ptp(guess) == 0:
            assert pearson(gold, guess) == spearman(gold, guess) == 0
            continue
        assert pearson(gold, guess) == pytest.approx(stats.pearsonr(gold, guess)[0], abs=1e-9)
        assert spearman(gold, guess) == pytest.approx(stats.spearmanr(gold, guess)[0], abs=1e-9)
        np.testing.assert_array_equal(ranks(guess), stats.rankdata(guess))
        compared["correlations"] += 1


def test_constants_and_nothing_have_none() -> None:
    for score in (pearson, spearman):
        assert score([1, 1, 1], [1, 2, 3]) == score([1, 2], [7, 7]) == 0.0
        assert score([], []) == score([3], [4]) == 0.0


def test_huge_and_tiny_numbers_stay_finite() -> None:
    for factor in (1e300, 1e-300):
        assert pearson(np.array([1, 2, 4]) * factor, [1, 2, 4]) == pytest.approx(1)
    assert spearman([1e300, -1e300, 0], [3, 1, 2]) == pytest.approx(1)
