"""How well numbers follow numbers. A correlation with a constant is undefined, here 0.0."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertie.metrics.classes import same_length


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """How well a straight line fits."""
    true, guess = same_length(gold, predicted)
    first, second = direction(true), direction(guess)
    return float(np.clip(first @ second, -1, 1))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """How well the order agrees: Pearson's correlation of the ranks."""
    true, guess = same_length(gold, predicted)
    return pearson(ranks(true), ranks(guess))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Places in ascending order, counted from 1; equal values share the mean of theirs.

    >>> ranks([10, 30, 10]).tolist()
    [1.5, 3.0, 1.5]
    """
    _, numbers, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the last place of each distinct value
    return np.asarray((last - (counts - 1) / 2)[numbers], np.float64)


def direction(values: ArrayLike) -> NDArray[np.float64]:
    """Less the mean, and of length 1; of length 0 if all values are equal."""
    numbers = np.asarray(values, np.float64)
    if not len(numbers) or numbers.min() == numbers.max():
        return np.zeros_like(numbers)
    numbers = numbers / np.abs(numbers).max()  # squares of large and small numbers stay finite
    centred = numbers - numbers.mean()
    length = np.linalg.norm(centred)
    return np.asarray(centred / length) if length else np.zeros_like(numbers)
