"""Dropout inside kernels: which numbers stay is a hash of their place, drawn anew wherever needed.

The mask is never stored. One hash of 32 bits decides for four numbers, a byte for each, so a share
is rounded to one in 256; what stays is scaled by the share that really stays, so the mean is kept.
Ten rounds of Philox for each number took longer than attention itself; this takes a few operations.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LEVELS = 256


def count_dropped(share: float) -> int:
    """How many of the LEVELS values of a byte mean that a number is dropped."""
    return min(round(share * LEVELS), LEVELS - 1)


def chance_of(dropout: float) -> dict[str, float]:
    """The settings of a kernel's dropout."""
    num_dropped = count_dropped(dropout)
    return {"NUM_DROPPED": num_dropped, "SCALE": LEVELS / (LEVELS - num_dropped)}


@triton.jit
def mix(x):
    """A permutation of the 32-bit numbers in which each bit depends on every other."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def mix_mixed(x):
    """Cheaper, for sums of a mixed number and another."""
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def is_byte_kept(mixed, place, NUM_DROPPED: tl.constexpr):
    """Whether the byte that begins at bit 8 * place is large enough; shifted to the top, the bits
    below it decide nothing."""
    return (mixed << (24 - 8 * place).to(tl.uint32)) >= (NUM_DROPPED << 24)


@triton.jit
def find_kept(seed, rows, columns, NUM_DROPPED: tl.constexpr):
    """(R, 1), (1, C) -> (R, C) whether a number stays; four neighbours in a row share a hash."""
    by_row = mix(rows.to(tl.uint32) ^ seed)
    mixed = mix_mixed(by_row + (columns >> 2).to(tl.uint32) * 0x9E3779B9)
    return is_byte_kept(mixed, columns & 3, NUM_DROPPED)


@triton.jit
def find_kept_pairs(seed, first_row, rows, first_column, columns, NUM_DROPPED: tl.constexpr):
    """The same for tiles of matrix products: a thread holds rows r, r + 8 and columns c, c + 8.

    These four share a hash, in a transposed tile too. The compiler finds it out by itself, as long
    as bits are taken of places inside the tile, which it knows; where a tile begins it does not.
    """
    by_row = mix((first_row + (rows & ~8)).to(tl.uint32) ^ seed)
    mixed = mix_mixed(by_row + (first_column + (columns & ~8)).to(tl.uint32) * 0x9E3779B9)
    place = ((rows & 8) >> 2) + ((columns & 8) >> 3)
    return is_byte_kept(mixed, place, NUM_DROPPED)


# --- the same in PyTorch ---


def mix_plain(x: Tensor) -> Tensor:
    """int64 -> int64, of 32 bits."""
    return mix_mixed_plain(x ^ (x >> 16))


def mix_mixed_plain(x: Tensor) -> Tensor:
    x = multiply(x, 0x7FEB352D)
    x = multiply(x ^ (x >> 15), 0x846CA68B)
    return x ^ (x >> 16)


def multiply(x: Tensor, factor: int) -> Tensor:
    """The low 32 bits of a product, without an overflow of 64."""
    low, high = x & 0xFFFF, x >> 16
    return (low * factor + ((high * factor & 0xFFFF) << 16)) & 0xFFFFFFFF


def find_kept_plain(seed: Tensor, rows: Tensor, columns: Tensor, num_dropped: int) -> Tensor:
    """(R, 1), (1, C) -> (R, C)"""
    places = mix_plain(rows ^ seed) + multiply(columns >> 2, 0x9E3779B9)
    mixed = mix_mixed_plain(places & 0xFFFFFFFF)
    return ((mixed >> ((columns & 3) * 8)) & 0xFF) >= num_dropped


def drop_plain(rows: Tensor, seed: Tensor, dropout: float) -> Tensor:  # (R, C) -> (R, C)
    """What the kernels drop of these rows is 0, the rest is scaled."""
    num_dropped = count_dropped(dropout)
    if not num_dropped:
        return rows
    numbers = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    columns = torch.arange(rows.shape[1], device=rows.device).unsqueeze(0)
    is_kept = find_kept_plain(mix_plain(seed), numbers, columns, num_dropped)
    return torch.where(is_kept, rows * (LEVELS / (LEVELS - num_dropped)), 0.0)


def find_kept_pairs_plain(seed: Tensor, rows: Tensor, columns: Tensor, num_dropped: int) -> Tensor:
    """(R, 1), (1, C) -> (R, C)"""
    places = mix_plain((rows & ~8) ^ seed) + multiply(columns & ~8, 0x9E3779B9)
    mixed = mix_mixed_plain(places & 0xFFFFFFFF)
    return ((mixed >> ((rows & 8) * 2 + (columns & 8))) & 0xFF) >= num_dropped
