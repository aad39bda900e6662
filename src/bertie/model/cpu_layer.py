"""A layer of the encoder in C, for answers on a CPU: `bertie/native/layer.c`, with its weights."""

# T tokens of all sequences in a row   N sequences   D hidden size   H heads   K head size (D = H*K)
# R rows that are kept (R = T where all are)   I numbers in   O numbers out   G of them in 4 bytes

import ctypes
from ctypes import POINTER, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from bertie.model.config import ModelConfig
from bertie.model.eight_bits import MIDDLE, quantise
from bertie.model.encoder import Layer
from bertie.native.build import get_library

Precision = Literal["fp32", "bf16", "int8"]
KINDS: dict[Precision, int] = {"fp32": 0, "bf16": 1, "int8": 2}  # layer.c's
IN_4_BYTES = {"fp32": 1, "bf16": 2, "int8": 4}
ENDINGS = {"none": 1, "tanh": 2}  # of gelu
COLUMNS = 32  # of a panel of weights


class LinearPlace(ctypes.Structure):
    """`Linear` of layer.c."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("middles", c_void_p),
        ("num_in", c_int64),
        ("num_out", c_int64),
    )


class LayerPlace(ctypes.Structure):
    """`Layer` of layer.c."""

    _fields_ = (
        ("qkv", LinearPlace),
        ("out", LinearPlace),
        ("up", LinearPlace),
        ("down", LinearPlace),
        ("attention_norm", c_void_p),
        ("attention_norm_bias", c_void_p),
        ("ffn_norm", c_void_p),
        ("ffn_norm_bias", c_void_p),
        ("eps", c_float),
        ("kind", c_int32),
        ("ending", c_int32),
        ("num_heads", c_int32),
    )


class CallPlace(ctypes.Structure):
    """`Call` of layer.c."""

    _fields_ = (
        ("x", c_void_p),
        ("bounds", c_void_p),
        ("kept", c_void_p),
        ("result", c_void_p),
        ("qkv", c_void_p),
        ("mixed", c_void_p),
        ("room", c_void_p),
        ("num_rows", c_int64),
        ("num_sequences", c_int64),
        ("num_kept", c_int64),
        ("num_threads", c_int64),
    )


@cache
def prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Told what its functions take."""
    library.kinds.restype = library.layer_bytes.restype = library.call_bytes.restype = c_int32
    assert library.layer_bytes() == ctypes.sizeof(LayerPlace)
    assert library.call_bytes() == ctypes.sizeof(CallPlace)
    library.room_of.argtypes = [POINTER(LayerPlace), POINTER(CallPlace), POINTER(c_int64)]
    library.room_of.restype = c_int64
    library.encode_layer.argtypes = [POINTER(LayerPlace), POINTER(CallPlace), c_int64]
    library.encode_layer.restype = None
    return library


def can_run(config: ModelConfig, precision: Precision) -> bool:
    """Whether layers of this shape run in C here, in this precision."""
    sizes = (config.hidden_size, config.ffn_size, config.hidden_size // config.num_heads)
    is_known = config.layer == "transformer" and config.attention == "both"
    if not is_known or any(size % COLUMNS for size in sizes):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    library = get_library()
    return library is not None and bool(prepared(library).kinds() >> KINDS[precision] & 1)


def panels(weight: Tensor, precision: Precision) -> Tensor:  # (O, I) -> (O / 32, I / G, 32, G)
    """32 outputs side by side, 4 bytes of each at a time, as a step of a product reads them."""
    group = IN_4_BYTES[precision]
    made: Tensor = weight.unflatten(1, (-1, group)).unflatten(0, (-1, COLUMNS)).transpose(1, 2)
    return made


class NativeLayer(nn.Module):
    """A layer in C; it computes what `bertie.model.encoder.Layer` does, and cannot learn.

    Its weights stay where they are, in memory and in precision, whatever the module is moved to.
    """

    def __init__(self, layer: Layer, precision: Precision) -> None:
        super().__init__()
        library = get_library()
        assert library is not None
        self.library = prepared(library)
        self.precision = precision
        self.num_heads, self.size = layer.attention.num_heads, layer.attention.out.out_features
        linears = {
            "qkv": layer.attention.qkv,
            "out": layer.attention.out,
            "up": layer.ffn.up,
            "down": layer.ffn.down,
        }
        norms = {"attention_norm": layer.attention_norm, "ffn_norm": layer.ffn_norm}
        parts: dict[str, Tensor] = {}
        for name, linear in linears.items():
            parts |= self.parts_of(name, linear)
        for name, norm in norms.items():
            parts |= {
                name: norm.weight.detach().float(),
                f"{name}_bias": norm.bias.detach().float(),
            }
        # Copies: what was opened may lie in a file.
        copied = torch.contiguous_format
        self.parts = {name: part.clone(memory_format=copied) for name, part in parts.items()}
        for name, part in self.parts.items():
            self.register_buffer(name, part)
        self.place = LayerPlace(
            **{name: self.place_of(name, linear) for name, linear in linears.items()},
            **{
                name: self.parts[name].data_ptr()
                for norm in norms
                for name in (norm, f"{norm}_bias")
            },
            eps=layer.attention_norm.eps,
            kind=KINDS[precision],
            ending=ENDINGS[layer.ffn.gelu.approximate],
            num_heads=self.num_heads,
        )

    def parts_of(self, name: str, linear: nn.Linear) -> dict[str, Tensor]:
        weight, bias = linear.weight.detach().float(), linear.bias.detach().float()
        if self.precision == "int8":
            numbers, scales = quantise(weight)
            middles = MIDDLE * numbers.sum(1, dtype=torch.int32)  # what a row's middles add up to
            more = {f"{name}_scales": scales, f"{name}_middles": middles}
            return {name: panels(numbers, "int8"), f"{name}_bias": bias, **more}
        rounded = weight.to(torch.bfloat16) if self.precision == "bf16" else weight
        return {name: panels(rounded, self.precision), f"{name}_bias": bias}

    def place_of(self, name: str, linear: nn.Linear) -> LinearPlace:
        places = {
            part: self.parts[f"{name}_{part}"].data_ptr()
            for part in ("bias", "scales", "middles")
            if f"{name}_{part}" in self.parts
        }
        return LinearPlace(
            weight=self.parts[name].data_ptr(),
            **places,
            num_in=linear.in_features,
            num_out=linear.out_features,
        )

    def forward(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None = None
    ) -> Tensor:  # (T, D) -> (R, D)
        """All rows, or those that are `kept` (R,); `longest` is looked up in `bounds`."""
        return self.run(x, bounds, kept)[0]

    def project(self, x: Tensor) -> Tensor:  # (T, D) -> (T, 3, H, K)
        """Queries, keys and values."""
        return self.run(x, torch.tensor([0, len(x)], device=x.device))[1]

    def run(
        self, x: Tensor, bounds: Tensor, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # (T, D) -> (R, D), (T, 3, H, K)
        """The rows, and the queries, keys and values they are made of."""
        num_rows, size = x.shape
        assert x.device.type == "cpu" and x.dtype == torch.float32 and size == self.size
        for places in (bounds,) if kept is None else (bounds, kept):
            assert places.device.type == "cpu" and places.dtype == torch.int64 and len(bounds) > 0
        num_kept, num_threads = num_rows if kept is None else len(kept), torch.get_num_threads()
        # In names, or they would be gone before they are read.
        x, bounds = x.contiguous(), bounds.contiguous()
        rows = None if kept is None else kept.contiguous()
        result, mixed = x.new_empty(num_kept, size), x.new_empty(num_rows, size)
        qkv = x.new_empty(num_rows, 3, self.num_heads, size // self.num_heads)
        call = CallPlace(
            x=x.data_ptr(),
            bounds=bounds.data_ptr(),
            kept=None if rows is None else rows.data_ptr(),
            result=result.data_ptr(),
            qkv=qkv.data_ptr(),
            mixed=mixed.data_ptr(),
            num_rows=num_rows,
            num_sequences=len(bounds) - 1,
            num_kept=num_kept,
            num_threads=num_threads,
        )
        each = c_int64()  # bytes of a thread
        num_bytes = self.library.room_of(byref(self.place), byref(call), byref(each))
        assert num_bytes >= 0, "bounds and kept rows do not fit the rows"
        room = x.new_empty(num_bytes, dtype=torch.uint8)
        call.room = room.data_ptr()
        self.library.encode_layer(byref(self.place), byref(call), each)
        return result, qkv
