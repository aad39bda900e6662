"""The products of a layer: large ones of bfloat16 in a measured way, some with more in their last
pass (bias and gelu, or the slope of gelu), some of eight bits.

gelu is there in its tanh form only. The erf form is at most 0.0005 away: in norm a tenth of what
rounding to bfloat16 does, so both are served (of single values around -3, whose gelu is small, it
is up to a tenth).
"""

# T tokens   D hidden size   U feed-forward size   I, O columns of rows that go in and come out

from functools import lru_cache

import torch
from torch import Tensor

from bertie.kernels.cublaslt import (
    ADD_BIAS,
    GELU_BIAS,
    GELU_BIAS_SAVED,
    GELU_SLOPE,
    NO_ENDING,
    Product,
    library,
)
from bertie.kernels.float8 import FLOAT8, SLOPE8, Slope, go_back_plain, linear_plain
from bertie.kernels.ways import Planned, is_large


@lru_cache(maxsize=1024)  # batches without padding have ever new numbers of tokens
def plan_of(product: Product) -> Planned:
    return Planned(product)


def find_plan(product: Product, *factors: Tensor) -> Planned | None:
    """Of a large product of bfloat16; none: it is torch's, as on a CPU."""
    can_be = (
        is_large(product)
        and all(one.is_cuda and one.is_contiguous() for one in factors)
        and all(one.dtype == torch.bfloat16 for one in factors)
        and not (product.m % 8 or product.k % 8)  # as the library wants strides to be
        and library() is not None
    )
    planned = plan_of(product) if can_be else None
    return None if planned is None or planned.way is None else planned


# --- forward, back to the rows, back to the matrix ---


def forward_product(x: Tensor, weight: Tensor, ending: int) -> Product:
    """x weight', row by row: column by column, as the library counts, weight x'."""
    return Product(
        m=len(weight),
        n=len(x),
        k=x.shape[1],
        is_a_transposed=True,
        ending=ending,
        device=x.get_device(),
        is_float8=x.dtype in (FLOAT8, SLOPE8),
        is_slope=x.dtype == SLOPE8,
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (T, I), (O, I) -> (T, O)
    """x weight' + bias."""
    product = forward_product(x, weight, NO_ENDING if bias is None else ADD_BIAS)
    planned = find_plan(product, x, weight)
    if planned is None:
        return x @ weight.T if bias is None else torch.addmm(bias, x, weight.T)
    out = x.new_empty(len(x), len(weight))
    planned.run(weight, x, out, bias=bias)
    return out


def back_product(gradient: Tensor, weight: Tensor, ending: int = NO_ENDING) -> Product:
    return Product(
        m=weight.shape[1],
        n=len(gradient),
        k=len(weight),
        is_a_transposed=False,
        ending=ending,
        device=gradient.get_device(),
    )


def go_back(gradient: Tensor, weight: Tensor) -> Tensor:  # (T, O), (O, I) -> (T, I)
    planned = find_plan(back_product(gradient, weight), gradient, weight)
    if planned is None:
        return gradient @ weight
    out = gradient.new_empty(len(gradient), weight.shape[1])
    planned.run(weight, gradient, out)
    return out


def add_back(total: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:  # (T, I), (T, O), (O, I)
    """total += gradient weight, in place."""
    product = back_product(gradient, weight)._replace(is_added=True)
    planned = find_plan(product, gradient, weight, total)
    if planned is None:
        return total.addmm_(gradient, weight)
    planned.run(weight, gradient, total)
    return total


def matrix_gradient(gradient: Tensor, x: Tensor) -> Tensor:  # (T, O), (T, I) -> (O, I)
    """In float32: of sums over all tokens, 8 bits are too few."""
    if x.is_cuda:
        return torch.mm(gradient.T, x, out_dtype=torch.float32)
    return gradient.T.float() @ x.float()


# --- with gelu, or its slope, in their last pass ---


def can_fuse_gelu(x: Tensor, width: int) -> bool:
    """Whether there are products with gelu for such rows, to or from so many columns."""
    if not x.is_cuda or x.dtype != torch.bfloat16 or library() is None:
        return False
    return width % 8 == 0 and x.shape[1] % 8 == 0  # as it wants strides to be


def gelu_linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, is_saved: bool
) -> tuple[Tensor, Tensor]:  # (T, D), (U, D), (U,) -> (T, U), (T, U)
    """gelu(wide), and wide = x weight' + bias if it `is_saved` (else without numbers)."""
    out = bias.new_empty(len(x), len(weight))
    wide = torch.empty_like(out) if is_saved else out
    planned = plan_of(forward_product(x, weight, GELU_BIAS_SAVED if is_saved else GELU_BIAS))
    planned.run(weight, x, out, bias=bias, wide=wide if is_saved else None)
    return out, wide


def times_gelu_slope(
    gradient: Tensor, weight: Tensor, wide: Tensor
) -> Tensor:  # (T, D), (D, U), (T, U) -> (T, U)
    """(gradient weight) times the slope of gelu at wide."""
    out = torch.empty_like(wide)
    plan_of(back_product(gradient, weight, GELU_SLOPE)).run(weight, gradient, out, wide=wide)
    return out


# --- of eight bits: on a GPU what comes out is bfloat16 ---


def linear8(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """x weight' + bias; the bias is of `dtype`, as what comes out."""
    if not x.is_cuda:
        return linear_plain(x, weight, bias, dtype)
    out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
    planned = plan_of(forward_product(x, weight, NO_ENDING if bias is None else ADD_BIAS))
    planned.run(weight, x, out, bias=bias)
    return out


def go_back8(slope: Slope, turned: Tensor) -> Tensor:  # (T, O), (I, O) -> (T, I)
    """The gradient of rows, from that of what a matrix has made of them; it lies transposed."""
    out = slope.half.new_empty(len(slope.half), len(turned))
    return run_back8(out, slope, turned, is_added=False)


def add_back8(total: Tensor, slope: Slope, turned: Tensor) -> Tensor:  # (T, I), (T, O), (I, O)
    """The same, added to `total` in place."""
    return run_back8(total, slope, turned, is_added=True)


def run_back8(out: Tensor, slope: Slope, turned: Tensor, *, is_added: bool) -> Tensor:
    assert slope.eight is not None and slope.scale is not None
    if not out.is_cuda:
        made = go_back_plain(slope.eight, slope.scale, turned, out.dtype)
        return out.add_(made) if is_added else made
    product = forward_product(slope.eight, turned, NO_ENDING)._replace(is_added=is_added)
    plan_of(product).run(turned, slope.eight, out, scale=slope.scale.inverse)
    return out
