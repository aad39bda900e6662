"""Chance by counting: a random number is a hash of what it is for, not the next of a sequence.

Whoever asks for the draw of (seed, epoch, instance, position) gets the same 64 bits, in any order,
in any process, on any machine: everything here is integer arithmetic modulo 2^64.

key = stream(seed, epoch, 7)  # one number
rows = fold(key, np.arange(1000))  # (1000,) a key per row
below(fold(rows, 0), 6)  # (1000,) a die per row
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.uint64]  # uniform over 0 .. 2^64 - 1
Ints: TypeAlias = NDArray[np.int64]

# The increment and the finaliser of SplitMix64: a step of the golden ratio, then Stafford's mix 13.
STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
R30, R27, R31, R32 = (np.uint64(shift) for shift in (30, 27, 31, 32))
LOW = np.uint64(0xFFFFFFFF)
NUM_ROUNDS = 6  # of the permutation; four would do where nobody attacks


def fold(key: Bits, value: Ints | Bits | int) -> Bits:
    """The child `value` >= 0 of a key; both may be arrays, as numpy broadcasts."""
    mixed = np.asarray(np.multiply(np.asarray(value).astype(np.uint64), STEP))
    # One dimension at least: numpy warns of overflow in single numbers.
    mixed = np.atleast_1d(np.add(mixed, np.add(key, STEP)))
    mixed ^= mixed >> R30
    mixed *= FIRST
    mixed ^= mixed >> R27
    mixed *= SECOND
    mixed ^= mixed >> R31
    return mixed


def stream(seed: int, *parts: int) -> Bits:
    """The key of a purpose, such as (seed, epoch, masking): (1,)"""
    key = np.zeros(1, np.uint64)
    for part in (seed, *parts):
        key = fold(key, part & (2**64 - 1))
    return key


def below(bits: Bits, limit: Ints | int) -> Ints:
    """Whole numbers from 0 to `limit` - 1, 1 <= limit <= 2^32; off even by less than 2^-32."""
    size = np.asarray(limit).astype(np.uint64)
    low = ((bits & LOW) * size) >> R32
    return (((bits >> R32) * size + low) >> R32).astype(np.int64)  # floor(bits * limit / 2^64)


def happens(bits: Bits, probability: float) -> NDArray[np.bool_]:
    """True with that probability."""
    if probability >= 1:
        return np.ones(bits.shape, bool)
    return bits < np.uint64(int(max(0.0, probability) * 2.0**64))


def choose(bits: Bits, shares: tuple[float, ...]) -> Ints:
    """The number of one of the shares, which sum to 1; each comes as often as its share says."""
    ends = [int(min(1.0, sum(shares[: n + 1])) * 2.0**64) for n in range(len(shares) - 1)]
    limits = np.array([min(end, 2**64 - 1) for end in ends], np.uint64)
    return np.searchsorted(limits, bits, "right")


def count_bits(bits: Bits) -> Ints:
    """How many of the 64 bits are set; numpy has it from version 2.0 on."""
    one, two, four = (
        np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
    )
    x: Bits = bits - ((bits >> np.uint64(1)) & one)
    x = (x & two) + ((x >> np.uint64(2)) & two)
    x = (x + (x >> np.uint64(4))) & four
    x *= np.uint64(0x0101010101010101)
    return (x >> np.uint64(56)).astype(np.int64)


def heads(keys: Bits, num_tosses: Ints) -> Ints:
    """(n,), (n,) -> (n,): how many of that many fair tosses come up heads, exactly binomial."""
    counts = np.zeros(len(num_tosses), np.int64)
    active = np.flatnonzero(num_tosses > 0)
    word = 0
    while len(active):
        left = np.minimum(num_tosses[active] - 64 * word, 64)
        bits = fold(keys[active], word) >> (64 - left).astype(np.uint64)
        counts[active] += count_bits(bits)
        word += 1
        active = active[num_tosses[active] > 64 * word]
    return counts


class Permutation:
    """A shuffle of 0 .. size - 1 that needs no array.

    >>> Permutation(5, stream(1))(np.arange(5))
    array([4, 0, 2, 1, 3])
    """

    # A Feistel network over pairs (l, r), l < rows, r < columns, that adds instead of xor (Black
    # and Rogaway, 2002): rows * columns is hardly more than size, so few numbers fall outside.

    def __init__(self, size: int, key: Bits) -> None:
        assert 1 <= size <= 2**62
        self.size = size
        self.num_rows = math.isqrt(size - 1) + 1
        self.num_columns = -(-size // self.num_rows)
        self._rounds = fold(key, np.arange(NUM_ROUNDS))[:, None]  # (6, 1)

    def __call__(self, places: Ints) -> Ints:  # (n,) -> (n,)
        assert not len(places) or 0 <= places.min() <= places.max() < self.size
        result = self._network(places)
        # The network permutes 0 .. rows * columns - 1: a number that leaves the range goes round
        # its own cycle until it is inside again, which keeps the map one to one.
        outside = np.flatnonzero(result >= self.size)
        while len(outside):
            result[outside] = self._network(result[outside])
            outside = outside[result[outside] >= self.size]
        return result

    def _network(self, numbers: Ints) -> Ints:
        left, right = np.divmod(numbers, self.num_columns)
        left_size, right_size = self.num_rows, self.num_columns
        for key in self._rounds:  # an even number, so that unequal halves swap back
            moved = left + ((fold(key, right) >> R32) * np.uint64(left_size) >> R32).view(np.int64)
            left, right = right, np.where(moved >= left_size, moved - left_size, moved)
            left_size, right_size = right_size, left_size
        return left * right_size + right
