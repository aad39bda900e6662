"""norm(residual + drop(y + bias)): what ends each half of a layer, in one pass over memory."""

# T tokens   D hidden size   P programs

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.chance import chance_of, drop_plain, find_kept, mix
from bertie.kernels.float8 import SLOPE8, Scale, Slope, copy_rows, copy_slope
from bertie.kernels.launch import RowLaunch
from bertie.kernels.sums import add_rows

ROW_ELEMENTS = 1024  # of a program at a time
MAX_PROGRAMS = 132 * 12  # of the backward kernel, each with sums of its own


def launch_of(size: int, num_warps: int = 1) -> RowLaunch:
    """Of a kernel over rows of this size."""
    rows = max(1, ROW_ELEMENTS // width_of(size))
    return RowLaunch(rows=rows, num_warps=num_warps, max_programs=MAX_PROGRAMS)


def backward_launch(size: int, *, is_copied: bool = False) -> RowLaunch:
    """Measured on an H200; other sizes as in the forward pass."""
    measured = {512: RowLaunch(1, 1, 132 * 16), 1024: RowLaunch(1, 2, 132 * 8)}
    if is_copied:
        measured[768] = RowLaunch(1, 1, 132 * 8)
    return measured.get(size, launch_of(size))


def width_of(size: int) -> int:
    """Of a program's rows, a power of two; what is beyond the size counts nowhere."""
    return int(triton.next_power_of_2(size))


@triton.jit
def normalise(z, weight, shift, columns, eps, SIZE: tl.constexpr):
    """Normed rows, with their means and 1 / deviations."""
    is_column = columns < SIZE
    center = tl.sum(z, 1, keep_dims=True) / SIZE  # (ROWS, 1)
    off = tl.where(is_column, z - center, 0.0)
    inverse = tl.rsqrt(tl.sum(off * off, 1, keep_dims=True) / SIZE + eps)
    normed = off * inverse * tl.load(weight + columns, mask=is_column, other=0.0)
    normed += tl.load(shift + columns, mask=is_column, other=0.0)
    return normed, center, inverse


@triton.jit
def slope_of_norm(g, x, inverse, SIZE: tl.constexpr):
    """The gradient of what was normed to x, of which g is that of x."""
    along = tl.sum(g * x, 1, keep_dims=True) / SIZE
    level = tl.sum(g, 1, keep_dims=True) / SIZE
    return (g - level - x * along) * inverse


@triton.jit(do_not_specialize=["num_rows"])
def norm_forward(
    residual,
    y,
    bias,
    weight,
    shift,
    seed,
    out,
    summed,
    statistics,
    copy,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_SAVED: tl.constexpr,
    IS_COPIED: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]  # (ROWS, 1)
    columns = tl.arange(0, WIDTH)[None, :]  # (1, WIDTH)
    is_inside = (rows < num_rows) & (columns < SIZE)
    places = tl.max_contiguous(rows.to(tl.int64) * SIZE + columns, (1, 8))
    is_column = columns < SIZE
    z = tl.load(y + places, mask=is_inside, other=0.0).to(tl.float32)
    z += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    if NUM_DROPPED > 0:
        is_kept = find_kept(mix(tl.load(seed).to(tl.uint32)), rows, columns, NUM_DROPPED)
        z = tl.where(is_kept, z * SCALE, 0.0)
    z += tl.load(residual + places, mask=is_inside, other=0.0).to(tl.float32)
    z = tl.where(is_column, z, 0.0)
    normed, center, inverse = normalise(z, weight, shift, columns, eps, SIZE)
    rounded = normed.to(out.dtype.element_ty)
    tl.store(out + places, rounded, mask=is_inside)
    if IS_COPIED:
        tl.store(copy + places, copy_rows(rounded), mask=is_inside)
    if IS_SAVED:
        tl.store(summed + places, z.to(summed.dtype.element_ty), mask=is_inside)
        tl.store(statistics + rows, center, mask=rows < num_rows)
        tl.store(statistics + num_rows + rows, inverse, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def norm_backward(
    gradient,
    summed,
    statistics,
    weight,
    seed,
    d_residual,
    d_y,
    copy,
    factor,
    sums,
    num_rows,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_COPIED: tl.constexpr,
):
    """`sums` (P, 3, SIZE): each program's part of the gradients of weight, shift and bias."""
    columns = tl.arange(0, WIDTH)[None, :]
    is_column = columns < SIZE
    scales = tl.load(weight + columns, mask=is_column, other=0.0)
    d_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    d_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    stride = tl.num_programs(0) * ROWS
    for first in range(tl.program_id(0) * ROWS, num_rows, stride):
        rows = (first + tl.arange(0, ROWS))[:, None]
        is_inside = (rows < num_rows) & is_column
        places = tl.max_contiguous(rows.to(tl.int64) * SIZE + columns, (1, 8))
        g = tl.load(gradient + places, mask=is_inside, other=0.0).to(tl.float32)
        z = tl.load(summed + places, mask=is_inside, other=0.0).to(tl.float32)
        center = tl.load(statistics + rows, mask=rows < num_rows, other=0.0)
        inverse = tl.load(statistics + num_rows + rows, mask=rows < num_rows, other=0.0)
        x = tl.where(is_inside, (z - center) * inverse, 0.0)
        d_weight += g * x
        d_shift += g
        d = slope_of_norm(g * scales, x, inverse, SIZE)
        tl.store(d_residual + places, d.to(d_residual.dtype.element_ty), mask=is_inside)
        if NUM_DROPPED > 0:
            is_kept = find_kept(mix(tl.load(seed).to(tl.uint32)), rows, columns, NUM_DROPPED)
            d = tl.where(is_kept, d * SCALE, 0.0)
            tl.store(d_y + places, d.to(d_y.dtype.element_ty), mask=is_inside)
        if IS_COPIED:
            tl.store(copy + places, copy_slope(d, factor), mask=is_inside)
        d_bias += tl.where(is_inside, d, 0.0)
    mine = sums + tl.program_id(0) * 3 * SIZE + columns
    tl.store(mine, tl.sum(d_weight, 0, keep_dims=True), mask=is_column)
    tl.store(mine + SIZE, tl.sum(d_shift, 0, keep_dims=True), mask=is_column)
    tl.store(mine + 2 * SIZE, tl.sum(d_bias, 0, keep_dims=True), mask=is_column)


def add_norm_forward(
    residual: Tensor,
    y: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    seed: Tensor,
    dropout: float,
    eps: float,
    *,
    is_saved: bool,
    copy: Tensor | None = None,
    launch: RowLaunch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # (T, D), (T, D), 3 (D,) -> (T, D), (T, D), (2, T)
    """The normed rows; for the backward pass, the sums and their means and 1 / deviations.

    Where a place for a `copy` (T, D) in eight bits is given, it is written too.
    """
    num_rows, size = y.shape
    out = torch.empty_like(y)
    summed = torch.empty_like(y) if is_saved else y
    statistics = torch.empty(2, num_rows, dtype=torch.float32, device=y.device)
    launch = launch or launch_of(size)
    norm_forward[(triton.cdiv(num_rows, launch.rows),)](
        residual,
        y,
        bias,
        weight,
        shift,
        seed,
        out,
        summed,
        statistics,
        out if copy is None else copy,
        num_rows,
        eps,
        SIZE=size,
        WIDTH=width_of(size),
        ROWS=launch.rows,
        **chance_of(dropout),
        IS_SAVED=is_saved,
        IS_COPIED=copy is not None,
        num_warps=launch.num_warps,
    )
    return out, summed, statistics


def add_norm_backward(
    gradient: Tensor,
    summed: Tensor,
    statistics: Tensor,
    weight: Tensor,
    seed: Tensor,
    dropout: float,
    *,
    scale: Scale | None = None,
    launch: RowLaunch | None = None,
) -> tuple[Tensor, Slope, Tensor]:  # (T, D), (T, D), (2, T), (D,) -> 2 (T, D), (3, D)
    """Gradients of residual and y; and of weight, shift and bias, one row each.

    Where a `scale` is given, that of y comes in eight bits, too.
    """
    num_rows, size = gradient.shape
    launch = launch or backward_launch(size, is_copied=scale is not None)
    num_programs = min(triton.cdiv(num_rows, launch.rows), launch.max_programs)
    d_residual = torch.empty_like(gradient)
    chance = chance_of(dropout)
    d_y = torch.empty_like(gradient) if chance["NUM_DROPPED"] else d_residual
    copy = None if scale is None else torch.empty_like(gradient, dtype=SLOPE8)
    sums = torch.empty(num_programs, 3, size, dtype=torch.float32, device=gradient.device)
    norm_backward[(num_programs,)](
        gradient,
        summed,
        statistics,
        weight,
        seed,
        d_residual,
        d_y,
        d_y if copy is None else copy,
        sums if scale is None else scale.factor,
        sums,
        num_rows,
        SIZE=size,
        WIDTH=width_of(size),
        ROWS=launch.rows,
        **chance,
        IS_COPIED=copy is not None,
        num_warps=launch.num_warps,
    )
    return d_residual, Slope(d_y, copy, scale), add_rows(sums)


def add_norm_plain(
    residual: Tensor,
    y: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    seed: Tensor,
    dropout: float,
    eps: float,
) -> Tensor:
    """The twin, with torch's own operations and the same chance."""
    summed = residual + drop_plain(y + bias, seed, dropout)
    return F.layer_norm(summed, weight.shape, weight, shift, eps)
