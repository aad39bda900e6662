"""The linear layers of an encoder as a CPU likes them: laid out for oneDNN once, and what follows
an output computed while it is still in the cache. For answers, not for training.

In int8, every token has a scale of its own. One scale for a whole batch, which is the usual way,
would let a token with a large number in it change the answers to its neighbours.
"""

# T tokens   I numbers in   O numbers out

import os
import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.encoder import Gelu, Layer

Precision = Literal["fp32", "bf16", "int8"]
LARGEST = 127  # of 8 bits with a sign; -128 is left out, so that x and -x are rounded alike
HALF_AS_LARGE = 63  # of weights on processors without VNNI, whose sums of two products have 16 bits
MIDDLE = 128  # oneDNN has fast kernels for numbers without a sign only: 0 .. 255 stand for these
TINY = 1e-30  # a token of zeros has a scale, too


class PackedLinear(nn.Module):
    """A linear layer, with GELU behind it where it is given, in the precision of its weights."""

    weight: Tensor  # (O, I) in oneDNN's own order
    bias: Tensor  # (O,)

    def __init__(self, linear: nn.Linear, gelu: Gelu | None = None) -> None:
        super().__init__()
        self.register_buffer(
            "weight", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        )
        self.register_buffer("bias", linear.bias.detach())
        self.follows = "none" if gelu is None else "gelu"
        self.algorithm = "" if gelu is None else gelu.approximate

    def forward(self, x: Tensor) -> Tensor:  # (T, I) -> (T, O)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self.follows, [], self.algorithm
        )
        return y


def largest_weight() -> int:
    """255 * 127 * 2 does not fit into 16 bits with a sign; 255 * 63 * 2 does."""
    return LARGEST if torch.cpu._is_vnni_supported() else HALF_AS_LARGE


class Int8Linear(nn.Module):
    """A linear layer in int8: a scale for each output of the weights, and for each token."""

    weight: Tensor  # (O, I) in oneDNN's own order
    scales: Tensor  # (O,) of the weights
    zeros: Tensor  # (O,)
    bias: Tensor  # (O,)
    middles: Tensor  # (I,)

    def __init__(self, linear: nn.Linear, gelu: Gelu | None = None) -> None:
        super().__init__()
        weight = linear.weight.detach().float()  # (O, I)
        scales = weight.abs().amax(1).clamp(min=TINY) / largest_weight()  # (O,)
        rounded = (weight / scales.unsqueeze(1)).round().to(torch.int8)
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(rounded, None))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(len(scales), dtype=torch.int64))
        self.register_buffer("bias", linear.bias.detach().float())
        # The half turns cutting off into rounding. A row, as adding one number is slower.
        self.register_buffer("middles", torch.full((weight.shape[1],), MIDDLE + 0.5))
        self.approximate = None if gelu is None else gelu.approximate

    def forward(self, x: Tensor) -> Tensor:  # (T, I) -> (T, O)
        # Two passes that store nothing are faster than x.abs().amax(1), which stores all of it.
        peaks = torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))  # (T, 1)
        peaks = peaks.clamp_(min=TINY)
        steps = torch.addcmul(self.middles, x, LARGEST / peaks)  # (T, I)
        numbers = steps.to(torch.int16).to(torch.uint8)  # five times as fast as .to(torch.uint8)
        sums = torch.ops.onednn.qlinear_pointwise(  # (T, O) in units of the token's own step
            numbers,
            1.0,
            MIDDLE,
            self.weight,
            self.scales,
            self.zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        y = torch.addcmul(self.bias, sums, peaks / LARGEST)
        return y if self.approximate is None else F.gelu(y, approximate=self.approximate)


def can_pack() -> bool:
    """Whether this torch has oneDNN, as those for Intel's and AMD's processors have."""
    return bool(torch.backends.mkldnn.is_available())


def can_pack_bf16() -> bool:
    """Whether the processor has the instructions without which oneDNN refuses bf16."""
    return can_pack() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def hasten(model: Bert, precision: Precision) -> None:
    """Lays out the linear layers of an encoder; it computes the same, and can no longer learn.

    Pooler and heads stay as they are: they read few rows. bf16 is for weights that are bf16; where
    the processor has no bf16 they stay as they are, too, so that such a model can be exported.
    """
    if precision == "bf16" and not can_pack_bf16():
        warnings.warn("this processor has no bf16, which makes it slow; take fp32", stacklevel=2)
        return
    if precision == "int8" and not can_pack():
        raise UserError("int8 needs a torch with oneDNN, which this one lacks; take fp32")
    if not can_pack():
        return
    bound_plans()
    kind = Int8Linear if precision == "int8" else PackedLinear
    for layer in dict.fromkeys(model.layers):  # shared ones are there more than once
        if not isinstance(layer, Layer):
            continue  # of LSTMs
        attention, ffn = layer.attention, layer.ffn
        attention.set_submodule("qkv", kind(attention.qkv))
        attention.set_submodule("out", kind(attention.out))
        ffn.set_submodule("up", kind(ffn.up, ffn.gelu))
        ffn.set_submodule("down", kind(ffn.down))
        ffn.set_submodule("gelu", nn.Identity())
    keep_freed_memory()


def bound_plans() -> None:
    """Lets torch and oneDNN remember few of the plans that they make for each number of rows.

    Batches without padding have ever new numbers of rows. A thousand plans are remembered unless
    these say otherwise, 0.6 MB each: a server grew from 750 to 1,317 MB over 100,000 requests.
    Making one anew costs nothing that can be measured. Read when the first plan is made.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "16")


def keep_freed_memory() -> None:
    """Lets the C library keep what is freed, rather than fetch it anew for every layer.

    glibc returns freed memory at the end of its heap above a threshold, which is twice the largest
    block that was freed (at most 32 MiB of it). Without this, a layer of 6/384/12 on 1,024 tokens
    met 3,800 page faults, a sixth of its time in int8; with it, none.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8)
