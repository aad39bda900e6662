"""One layer of the encoder as one operation, its gradient written out.

Written out, nothing passes through memory that need not: biases are added where the result of a
product is read next, their gradients summed where they are made, the two gradients of the residual
stream added inside a product. The rows are bfloat16 (or float16), sums and statistics float32, and
so are the gradients of the weights. `bertie.model.encoder.Layer` is the plain twin.
"""

# T tokens of all sequences in a row   N sequences   D hidden size   U feed-forward size
# H heads   K head size (D = H * K)

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.kernels.attention import attend_kernel_backward, attend_kernel_forward
from bertie.kernels.gelu import bias_gelu_backward, bias_gelu_forward
from bertie.kernels.norm import add_norm_backward, add_norm_forward


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


class Kept(NamedTuple):
    """What the backward pass needs again."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (T, 3, H, K)
    log_sums: Tensor  # (H, T)
    mixed: Tensor  # (T, H, K)
    first_sum: Tensor  # (T, D)
    first_statistics: Tensor  # (2, T)
    middle: Tensor  # (T, D)
    wide: Tensor  # (T, U) before bias and gelu
    active: Tensor  # (T, U) after
    second_sum: Tensor  # (T, D)
    second_statistics: Tensor  # (2, T)
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
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    *,
    is_kept: bool,
) -> tuple[Tensor, Kept]:  # (T, D), (N + 1,) -> (T, D)
    """The layer's rows, and what the backward pass needs if `is_kept`."""
    w, s = weights, settings
    # A copy even where the precision is the same: what is given back must not be what was given.
    qkv_weight, out_weight, up_weight, down_weight = (
        weight.to(x.dtype, copy=is_kept) for weight in (w.qkv, w.out, w.up, w.down)
    )
    qkv = torch.addmm(w.qkv_bias.to(x.dtype), x, qkv_weight.T)
    qkv = qkv.view(len(x), 3, s.num_heads, -1)
    mixed, log_sums = attend_kernel_forward(
        qkv, bounds, s.longest, seeds.shares, s.attention_dropout
    )
    attended = mixed.flatten(1) @ out_weight.T
    middle, first_sum, first_statistics = add_norm_forward(
        x,
        attended,
        w.out_bias,
        w.attention_norm,
        w.attention_norm_bias,
        seeds.attention,
        s.dropout,
        s.eps,
        is_kept=is_kept,
    )
    wide = middle @ up_weight.T
    active = bias_gelu_forward(wide, w.up_bias, s.is_tanh)
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
        is_kept=is_kept,
    )
    return out, Kept(
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
    seeds: Seeds,
    weights: LayerWeights,
    settings: LayerSettings,
    kept: Kept,
) -> Gradients:  # (T, D)
    w, s, k = weights, settings, kept
    d_middle, d_down, second_sums = add_norm_backward(
        gradient, k.second_sum, k.second_statistics, w.ffn_norm, seeds.ffn, s.dropout
    )
    d_active = d_down @ k.down_weight
    d_down_weight = product(d_down, k.active)
    d_wide, d_up_bias = bias_gelu_backward(d_active, k.wide, w.up_bias, s.is_tanh)
    d_up_weight = product(d_wide, k.middle)
    d_middle.addmm_(d_wide, k.up_weight)
    d_x, d_attended, first_sums = add_norm_backward(
        d_middle,
        k.first_sum,
        k.first_statistics,
        w.attention_norm,
        seeds.attention,
        s.dropout,
    )
    d_mixed = (d_attended @ k.out_weight).view_as(k.mixed)
    d_out_weight = product(d_attended, k.mixed.flatten(1))
    d_qkv, d_qkv_bias = attend_kernel_backward(
        d_mixed,
        k.qkv,
        bounds,
        s.longest,
        seeds.shares,
        k.mixed,
        k.log_sums,
        s.attention_dropout,
    )
    d_qkv = d_qkv.flatten(1)
    d_qkv_weight = product(d_qkv, k.x)
    d_x.addmm_(d_qkv, k.qkv_weight)
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


def product(gradient: Tensor, x: Tensor) -> Tensor:  # (T, O), (T, I) -> (O, I)
    """The gradient of a matrix, in float32: of sums over all tokens, 8 bits are too few."""
    if x.is_cuda:
        return torch.mm(gradient.T, x, out_dtype=torch.float32)
    return gradient.T.float() @ x.float()


def encode_layer(
    x: Tensor, bounds: Tensor, seeds: Tensor, weights: LayerWeights, settings: LayerSettings
) -> Tensor:  # (T, D), (N + 1,), (3,) -> (T, D)
    """A layer's rows; `seeds` are for what is dropped, three numbers of 31 bits."""
    is_kept = torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        rows: Tensor = layer_operation(x, bounds, seeds, list(weights), *settings, is_kept)[0]
        return rows
    if not is_kept:
        return forward(x, bounds, Seeds(*seeds.split(1)), weights, settings, is_kept=False)[0]
    encoded: Tensor = EncodeLayer.apply(x, bounds, seeds, settings, *weights)
    return encoded


class EncodeLayer(torch.autograd.Function):
    """The layer as autograd sees it: in Python, half a millisecond less than an operation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bounds: Tensor,
        seeds: Tensor,
        settings: LayerSettings,
        *weights: Tensor,
    ) -> Tensor:
        out, kept = forward(
            x, bounds, Seeds(*seeds.split(1)), LayerWeights(*weights), settings, is_kept=True
        )
        ctx.settings = settings
        ctx.save_for_backward(bounds, seeds, *weights, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        bounds, seeds, *rest = ctx.saved_tensors
        count = len(LayerWeights._fields)
        found = backward(
            gradient.contiguous(),
            bounds,
            Seeds(*seeds.split(1)),
            LayerWeights(*rest[:count]),
            ctx.settings,
            Kept(*rest[count:]),
        )
        return found.x, None, None, None, *found.of_weights()


# --- the same as an operation of torch, with shapes that a compiler can follow ---


@torch.library.custom_op("bertie::layer", mutates_args=())
def layer_operation(
    x: Tensor,
    bounds: Tensor,
    seeds: Tensor,
    weights: list[Tensor],
    num_heads: int,
    dropout: float,
    attention_dropout: float,
    eps: float,
    is_tanh: bool,
    longest: int,
    is_kept: bool,
) -> list[Tensor]:
    """The rows, then what is kept, without x."""
    settings = LayerSettings(num_heads, dropout, attention_dropout, eps, is_tanh, longest)
    out, kept = forward(
        x, bounds, Seeds(*seeds.split(1)), LayerWeights(*weights), settings, is_kept=is_kept
    )
    return [out, *kept[1:]] if is_kept else [out]


@layer_operation.register_fake
def _(x, bounds, seeds, weights, num_heads, *settings):
    *_, is_kept = settings
    num_tokens, hidden, wide = x.shape[0], x.shape[1], len(LayerWeights(*weights).up_bias)
    heads = (num_heads, hidden // num_heads)
    out = torch.empty_like(x)
    if not is_kept:
        return [out]

    return [
        out,
        x.new_empty(num_tokens, 3, *heads),
        x.new_empty(num_heads, num_tokens, dtype=torch.float32),
        x.new_empty(num_tokens, *heads),
        torch.empty_like(x),
        x.new_empty(2, num_tokens, dtype=torch.float32),
        torch.empty_like(x),
        x.new_empty(num_tokens, wide),
        x.new_empty(num_tokens, wide),
        torch.empty_like(x),
        x.new_empty(2, num_tokens, dtype=torch.float32),
        *(torch.empty_like(weight, dtype=x.dtype) for weight in weights if weight.ndim == 2),
    ]


@torch.library.custom_op("bertie::layer_backward", mutates_args=())
def layer_backward_operation(
    gradient: Tensor,
    bounds: Tensor,
    seeds: Tensor,
    weights: list[Tensor],
    kept: list[Tensor],
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
        Seeds(*seeds.split(1)),
        LayerWeights(*weights),
        settings,
        Kept(*kept),
    )
    return list(found)


@layer_backward_operation.register_fake
def _(gradient, bounds, seeds, weights, kept, *settings):
    w = LayerWeights(*weights)
    sums = w.ffn_norm.new_empty(3, len(w.ffn_norm))
    shapes = Gradients(gradient, w.qkv, w.qkv_bias, w.out, sums, w.up, w.up_bias, w.down, sums)
    return [torch.empty_like(shape) for shape in shapes]


def remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, bounds, seeds, weights, *settings, is_kept = inputs
    assert is_kept, "a layer whose gradient is wanted must keep what it made"
    ctx.set_materialize_grads(False)  # what is kept has none, and zeros would be made for it
    ctx.settings = settings
    ctx.num_weights = len(weights)
    ctx.save_for_backward(bounds, seeds, *weights, x, *output[1:])


def walk_back(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    bounds, seeds, *rest = ctx.saved_tensors
    weights, kept = rest[: ctx.num_weights], rest[ctx.num_weights :]
    found = Gradients(
        *layer_backward_operation(gradients[0], bounds, seeds, weights, kept, *ctx.settings)
    )
    return found.x, None, None, list(found.of_weights()), None, None, None, None, None, None, None


layer_operation.register_autograd(walk_back, setup_context=remember)
