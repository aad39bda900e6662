"""gelu(x + bias) and its gradient, with the bias's own gradient in the same pass."""

# T tokens   U feed-forward size

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.launch import BlockLaunch
from bertie.kernels.sums import add_rows

LAUNCH = BlockLaunch(rows=16, columns=256, num_warps=4, max_programs=132 * 8)  # of both kernels


@triton.jit
def gelu_parts(x, IS_TANH: tl.constexpr):
    """The share of a normal distribution below x, and the slope of gelu there.

    erf by Abramowitz and Stegun 7.1.26, which is within 1.5e-7 and shares its exp with the slope.
    """
    if IS_TANH:
        inner = 0.7978845608028654 * x * (1 + 0.044715 * x * x)
        share = 1 / (1 + tl.exp2(-2.8853900817779268 * inner))  # (1 + tanh(inner)) / 2
        slope = share + x * 2 * share * (1 - share) * 0.7978845608028654 * (1 + 0.134145 * x * x)
    else:
        bell = tl.exp2(-0.7213475204444817 * x * x)  # exp(-x * x / 2)
        t = 1 / (1 + 0.23164189 * tl.abs(x))  # 0.3275911 / sqrt(2)
        tail = 1.061405429 * t - 1.453152027
        tail = tail * t + 1.421413741
        tail = tail * t - 0.284496736
        tail = (tail * t + 0.254829592) * t * bell * 0.5
        share = tl.where(x >= 0, 1 - tail, tail)
        slope = share + x * bell * 0.3989422804014327
    return share, slope


@triton.jit(do_not_specialize=["num_rows"])
def gelu_forward(
    x,
    bias,
    out,
    num_rows,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_TANH: tl.constexpr,
):
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    is_inside = (rows < num_rows) & (columns < SIZE)
    places = rows.to(tl.int64) * SIZE + columns
    value = tl.load(x + places, mask=is_inside, other=0.0).to(tl.float32)
    value += tl.load(bias + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    share, _ = gelu_parts(value, IS_TANH)
    tl.store(out + places, (value * share).to(out.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=["num_rows"])
def gelu_backward(
    gradient,
    x,
    bias,
    d_x,
    sums,
    num_rows,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_TANH: tl.constexpr,
):
    """`sums` (programs of a column, SIZE): each program's part of the gradient of bias."""
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    is_column = columns < SIZE
    shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        rows = (first + tl.arange(0, ROWS))[:, None]
        is_inside = (rows < num_rows) & is_column
        places = rows.to(tl.int64) * SIZE + columns
        value = tl.load(x + places, mask=is_inside, other=0.0).to(tl.float32) + shift
        _, slope = gelu_parts(value, IS_TANH)
        d = tl.load(gradient + places, mask=is_inside, other=0.0).to(tl.float32) * slope
        total += d
        tl.store(d_x + places, d.to(d_x.dtype.element_ty), mask=is_inside)
    mine = sums + tl.program_id(1) * SIZE + columns
    tl.store(mine, tl.sum(total, 0, keep_dims=True), mask=is_column)


def bias_gelu_forward(
    x: Tensor, bias: Tensor, is_tanh: bool, *, launch: BlockLaunch = LAUNCH
) -> Tensor:  # (T, U), (U,) -> (T, U)
    num_rows, size = x.shape
    out = torch.empty_like(x)
    gelu_forward[(triton.cdiv(size, launch.columns), triton.cdiv(num_rows, launch.rows))](
        x,
        bias,
        out,
        num_rows,
        SIZE=size,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        IS_TANH=is_tanh,
        num_warps=launch.num_warps,
    )
    return out


def bias_gelu_backward(
    gradient: Tensor, x: Tensor, bias: Tensor, is_tanh: bool, *, launch: BlockLaunch = LAUNCH
) -> tuple[Tensor, Tensor]:  # (T, U), (T, U), (U,) -> (T, U), (U,)
    num_rows, size = x.shape
    num_blocks = triton.cdiv(size, launch.columns)
    most = max(1, launch.max_programs // num_blocks)
    num_programs = min(triton.cdiv(num_rows, launch.rows), most)
    d_x = torch.empty_like(x)
    sums = torch.empty(num_programs, size, dtype=torch.float32, device=x.device)
    gelu_backward[(num_blocks, num_programs)](
        gradient,
        x,
        bias,
        d_x,
        sums,
        num_rows,
        SIZE=size,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        IS_TANH=is_tanh,
        num_warps=launch.num_warps,
    )
    return d_x, add_rows(sums)
