"""How sure a score is: over samples of the examples, and over seeds."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertie.errors import UserError


def bootstrap_interval(
    score: Callable[[NDArray[np.int64]], float],
    num_examples: int,
    *,
    num_samples: int = 1000,
) -> tuple[float, float]:
    """The middle 95% of the scores of samples drawn with replacement; the same in every run.

    `score` gets the numbers of a sample's examples: lambda rows: accuracy(gold[rows], guess[rows])
    """
    if num_examples < 1:
        raise UserError("an interval needs at least one example; found none")
    chance = np.random.default_rng(0)
    scores = [score(chance.integers(num_examples, size=num_examples)) for _ in range(num_samples)]
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample (divided by n - 1); 0.0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
