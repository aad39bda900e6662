"""A layer in kernels is the plain layer: rows, gradients, under a compiler, recomputed."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from bertie.kernels.layer import LayerSettings, LayerWeights, encode_layer
from bertie.model.config import ModelConfig
from bertie.model.encoder import Layer
from tests.kernels.closeness import check_close

LENGTHS = [5, 17, 30]
CONFIG = ModelConfig(
    vocab_size=50, hidden_size=64, num_layers=1, num_heads=2, dropout=0.0, attention_dropout=0.0
)


@pytest.fixture
def layer(device):
    torch.manual_seed(0)
    layer = Layer(CONFIG)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return layer.to(device)


def weights_of(layer):
    attention, ffn = layer.attention, layer.ffn
    return LayerWeights(
        attention.qkv.weight,
        attention.qkv.bias,
        attention.out.weight,
        attention.out.bias,
        layer.attention_norm.weight,
        layer.attention_norm.bias,
        ffn.up.weight,
        ffn.up.bias,
        ffn.down.weight,
        ffn.down.bias,
        layer.ffn_norm.weight,
        layer.ffn_norm.bias,
    )


def make(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x, gradient = torch.randn(2, sum(LENGTHS), 64, generator=generator).to(device, dtype)
    return x.requires_grad_(), gradient, torch.tensor([0, *LENGTHS], device=device).cumsum(0)


def run(layer, x, bounds, dropout=0.0, kept=None):
    settings = LayerSettings(
        num_heads=2,
        dropout=dropout,
        attention_dropout=dropout,
        eps=1e-12,
        is_tanh=False,
        longest=32,
    )
    seeds = torch.tensor([1, 2, 3], device=x.device)
    return encode_layer(x, bounds, kept, seeds, weights_of(layer), settings)


def walk_back(layer, x, rows, gradient):
    """Gradients of x and of every weight; and clean again."""
    rows.backward(gradient)
    found = [x.grad, *(weight.grad for weight in weights_of(layer))]
    x.grad = None
    layer.zero_grad()
    return found


@pytest.mark.parametrize("is_compiled", [False, True])
def test_rows_and_gradients_are_the_plain_layers(layer, device, is_compiled):
    x, gradient, bounds = make(device)
    wanted = layer(x, bounds, 32)
    wanted_gradients = walk_back(layer, x, wanted, gradient)
    encode = (
        torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)
        if is_compiled
        else run
    )
    rows = encode(layer, x, bounds)
    gradients = walk_back(layer, x, rows, gradient)
    check_close([rows, *gradients], [wanted, *wanted_gradients], torch.float32)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_only_the_rows_that_are_kept(layer, device, is_compiled):
    """In any order, one of them twice."""
    x, gradient, bounds = make(device)
    kept = torch.tensor([51, 0, 7, 30, 7], device=device)
    wanted = layer(x, bounds, 32)
    scattered = torch.zeros_like(gradient).index_add_(0, kept, gradient[:5])
    wanted_gradients = walk_back(layer, x, wanted, scattered)
    plain = layer(x, bounds, 32, kept)
    plain_gradients = walk_back(layer, x, plain, gradient[:5])
    encode = (
        torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)
        if is_compiled
        else run
    )
    rows = encode(layer, x, bounds, 0.0, kept)
    gradients = walk_back(layer, x, rows, gradient[:5])
    check_close([plain, *plain_gradients], [wanted[kept], *wanted_gradients], torch.float32)
    check_close([rows, *gradients], [wanted[kept], *wanted_gradients], torch.float32)


def test_half_precision_keeps_rows_in_half_and_gradients_of_weights_in_full(layer, device):
    x, gradient, bounds = make(device)
    wanted = layer(x, bounds, 32)
    wanted_gradients = walk_back(layer, x, wanted, gradient)
    half, half_gradient, _ = make(device, torch.float16)
    rows = run(layer, half, bounds)
    gradients = walk_back(layer, half, rows, half_gradient)
    assert rows.dtype == gradients[0].dtype == torch.float16
    assert {one.dtype for one in gradients[1:]} == {torch.float32}
    check_close([rows, *gradients], [wanted, *wanted_gradients], torch.bfloat16)


def test_without_gradients_the_rows_are_the_same(layer, device):
    x, _, bounds = make(device)
    with torch.no_grad():
        quiet = run(layer, x, bounds)
    assert torch.equal(quiet, run(layer, x, bounds))


def test_recomputed_in_the_backward_pass_dropout_is_the_same(layer, device):
    x, gradient, bounds = make(device)
    rows = run(layer, x, bounds, dropout=0.3)
    wanted = [rows, *walk_back(layer, x, rows, gradient)]
    again = checkpoint(run, layer, x, bounds, 0.3, use_reentrant=False)
    found = [again, *walk_back(layer, x, again, gradient)]
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def test_gradients_with_dropout_are_slopes(layer, device):
    """A step along the gradient changes the output as much as the gradient says."""
    x, gradient, bounds = make(device)
    rows = run(layer, x, bounds, dropout=0.2)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(device)
    (slope,) = torch.autograd.grad(rows, x, gradient)
    size = 3e-2 if device.type == "cuda" else 1e-3  # products of 10 bits hide a smaller one
    with torch.no_grad():
        after, before = (
            (run(layer, x + sign * size * direction, bounds, dropout=0.2) * gradient).sum()
            for sign in (1, -1)
        )
    wanted = (slope * direction).sum()
    assert abs((after - before) / (2 * size) - wanted) < 2e-2 * abs(wanted) + 1e-2
