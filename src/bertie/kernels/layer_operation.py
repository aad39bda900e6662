"""A layer as one operation: for autograd, and for a compiler.

With eight bits, the copy of a layer's rows goes to the next layer on the rows themselves
(bertie.kernels.float8). An operation that a compiler sees cannot do that: there the next layer
makes it, in one pass more.
"""

# T tokens of all sequences in a row   N sequences   D hidden size   R rows that are kept

from typing import Any

import torch
from torch import Tensor

from bertie.kernels.float8 import FLOAT8, leave_copy, quantise, take_copy
from bertie.kernels.layer import backward, forward
from bertie.kernels.layer_parts import Gradients, LayerSettings, LayerWeights, Saved, Seeds


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
    if kept is not None:  # half a percent would be gained, for a second way of all that is kept
        settings = settings._replace(is_float8=False)
    if torch.compiler.is_compiling():
        rows: Tensor = layer_operation(x, bounds, kept, seeds, list(weights), *settings, is_saved)[
            0
        ]
        return rows
    left = take_copy(x)
    x_copy = (quantise(x) if left is None else left) if settings.is_float8 else None
    if not is_saved:
        parts = Seeds(*seeds.split(1))
        out, copy, _ = forward(x, x_copy, bounds, kept, parts, weights, settings, is_saved=False)
        return leave_copy(out, copy)
    encoded, copy = EncodeLayer.apply(x, x_copy, bounds, kept, seeds, settings, *weights)
    return leave_copy(encoded, copy)


class EncodeLayer(torch.autograd.Function):
    """The layer as autograd sees it: in Python, half a millisecond less than an operation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        x_copy: Tensor | None,
        bounds: Tensor,
        kept: Tensor | None,
        seeds: Tensor,
        settings: LayerSettings,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        parts = Seeds(*seeds.split(1))
        out, copy, saved = forward(
            x, x_copy, bounds, kept, parts, LayerWeights(*weights), settings, is_saved=True
        )
        ctx.settings = settings
        ctx.save_for_backward(bounds, kept, seeds, *weights, *saved)
        if copy is not None:
            ctx.set_materialize_grads(False)  # zeros would be made as the copy's gradient
            ctx.mark_non_differentiable(copy)
        return out, copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
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
        return found.x, None, None, None, None, None, *found.of_weights()


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
    is_float8: bool,
    is_left: bool,
    is_saved: bool,
) -> list[Tensor]:
    """The rows, then what is saved, without x."""
    settings = LayerSettings(
        num_heads, dropout, attention_dropout, eps, is_tanh, longest, is_float8, is_left
    )
    parts, copy = Seeds(*seeds.split(1)), quantise(x) if is_float8 else None
    out, _, saved = forward(
        x, copy, bounds, kept, parts, LayerWeights(*weights), settings, is_saved=is_saved
    )
    return [out, *saved[1:]] if is_saved else [out]


@layer_operation.register_fake
def _(x, bounds, kept, seeds, weights, num_heads, *settings):
    *own, is_saved = settings
    is_float8 = LayerSettings(num_heads, *own).is_float8
    num_tokens, hidden, wide = x.shape[0], x.shape[1], len(LayerWeights(*weights).up_bias)
    num_rows = num_tokens if kept is None else kept.shape[0]
    heads = (num_heads, hidden // num_heads)
    out = x.new_empty(num_rows, hidden)
    if not is_saved:
        return [out]

    return [
        out,
        x.new_empty(num_tokens, 3 if kept is None else 2, *heads),
        x.new_empty(0 if kept is None else num_rows, *heads),
        x.new_empty(num_heads, num_rows, dtype=torch.float32),
        x.new_empty(num_rows, *heads),
        torch.empty_like(out),
        x.new_empty(2, num_rows, dtype=torch.float32),
        torch.empty_like(out),
        x.new_empty(num_rows, wide),
        x.new_empty(0 if is_float8 else num_rows, wide),
        torch.empty_like(out),
        x.new_empty(2, num_rows, dtype=torch.float32),
        *(fake_back(weight, x.dtype, is_float8) for weight in weights if weight.ndim == 2),
    ]


def fake_back(weight, dtype, is_float8):
    """A matrix as the backward pass takes it."""
    if is_float8:
        return weight.new_empty(*reversed(weight.shape), dtype=FLOAT8)
    return torch.empty_like(weight, dtype=dtype)


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
    is_float8: bool,
    is_left: bool,
) -> list[Tensor]:
    """Gradients, in a list."""
    settings = LayerSettings(
        num_heads, dropout, attention_dropout, eps, is_tanh, longest, is_float8, is_left
    )
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
