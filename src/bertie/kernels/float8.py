"""Rows and weights in eight bits, for products: e4m3, with scales that never change.

e4m3 has 3 bits behind the point from 2^-6 to 448, and fewer down to 2^-9: wherever a number lies
between, its error is the same share of it, so no scale has to follow the data. Rows behind a norm,
and mixes of values, are taken times 8: they saturate beyond 56. Weights times 16: beyond 28. What
is larger becomes the largest there is, where a plain cast would make it no number.

A copy is made of rows that are rounded already, so it is the same whoever makes it: the kernel that
makes the rows, in the same pass, or `quantise` behind it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
ROW_SCALE, WEIGHT_SCALE = 8.0, 16.0
UNSCALE = 1 / (ROW_SCALE * WEIGHT_SCALE)  # of a product of both
BLOCK = 4096

# The same numbers, as kernels can read them.
MOST = tl.constexpr(LARGEST)
OF_ROWS = tl.constexpr(ROW_SCALE)


@triton.jit
def saturate(x):
    """float32 -> e4m3"""
    return tl.minimum(tl.maximum(x, -MOST), MOST).to(tl.float8e4nv)


@triton.jit
def copy_rows(rounded):
    """Of rows, in the precision in which they are stored."""
    return saturate(rounded.to(tl.float32) * OF_ROWS)


# The compiler is told of `count`: only so does it know that numbers come in sixteens.
@triton.jit
def cast(x, half, eight, count, SCALE: tl.constexpr, HAS_HALF: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + places, mask=places < count, other=0.0)
    tl.store(eight + places, saturate(value.to(tl.float32) * SCALE), mask=places < count)
    if HAS_HALF:
        tl.store(half + places, value.to(half.dtype.element_ty), mask=places < count)


def quantise(x: Tensor) -> Tensor:  # (T, D) -> (T, D)
    """A copy of rows in eight bits, where no kernel has made it on the way."""
    eight = torch.empty_like(x, dtype=FLOAT8)
    launch_cast(x, eight, eight, ROW_SCALE)
    return eight


def cast_weight(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # (O, I) -> 2 (O, I)
    """In half precision and in eight bits, in one pass."""
    half, eight = torch.empty_like(weight, dtype=dtype), torch.empty_like(weight, dtype=FLOAT8)
    launch_cast(weight, half, eight, WEIGHT_SCALE)
    return half, eight


def launch_cast(x: Tensor, half: Tensor, eight: Tensor, scale: float) -> None:
    count = x.numel()
    assert x.is_contiguous(), "copied as they lie in memory"
    cast[(triton.cdiv(count, BLOCK),)](
        x, half, eight, count, SCALE=scale, HAS_HALF=half is not eight, BLOCK=BLOCK, num_warps=4
    )


def quantise_plain(x: Tensor, scale: float) -> Tensor:
    """The twin, with torch's own operations."""
    return (x.float() * scale).clamp(-LARGEST, LARGEST).to(FLOAT8)


def linear_plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """The twin of products of eight bits: of the numbers that these stand for."""
    product = (x.float() @ weight.float().T) * UNSCALE
    return (product if bias is None else product + bias.float()).to(dtype)


# --- how the copy of a layer's rows comes to the next layer ---

NAME = "float8_copy"


def leave_copy(rows: Tensor, copy: Tensor | None) -> Tensor:
    """On the rows themselves: models pass rows on, and need not know of copies.

    Rows are never changed in place, so a copy stays true; where it is lost on the way (a wrapper
    makes a new tensor, a layer is computed again) `quantise` makes the same.
    """
    if copy is not None:
        rows.__dict__[NAME] = copy
    return rows


def take_copy(rows: Tensor) -> Tensor:  # (T, D) -> (T, D)
    """Taken off, or it would live as long as the rows, which the backward pass keeps."""
    copy: Tensor | None = rows.__dict__.pop(NAME, None)
    return quantise(rows) if copy is None else copy
