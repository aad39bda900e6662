"""Products with more in their last pass, against the same in float64; the library needs a GPU."""

import pytest
import torch
import torch.nn.functional as F

from bertie.kernels.products import can_fuse_gelu, gelu_linear, library, times_gelu_slope
from tests.kernels.closeness import check_close

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or library() is None, reason="needs a GPU and cuBLASLt"
)
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


def test_other_rows_are_refused():
    assert not can_fuse_gelu(torch.zeros(2, 64, dtype=torch.bfloat16), 256)
    assert not can_fuse_gelu(torch.zeros(2, 64, device="cuda"), 256)
    assert not can_fuse_gelu(torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16), 250)
