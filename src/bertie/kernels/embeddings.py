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
from bertie.kernels.norm import MAX_PROGRAMS, normalise, shape_of, slope_of_norm
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
        w, num_rows = EmbeddingWeights(*weights), len(places.ids)
        out = w.token.new_empty(num_rows, w.token.shape[1], dtype=dtype)
        statistics = w.token.new_empty(2, num_rows, dtype=torch.float32)
        shape = shape_of(w.token.shape[1])
        embed_forward[(triton.cdiv(num_rows, shape["ROWS"]),)](
            *places,
            *w,
            seed,
            out,
            statistics,
            num_rows,
            eps,
            **shape,
            **chance_of(dropout),
            num_warps=4,
        )
        ctx.dropout = dropout
        ctx.save_for_backward(*places, seed, statistics, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        *flat, seed, statistics, token, segment, position, norm, _ = ctx.saved_tensors
        places, num_rows = Places(*flat), len(gradient)
        shape = shape_of(token.shape[1])
        num_programs = min(triton.cdiv(num_rows, shape["ROWS"]), MAX_PROGRAMS)
        d_sum = token.new_empty(num_rows, token.shape[1])
        sums = token.new_empty(num_programs, 2, token.shape[1])
        embed_backward[(num_programs,)](
            gradient.contiguous(),
            *places,
            token,
            segment,
            position,
            statistics,
            norm,
            seed,
            d_sum,
            sums,
            num_rows,
            **shape,
            **chance_of(ctx.dropout),
            num_warps=4,
        )
        tables = (
            torch.ops.aten.embedding_dense_backward(d_sum, numbers, len(table), -1, False)
            for numbers, table in zip(places, (token, segment, position), strict=True)
        )
        return None, None, None, None, None, *tables, *add_rows(sums)


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
