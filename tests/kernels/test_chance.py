"""What is dropped looks like chance, is the same everywhere, and is its twin's."""

import pytest
import torch
import triton
import triton.language as tl

from bertie.kernels.chance import (
    LEVELS,
    count_dropped,
    find_kept,
    find_kept_pairs,
    find_kept_pairs_plain,
    find_kept_plain,
    mix,
    mix_plain,
)


@triton.jit
def write_masks(
    seed,
    out,
    pairs,
    first_row,
    first_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
):
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    mixed = mix(tl.load(seed).to(tl.uint32))
    places = rows * COLUMNS + columns
    kept = find_kept(mixed, first_row + rows, first_column + columns, NUM_DROPPED)
    tl.store(out + places, kept.to(tl.int32))
    kept = find_kept_pairs(mixed, first_row, rows, first_column, columns, NUM_DROPPED)
    tl.store(pairs + places, kept.to(tl.int32))


@pytest.mark.parametrize("first_row, first_column", [(0, 0), (64, 128), (65_536, 448)])
def test_masks_are_those_of_the_twin(device, first_row, first_column):
    seed = torch.tensor([2**31 - 5], device=device)
    out, pairs = torch.zeros(2, 64, 128, dtype=torch.int32, device=device)
    write_masks[(1,)](
        seed, out, pairs, first_row, first_column, ROWS=64, COLUMNS=128, NUM_DROPPED=26
    )
    mixed = mix_plain(seed.cpu())
    rows = torch.arange(first_row, first_row + 64)[:, None]
    columns = torch.arange(first_column, first_column + 128)[None, :]
    assert torch.equal(out.cpu() > 0, find_kept_plain(mixed, rows, columns, 26))
    assert torch.equal(pairs.cpu() > 0, find_kept_pairs_plain(mixed, rows, columns, 26))


def test_mix_is_one_to_one_and_changes_half_the_bits():
    numbers = torch.arange(200_000)
    mixed = mix_plain(numbers)
    assert len(mixed.unique()) == len(numbers)
    assert int(mixed.max()) < 2**32
    flipped = mixed ^ mix_plain(numbers ^ 1)
    mean = sum(((flipped >> bit) & 1).double().mean() for bit in range(32))
    assert 15.9 < mean < 16.1


@pytest.mark.parametrize("find", [find_kept_plain, find_kept_pairs_plain])
def test_as_many_are_dropped_as_asked_for_and_none_knows_of_another(find):
    """Pairs of numbers at any small distance are dropped together as often as by chance."""
    size, share = 768, 26 / LEVELS
    rows, columns = torch.arange(size)[:, None], torch.arange(size)[None, :]
    distances = [(0, 1), (0, 2), (0, 3), (0, 8), (1, 0), (8, 0), (8, 8), (1, 1), (64, 0), (0, 64)]
    for number in range(3):
        dropped = ~find(mix_plain(torch.tensor([number])), rows, columns, 26)
        assert abs(dropped.double().mean() - share) < 5 * (share / size**2) ** 0.5
        for down, right in distances:
            both = dropped[: size - down, : size - right] & dropped[down:, right:]
            assert abs(both.double().mean() - share**2) < 5 * share / size, (down, right)


def test_seeds_differ():
    rows, columns = torch.arange(64)[:, None], torch.arange(64)[None, :]
    one, other = (find_kept_plain(mix_plain(torch.tensor([n])), rows, columns, 128) for n in (1, 2))
    assert 0.45 < (one == other).double().mean() < 0.55


def test_shares_are_rounded_to_bytes_and_never_drop_all():
    assert [count_dropped(share) for share in (0.0, 0.1, 0.5, 0.999)] == [0, 26, 128, 255]
