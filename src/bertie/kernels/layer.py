"""One layer of the encoder as one operation, its gradient written out.

Written out, nothing passes through memory that need not: biases are added where the result of a
product is read next, their gradients summed where they are made, the two gradients of the residual
stream added inside a product. The rows are bfloat16 (or float16), sums and statistics float32, and
so are the gradients of the weights. `bertie.model.encoder.Layer` is the plain twin.
"""

# T tokens of all sequences in a row   N sequences   D hidden size   U feed-forward size
# H heads   K head size (D = H * K)   R rows that are kept (R = T where all are)

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.kernels.attention import attend_kernel_backward, attend_kernel_forward
from bertie.kernels.gelu import bias_gelu_backward, bias_gelu_forward
from bertie.kernels.norm import add_norm_backward, add_norm_forward
from bertie.kernels.products import can_fuse_gelu, gelu_linear, times_gelu_slope
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


class Seeds(NamedTuple):
    """(1,) each, for the three places where a layer drops."""

    shares: Tensor
    attention: Tensor
    ffn: Tensor


class Saved(NamedTuple):
    """What the backward pass needs again."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (T, 3, H, K)
    log_sums: Tensor  # (H, T)
    mixed: Tensor  # (T, H, K)
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


def forward(
    x: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_saved: bool,
) -> tuple[Tensor, Saved]:  # (T, D), (N + 1,), (R,) -> (R, D)
    """The layer's rows, and what the backward pass needs if `is_saved`."""
    w, s = weights, settings
    # A copy even where the precision is the same: what is given back must not be what was given.
    qkv_weight, out_weight, up_weight, down_weight = (
        weight.to(x.dtype, copy=is_saved) for weight in (w.qkv, w.out, w.up, w.down)
    )
    qkv = torch.addmm(w.qkv_bias.to(x.dtype), x, qkv_weight.T)
    qkv = qkv.view(len(x), 3, s.num_heads, -1)
    mixed, log_sums = attend_kernel_forward(
        qkv, bounds, s.longest, seeds.shares, s.attention_dropout
    )
    attended = choose(mixed.flatten(1), kept) @ out_weight.T
    middle, first_sum, first_statistics = add_norm_forward(
        choose(x, kept),
        attended,
        w.out_bias,
        w.attention_norm,
        w.attention_norm_bias,
        seeds.attention,
        s.dropout,
        s.eps,
        is_saved=is_saved,
    )
    active, wide = widen(middle, up_weight, w.up_bias, is_tanh=s.is_tanh, is_saved=is_saved)
    down = active @ down_weight.T
    out, second_sum, second_statistics = add_norm_forward(
        middle,
        down,
        w.down_bias,
        w.ffn_norm,
        w.ffn_norm_bias,
        seeds.ffn,
        s.dropout,
        s.eps,
        is_saved=is_saved,
    )
    return out, Saved(
        x=x,
        qkv=qkv,
        log_sums=log_sums,
        mixed=mixed,
        first_sum=first_sum,
        first_statistics=first_statistics,
        middle=middle,
        wide=wide,
        active=active,
        second_sum=second_sum,
        second_statistics=second_statistics,
        qkv_weight=qkv_weight,
        out_weight=out_weight,
        up_weight=up_weight,
        down_weight=down_weight,
    )


def backward(
    gradient: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    saved: Saved,
) -> Gradients:  # (R, D)
    w, s = weights, settings
    d_middle, d_down, second_sums = add_norm_backward(
        gradient, saved.second_sum, saved.second_statistics, w.ffn_norm, seeds.ffn, s.dropout
    )
    d_down_weight = product(d_down, saved.active)
    d_wide, d_up_weight, d_up_bias = narrow(d_down, w.up_bias, saved, is_tanh=s.is_tanh)
    d_middle.addmm_(d_wide, saved.up_weight)
    d_x, d_attended, first_sums = add_norm_backward(
        d_middle,
        saved.first_sum,
        saved.first_statistics,
        w.attention_norm,
        seeds.attention,
        s.dropout,
    )
    d_out_weight = product(d_attended, choose(saved.mixed.flatten(1), kept))
    d_mixed, d_x = (
        put_back(rows, kept, len(saved.x)) for rows in (d_attended @ saved.out_weight, d_x)
    )
    d_qkv, d_qkv_bias = attend_kernel_backward(
        d_mixed.view_as(saved.mixed),
        saved.qkv,
        bounds,
        s.longest,
        seeds.shares,
        saved.mixed,
        saved.log_sums,
        s.attention_dropout,
    )
    d_qkv = d_qkv.flatten(1)
    d_qkv_weight = product(d_qkv, saved.x)
    d_x.addmm_(d_qkv, saved.qkv_weight)
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


def choose(rows: Tensor, kept: Tensor | None) -> Tensor:  # (T, D), (R,) -> (R, D)
    return rows if kept is None else rows[kept]


def put_back(rows: Tensor, kept: Tensor | None, count: int) -> Tensor:  # (R, D), (R,) -> (T, D)
    """Where they were taken from, with zeros around; the same place twice is the sum."""
    if kept is None:
        return rows
    return rows.new_zeros(count, rows.shape[1]).index_add_(0, kept, rows)


def widen(
    x: Tensor, weight: Tensor, bias: Tensor, *, is_tanh: bool, is_saved: bool
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(x weight' + bias), and what gelu was taken of."""
    if can_fuse_gelu(x, len(weight)):
        return gelu_linear(x, weight, bias.to(x.dtype), is_saved=is_saved)
    wide = x @ weight.T  # without the bias, which is added where this is read
    return bias_gelu_forward(wide, bias, is_tanh), wide


def narrow(
    gradient: Tensor, bias: Tensor, saved: Saved, *, is_tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:  # (T, D) -> (T, U), (U, D), (U,)
    """The gradients of what gelu was taken of, and of its matrix and bias."""
    if can_fuse_gelu(gradient, len(bias)):
        d_wide = times_gelu_slope(gradient, saved.down_weight, saved.wide)
        return d_wide, product(d_wide, saved.middle), add_rows(d_wide)
    d_active = gradient @ saved.down_weight
    d_wide, d_bias = bias_gelu_backward(d_active, saved.wide, bias, is_tanh)
    return d_wide, product(d_wide, saved.middle), d_bias


def product(gradient: Tensor, x: Tensor) -> Tensor:  # (T, O), (T, I) -> (O, I)
    """The gradient of a matrix, in float32: of sums over all tokens, 8 bits are too few."""
    if x.is_cuda:
        return torch.mm(gradient.T, x, out_dtype=torch.float32)
    return gradient.T.float() @ x.float()


def encode_layer(
    x: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Tensor,
    weights: LayerWeights,
    settings: LayerSettings,
) -> Tensor:  # (T, D), (N + 1,), (R,), (3,) -> (R, D)
    """A layer's rows, or the `kept` ones; `seeds` are for what is dropped, three of 31 bits."""
    is_saved = torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        rows: Tensor = layer_operation(x, bounds, kept, seeds, list(weights), *settings, is_saved)[
            0
        ]
        return rows
    if not is_saved:
        parts = Seeds(*seeds.split(1))
        return forward(x, bounds, kept, parts, weights, settings, is_saved=False)[0]
    encoded: Tensor = EncodeLayer.apply(x, bounds, kept, seeds, settings, *weights)
    return encoded


class EncodeLayer(torch.autograd.Function):
    """The layer as autograd sees it: in Python, half a millisecond less than an operation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bounds: Tensor,
        kept: Tensor | None,
        seeds: Tensor,
        settings: LayerSettings,
        *weights: Tensor,
    ) -> Tensor:
        parts = Seeds(*seeds.split(1))
        out, saved = forward(
            x, bounds, kept, parts, LayerWeights(*weights), settings, is_saved=True
        )
        ctx.settings = settings
        ctx.save_for_backward(bounds, kept, seeds, *weights, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        bounds, kept, seeds, *rest = ctx.saved_tensors
        count = len(LayerWeights._fields)
        found = backward(
            gradient.contiguous(),
            bounds,
            kept,
            Seeds(*seeds.split(1)),
            LayerWeights(*rest[:count]),
            ctx.settings,
            Saved(*rest[count:]),
        )
        return found.x, None, None, None, None, *found.of_weights()


# --- the same as an operation of torch, with shapes that a compiler can follow ---


@torch.library.custom_op("bertie::layer", mutates_args=())
def layer_operation(
    x: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Tensor,
    weights: list[Tensor],
    num_heads: int,
    dropout: float,
    attention_dropout: float,
    eps: float,
    is_tanh: bool,
    longest: int,
    is_saved: bool,
) -> list[Tensor]:
    """The rows, then what is saved, without x."""
    settings = LayerSettings(num_heads, dropout, attention_dropout, eps, is_tanh, longest)
    parts = Seeds(*seeds.split(1))
    out, saved = forward(
        x, bounds, kept, parts, LayerWeights(*weights), settings, is_saved=is_saved
    )
    return [out, *saved[1:]] if is_saved else [out]


@layer_operation.register_fake
def _(x, bounds, kept, seeds, weights, num_heads, *settings):
    *_, is_saved = settings
    num_tokens, hidden, wide = x.shape[0], x.shape[1], len(LayerWeights(*weights).up_bias)
    num_rows = num_tokens if kept is None else kept.shape[0]
    heads = (num_heads, hidden // num_heads)
    out = x.new_empty(num_rows, hidden)
    if not is_saved:
        return [out]

    return [
        out,
        x.new_empty(num_tokens, 3, *heads),
        x.new_empty(num_heads, num_tokens, dtype=torch.float32),
        x.new_empty(num_tokens, *heads),
        torch.empty_like(out),
        x.new_empty(2, num_rows, dtype=torch.float32),
        torch.empty_like(out),
        x.new_empty(num_rows, wide),
        x.new_empty(num_rows, wide),
        torch.empty_like(out),
        x.new_empty(2, num_rows, dtype=torch.float32),
        *(torch.empty_like(weight, dtype=x.dtype) for weight in weights if weight.ndim == 2),
    ]


@torch.library.custom_op("bertie::layer_backward", mutates_args=())
def layer_backward_operation(
    gradient: Tensor,
    bounds: Tensor,
    kept: Tensor | None,
    seeds: Tensor,
    weights: list[Tensor],
    saved: list[Tensor],
    num_heads: int,
    dropout: float,
    attention_dropout: float,
    eps: float,
    is_tanh: bool,
    longest: int,
) -> list[Tensor]:
    """Gradients, in a list."""
    settings = LayerSettings(num_heads, dropout, attention_dropout, eps, is_tanh, longest)
    found = backward(
        gradient.contiguous(),
        bounds,
        kept,
        Seeds(*seeds.split(1)),
        LayerWeights(*weights),
        settings,
        Saved(*saved),
    )
    return list(found)


@layer_backward_operation.register_fake
def _(gradient, bounds, kept, seeds, weights, saved, *settings):
    w, x = LayerWeights(*weights), saved[0]
    sums = w.ffn_norm.new_empty(3, len(w.ffn_norm))
    shapes = Gradients(x, w.qkv, w.qkv_bias, w.out, sums, w.up, w.up_bias, w.down, sums)
    return [torch.empty_like(shape) for shape in shapes]


def remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, bounds, kept, seeds, weights, *settings, is_saved = inputs
    assert is_saved, "a layer whose gradient is wanted must keep what it made"
    ctx.set_materialize_grads(False)  # what is saved has none, and zeros would be made for it
    ctx.settings = settings
    ctx.num_weights = len(weights)
    ctx.save_for_backward(bounds, kept, seeds, *weights, x, *output[1:])


def walk_back(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    bounds, kept, seeds, *rest = ctx.saved_tensors
    weights, saved = rest[: ctx.num_weights], rest[ctx.num_weights :]
    found = Gradients(
        *layer_backward_operation(gradients[0], bounds, kept, seeds, weights, saved, *ctx.settings)
    )
    none_of_settings = [None] * (len(LayerSettings._fields) + 1)
    return found.x, None, None, None, list(found.of_weights()), *none_of_settings


layer_operation.register_autograd(walk_back, setup_context=remember)
