"""An encoder as a CPU likes it, for answers, not for training.

Where the machine has AVX-512 and a C compiler, a layer is that of `cpu_layer.py`. Elsewhere its
linear layers are laid out for oneDNN once, and what follows an output is computed while it is still
in the cache.
"""

# T tokens   I numbers in   O numbers out

import os
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.cpu_layer import NativeLayer, Precision, can_run
from bertie.model.eight_bits import LARGEST, MIDDLE, TINY, quantise
from bertie.model.encoder import Gelu, Layer

HALF_AS_LARGE = 63  # of weights on processors without VNNI, whose sums of two products have 16 bits


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
        numbers, scales = quantise(linear.weight.detach().float(), largest_weight())
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(numbers, None))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(len(scales), dtype=torch.int64))
        self.register_buffer("bias", linear.bias.detach().float())
        # The half turns cutting off into rounding. A row, as adding one number is slower.
        self.register_buffer("middles", torch.full((numbers.shape[1],), MIDDLE + 0.5))
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
    """Lays out the layers of an fp32 encoder; it computes the same, and can no longer learn.

    Embeddings, pooler and heads stay as they are: they read few rows. Only where there is no C are
    they rounded in bf16, too.
    """
    if not can_run(model.config, precision):
        pack_layers(model, precision)
        return
    made: nn.Module | None = None
    for number, layer in enumerate(model.layers):  # one by one: no two copies of all weights
        if made is None or not model.config.share_layers:
            assert isinstance(layer, Layer)
            made = NativeLayer(layer, precision)
        model.layers[number] = made
    keep_freed_memory()


def pack_layers(model: Bert, precision: Precision) -> None:
    """The same through oneDNN. In bf16, all weights are rounded; where the processor has no bf16,
    that is all, so that such a model can be exported.
    """
    if precision == "bf16":
        model.to(torch.bfloat16)
        if not can_pack_bf16():
            warnings.warn(
                "this processor has no bf16, which makes it slow; take fp32", stacklevel=3
            )
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
    Making one anew takes up to a millisecond: little of a batch, much of one short text. Read when
    the first plan is made.
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
