"""Matrix products that do more in their last pass: bias and gelu, or the slope of gelu; and those
of numbers of eight bits.

From cuBLASLt, which torch itself takes for its products but does not offer with these endings; the
library is the one that torch has loaded, asked through ctypes. gelu is there in its tanh form only.
The erf form is at most 0.0005 away: in norm a tenth of what rounding to bfloat16 does, so both are
served (of single values around -3, whose gelu is small, it is up to a tenth).
"""

# T tokens   D hidden size   U feed-forward size   I, O columns of rows that go in and come out

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
from functools import cache, lru_cache
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.kernels.float8 import FLOAT8, UNSCALE, linear_plain
from bertie.kernels.gelu import bias_gelu_forward

WORKSPACE = 32 * 2**20  # bytes

# Numbers of cublasLt.h and library_types.h.
FLOAT32, BFLOAT16, E4M3, COMPUTE_FLOAT32 = 0, 14, 28, 68
TRANSPOSE_A, TRANSPOSE_B, ENDING, BIAS, GELU_INPUT, GELU_STRIDE, FAST_SUMS = 3, 4, 7, 8, 11, 12, 25
MAX_WORKSPACE = 1
NO_ENDING, ADD_BIAS, GELU_BIAS, GELU_BIAS_SAVED, GELU_SLOPE = 1, 4, 36, 164, 192


class Product(NamedTuple):
    """out (m, n) = a (m, k) b (k, n), all of them column by column, as the library counts."""

    m: int
    n: int
    k: int
    is_a_transposed: bool
    is_b_transposed: bool
    ending: int
    device: int
    # Of eight bits, scaled as bertie.kernels.float8 does; a must be transposed then, and b not.
    is_float8: bool = False
    # Sums of fewer bits, but of more than the products have; for eight bits alone.
    is_fast: bool = True


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a way to do it."""

    _fields_ = (
        ("way", c_uint64 * 8),
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


def can_fuse_gelu(x: Tensor, width: int) -> bool:
    """Whether there are products with gelu for such rows, to or from so many columns."""
    bytes_16 = {torch.bfloat16: 8, FLOAT8: 16}.get(x.dtype, 0)
    if not x.is_cuda or not bytes_16 or library() is None:
        return False
    return width % bytes_16 == 0 and x.shape[1] % bytes_16 == 0  # as it wants strides to be


def ask(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} of cuBLASLt gave status {status}")


def layout(rows: int, columns: int, kind: int = BFLOAT16) -> c_void_p:
    made, shape = c_void_p(), (c_uint64(rows), c_uint64(columns), c_int64(rows))
    ask("cublasLtMatrixLayoutCreate", byref(made), kind, *shape)
    return made


class Plan:
    """How a product is done; made once for its shape."""

    def __init__(self, product: Product) -> None:
        p = product
        self.product, self.lock = p, Lock()
        self.description, self.a, self.b, self.out = (c_void_p() for _ in range(4))
        ask("cublasLtMatmulDescCreate", byref(self.description), COMPUTE_FLOAT32, FLOAT32)
        self.set(TRANSPOSE_A, c_int32(p.is_a_transposed))
        self.set(TRANSPOSE_B, c_int32(p.is_b_transposed))
        self.set(ENDING, c_uint32(p.ending))
        if p.ending in (GELU_BIAS_SAVED, GELU_SLOPE):
            self.set(GELU_STRIDE, c_int64(p.m))
        kind = E4M3 if p.is_float8 else BFLOAT16
        if p.is_float8:
            self.set(FAST_SUMS, c_int8(p.is_fast))
        self.scale = c_float(UNSCALE if p.is_float8 else 1)
        self.a = layout(p.k, p.m, kind) if p.is_a_transposed else layout(p.m, p.k, kind)
        self.b = layout(p.n, p.k, kind) if p.is_b_transposed else layout(p.k, p.n, kind)
        self.out = layout(p.m, p.n)
        self.found = self.find()

    def set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        ask("cublasLtMatmulDescSetAttribute", self.description, attribute, byref(value), size)

    def find(self) -> Found | None:
        """The way that the library expects to be the fastest; none: it has no way at all."""
        return next(iter(self.suggest(1)), None)

    def suggest(self, most: int) -> list[Found]:
        """Ways to do it, the one that the library expects to be the fastest first."""
        preference, size, count = c_void_p(), c_size_t(WORKSPACE), c_int()
        found = (Found * most)()
        ask("cublasLtMatmulPreferenceCreate", byref(preference))
        ask(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            MAX_WORKSPACE,
            byref(size),
            c_size_t(ctypes.sizeof(size)),
        )
        layouts = (self.a, self.b, self.out, self.out)
        handle = c_void_p(torch.cuda.current_blas_handle())
        status = library().cublasLtMatmulAlgoGetHeuristic(
            handle,
            self.description,
            *layouts,
            preference,
            most,
            found,
            byref(count),
        )
        ask("cublasLtMatmulPreferenceDestroy", preference)
        return [] if status else list(found[: count.value])

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # the names of this module may be gone before its objects
            return
        library().cublasLtMatmulDescDestroy(self.description)
        for made in (self.a, self.b, self.out):
            library().cublasLtMatrixLayoutDestroy(made)

    def run(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        wide: Tensor | None = None,
    ) -> None:
        """Threads that share a plan take turns: what bias and wide are is told to the plan."""
        if self.found is None:
            raise RuntimeError(f"cuBLASLt has no way to do {self.product}")
        with self.lock, torch.cuda.device(out.device):
            if bias is not None:
                self.set(BIAS, c_void_p(bias.data_ptr()))
            if wide is not None:
                self.set(GELU_INPUT, c_void_p(wide.data_ptr()))
            self.launch(a, b, out)

    def launch(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        assert self.found is not None
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
        zero = c_float(0)
        ask(
            "cublasLtMatmul",
            c_void_p(torch.cuda.current_blas_handle()),
            self.description,
            byref(self.scale),
            c_void_p(a.data_ptr()),
            self.a,
            c_void_p(b.data_ptr()),
            self.b,
            byref(zero),
            c_void_p(out.data_ptr()),
            self.out,
            c_void_p(out.data_ptr()),
            self.out,
            byref(self.found),
            c_void_p(workspace.data_ptr()),
            c_size_t(WORKSPACE),
            c_void_p(torch.cuda.current_stream().cuda_stream),
        )


@lru_cache(maxsize=512)  # batches without padding have ever new numbers of tokens
def plan_of(product: Product) -> Plan:
    return Plan(product)


def forward_product(x: Tensor, weight: Tensor, ending: int) -> Product:
    """x weight', row by row: column by column, as the library counts, weight x'."""
    return Product(
        m=len(weight),
        n=len(x),
        k=x.shape[1],
        is_a_transposed=True,
        is_b_transposed=False,
        ending=ending,
        device=x.device.index,
        is_float8=x.dtype == FLOAT8,
    )


def gelu_linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, is_saved: bool
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(wide), and wide = x weight' + bias if it `is_saved` (else without numbers).

    x and weight are bfloat16, or both of eight bits; the others are bfloat16.
    """
    plan = plan_of(forward_product(x, weight, GELU_BIAS_SAVED if is_saved else GELU_BIAS))
    if plan.found is None:  # which endings there are for eight bits depends on the version
        wide = linear8(x, weight, bias, bias.dtype)
        return bias_gelu_forward(wide, torch.zeros_like(bias), is_tanh=True), wide
    out = bias.new_empty(len(x), len(weight))
    wide = torch.empty_like(out) if is_saved else out
    plan.run(weight, x, out, bias=bias, wide=wide if is_saved else None)
    return out, wide


def linear8(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """x weight' + bias, of eight bits; on a GPU `dtype` is bfloat16, and so is the bias."""
    if not x.is_cuda:
        return linear_plain(x, weight, bias, dtype)
    out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
    plan = plan_of(forward_product(x, weight, NO_ENDING if bias is None else ADD_BIAS))
    plan.run(weight, x, out, bias=bias)
    return out


def times_gelu_slope(
    gradient: Tensor, weight: Tensor, wide: Tensor
) -> Tensor:  # (T, D), (D, U), (T, U) -> (T, U)
    """(gradient weight) times the slope of gelu at wide."""
    out = torch.empty_like(wide)
    plan = plan_of(
        Product(
            m=wide.shape[1],
            n=len(wide),
            k=gradient.shape[1],
            is_a_transposed=False,
            is_b_transposed=False,
            ending=GELU_SLOPE,
            device=wide.device.index,
        )
    )
    plan.run(weight, gradient, out, wide=wide)
    return out
