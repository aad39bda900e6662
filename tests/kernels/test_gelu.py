"""gelu(x + bias) and its gradients against torch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from bertie.kernels import gelu
from bertie.kernels.float8 import ROW_SCALE, find_scale, quantise_plain, quantise_slope_plain
from bertie.kernels.gelu import bias_gelu_backward, bias_gelu_forward
from tests.kernels.closeness import EIGHT_BITS, check_close, error_of


@pytest.mark.parametrize("is_tanh", [False, True])
@pytest.mark.parametrize("num_rows, size", [(1, 64), (17, 300), (130, 128)])
def test_forward_and_backward_are_torchs(num_rows, size, is_tanh, dtype, device):
    generator = torch.Generator().manual_seed(num_rows)
    x, gradient = (3 * torch.randn(2, num_rows, size, generator=generator)).to(dtype)
    bias = torch.randn(size, generator=generator)
    inputs = [part.double().requires_grad_() for part in (x, bias)]
    wanted = F.gelu(inputs[0] + inputs[1], approximate="tanh" if is_tanh else "none")
    wanted.backward(gradient.double())
    moved = [part.to(device) for part in (x, bias)]
    out = bias_gelu_forward(*moved, is_tanh)
    d_x, d_bias, _ = bias_gelu_backward(gradient.to(device), *moved, is_tanh)
    check_close([out, d_x.half, d_bias], [wanted, *(part.grad for part in inputs)], dtype)


@pytest.mark.parametrize("is_tanh", [False, True])
def test_eight_bits_are_beside_what_is_stored(is_tanh, dtype, device):
    """The bias is in x then; and the backward pass gives again what the forward pass did not."""
    generator = torch.Generator().manual_seed(1)
    x, gradient = (3 * torch.randn(2, 37, 300, generator=generator)).to(device, dtype)
    bias = torch.zeros(300, device=device)
    active = bias_gelu_forward(x, bias, is_tanh)
    eight = bias_gelu_forward(x, bias + 7, is_tanh, is_float8=True)
    assert error_of(eight.float(), quantise_plain(active, ROW_SCALE).float()) < EIGHT_BITS[dtype]
    scale = find_scale(gradient)
    d_x, d_bias, again = bias_gelu_backward(gradient, x, bias + 7, is_tanh, scale=scale)
    wanted, wanted_bias, none = bias_gelu_backward(gradient, x, bias, is_tanh)
    assert wanted.eight is None and none is None and d_x.scale is scale
    check_close([d_x.half, d_bias, again], [wanted.half, wanted_bias, active], dtype)
    twin = quantise_slope_plain(d_x.half, scale)
    assert error_of(d_x.eight.float(), twin.float()) < EIGHT_BITS[dtype]


def test_more_blocks_than_an_axis_of_a_grid_holds(device, monkeypatch):
    assert gelu.MOST_BLOCKS < 2**16  # as GPUs have it, but for the first axis
    x = torch.randn(7 * gelu.LAUNCH.rows - 3, 32, device=device)
    bias = torch.randn(32, device=device)
    wanted = bias_gelu_forward(x, bias, False)
    for most in (1, 3):
        monkeypatch.setattr(gelu, "MOST_BLOCKS", most)
        assert torch.equal(bias_gelu_forward(x, bias, False), wanted)
    assert bias_gelu_forward(x[:0], bias, False).shape == (0, 32)


def test_extremes_stay_finite(device):
    x = torch.tensor([[-60000.0, -30.0, -1e-7, 0.0, 1e-7, 30.0, 60000.0]], device=device)
    bias = torch.zeros(7, device=device)
    for is_tanh in (False, True):
        out = bias_gelu_forward(x, bias, is_tanh)
        slopes = bias_gelu_backward(torch.ones_like(x), x, bias, is_tanh)[0].half
        assert out[0, 0] == 0 and out[0, -1] == 60000
        assert slopes[0, 0] == 0 and slopes[0, -1] == 1
