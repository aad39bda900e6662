"""One layer of the encoder, forward and back, its gradient written out.

Written out, nothing passes through memory that need not: biases are added where the result of a
product is read next, their gradients summed where they are made, the two gradients of the residual
stream added inside a product. The rows are bfloat16 (or float16), sums and statistics float32, and
so are the gradients of the weights. `bertie.model.encoder.Layer` is the plain twin.

Of the last layer, heads may read some rows only. Then only these ask: every token has a key and a
value, but all that comes before and behind attention is made of the rows that are kept.

With `is_float8`, the products of the forward pass and those that make the gradients of rows are of
eight bits; the gradients of matrices are made of rows in half precision, as without. Rows and
gradients come in eight bits from the kernels that make them, in the same pass, but for the mixes of
attention. A layer of which only some rows are kept has no products of eight bits.
"""

# T tokens of all sequences in a row   N sequences   D hidden size   U feed-forward size
# H heads   K head size (D = H * K)   R rows that are kept (R = T where all are)

from typing import NamedTuple

import torch
from torch import Tensor

from bertie.kernels.attention import (
    Inquiry,
    ask_all,
    attend_apart_backward,
    attend_kernel_backward,
    attend_kernel_forward,
)
from bertie.kernels.float8 import (
    FLOAT8,
    Scale,
    Slope,
    cast_weight,
    find_scale,
    quantise,
    turn_weight,
)
from bertie.kernels.gelu import bias_gelu_backward, bias_gelu_forward
from bertie.kernels.layer_parts import Gradients, LayerSettings, LayerWeights, Saved, Seeds
from bertie.kernels.norm import add_norm_backward, add_norm_forward
from bertie.kernels.products import (
    add_back,
    add_back8,
    can_fuse_gelu,
    gelu_linear,
    go_back,
    go_back8,
    linear,
    linear8,
    matrix_gradient,
    times_gelu_slope,
)
from bertie.kernels.sums import add_rows, sum_and_copy


class Kept(NamedTuple):
    """Rows of the last layer that are read, in the order of the sequences."""

    rows: Tensor  # (R,) ascending
    order: Tensor  # (R,) which of those that were asked for each is
    asking: Tensor  # (N + 1,) where those of each sequence begin and end

    def undo(self, rows: Tensor) -> Tensor:  # (R, D) -> (R, D)
        """In the order in which they were asked for."""
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def sort_kept(kept: Tensor | None, bounds: Tensor) -> Kept | None:  # (R,), (N + 1,)
    if kept is None:
        return None
    rows, order = kept.sort(stable=True)
    return Kept(rows, order, torch.searchsorted(rows, bounds))


class Factor(NamedTuple):
    """A matrix as the forward pass multiplies with it, and as the backward pass does."""

    ahead: Tensor  # (O, I)
    back: Tensor  # the same, or in eight bits: (I, O)


class Attended(NamedTuple):
    """The first half of a layer: its rows, and what else was made on the way."""

    rows: Tensor  # (R, D)
    copy: Tensor | None  # (R, D) in eight bits
    qkv: Tensor
    queries: Tensor
    log_sums: Tensor
    mixed: Tensor
    total: Tensor  # (R, D) that the norm was taken of
    statistics: Tensor
    qkv_weight: Tensor
    out_weight: Tensor


class FedForward(NamedTuple):
    """The second half."""

    rows: Tensor  # (R, D)
    copy: Tensor | None  # (R, D) in eight bits
    wide: Tensor
    active: Tensor
    total: Tensor
    statistics: Tensor
    up_weight: Tensor
    down_weight: Tensor


def forward(
    x: Tensor,
    x_copy: Tensor | None,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_saved: bool,
) -> tuple[Tensor, Tensor | None, Saved]:  # (T, D), (T, D), (N + 1,), (R,) -> (R, D), (R, D)
    """The layer's rows, and what the backward pass needs if `is_saved`.

    Copies of rows are in eight bits, or none if products are not to be.
    """
    assert kept is None or not settings.is_float8, "kept rows have no products of eight bits"
    own = sort_kept(kept, bounds)
    first = attend(x, x_copy, bounds, own, seeds, weights, settings, is_saved=is_saved)
    second = feed_forward(first, seeds, weights, settings, is_saved=is_saved)
    saved = Saved(
        x=x,
        qkv=first.qkv,
        queries=first.queries,
        log_sums=first.log_sums,
        mixed=first.mixed,
        first_sum=first.total,
        first_statistics=first.statistics,
        middle=first.rows,
        wide=second.wide,
        active=second.active,
        second_sum=second.total,
        second_statistics=second.statistics,
        qkv_weight=first.qkv_weight,
        out_weight=first.out_weight,
        up_weight=second.up_weight,
        down_weight=second.down_weight,
    )
    return (second.rows if own is None else own.undo(second.rows)), second.copy, saved


def attend(
    x: Tensor,
    x_copy: Tensor | None,
    bounds: Tensor,
    kept: Kept | None,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_saved: bool,
) -> Attended:  # (T, D), (T, D), (N + 1,) -> (R, D)
    w, s, dtype = weights, settings, x.dtype
    qkv_weight, out_weight = (
        cast_factor(weight, dtype, is_float8=s.is_float8, is_saved=is_saved)
        for weight in (w.qkv, w.out)
    )
    read = x if x_copy is None else x_copy
    qkv, queries = project(read, kept, qkv_weight.ahead, w.qkv_bias, dtype, s.num_heads)
    asked = ask(qkv, queries, kept, bounds, s)
    mixed, log_sums = attend_kernel_forward(asked, seeds.shares, s.attention_dropout)
    # In a pass of its own: attention's threads hold pairs of columns, and storing two bytes at a
    # time took 0.15 ms a layer of large, where such a pass moves bytes for 0.05 (docs/log.md).
    read = quantise(mixed.flatten(1)) if s.is_float8 else mixed.flatten(1)
    attended = multiply(read, out_weight.ahead, None, dtype)
    copy = place_for_copy(attended, s)
    rows, total, statistics = add_norm_forward(
        choose(x, kept),
        attended,
        w.out_bias,
        w.attention_norm,
        w.attention_norm_bias,
        seeds.attention,
        s.dropout,
        s.eps,
        is_saved=is_saved,
        copy=copy,
    )
    made = qkv, queries, log_sums, mixed, total, statistics
    return Attended(rows, copy, *made, qkv_weight.back, out_weight.back)


def feed_forward(
    first: Attended,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_saved: bool,
) -> FedForward:
    w, s, dtype = weights, settings, first.rows.dtype
    up_weight, down_weight = (
        cast_factor(weight, dtype, is_float8=s.is_float8, is_saved=is_saved)
        for weight in (w.up, w.down)
    )
    read = first.rows if first.copy is None else first.copy
    active, wide = widen(
        read, up_weight.ahead, w.up_bias, dtype, is_tanh=s.is_tanh, is_saved=is_saved
    )
    down = multiply(active, down_weight.ahead, None, dtype)
    if s.is_float8:
        active = wide.new_empty(0, wide.shape[1])
    copy = place_for_copy(first.rows, s)
    rows, total, statistics = add_norm_forward(
        first.rows,
        down,
        w.down_bias,
        w.ffn_norm,
        w.ffn_norm_bias,
        seeds.ffn,
        s.dropout,
        s.eps,
        is_saved=is_saved,
        copy=copy,
    )
    made = wide, active, total, statistics
    return FedForward(rows, copy, *made, up_weight.back, down_weight.back)


def project(
    x: Tensor,
    kept: Kept | None,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
    num_heads: int,
) -> tuple[Tensor, Tensor]:  # (T, D), (3 D, D), (3 D,) -> (T, 2 or 3, H, K), (R or 0, H, K)
    """Queries, keys and values of all rows; or the queries apart, of those that are kept."""
    size = x.shape[1]
    if kept is None:
        qkv = multiply(x, weight, bias, dtype).view(len(x), 3, num_heads, -1)
        return qkv, qkv.new_empty(0, *qkv.shape[2:])
    queries = multiply(choose(x, kept), weight[:size], bias[:size], dtype)
    kv = multiply(x, weight[size:], bias[size:], dtype)
    return kv.view(len(x), 2, num_heads, -1), queries.view(len(queries), num_heads, -1)


def ask(
    qkv: Tensor, queries: Tensor, kept: Kept | None, bounds: Tensor, settings: LayerSettings
) -> Inquiry:
    if kept is None:
        return ask_all(qkv, bounds, settings.longest, is_left=settings.is_left)
    assert not settings.is_left, "where a kept row lies in its sequence is not known to attention"
    return Inquiry(queries, qkv, kept.asking, bounds, settings.longest, is_apart=True)


def cast_factor(
    weight: Tensor, dtype: torch.dtype, *, is_float8: bool, is_saved: bool
) -> Factor:  # (O, I)
    if is_float8:
        eight = cast_weight(weight)
        return Factor(eight, turn_weight(eight) if is_saved else eight)
    # A copy even where the precision is the same: what is given back must not be what was given.
    half = weight.to(dtype, copy=is_saved)
    return Factor(half, half)


def place_for_copy(rows: Tensor, settings: LayerSettings) -> Tensor | None:  # (T, D) -> (T, D)
    return torch.empty_like(rows, dtype=FLOAT8) if settings.is_float8 else None


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """x weight' + bias, of eight bits where both are."""
    added = None if bias is None else bias.to(dtype)
    if x.dtype == FLOAT8:
        return linear8(x, weight, added, dtype)
    return linear(x, weight, added)


def backward(
    gradient: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    saved: Saved,
) -> Gradients:  # (R, D)
    w, s, own = weights, settings, sort_kept(kept, bounds)
    if own is not None:
        gradient = gradient[own.order]
    scale = find_scale(gradient) if s.is_float8 else None
    d_middle, d_down, second_sums = add_norm_backward(
        gradient,
        saved.second_sum,
        saved.second_statistics,
        w.ffn_norm,
        seeds.ffn,
        s.dropout,
        scale=scale,
    )
    d_wide, d_up_bias, active = narrow(d_down, w.up_bias, saved, is_tanh=s.is_tanh)
    d_down_weight = matrix_gradient(d_down.half, active)
    d_up_weight = matrix_gradient(d_wide.half, saved.middle)
    add_to_rows(d_middle, d_wide, saved.up_weight)
    d_residual, d_attended, first_sums = add_norm_backward(
        d_middle,
        saved.first_sum,
        saved.first_statistics,
        w.attention_norm,
        seeds.attention,
        s.dropout,
        scale=scale,
    )
    d_out_weight = matrix_gradient(d_attended.half, saved.mixed.flatten(1))
    d_mixed = bring_to_rows(d_attended, saved.out_weight).view_as(saved.mixed)
    given = d_mixed, d_residual, bounds, seeds.shares, settings, saved
    d_x, d_qkv_weight, d_qkv_bias = (
        look_back_all(*given, scale) if own is None else look_back_kept(*given, own)
    )
    return Gradients(
        x=d_x,
        qkv=d_qkv_weight,
        qkv_bias=d_qkv_bias.flatten(),
        out=d_out_weight,
        first_sums=first_sums,
        up=d_up_weight,
        up_bias=d_up_bias,
        down=d_down_weight,
        second_sums=second_sums,
    )


def look_back_all(
    gradient: Tensor,
    d_residual: Tensor,
    bounds: Tensor,
    seed: Tensor,
    settings: LayerSettings,
    saved: Saved,
    scale: Scale | None,
) -> tuple[Tensor, Tensor, Tensor]:  # (T, H, K), (T, D) -> (T, D), (3 D, D), (3, H, K)
    """From the gradient of the mixes to those of x and of what projects it; of all rows."""
    slope = attend_kernel_backward(
        gradient,
        saved.qkv,
        bounds,
        settings.longest,
        seed,
        saved.mixed,
        saved.log_sums,
        settings.attention_dropout,
        is_left=settings.is_left,
    )
    d_qkv, d_bias = sum_and_copy(slope, scale)
    d_x = add_to_rows(d_residual, d_qkv, saved.qkv_weight)
    return d_x, matrix_gradient(d_qkv.half, saved.x), d_bias


def look_back_kept(
    gradient: Tensor,
    d_residual: Tensor,
    bounds: Tensor,
    seed: Tensor,
    settings: LayerSettings,
    saved: Saved,
    kept: Kept,
) -> tuple[Tensor, Tensor, Tensor]:  # (R, H, K), (R, D) -> (T, D), (3 D, D), (3, H, K)
    """The same where only rows that are kept ask."""
    asked = ask(saved.qkv, saved.queries, kept, bounds, settings)
    d_q, d_kv, d_bias = attend_apart_backward(
        gradient, asked, seed, saved.mixed, saved.log_sums, settings.attention_dropout
    )
    d_q, d_kv = d_q.flatten(1), d_kv.flatten(1)
    size = saved.x.shape[1]
    add_back(d_residual, d_q, saved.qkv_weight[:size])
    d_x = torch.zeros_like(saved.x).index_add_(0, kept.rows, d_residual)
    add_back(d_x, d_kv, saved.qkv_weight[size:])
    d_weight = torch.cat(
        [matrix_gradient(d_q, choose(saved.x, kept)), matrix_gradient(d_kv, saved.x)]
    )
    return d_x, d_weight, d_bias


def choose(rows: Tensor, kept: Kept | None) -> Tensor:  # (T, D) -> (R, D)
    return rows if kept is None else rows[kept.rows]


def bring_to_rows(slope: Slope, weight: Tensor) -> Tensor:  # (T, O) -> (T, I)
    """The gradient of rows, from that of what a matrix has made of them."""
    return go_back(slope.half, weight) if slope.eight is None else go_back8(slope, weight)


def add_to_rows(total: Tensor, slope: Slope, weight: Tensor) -> Tensor:  # (T, I), (T, O)
    """The same, added to `total` in place."""
    if slope.eight is None:
        return add_back(total, slope.half, weight)
    return add_back8(total, slope, weight)


def widen(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
    *,
    is_tanh: bool,
    is_saved: bool,
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(x weight' + bias), of eight bits where x is, and what gelu was taken of."""
    if can_fuse_gelu(x, len(weight)):
        return gelu_linear(x, weight, bias.to(dtype), is_saved=is_saved)
    if x.dtype == FLOAT8:
        wide = linear8(x, weight, bias.to(dtype), dtype)
        return bias_gelu_forward(wide, bias, is_tanh, is_float8=True), wide
    wide = linear(x, weight, None)  # without the bias, which is added where this is read
    return bias_gelu_forward(wide, bias, is_tanh), wide


def narrow(
    slope: Slope, bias: Tensor, saved: Saved, *, is_tanh: bool
) -> tuple[Slope, Tensor, Tensor]:  # (T, D) -> (T, U), (U,), (T, U)
    """The gradients of what gelu was taken of, and of its bias; and what gelu gave."""
    if slope.eight is None and can_fuse_gelu(slope.half, len(bias)):
        d_wide = Slope(times_gelu_slope(slope.half, saved.down_weight, saved.wide))
        return d_wide, add_rows(d_wide.half), saved.active
    d_active = bring_to_rows(slope, saved.down_weight)
    d_wide, d_bias, again = bias_gelu_backward(
        d_active, saved.wide, bias, is_tanh, scale=slope.scale
    )
    return d_wide, d_bias, saved.active if again is None else again
