"""Eight bits: kernels make the copies that torch makes, which stay near what they are of."""

import numpy as np
import pytest
import torch

from bertie.kernels import Switch, can_use_float8, has_float8, layer_operation
from bertie.kernels.float8 import (
    FLOAT8,
    LARGEST,
    LARGEST_SLOPE,
    ROW_SCALE,
    SLOPE8,
    SLOPE_LEVEL,
    UNSCALE,
    WEIGHT_SCALE,
    Scale,
    cast_weight,
    find_scale,
    go_back_plain,
    leave_copy,
    linear_plain,
    quantise,
    quantise_plain,
    quantise_slope_plain,
    take_copy,
    turn_weight,
)
from bertie.model import encoder
from bertie.model.bert import Bert, pack
from bertie.model.config import ModelConfig
from tests.kernels.closeness import error_of


def draw(*shape, scale=1.0, seed=0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_rows, size", [(1, 16), (37, 96), (130, 768)])
def test_rows_are_those_of_torch(num_rows, size, dtype, device):
    x = draw(num_rows, size).to(dtype)
    copy = quantise(x.to(device))
    assert copy.dtype == FLOAT8 and copy.shape == x.shape
    assert error_of(copy.float(), quantise_plain(x, ROW_SCALE).float()) < 1e-3
    assert error_of(copy.float() / ROW_SCALE, x) < 0.04


@pytest.mark.parametrize("shape", [(48, 80), (64, 64), (16, 192), (4, 65)])
def test_weights_come_as_they_are_and_transposed(shape, device):
    weight = draw(*shape, scale=0.02).to(device)
    eight = cast_weight(weight)
    turned = turn_weight(eight)
    assert turned.is_contiguous() and torch.equal(turned.float(), eight.float().T)
    assert error_of(eight.float(), quantise_plain(weight, WEIGHT_SCALE).float()) < 1e-3
    assert error_of(eight.float() / WEIGHT_SCALE, weight) < 0.03


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1.0, 300.0])
@pytest.mark.parametrize("shape", [(1, 16), (37, 96), (130, 768)])
def test_a_gradients_scale_brings_it_to_its_level(shape, size, device):
    gradient = draw(*shape, scale=size).to(device)
    scale, inverse = (float(part) for part in find_scale(gradient))
    assert scale * inverse == 1 and np.frexp(scale)[0] == 0.5  # a power of two
    level = scale * float(gradient.square().mean().sqrt())
    assert SLOPE_LEVEL / 2 * 0.99 < level < SLOPE_LEVEL * 1.01


def find_on_cpu(gradient, device):
    return Scale(*(part.cpu() for part in find_scale(gradient.to(device))))


def test_a_gradient_of_few_rows_keeps_all_of_them(device):
    """As that of a last layer of which few rows are read: the mean is that of zeros, nearly."""
    gradient = torch.zeros(20_000, 32)
    gradient[7] = draw(32, scale=1e-7)
    scale = find_on_cpu(gradient, device)
    found = quantise_slope_plain(gradient, scale)
    assert error_of(found.float(), scale.factor * gradient) < 0.1


def test_a_gradient_of_zeros_has_a_scale_too(device):
    assert find_on_cpu(torch.zeros(3, 16), device) == (1, 1)


def test_a_gradient_that_is_no_number_stays_so(device):
    gradient = draw(5, 32)
    gradient[2, 3] = torch.nan
    scale = find_on_cpu(gradient, device)
    assert quantise_slope_plain(gradient, scale).float().isnan().any()


def test_what_is_too_large_becomes_the_largest(device):
    x = torch.tensor([[-1e4, -57.0, -56.0, -1.0, 0.0, 1.0, 56.0, 1e4] * 2], device=device)
    for copy in (quantise(x), quantise_plain(x, ROW_SCALE)):
        assert copy.float().tolist() == [[-448, -448, -448, -8, 0, 8, 448, 448] * 2]
    assert float(quantise(x).float().max()) == LARGEST == torch.finfo(FLOAT8).max


def test_a_product_of_eight_bits_is_near_that_of_all():
    x, weight, bias = draw(50, 64), draw(32, 64, scale=0.1, seed=1), draw(32, seed=2)
    wanted = torch.nn.functional.linear(x, weight, bias)
    eight = quantise_plain(x, ROW_SCALE), quantise_plain(weight, WEIGHT_SCALE)
    assert UNSCALE * ROW_SCALE * WEIGHT_SCALE == 1
    assert error_of(linear_plain(*eight, bias, torch.float32), wanted) < 0.05


def test_a_product_with_a_gradient_of_eight_bits_is_near_that_of_all():
    gradient, weight = draw(50, 64, scale=1e-6), draw(64, 32, scale=0.1, seed=1)
    scale = Scale(torch.tensor([2.0**21]), torch.tensor([2.0**-21]))
    slope = quantise_slope_plain(gradient, scale)
    assert slope.dtype == SLOPE8 and torch.finfo(SLOPE8).max == LARGEST_SLOPE
    turned = quantise_plain(weight.T.contiguous(), WEIGHT_SCALE)
    found = go_back_plain(slope, scale, turned, torch.float32)
    assert error_of(found, gradient @ weight) < 0.1


def test_a_copy_is_taken_once(device):
    x, other = draw(4, 32).to(device), torch.zeros(4, 32, dtype=FLOAT8, device=device)
    assert take_copy(leave_copy(x, other)) is other
    assert take_copy(x) is None
    assert leave_copy(x, None) is x and not x.__dict__


def test_eight_bits_are_for_those_who_ask_and_for_sizes_that_fit(monkeypatch):
    rows = torch.zeros(3, 64, dtype=torch.bfloat16)
    assert not can_use_float8(rows, 256)
    monkeypatch.setattr(Switch, "is_float8", True)
    assert can_use_float8(rows, 256)
    assert not can_use_float8(rows, 248) and not can_use_float8(rows[:, :56], 256)
    assert can_use_float8(rows[:, :48], 256) and not can_use_float8(rows[:, :32], 256)
    assert not can_use_float8(rows.float(), 256)
    assert not has_float8(torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a GPU does needs no pretending")
def test_layers_of_a_model_pass_copies_on(monkeypatch):
    """As if there were a GPU: near the plain model, and one cast for three layers."""
    config = ModelConfig(
        vocab_size=60, hidden_size=32, num_layers=3, num_heads=2, dropout=0.0, attention_dropout=0.0
    )
    model = Bert(config, generator=torch.Generator().manual_seed(0)).train()
    packed = pack([torch.arange(5, 12), torch.arange(20, 40)])
    wanted = model.encode(*packed)
    monkeypatch.setattr(encoder, "can_encode", lambda x, num_heads: True)
    monkeypatch.setattr(encoder, "can_use_float8", lambda x, width: True)
    casts = []
    monkeypatch.setattr(layer_operation, "quantise", lambda x: casts.append(x) or quantise(x))
    found = model.encode(*packed)
    assert 1e-4 < error_of(found, wanted) < 0.05
    assert len(casts) == 1
    found.sum().backward()
    assert all(p.grad is not None for p in model.layers.parameters())
