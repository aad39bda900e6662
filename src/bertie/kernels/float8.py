"""Rows, weights and gradients in eight bits, for products.

Rows and weights are e4m3, with scales that never change. It has 3 bits behind the point from 2^-6
to 448, and fewer down to 2^-9: wherever a number lies between, its error is the same share of it,
so no scale has to follow the data. Rows behind a norm or gelu, and mixes of values, are taken times
8: they saturate beyond 56. Weights times 16: beyond 28. What is larger becomes the largest there
is: so do GPUs that have eight bits when they round, where torch makes it infinite, or no number.

How large gradients are depends on the loss, on the layer and on how far a training has come. They
are e5m2, which has 2 bits behind the point, but from 2^-14 to 57,344: one scale for all gradients
of a layer is enough, found from the one that comes in (`find_scale`).

The copy of a layer's rows is made of rows that are rounded already, so it is the same whoever makes
it: the kernel that makes the rows, in the same pass, or `quantise` behind it. A kernel that stores
both tells the compiler that no more than eight neighbours lie together (`tl.max_contiguous`). Else
that stores eight halves at a time, but sixteen of eight bits, and makes what leads to these a
second time, in other threads: of gelu's gradient with 16 numbers a thread, 43 instead of 29
instructions a number.
"""

# T tokens   D hidden size   I, O columns of rows that go in and come out   P programs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOAT8, LARGEST = torch.float8_e4m3fn, 448.0
SLOPE8, LARGEST_SLOPE = torch.float8_e5m2, 57344.0
ROW_SCALE, WEIGHT_SCALE = 8.0, 16.0
UNSCALE = 1 / (ROW_SCALE * WEIGHT_SCALE)  # of a product of rows and weights
SLOPE_LEVEL = 4.0  # the root of the mean square of a gradient comes to lie at or below it
BLOCK, MAX_PROGRAMS = 4096, 132 * 4

# The same numbers, as kernels can read them.
OF_ROWS, LEVEL = tl.constexpr(ROW_SCALE), tl.constexpr(SLOPE_LEVEL)


@triton.jit
def copy_rows(rounded):
    """Of rows, in the precision in which they are stored, if they are -> e4m3"""
    return (rounded.to(tl.float32) * OF_ROWS).to(tl.float8e4nv)


@triton.jit
def copy_slope(slope, factor):
    """Of a gradient -> e5m2; what is no number stays so."""
    return (slope.to(tl.float32) * tl.load(factor)).to(tl.float8e5)


# --- rows ---


# The compiler is told of `count`: only so does it know that numbers come in sixteens.
@triton.jit
def cast(x, eight, count, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + places, mask=places < count, other=0.0).to(tl.float32)
    tl.store(eight + places, (value * SCALE).to(tl.float8e4nv), mask=places < count)


def quantise(x: Tensor) -> Tensor:  # (T, D) -> (T, D)
    """A copy of rows in eight bits, where no kernel has made it on the way."""
    eight = torch.empty_like(x, dtype=FLOAT8)
    launch_cast(x, eight, ROW_SCALE)
    return eight


def launch_cast(x: Tensor, eight: Tensor, scale: float) -> None:
    assert x.is_contiguous(), "copied as they lie in memory"
    grid = (triton.cdiv(x.numel(), BLOCK),)
    cast[grid](x, eight, x.numel(), SCALE=scale, BLOCK=BLOCK, num_warps=4)


# --- weights ---


def cast_weight(weight: Tensor) -> Tensor:  # (O, I) -> (O, I)
    eight = torch.empty_like(weight, dtype=FLOAT8)
    launch_cast(weight, eight, WEIGHT_SCALE)
    return eight


def turn_weight(eight: Tensor) -> Tensor:  # (O, I) -> (I, O)
    """As the backward pass takes it: products of eight bits want both factors to lie in memory as
    they are summed.

    torch transposes: in Triton 3.6 numbers of eight bits that change threads are lost.
    """
    return eight.view(torch.uint8).T.contiguous().view(FLOAT8)


# --- gradients ---


@triton.jit(do_not_specialize=["count"])
def add_squares(x, sums, count, BLOCK: tl.constexpr):
    """`sums` (P,): each program's part."""
    total = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in range(first, count, tl.num_programs(0) * BLOCK):
        places = start + tl.arange(0, BLOCK)
        value = tl.load(x + places, mask=places < count, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


@triton.jit(do_not_specialize=["num_parts", "count"])
def choose_scale(sums, factor, inverse, num_parts, count, PARTS: tl.constexpr):
    """A power of two, and 1 / it."""
    parts = tl.arange(0, PARTS)
    square = tl.sum(tl.load(sums + parts, mask=parts < num_parts, other=0.0), 0) / count
    chosen = tl.exp2(tl.floor(tl.log2(LEVEL / tl.sqrt(square))))
    chosen = tl.where(square == 0, 1.0, chosen)  # of zeros, any
    tl.store(factor, chosen)
    tl.store(inverse, 1 / chosen)


class Scale(NamedTuple):
    """What gradients of a layer are multiplied with, and what undoes it; where the device has it.

    Tensors of their own: cuBLASLt wants the inverse at a multiple of 16 bytes.
    """

    factor: Tensor  # (1,)
    inverse: Tensor  # (1,)


def find_scale(gradient: Tensor) -> Scale:  # (T, D)
    assert gradient.is_contiguous(), "read as it lies in memory"
    count = gradient.numel()
    num_parts = min(triton.cdiv(count, BLOCK), MAX_PROGRAMS)
    sums = torch.empty(num_parts, dtype=torch.float32, device=gradient.device)
    scale = Scale(sums.new_empty(1), sums.new_empty(1))
    add_squares[(num_parts,)](gradient, sums, count, BLOCK=BLOCK, num_warps=4)
    choose_scale[(1,)](
        sums, *scale, num_parts, float(count), PARTS=triton.next_power_of_2(num_parts), num_warps=4
    )
    return scale


class Slope(NamedTuple):
    """The gradient of some rows."""

    half: Tensor  # (T, O) of which gradients of matrices are made
    eight: Tensor | None = None  # (T, O) the same, scaled, of which those of rows are
    scale: Scale | None = None


# --- the same with torch's own operations ---


def quantise_plain(x: Tensor, scale: float) -> Tensor:
    return (x.float() * scale).clamp(-LARGEST, LARGEST).to(FLOAT8)


def linear_plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """The twin of products of eight bits: of the numbers that these stand for."""
    product = (x.float() @ weight.float().T) * UNSCALE
    return (product if bias is None else product + bias.float()).to(dtype)


def quantise_slope_plain(slope: Tensor, scale: Scale) -> Tensor:  # (T, O) -> (T, O)
    return (slope.float() * scale.factor).clamp(-LARGEST_SLOPE, LARGEST_SLOPE).to(SLOPE8)


def go_back_plain(
    slope: Tensor, scale: Scale, turned: Tensor, dtype: torch.dtype
) -> Tensor:  # (T, O), (I, O) -> (T, I)
    product = (slope.float() @ turned.float().T) * (scale.inverse / WEIGHT_SCALE)
    return product.to(dtype)


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


def take_copy(rows: Tensor) -> Tensor | None:  # (T, D) -> (T, D)
    """Taken off, or it would live as long as the rows, which the backward pass keeps."""
    copy: Tensor | None = rows.__dict__.pop(NAME, None)
    return copy
