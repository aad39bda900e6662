"""Products with more in their last pass, against the same in float64; the library needs a GPU."""

import pytest
import torch
import torch.nn.functional as F

from bertie.kernels import cublaslt, has_float8, ways
from bertie.kernels.float8 import (
    Scale,
    Slope,
    cast_weight,
    find_scale,
    go_back_plain,
    linear_plain,
    quantise,
    quantise_slope_plain,
    turn_weight,
)
from bertie.kernels.products import (
    add_back,
    add_back8,
    can_fuse_gelu,
    find_plan,
    forward_product,
    gelu_linear,
    go_back,
    go_back8,
    linear,
    linear8,
    matrix_gradient,
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
    gradient = 1e-5 * torch.randn(num_tokens, width, generator=generator).cuda().bfloat16()
    eight = cast_weight(weight)
    return x, (eight, turn_weight(eight)), bias, gradient


@needs_eight_bits
@pytest.mark.parametrize("num_tokens, size, width", EIGHT_BIT_SHAPES)
def test_products_of_eight_bits_are_the_twins(num_tokens, size, width):
    x, (weight, _), bias, _ = draw8(num_tokens, size, width)
    eight = quantise(x)
    for one in (None, bias):
        wanted = linear_plain(
            eight.cpu(), weight.cpu(), None if one is None else one.cpu(), torch.float
        )
        found = linear8(eight, weight, one, torch.bfloat16)
        assert found.dtype == torch.bfloat16
        check_close([found], [wanted], torch.bfloat16)


@needs_eight_bits
@pytest.mark.parametrize("num_tokens, size, width", EIGHT_BIT_SHAPES)
def test_products_with_gradients_of_eight_bits_are_the_twins(num_tokens, size, width):
    x, (_, turned), _, gradient = draw8(num_tokens, size, width)
    scale = find_scale(gradient)
    slope = Slope(gradient, quantise_slope_plain(gradient, scale), scale)
    on_cpu = Scale(*(part.cpu() for part in scale))
    wanted = go_back_plain(slope.eight.cpu(), on_cpu, turned.cpu(), torch.float)
    check_close([go_back8(slope, turned)], [wanted], torch.bfloat16)
    total = 1e-5 * x
    before = total.cpu().float()
    assert add_back8(total, slope, turned) is total
    check_close([total], [before + wanted], torch.bfloat16)
