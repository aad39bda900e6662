"""gelu(x + bias) and its gradient, with the bias's own gradient in the same pass.

For products of eight bits, the forward pass gives nothing else; the backward pass then makes what
gelu gives once more, in half precision, for the gradient of the matrix behind it. These products
have added the bias before: read here, it would make the compiler send all rows through shared
memory, to lie as the bias does.
"""

# T tokens   U feed-forward size

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.float8 import FLOAT8, SLOPE8, Scale, Slope, copy_rows, copy_slope
from bertie.kernels.launch import BlockLaunch
from bertie.kernels.sums import add_rows

# Of both kernels; and of each with eight bits.
LAUNCH = BlockLaunch(rows=16, columns=256, num_warps=4, max_programs=132 * 8)
AHEAD8 = BlockLaunch(rows=8, columns=256, num_warps=4, max_programs=132 * 8)
BACK8 = BlockLaunch(rows=8, columns=256, num_warps=8, max_programs=132 * 16)
MOST_BLOCKS = 65_535  # on a grid's second axis: half a million rows with eight bits


@triton.jit
def gelu_parts(x, IS_TANH: tl.constexpr):
    """The share of a normal distribution below x, and the slope of gelu there.

    erf by Abramowitz and Stegun 7.1.26, which is within 1.5e-7 and shares its exp with the slope.
    """
    if IS_TANH:
        # (1 + tanh(inner)) / 2 with inner = sqrt(2 / pi) x (1 + 0.044715 x^2)
        square = x * x
        share = 1 / (1 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * square)))
        slope = share + (share - share * share) * x * (1.5957691216057308 + 0.2140644488 * square)
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
    IS_FLOAT8: tl.constexpr,
):
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    block = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    rows = (block * ROWS + tl.arange(0, ROWS))[:, None]
    is_inside = (rows < num_rows) & (columns < SIZE)
    places = tl.max_contiguous(rows.to(tl.int64) * SIZE + columns, (1, 8))
    value = tl.load(x + places, mask=is_inside, other=0.0).to(tl.float32)
    if not IS_FLOAT8:
        value += tl.load(bias + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    share, _ = gelu_parts(value, IS_TANH)
    active = value * share
    if IS_FLOAT8:
        tl.store(out + places, copy_rows(active), mask=is_inside)
    else:
        tl.store(out + places, active.to(out.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=["num_rows"])
def gelu_backward(
    gradient,
    x,
    bias,
    d_x,
    active,
    copy,
    factor,
    sums,
    num_rows,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_TANH: tl.constexpr,
    IS_FLOAT8: tl.constexpr,
):
    """`sums` (programs of a column, SIZE): each program's part of the gradient of bias."""
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    is_column = columns < SIZE
    shift = tl.zeros((1, COLUMNS), tl.float32)
    if not IS_FLOAT8:
        shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        rows = (first + tl.arange(0, ROWS))[:, None]
        is_inside = (rows < num_rows) & is_column
        places = tl.max_contiguous(rows.to(tl.int64) * SIZE + columns, (1, 8))
        value = tl.load(x + places, mask=is_inside, other=0.0).to(tl.float32) + shift
        share, slope = gelu_parts(value, IS_TANH)
        d = tl.load(gradient + places, mask=is_inside, other=0.0).to(tl.float32) * slope
        total += d
        tl.store(d_x + places, d.to(d_x.dtype.element_ty), mask=is_inside)
        if IS_FLOAT8:
            again = (value * share).to(active.dtype.element_ty)
            tl.store(active + places, again, mask=is_inside)
            tl.store(copy + places, copy_slope(d, factor), mask=is_inside)
    mine = sums + tl.program_id(1) * SIZE + columns
    tl.store(mine, tl.sum(total, 0, keep_dims=True), mask=is_column)


def bias_gelu_forward(
    x: Tensor,
    bias: Tensor,
    is_tanh: bool,
    *,
    is_float8: bool = False,
    launch: BlockLaunch | None = None,
) -> Tensor:  # (T, U), (U,) -> (T, U)
    """In the precision of x; or in eight bits alone, and then x has its bias already."""
    num_rows, size = x.shape
    launch = launch or (AHEAD8 if is_float8 else LAUNCH)
    out = torch.empty_like(x, dtype=FLOAT8 if is_float8 else x.dtype)
    num_blocks = triton.cdiv(num_rows, launch.rows)
    depth = max(1, triton.cdiv(num_blocks, MOST_BLOCKS))
    gelu_forward[(triton.cdiv(size, launch.columns), triton.cdiv(num_blocks, depth), depth)](
        x,
        bias,
        out,
        num_rows,
        SIZE=size,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        IS_TANH=is_tanh,
        IS_FLOAT8=is_float8,
        num_warps=launch.num_warps,
    )
    return out


def bias_gelu_backward(
    gradient: Tensor,
    x: Tensor,
    bias: Tensor,
    is_tanh: bool,
    *,
    scale: Scale | None = None,
    launch: BlockLaunch | None = None,
) -> tuple[Slope, Tensor, Tensor | None]:  # (T, U), (T, U), (U,) -> (T, U), (U,), (T, U)
    """Gradients of x and of bias.

    Where a `scale` is given, that of x comes in eight bits, too, and last gelu of x, which has
    its bias already.
    """
    num_rows, size = x.shape
    launch = launch or (LAUNCH if scale is None else BACK8)
    num_blocks = triton.cdiv(size, launch.columns)
    most = max(1, launch.max_programs // num_blocks)
    num_programs = min(triton.cdiv(num_rows, launch.rows), most)
    d_x, is_float8 = torch.empty_like(x), scale is not None
    active = torch.empty_like(x) if is_float8 else None
    copy = torch.empty_like(x, dtype=SLOPE8) if is_float8 else None
    sums = torch.empty(num_programs, size, dtype=torch.float32, device=x.device)
    gelu_backward[(num_blocks, num_programs)](
        gradient,
        x,
        bias,
        d_x,
        d_x if active is None else active,
        d_x if copy is None else copy,
        sums if scale is None else scale.factor,
        sums,
        num_rows,
        SIZE=size,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        IS_TANH=is_tanh,
        IS_FLOAT8=is_float8,
        num_warps=launch.num_warps,
    )
    return Slope(d_x, copy, scale), add_rows(sums), active
