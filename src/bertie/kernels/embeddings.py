"""drop(norm(piece + segment + position)), in one pass over memory each way.

The sum is not stored: in the backward pass it is read from the tables again. The tables' gradients
are torch's own, which adds in a fixed order.
"""

# T tokens   D hidden size   V pieces   G segments   L positions

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.chance import chance_of, drop_plain, find_kept, mix
from bertie.kernels.launch import RowLaunch
from bertie.kernels.norm import launch_of, normalise, slope_of_norm, width_of
from bertie.kernels.sums import add_rows


class Places(NamedTuple):
    """Which rows of the tables a token is the sum of."""

    ids: Tensor  # (T,)
    segments: Tensor  # (T,)
    positions: Tensor  # (T,)


class EmbeddingWeights(NamedTuple):
    """What embeddings learn, in float32."""

    token: Tensor  # (V, D)
    segment: Tensor  # (G, D)
    position: Tensor  # (L, D)
    norm: Tensor  # (D,)
    norm_bias: Tensor  # (D,)


@triton.jit
def look_up(numbers, table, rows, columns, is_in, SIZE: tl.constexpr):
    """Rows of a table, in float32."""
    number = tl.load(numbers + rows, mask=is_in, other=0).to(tl.int64)[:, None]
    is_inside = is_in[:, None] & (columns < SIZE)
    return tl.load(table + number * SIZE + columns, mask=is_inside, other=0.0).to(tl.float32)


@triton.jit
def sum_of(
    ids, segments, positions, token, segment, position, rows, columns, is_in, SIZE: tl.constexpr
):
    """The rows' sums of three tables, (ROWS, WIDTH)."""
    z = look_up(ids, token, rows, columns, is_in, SIZE)
    z += look_up(segments, segment, rows, columns, is_in, SIZE)
    return z + look_up(positions, position, rows, columns, is_in, SIZE)


@triton.jit(do_not_specialize=["num_rows"])
def embed_forward(
    ids,
    segments,
    positions,
    token,
    segment,
    position,
    weight,
    shift,
    seed,
    out,
    statistics,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)[None, :]
    is_column, is_in = columns < SIZE, rows < num_rows
    z = sum_of(ids, segments, positions, token, segment, position, rows, columns, is_in, SIZE)
    normed, center, inverse = normalise(z, weight, shift, columns, eps, SIZE)
    rows = rows[:, None]
    if NUM_DROPPED > 0:
        is_kept = find_kept(mix(tl.load(seed).to(tl.uint32)), rows, columns, NUM_DROPPED)
        normed = tl.where(is_kept, normed * SCALE, 0.0)
    places = rows.to(tl.int64) * SIZE + columns
    is_inside = (rows < num_rows) & is_column
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=is_inside)
    tl.store(statistics + rows, center, mask=rows < num_rows)
    tl.store(statistics + num_rows + rows, inverse, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def embed_backward(
    gradient,
    ids,
    segments,
    positions,
    token,
    segment,
    position,
    statistics,
    weight,
    seed,
    d_sum,
    sums,
    num_rows,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """`sums` (P, 2, SIZE): each program's part of the gradients of weight and shift."""
    columns = tl.arange(0, WIDTH)[None, :]
    is_column = columns < SIZE
    scales = tl.load(weight + columns, mask=is_column, other=0.0)
    d_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    d_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    stride = tl.num_programs(0) * ROWS
    for first in range(tl.program_id(0) * ROWS, num_rows, stride):
        flat = first + tl.arange(0, ROWS)
        is_in = flat < num_rows
        z = sum_of(ids, segments, positions, token, segment, position, flat, columns, is_in, SIZE)
        rows = flat[:, None]
        is_inside = (rows < num_rows) & is_column
        places = rows.to(tl.int64) * SIZE + columns
        g = tl.load(gradient + places, mask=is_inside, other=0.0).to(tl.float32)
        if NUM_DROPPED > 0:
            is_kept = find_kept(mix(tl.load(seed).to(tl.uint32)), rows, columns, NUM_DROPPED)
            g = tl.where(is_kept, g * SCALE, 0.0)
        center = tl.load(statistics + rows, mask=rows < num_rows, other=0.0)
        inverse = tl.load(statistics + num_rows + rows, mask=rows < num_rows, other=0.0)
        x = tl.where(is_inside, (z - center) * inverse, 0.0)
        d_weight += g * x
        d_shift += g
        d = slope_of_norm(g * scales, x, inverse, SIZE)
        tl.store(d_sum + places, d, mask=is_inside)
    mine = sums + tl.program_id(0) * 2 * SIZE + columns
    tl.store(mine, tl.sum(d_weight, 0, keep_dims=True), mask=is_column)
    tl.store(mine + SIZE, tl.sum(d_shift, 0, keep_dims=True), mask=is_column)


NUM_WARPS = 4


def embed_rows(
    places: Places,
    seed: Tensor,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
    weights: EmbeddingWeights,
    *,
    launch: RowLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # -> (T, D), (2, T)
    """The rows; for the backward pass, the means of the sums and their 1 / deviations."""
    w, num_rows = weights, len(places.ids)
    size = w.token.shape[1]
    out = w.token.new_empty(num_rows, size, dtype=dtype)
    statistics = w.token.new_empty(2, num_rows, dtype=torch.float32)
    launch = launch or launch_of(size, NUM_WARPS)
    embed_forward[(triton.cdiv(num_rows, launch.rows),)](
        *places,
        *w,
        seed,
        out,
        statistics,
        num_rows,
        eps,
        SIZE=size,
        WIDTH=width_of(size),
        ROWS=launch.rows,
        **chance_of(dropout),
        num_warps=launch.num_warps,
    )
    return out, statistics


def embed_slopes(
    gradient: Tensor,
    places: Places,
    seed: Tensor,
    dropout: float,
    statistics: Tensor,
    weights: EmbeddingWeights,
    *,
    launch: RowLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # (T, D) -> (T, D), (2, D)
    """Gradients of the sums of the tables' rows; and of norm and norm_bias, one row each."""
    w, num_rows = weights, len(gradient)
    size = w.token.shape[1]
    launch = launch or launch_of(size, NUM_WARPS)
    num_programs = min(triton.cdiv(num_rows, launch.rows), launch.max_programs)
    d_sum = w.token.new_empty(num_rows, size)
    sums = w.token.new_empty(num_programs, 2, size)
    embed_backward[(num_programs,)](
        gradient,
        *places,
        w.token,
        w.segment,
        w.position,
        statistics,
        w.norm,
        seed,
        d_sum,
        sums,
        num_rows,
        SIZE=size,
        WIDTH=width_of(size),
        ROWS=launch.rows,
        **chance_of(dropout),
        num_warps=launch.num_warps,
    )
    return d_sum, add_rows(sums)


class Embed(torch.autograd.Function):
    """Rows (T, D) in half precision, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        places: Places,
        seed: Tensor,
        dropout: float,
        eps: float,
        dtype: torch.dtype,
        *weights: Tensor,
    ) -> Tensor:
        out, statistics = embed_rows(places, seed, dropout, eps, dtype, EmbeddingWeights(*weights))
        ctx.dropout = dropout
        ctx.save_for_backward(*places, seed, statistics, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        ids, segments, positions, seed, statistics, *rest = ctx.saved_tensors
        places, weights = Places(ids, segments, positions), EmbeddingWeights(*rest)
        d_sum, sums = embed_slopes(
            gradient.contiguous(), places, seed, ctx.dropout, statistics, weights
        )
        tables = (
            torch.ops.aten.embedding_dense_backward(d_sum, numbers, len(table), -1, False)
            for numbers, table in zip(places, weights[:3], strict=True)
        )
        return None, None, None, None, None, *tables, *sums


def embed(
    places: Places,
    seed: Tensor,
    weights: EmbeddingWeights,
    *,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:  # -> (T, D)
    """The rows, in the precision that is asked for."""
    rows: Tensor = Embed.apply(places, seed, dropout, eps, dtype, *weights)
    return rows


def embed_plain(
    places: Places, seed: Tensor, weights: EmbeddingWeights, *, dropout: float, eps: float
) -> Tensor:
    """The twin, with torch's own operations and the same chance."""
    w = weights
    summed = w.token[places.ids] + w.segment[places.segments] + w.position[places.positions]
    normed = F.layer_norm(summed, w.norm.shape, w.norm, w.norm_bias, eps)
    return drop_plain(normed, seed, dropout)
