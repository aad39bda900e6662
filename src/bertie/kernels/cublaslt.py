"""cuBLASLt through ctypes: a product with its ending, planned for its shape, in one of its ways.

torch itself takes this library for its products, but offers neither all endings nor a choice among
ways; the library is the one that torch has loaded.
"""

# m, n, k as the library counts: out (m, n) = a (m, k) b (k, n), all of them column by column

import ctypes
import sys
from collections.abc import Callable
from ctypes import (
    byref,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.kernels.float8 import UNSCALE, WEIGHT_SCALE

WORKSPACE = 32 * 2**20  # bytes

# Numbers of cublasLt.h and library_types.h.
FLOAT32, BFLOAT16, E4M3, E5M2, COMPUTE_FLOAT32 = 0, 14, 28, 29, 68
TRANSPOSE_A, ENDING, BIAS, GELU_INPUT, GELU_STRIDE, SCALE_OF_B, FAST_SUMS = 3, 7, 8, 11, 12, 18, 25
MAX_WORKSPACE = 1
NO_ENDING, ADD_BIAS, GELU_BIAS, GELU_BIAS_SAVED, GELU_SLOPE = 1, 4, 36, 164, 192


class Product(NamedTuple):
    """What is multiplied, and how it ends; what comes out is bfloat16."""

    m: int
    n: int
    k: int
    is_a_transposed: bool
    ending: int
    device: int
    # Of eight bits, scaled as bertie.kernels.float8 does; a must be transposed then.
    is_float8: bool = False
    is_slope: bool = False  # b is a gradient in eight bits: e5m2, its scale on the device
    is_added: bool = False  # to what is in `out`

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k


class Way(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a way to do it."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def library() -> Any:
    """cuBLASLt, or none where torch comes without it."""
    version = (torch.version.cuda or "").partition(".")[0]
    try:
        return ctypes.CDLL(f"libcublasLt.so.{version}")
    except OSError:
        return None


def ask(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} of cuBLASLt gave status {status}")


def layout(rows: int, columns: int, kind: int) -> c_void_p:
    made, shape = c_void_p(), (c_uint64(rows), c_uint64(columns), c_int64(rows))
    ask("cublasLtMatrixLayoutCreate", byref(made), kind, *shape)
    return made


class Plan:
    """A product as the library knows it; made once for its shape. Not for two threads at once."""

    def __init__(self, product: Product) -> None:
        p = self.product = product
        self.description, self.a, self.b, self.out = (c_void_p() for _ in range(4))
        ask("cublasLtMatmulDescCreate", byref(self.description), COMPUTE_FLOAT32, FLOAT32)
        self.set(TRANSPOSE_A, c_int32(p.is_a_transposed))
        self.set(ENDING, c_uint32(p.ending))
        if p.ending in (GELU_BIAS_SAVED, GELU_SLOPE):
            self.set(GELU_STRIDE, c_int64(p.m))
        kind = E4M3 if p.is_float8 else BFLOAT16
        if p.is_float8:
            self.set(FAST_SUMS, c_int8(True))  # of fewer bits, but of more than the products have
        unscale = 1 / WEIGHT_SCALE if p.is_slope else UNSCALE
        self.factor, self.kept = c_float(unscale if p.is_float8 else 1), c_float(p.is_added)
        self.a = layout(p.k, p.m, kind) if p.is_a_transposed else layout(p.m, p.k, kind)
        self.b = layout(p.k, p.n, E5M2 if p.is_slope else kind)
        self.out = layout(p.m, p.n, BFLOAT16)

    def set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        ask("cublasLtMatmulDescSetAttribute", self.description, attribute, byref(value), size)

    def suggest(self, most: int) -> list[Way]:
        """Ways to do it, the one that the library expects to be the fastest first."""
        preference, size, count = c_void_p(), c_size_t(WORKSPACE), c_int()
        found = (Way * most)()
        ask("cublasLtMatmulPreferenceCreate", byref(preference))
        ask(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            MAX_WORKSPACE,
            byref(size),
            c_size_t(ctypes.sizeof(size)),
        )
        given = (*self.described(), preference, most, found, byref(count))
        status = library().cublasLtMatmulAlgoGetHeuristic(*given)
        ask("cublasLtMatmulPreferenceDestroy", preference)
        return [] if status else [way for way in found[: count.value] if not way.status]

    def described(self) -> tuple[c_void_p, ...]:
        """The library's handle, and what it is told of the product."""
        handle = c_void_p(torch.cuda.current_blas_handle())
        return handle, self.description, self.a, self.b, self.out, self.out

    def adopt(self, way: Way) -> Way | None:
        """The way of a product of another shape, for this one; none if it cannot be done so."""
        found = Way()
        given = (*self.described(), byref(way), byref(found))  # a way begins with its algorithm
        status = library().cublasLtMatmulAlgoCheck(*given)
        if status or found.status or found.workspace > WORKSPACE:
            return None
        found.algorithm[:] = way.algorithm[:]
        return found

    def point(self, bias: Tensor | None, wide: Tensor | None, scale: Tensor | None) -> None:
        """Where the next launches find what their ending reads or writes; and the scale of b."""
        if bias is not None:
            self.set(BIAS, c_void_p(bias.data_ptr()))
        if wide is not None:
            self.set(GELU_INPUT, c_void_p(wide.data_ptr()))
        if scale is not None:
            self.set(SCALE_OF_B, c_void_p(scale.data_ptr()))

    def launch(self, way: Way, a: Tensor, b: Tensor, out: Tensor) -> int:
        """The library's status: 0 where it could be done."""
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
        status: int = library().cublasLtMatmul(
            c_void_p(torch.cuda.current_blas_handle()),
            self.description,
            byref(self.factor),
            c_void_p(a.data_ptr()),
            self.a,
            c_void_p(b.data_ptr()),
            self.b,
            byref(self.kept),
            c_void_p(out.data_ptr()),
            self.out,
            c_void_p(out.data_ptr()),
            self.out,
            byref(way),
            c_void_p(workspace.data_ptr()),
            c_size_t(WORKSPACE),
            c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return status

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # the names of this module may be gone before its objects
            return
        library().cublasLtMatmulDescDestroy(self.description)
        for made in (self.a, self.b, self.out):
            library().cublasLtMatrixLayoutDestroy(made)
