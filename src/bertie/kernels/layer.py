"""One layer of the encoder, forward and back, its gradient written out.

Written out, nothing passes through memory that need not: biases are added where the result of a
product is read next, their gradients summed where they are made, the two gradients of the residual
stream added inside a product. The rows are bfloat16 (or float16), sums and statistics float32, and
so are the gradients of the weights. `bertie.model.encoder.Layer` is the plain twin.

Of the last layer, heads may read some rows only. Then only these ask: every token has a key and a
value, but all that comes before and behind attention is made of the rows that are kept.

With `is_float8`, three of the four products of the forward pass are of eight bits; their gradients
are those of the rows and weights in half precision, as without. Rows behind a norm come in eight
bits from the kernel that makes them, in the same pass.
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
from bertie.kernels.float8 import FLOAT8, cast_weight, quantise
from bertie.kernels.gelu import bias_gelu_backward, bias_gelu_forward
from bertie.kernels.norm import add_norm_backward, add_norm_forward
from bertie.kernels.products import (
    add_back,
    can_fuse_gelu,
    gelu_linear,
    go_back,
    linear,
    linear8,
    matrix_gradient,
    times_gelu_slope,
)
from bertie.kernels.sums import add_rows


class LayerWeights(NamedTuple):
    """What a layer learns, in float32."""

    qkv: Tensor  # (3 D, D)
    qkv_bias: Tensor  # (3 D,)
    out: Tensor  # (D, D)
    out_bias: Tensor  # (D,)
    attention_norm: Tensor  # (D,)
    attention_norm_bias: Tensor  # (D,)
    up: Tensor  # (U, D)
    up_bias: Tensor  # (U,)
    down: Tensor  # (D, U)
    down_bias: Tensor  # (D,)
    ffn_norm: Tensor  # (D,)
    ffn_norm_bias: Tensor  # (D,)


class LayerSettings(NamedTuple):
    """What does not change while a model trains."""

    num_heads: int
    dropout: float
    attention_dropout: float
    eps: float
    is_tanh: bool
    longest: int
    is_float8: bool = False
    is_left: bool = False  # a token sees itself and those before it; no rows are `kept` then


class Seeds(NamedTuple):
    """(1,) each, for the three places where a layer drops."""

    shares: Tensor
    attention: Tensor
    ffn: Tensor


class Saved(NamedTuple):
    """What the backward pass needs again."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (T, 3, H, K); where rows are kept, keys and values alone: (T, 2, H, K)
    queries: Tensor  # (R, H, K) where rows are kept; else none, they are in qkv: (0, H, K)
    log_sums: Tensor  # (H, R)
    mixed: Tensor  # (R, H, K)
    first_sum: Tensor  # (R, D)
    first_statistics: Tensor  # (2, R)
    middle: Tensor  # (R, D)
    wide: Tensor  # (R, U) before gelu
    active: Tensor  # (R, U) after
    second_sum: Tensor  # (R, D)
    second_statistics: Tensor  # (2, R)
    qkv_weight: Tensor  # the large weights in the precision of the rows
    out_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor


class Gradients(NamedTuple):
    """What the backward pass finds."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (3 D, D)
    qkv_bias: Tensor  # (3 D,)
    out: Tensor  # (D, D)
    first_sums: Tensor  # (3, D) of attention_norm, attention_norm_bias, out_bias
    up: Tensor  # (U, D)
    up_bias: Tensor  # (U,)
    down: Tensor  # (D, U)
    second_sums: Tensor  # (3, D) of ffn_norm, ffn_norm_bias, down_bias

    def of_weights(self) -> LayerWeights:
        norm, norm_bias, out_bias = self.first_sums
        ffn_norm, ffn_norm_bias, down_bias = self.second_sums
        return LayerWeights(
            qkv=self.qkv,
            qkv_bias=self.qkv_bias,
            out=self.out,
            out_bias=out_bias,
            attention_norm=norm,
            attention_norm_bias=norm_bias,
            up=self.up,
            up_bias=self.up_bias,
            down=self.down,
            down_bias=down_bias,
            ffn_norm=ffn_norm,
            ffn_norm_bias=ffn_norm_bias,
        )


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
    """A matrix as it is kept for the backward pass, and as the forward pass multiplies with it."""

    half: Tensor  # (O, I)
    used: Tensor  # (O, I) the same, or in eight bits


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
    own = sort_kept(kept, bounds)
    first = attend(x, x_copy, bounds, own, seeds, weights, settings, is_saved=is_saved)
    # Rows that are kept are the last layer's: no layer reads them.
    second = feed_forward(first, seeds, weights, settings, is_saved=is_saved, is_copied=own is None)
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
    qkv, queries = project(read, kept, qkv_weight.used, w.qkv_bias, dtype, s.num_heads)
    asked = ask(qkv, queries, kept, bounds, s)
    mixed, log_sums = attend_kernel_forward(asked, seeds.shares, s.attention_dropout)
    # In a pass of its own: attention's threads hold pairs of columns, and storing two bytes at a
    # time took 0.15 ms a layer of large, where such a pass moves bytes for 0.05 (docs/log.md).
    read = quantise(mixed.flatten(1)) if s.is_float8 else mixed.flatten(1)
    attended = multiply(read, out_weight.used, None, dtype)
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
    return Attended(rows, copy, *made, qkv_weight.half, out_weight.half)


def feed_forward(
    first: Attended,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_saved: bool,
    is_copied: bool,
) -> FedForward:
    w, s, dtype = weights, settings, first.rows.dtype
    up_weight = cast_factor(w.up, dtype, is_float8=s.is_float8, is_saved=is_saved)
    down_weight = cast_factor(w.down, dtype, is_float8=False, is_saved=is_saved).half
    read = first.rows if first.copy is None else first.copy
    active, wide = widen(
        read, up_weight.used, w.up_bias, dtype, is_tanh=s.is_tanh, is_saved=is_saved
    )
    down = linear(active, down_weight, None)
    copy = place_for_copy(first.rows, s) if is_copied else None
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
    return FedForward(rows, copy, wide, active, total, statistics, up_weight.half, down_weight)


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
        return Factor(*cast_weight(weight, dtype))
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
    d_middle, d_down, second_sums = add_norm_backward(
        gradient, saved.second_sum, saved.second_statistics, w.ffn_norm, seeds.ffn, s.dropout
    )
    d_down_weight = matrix_gradient(d_down, saved.active)
    d_wide, d_up_weight, d_up_bias = narrow(d_down, w.up_bias, saved, is_tanh=s.is_tanh)
    add_back(d_middle, d_wide, saved.up_weight)
    d_residual, d_attended, first_sums = add_norm_backward(
        d_middle,
        saved.first_sum,
        saved.first_statistics,
        w.attention_norm,
        seeds.attention,
        s.dropout,
    )
    d_out_weight = matrix_gradient(d_attended, saved.mixed.flatten(1))
    d_mixed = go_back(d_attended, saved.out_weight).view_as(saved.mixed)
    given = d_mixed, d_residual, bounds, seeds.shares, settings, saved
    d_x, d_qkv_weight, d_qkv_bias = (
        look_back_all(*given) if own is None else look_back_kept(*given, own)
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
) -> tuple[Tensor, Tensor, Tensor]:  # (T, H, K), (T, D) -> (T, D), (3 D, D), (3, H, K)
    """From the gradient of the mixes to those of x and of what projects it; of all rows."""
    d_qkv, d_bias = attend_kernel_backward(
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
    d_qkv = d_qkv.flatten(1)
    d_x = add_back(d_residual, d_qkv, saved.qkv_weight)
    return d_x, matrix_gradient(d_qkv, saved.x), d_bias


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
    if kept is None:
        return rows
    if rows.dtype == FLOAT8:  # of which torch does not everywhere know how to take rows
        return rows.view(torch.uint8)[kept.rows].view(FLOAT8)
    return rows[kept.rows]


def widen(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
    *,
    is_tanh: bool,
    is_saved: bool,
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(x weight' + bias), and what gelu was taken of, in `dtype`."""
    if can_fuse_gelu(x, len(weight)):
        return gelu_linear(x, weight, bias.to(dtype), is_saved=is_saved)
    wide = multiply(x, weight, None, dtype)  # without the bias, which is added where this is read
    return bias_gelu_forward(wide, bias, is_tanh), wide


def narrow(
    gradient: Tensor, bias: Tensor, saved: Saved, *, is_tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:  # (T, D) -> (T, U), (U, D), (U,)
    """The gradients of what gelu was taken of, and of its matrix and bias."""
    if can_fuse_gelu(gradient, len(bias)):
        d_wide = times_gelu_slope(gradient, saved.down_weight, saved.wide)
        return d_wide, matrix_gradient(d_wide, saved.middle), add_rows(d_wide)
    d_active = go_back(gradient, saved.down_weight)
    d_wide, d_bias = bias_gelu_backward(d_active, saved.wide, bias, is_tanh)
    return d_wide, matrix_gradient(d_wide, saved.middle), d_bias
