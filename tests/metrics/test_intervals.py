"""Intervals hold what they promise, and repeat."""

import numpy as np
import pytest

from bertie.errors import UserError
from bertie.metrics.intervals import bootstrap_interval, mean, spread


def test_an_interval_repeats_and_holds_the_score() -> None:
    values = np.random.default_rng(1).random(200)
    first = bootstrap_interval(lambda rows: float(values[rows].mean()), 200)
    assert first == bootstrap_interval(lambda rows: float(values[rows].mean()), 200)
    assert first[0] < values.mean() < first[1]


def test_its_width_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(2).normal(size=400)
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 400, num_samples=4000)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.06)


def test_constants_have_no_width_and_nothing_has_no_interval() -> None:
    assert bootstrap_interval(lambda rows: 0.5, 1) == (0.5, 0.5)
    with pytest.raises(UserError, match="at least one example"):
        bootstrap_interval(lambda rows: 0.5, 0)


def test_the_spread_is_of_a_sample() -> None:
    assert mean([1, 2, 6]) == 3 and spread([1, 2, 6]) == pytest.approx(7**0.5)
    assert spread([4]) == 0
