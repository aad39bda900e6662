"""Chance by counting: the same numbers everywhere, and as good as chance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.chance import (
    Permutation,
    below,
    choose,
    count_bits,
    fold,
    happens,
    heads,
    stream,
)

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 63, 64, 65, 99, 100, 1023, 1024, 1025, 4097, 10**6 + 3]
MODULUS = 2**64


def plain_fold(key: int, value: int) -> int:
    """SplitMix64 in Python's own numbers."""
    x = (key + (value + 1) * 0x9E3779B97F4A7C15) % MODULUS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    x = (x ^ x >> 27) * 0x94D049BB133111EB % MODULUS
    return x ^ x >> 31


def chi_square(counts: np.ndarray) -> float:
    """About 0 +- 1 for counts that should all be equal, in standard deviations."""
    expected = counts.mean()
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@given(st.integers(0, MODULUS - 1), st.integers(0, 2**63 - 1))
@settings(max_examples=200, deadline=None, database=None)
def test_it_is_plain_arithmetic(key: int, value: int) -> None:
    assert fold(np.array([key], np.uint64), value).tolist() == [plain_fold(key, value)]


def test_the_numbers_never_change() -> None:
    """Indexes on disk and runs to be resumed depend on them."""
    assert stream(1, 2, 3).tolist() == [plain_fold(plain_fold(plain_fold(0, 1), 2), 3)]
    assert fold(stream(7), np.arange(3)).tolist() == [
        plain_fold(plain_fold(0, 7), n) for n in range(3)
    ]
    assert plain_fold(0, 0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 with seed 0
    assert Permutation(10, stream(1))(np.arange(10)).tolist() == GOLDEN_SHUFFLE


GOLDEN_SHUFFLE = [8, 7, 0, 2, 9, 3, 5, 6, 4, 1]


def test_one_number_gives_no_warning_and_a_negative_seed_is_a_seed() -> None:
    keys = [int(stream(seed)[0]) for seed in (-1, 0, 1, 2**64 - 1)]
    assert keys[0] == keys[3] and len(set(keys)) == 3


@pytest.mark.parametrize("size", SIZES)
def test_a_permutation_hits_each_place_once(size: int) -> None:
    for seed in range(3):
        shuffled = Permutation(size, stream(seed))(np.arange(size))
        assert (np.sort(shuffled) == np.arange(size)).all()


@given(st.integers(1, 3000), st.integers(0, 99), st.data())
@settings(max_examples=60, deadline=None, database=None)
def test_a_place_goes_where_it_goes_whoever_asks_with_it(
    size: int, seed: int, data: st.DataObject
) -> None:
    permutation = Permutation(size, stream(seed))
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=9)), np.int64)
    assert (permutation(places) == permutation(np.arange(size))[places]).all()


def test_a_huge_permutation_needs_no_array() -> None:
    size = 10**15 + 1
    places = np.array([0, 1, 2, size // 2, size - 1])
    shuffled = Permutation(size, stream(3))(places)
    assert len(set(shuffled.tolist())) == 5 and shuffled.max() < size
    assert len(set((shuffled * 10 // size).tolist())) > 2  # spread out


@pytest.mark.parametrize("size", [1000, 4096, 10_007])
def test_a_permutation_sends_every_part_everywhere(size: int) -> None:
    counts = np.zeros((8, 8))
    for seed in range(40):
        shuffled = Permutation(size, stream(seed, size))(np.arange(size))
        np.add.at(counts, (np.arange(size) * 8 // size, shuffled * 8 // size), 1)
    # A permutation spreads more evenly than independent draws would.
    assert abs(counts / counts.mean() - 1).max() < 0.1
    neighbours = np.diff(Permutation(size, stream(5))(np.arange(size)))
    assert len(set(neighbours.tolist())) > size * 0.5


def test_all_orders_of_few_things_come() -> None:
    orders = [tuple(Permutation(4, stream(s))(np.arange(4)).tolist()) for s in range(2400)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24 and counts.min() > 60


@pytest.mark.parametrize("limit", [2, 3, 10, 256, 1000])
def test_bounded_numbers_are_uniform(limit: int) -> None:
    numbers = below(fold(stream(11), np.arange(200_000)), limit)
    assert numbers.min() == 0 and numbers.max() == limit - 1
    assert abs(chi_square(np.bincount(numbers))) < 5


def test_bounded_numbers_are_exact_products() -> None:
    bits = fold(stream(2), np.arange(1000))
    limits = np.arange(1, 1001) * 4_294_967
    expected = [int(b) * int(limit) >> 64 for b, limit in zip(bits, limits, strict=True)]
    assert below(bits, limits).tolist() == expected
    assert below(np.array([MODULUS - 1], np.uint64), 2**32).tolist() == [2**32 - 1]


@pytest.mark.parametrize("other", [(1, 0, 1), (0, 1, 1), (0, 0, 2), (0, 0, 1)])
def test_neighbouring_keys_have_nothing_in_common(other: tuple[int, int, int]) -> None:
    """Another seed, epoch or purpose, or the next index: half of all bits differ."""
    indexes = np.arange(50_000)
    one = fold(stream(0, 0, 1), indexes)
    two = fold(stream(*other), indexes + (other == (0, 0, 1)))
    for bit in range(64):
        share = ((one ^ two) >> np.uint64(bit) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(50_000)
    floats = [(x >> np.uint64(11)) * 2.0**-53 for x in (one, two)]
    assert abs(np.corrcoef(*floats)[0, 1]) < 5 / np.sqrt(50_000)


def test_children_of_neighbouring_keys_have_nothing_in_common() -> None:
    """As masks use it: a key per row, a draw per position."""
    table = fold(fold(stream(4), np.arange(400))[:, None], np.arange(128))  # (400, 128)
    assert len(np.unique(table)) == table.size
    cells = (table >> np.uint64(60)).astype(np.int64)
    assert abs(chi_square(np.bincount(cells.ravel()))) < 5
    pairs = cells[1:] * 16 + cells[:-1]
    assert abs(chi_square(np.bincount(pairs.ravel(), minlength=256))) < 5


def test_what_happens_happens_as_often_as_said() -> None:
    bits = fold(stream(8), np.arange(100_000))
    for probability in (0.0, 0.1, 0.5, 0.999, 1.0):
        share = happens(bits, probability).mean()
        assert abs(share - probability) <= 5 * np.sqrt(probability * (1 - probability) / 100_000)
    counts = np.bincount(choose(bits, (0.8, 0.1, 0.1)), minlength=3)
    assert np.abs(counts / 100_000 - (0.8, 0.1, 0.1)).max() < 5 * 0.4 / np.sqrt(100_000)
    assert set(choose(bits, (0.0, 1.0, 0.0)).tolist()) == {1}
    assert set(choose(bits, (1.0, 0.0, 0.0)).tolist()) == {0}


def test_heads_are_the_set_bits_of_that_many() -> None:
    tosses = np.array([0, 1, 63, 64, 65, 128, 200, 100_000])
    keys = fold(stream(6), np.arange(len(tosses)))
    for key, count, found in zip(keys, tosses, heads(keys, tosses), strict=True):
        words = [plain_fold(int(key), word) for word in range(-(-int(count) // 64))]
        bits = "".join(f"{word:064b}" for word in words)[:count]
        assert found == bits.count("1")


def test_heads_spread_as_a_binomial_does() -> None:
    found = heads(fold(stream(9), np.arange(50_000)), np.full(50_000, 10))
    expected = np.array([1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1]) / 1024
    share = np.bincount(found, minlength=11) / 50_000
    assert (np.abs(share - expected) < 5 * np.sqrt(expected / 50_000)).all()


def test_bits_are_counted() -> None:
    bits = np.concatenate([fold(stream(1), np.arange(100)), [np.uint64(0), np.uint64(2**64 - 1)]])
    assert count_bits(bits).tolist() == [int(b).bit_count() for b in bits]
