"""Products with more in their last pass, against the same in float64; the library needs a GPU."""

import pytest
import torch
import torch.nn.functional as F

from bertie.kernels import cublaslt, has_float8, ways
from bertie.kernels.float8 import FLOAT8, cast_weight, linear_plain, quantise
from bertie.kernels.products import (
    add_back,
    can_fuse_gelu,
    find_plan,
    forward_product,
    gelu_linear,
    go_back,
    linear,
    linear8,
    matrix_gradient,
    plan_of,
    times_gelu_slope,
)
from tests.kernels.closeness import check_close
from tests.kernels.conftest import needs_cublaslt

pytestmark = needs_cublaslt
SHAPES = [(1, 64, 256), (17, 128, 512), (33, 64, 248), (2053, 768, 3072)]


@pytest.mark.parametrize("num_tokens, size, width", SHAPES)
def test_gelu_of_a_product_and_its_gradients(num_tokens, size, width):
    """In both forms of gelu: rounding hides which one it was."""
    generator = torch.Generator().manual_seed(width)

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).cuda().bfloat16()

    x, up, bias = draw(num_tokens, size), draw(width, size, scale=size**-0.5), draw(width)
    gradient, down = draw(num_tokens, size), draw(size, width, scale=size**-0.5)
    assert can_fuse_gelu(x, width)
    active, wide = gelu_linear(x, up, bias, is_saved=True)
    alone, _ = gelu_linear(x, up, bias, is_saved=False)
    d_wide = times_gelu_slope(gradient, down, wide)
    for form in ("none", "tanh"):
        exact = F.linear(x.double(), up.double(), bias.double()).requires_grad_()
        wanted = F.gelu(exact, approximate=form)
        wanted.backward(gradient.double() @ down.double())
        check_close([active, alone, wide], [wanted, wanted, exact], torch.bfloat16)
        check_close([d_wide], [exact.grad], torch.bfloat16)


@pytest.mark.parametrize("num_tokens, size, width", [*SHAPES, (40_001, 512, 1536)])
@pytest.mark.parametrize("least", [0, ways.LEAST_OPERATIONS])
def test_products_are_those_of_float64(num_tokens, size, width, least, monkeypatch):
    """Large ones, that are planned, and small ones, that are torch's; either for any shape."""
    monkeypatch.setattr(ways, "LEAST_OPERATIONS", least)
    generator = torch.Generator().manual_seed(width)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).cuda().bfloat16()

    x, gradient, weight, bias = (
        draw(num_tokens, size),
        draw(num_tokens, width),
        draw(width, size),
        draw(width),
    )
    before = draw(num_tokens, size)
    wide = x.double() @ weight.double().T
    narrow = gradient.double() @ weight.double()
    if not least:
        assert find_plan(forward_product(x, weight, cublaslt.NO_ENDING), x, weight) is not None
    check_close([linear(x, weight, None)], [wide], torch.bfloat16)
    check_close([linear(x, weight, bias)], [wide + bias.double()], torch.bfloat16)
    check_close([go_back(gradient, weight)], [narrow], torch.bfloat16)
    total = before.clone()
    assert add_back(total, gradient, weight) is total
    check_close([total], [before.double() + narrow], torch.bfloat16)
    found = matrix_gradient(gradient, x)
    assert found.dtype == torch.float32
    check_close([found], [gradient.double().T @ x.double()], torch.bfloat16)


def test_other_rows_are_refused():
    assert not can_fuse_gelu(torch.zeros(2, 64, dtype=torch.bfloat16), 256)
    assert not can_fuse_gelu(torch.zeros(2, 64, device="cuda"), 256)
    assert not can_fuse_gelu(torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16), 250)


# --- of eight bits, against the product of the numbers that they stand for ---

needs_eight_bits = pytest.mark.skipif(
    not has_float8(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
    reason="needs a GPU that multiplies eight bits",
)
EIGHT_BIT_SHAPES = [(1, 64, 256), (17, 128, 512), (33, 64, 240), (2053, 768, 3072)]


def draw8(num_tokens, size, width):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(num_tokens, size, generator=generator).cuda().bfloat16()
    weight = (size**-0.5 * torch.randn(width, size, generator=generator)).cuda()
    bias = torch.randn(width, generator=generator).cuda().bfloat16()
    return quantise(x), cast_weight(weight, torch.bfloat16)[1], bias


@needs_eight_bits
@pytest.mark.parametrize("num_tokens, size, width", EIGHT_BIT_SHAPES)
def test_products_of_eight_bits_are_the_twins(num_tokens, size, width):
    x, weight, bias = draw8(num_tokens, size, width)
    for one in (None, bias):
        wanted = linear_plain(
            x.cpu(), weight.cpu(), None if one is None else one.cpu(), torch.float
        )
        found = linear8(x, weight, one, torch.bfloat16)
        assert found.dtype == torch.bfloat16
        check_close([found], [wanted], torch.bfloat16)


@needs_eight_bits
@pytest.mark.parametrize("has_ending", [True, False])
@pytest.mark.parametrize("num_tokens, size, width", EIGHT_BIT_SHAPES)
def test_gelu_of_a_product_of_eight_bits(num_tokens, size, width, has_ending, monkeypatch):
    """Inside the product, or behind it where the library cannot."""
    x, weight, bias = draw8(num_tokens, size, width)
    assert can_fuse_gelu(x, width) and not can_fuse_gelu(x, width + 8)
    if not has_ending:
        for ending in (cublaslt.GELU_BIAS, cublaslt.GELU_BIAS_SAVED):
            monkeypatch.setattr(plan_of(forward_product(x, weight, ending)), "way", None)
    active, wide = gelu_linear(x, weight, bias, is_saved=True)
    alone, _ = gelu_linear(x, weight, bias, is_saved=False)
    exact = linear_plain(x.cpu(), weight.cpu(), bias.cpu(), torch.float)
    wanted = F.gelu(exact, approximate="tanh")
    check_close([active, alone, wide], [wanted, wanted, exact], torch.bfloat16)


@needs_eight_bits
def test_the_library_ends_a_product_of_eight_bits_with_gelu():
    """If this fails, all works, but gelu takes a pass of its own."""
    x, weight, _ = draw8(1024, 768, 3072)
    assert x.dtype == FLOAT8
    assert plan_of(forward_product(x, weight, cublaslt.GELU_BIAS_SAVED)).way is not None
