"""Matrix products that do more in their last pass: bias and gelu, or the slope of gelu.

From cuBLASLt, which torch itself takes for its products but does not offer with these endings; the
library is the one that torch has loaded, asked through ctypes. gelu is there in its tanh form only.
The erf form is at most 0.0005 away: in norm a tenth of what rounding to bfloat16 does, so both are
served (of single values around -3, whose gelu is small, it is up to a tenth).
"""

# T tokens   D hidden size   U feed-forward size

import ctypes
import sys
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache, lru_cache
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORKSPACE = 32 * 2**20  # bytes

# Numbers of cublasLt.h and library_types.h.
FLOAT32, BFLOAT16, COMPUTE_FLOAT32 = 0, 14, 68
TRANSPOSE_A, TRANSPOSE_B, ENDING, BIAS, GELU_INPUT, GELU_STRIDE = 3, 4, 7, 8, 11, 12
MAX_WORKSPACE = 1
GELU_BIAS, GELU_BIAS_SAVED, GELU_SLOPE = 36, 164, 192


class Product(NamedTuple):
    """out (m, n) = a (m, k) b (k, n), all of them column by column, as the library counts."""

    m: int
    n: int
    k: int
    is_a_transposed: bool
    is_b_transposed: bool
    ending: int
    device: int


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
    is_aligned = width % 8 == 0 and x.shape[1] % 8 == 0  # as the library wants strides to be
    return x.is_cuda and x.dtype == torch.bfloat16 and is_aligned and library() is not None


def ask(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} of cuBLASLt gave status {status}")


def layout(rows: int, columns: int) -> c_void_p:
    made, shape = c_void_p(), (c_uint64(rows), c_uint64(columns), c_int64(rows))
    ask("cublasLtMatrixLayoutCreate", byref(made), BFLOAT16, *shape)
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
        self.a = layout(p.k, p.m) if p.is_a_transposed else layout(p.m, p.k)
        self.b = layout(p.n, p.k) if p.is_b_transposed else layout(p.k, p.n)
        self.out = layout(p.m, p.n)
        self.found = self.find()

    def set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        ask("cublasLtMatmulDescSetAttribute", self.description, attribute, byref(value), size)

    def find(self) -> Found:
        """The way that the library expects to be the fastest."""
        preference, size, found, count = c_void_p(), c_size_t(WORKSPACE), Found(), c_int()
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
        ask(
            "cublasLtMatmulAlgoGetHeuristic",
            handle,
            self.description,
            *layouts,
            preference,
            1,
            byref(found),
            byref(count),
        )
        ask("cublasLtMatmulPreferenceDestroy", preference)
        if count.value == 0:
            raise RuntimeError(f"cuBLASLt has no way to do {self.product}")
        return found

    def __del__(self) -> None:
        if sys.is_finalizing():
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
        with self.lock, torch.cuda.device(out.device):
            if bias is not None:
                self.set(BIAS, c_void_p(bias.data_ptr()))
            if wide is not None:
                self.set(GELU_INPUT, c_void_p(wide.data_ptr()))
            self.launch(a, b, out)

    def launch(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
        one, zero = c_float(1), c_float(0)
        ask(
            "cublasLtMatmul",
            c_void_p(torch.cuda.current_blas_handle()),
            self.description,
            byref(one),
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


def gelu_linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, is_saved: bool
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(wide), and wide = x weight' + bias if it `is_saved` (else without numbers)."""
    (num_tokens, size), width = x.shape, len(weight)
    out = x.new_empty(num_tokens, width)
    wide = torch.empty_like(out) if is_saved else out
    plan = plan_of(
        Product(
            m=width,
            n=num_tokens,
            k=size,
            is_a_transposed=True,
            is_b_transposed=False,
            ending=GELU_BIAS_SAVED if is_saved else GELU_BIAS,
            device=x.device.index,
        )
    )
    plan.run(weight, x, out, bias=bias, wide=wide if is_saved else None)
    return out, wide


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
