"""norm(residual + drop(y + bias)) and its gradients against the twin in float64."""

import pytest
import torch

from bertie.kernels.float8 import FLOAT8, find_scale, quantise, quantise_slope_plain
from bertie.kernels.norm import add_norm_backward, add_norm_forward, add_norm_plain
from tests.kernels.closeness import EIGHT_BITS, check_close, error_of


def make(num_rows, size, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    residual, y, gradient = torch.randn(3, num_rows, size, generator=generator).to(dtype)
    bias, weight, shift = torch.randn(3, size, generator=generator)
    return residual, y, gradient, bias, weight, shift


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("num_rows, size", [(1, 32), (17, 128), (129, 96), (5, 768), (3, 1024)])
def test_forward_and_backward_are_the_twins(num_rows, size, dropout, dtype, device):
    residual, y, gradient, bias, weight, shift = make(num_rows, size, dtype)
    seed = torch.tensor([77])
    inputs = [part.double().requires_grad_() for part in (residual, y, bias, weight, shift)]
    wanted = add_norm_plain(*inputs, seed, dropout, 1e-12)
    wanted.backward(gradient.double())
    moved = [part.to(device) for part in (residual, y, bias, weight, shift, seed)]
    out, summed, statistics = add_norm_forward(*moved, dropout, 1e-12, is_saved=True)
    d_residual, d_y, sums = add_norm_backward(
        gradient.to(device), summed, statistics, moved[3], moved[5], dropout
    )
    gradients = [inputs[place].grad for place in (0, 1, 3, 4, 2)]
    check_close([out, d_residual, d_y.half, *sums], [wanted, *gradients], dtype)


def test_the_copy_in_eight_bits_is_of_the_rows_as_they_are_stored(dtype, device):
    """So that it does not matter who makes it."""
    *moved, _, bias, weight, shift = (part.to(device) for part in make(37, 96, dtype))
    seed = torch.tensor([3], device=device)
    settings = (*moved, bias, weight, shift, seed, 0.1, 1e-12)
    copy = torch.empty(37, 96, dtype=FLOAT8, device=device)
    out, *_ = add_norm_forward(*settings, is_saved=True, copy=copy)
    assert torch.equal(copy.float(), quantise(out).float())
    check_close([out], [add_norm_forward(*settings, is_saved=True)[0]], dtype)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_gradients_copy_in_eight_bits_is_beside_what_is_stored(dropout, dtype, device):
    residual, y, gradient, bias, weight, shift = (p.to(device) for p in make(37, 96, dtype))
    seed = torch.tensor([3], device=device)
    given = (residual, y, bias, weight, shift, seed, dropout, 1e-12)
    _, summed, statistics = add_norm_forward(*given, is_saved=True)
    back = (gradient, summed, statistics, weight, seed, dropout)
    wanted = add_norm_backward(*back)
    scale = find_scale(gradient)
    found = add_norm_backward(*back, scale=scale)
    assert wanted[1].eight is None and found[1].scale is scale
    check_close([found[0], found[1].half, found[2]], [wanted[0], wanted[1].half, wanted[2]], dtype)
    twin = quantise_slope_plain(found[1].half, scale)
    assert error_of(found[1].eight.float(), twin.float()) < EIGHT_BITS[dtype]


def test_nothing_is_saved_where_there_is_no_backward_pass(device):
    residual, y, _, bias, weight, shift = (part.to(device) for part in make(9, 64, torch.float16))
    seed = torch.tensor([1], device=device)
    settings = (residual, y, bias, weight, shift, seed, 0.0, 1e-12)
    saved = add_norm_forward(*settings, is_saved=True)[0]
    assert torch.equal(add_norm_forward(*settings, is_saved=False)[0], saved)
