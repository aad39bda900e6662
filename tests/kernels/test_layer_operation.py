"""A layer in kernels is the plain layer: rows, gradients, under a compiler, recomputed."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from bertie.kernels import has_float8, ways
from bertie.kernels.float8 import (
    ROW_SCALE,
    WEIGHT_SCALE,
    find_scale,
    go_back_plain,
    linear_plain,
    quantise_plain,
    quantise_slope_plain,
)
from bertie.kernels.layer_operation import encode_layer
from bertie.kernels.layer_parts import LayerSettings, LayerWeights
from bertie.kernels.products import plan_of
from bertie.model.attention import attend
from bertie.model.config import ModelConfig
from bertie.model.encoder import Layer
from tests.kernels.closeness import check_close, error_of
from tests.kernels.conftest import needs_cublaslt

needs_eight_bits = pytest.mark.skipif(
    torch.cuda.is_available() and not has_float8(torch.device("cuda")),
    reason="needs a GPU that multiplies eight bits, or none",
)
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


def run(layer, x, bounds, dropout=0.0, kept=None, is_float8=False):
    settings = LayerSettings(
        num_heads=2,
        dropout=dropout,
        attention_dropout=dropout,
        eps=1e-12,
        is_tanh=False,
        longest=32,
        is_float8=is_float8,
        is_left=layer.attention.is_left,
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


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_rows_and_gradients_are_the_plain_layers(layer, device, is_compiled, is_left):
    layer.attention.is_left = is_left
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


def test_no_row_that_is_kept_is_no_row(layer, device, monkeypatch):
    monkeypatch.setattr("bertie.model.encoder.can_encode", lambda x, num_heads: True)
    x, _, bounds = make(device)
    rows = layer(x, bounds, 32, torch.empty(0, dtype=torch.int64, device=device))
    rows.sum().backward()
    assert rows.shape == (0, 64) and float(x.grad.abs().max()) == 0


def test_to_the_left_later_tokens_change_nothing(layer, device):
    layer.attention.is_left = True
    x, _, bounds = make(device, torch.float32)
    with torch.no_grad():
        before = run(layer, x, bounds)
        changed = x.clone()
        changed[3] += 1  # of the first sequence, rows 0 .. 4
        after = run(layer, changed, bounds)
    assert torch.equal(after[:3], before[:3])
    assert torch.equal(after[5:], before[5:])
    assert (after[3:5] != before[3:5]).any(-1).all()


def test_to_the_left_kept_rows_are_those_of_all(layer, device, monkeypatch):
    """In any order, one of them twice."""
    layer.attention.is_left = True
    x, gradient, bounds = make(device)
    kept = torch.tensor([51, 0, 7, 30, 7], device=device)
    wanted = layer(x, bounds, 32, kept)
    wanted_gradients = walk_back(layer, x, wanted, gradient[:5])
    monkeypatch.setattr("bertie.model.encoder.can_encode", lambda x, num_heads: True)
    rows = layer(x, bounds, 32, kept)
    gradients = walk_back(layer, x, rows, gradient[:5])
    check_close([rows, *gradients], [wanted, *wanted_gradients], torch.float32)


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


@needs_cublaslt
@pytest.mark.parametrize("kept", [None, [51, 0, 7]])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_products_in_measured_ways_are_the_same(layer, device, is_compiled, kept, monkeypatch):
    """As all products of a layer are planned where they are large; the first step measures."""
    half, gradient, bounds = make(device, torch.bfloat16)
    rows = None if kept is None else torch.tensor(kept, device=device)
    gradient = gradient if kept is None else gradient[: len(kept)]
    encode = (
        torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)
        if is_compiled
        else run
    )
    found = []
    for least in (float("inf"), 0):
        monkeypatch.setattr(ways, "LEAST_OPERATIONS", least)
        monkeypatch.setattr(ways, "ASKED_BEFORE", 0)
        monkeypatch.setattr(ways, "CHOSEN", {})
        plan_of.cache_clear()
        out = encode(layer, half, bounds, 0.0, rows)
        found.append([out, *walk_back(layer, half, out, gradient)])
    assert len(ways.CHOSEN) >= 6
    plan_of.cache_clear()
    check_close(found[1], found[0], torch.bfloat16)


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


# --- with products of eight bits ---


# Of an error's norm, of rows and of gradients. Rounded to bfloat16 before, numbers at the border of
# two of eight bits fall to this side or that; of e5m2, as gradients are, these lie further apart.
EIGHT_BITS = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (5e-2, 1e-1)}


class Linear8(torch.autograd.Function):
    """The twin of products of eight bits: of rounded numbers, there and back; the gradients of
    matrices are those of the numbers before."""

    @staticmethod
    def forward(ctx, x, weight, bias, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        eight = quantise_plain(x, ROW_SCALE), quantise_plain(weight, WEIGHT_SCALE)
        return linear_plain(*eight, bias, x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x, weight), scale = ctx.saved_tensors, ctx.scale
        turned = quantise_plain(weight.T, WEIGHT_SCALE)
        d_x = go_back_plain(quantise_slope_plain(gradient, scale), scale, turned, x.dtype)
        return d_x, gradient.T @ x, gradient.sum(0), None


def layer8(layer, x, bounds, scale):
    """The plain layer, with products of rounded numbers."""

    def linear8(x, part):
        return Linear8.apply(x, part.weight, part.bias, scale)

    qkv = linear8(x, layer.attention.qkv).unflatten(-1, (3, 2, -1))
    mixed = attend(qkv, bounds, 32, is_left=layer.attention.is_left).flatten(1)
    middle = layer.attention_norm(x + linear8(mixed, layer.attention.out))
    active = F.gelu(linear8(middle, layer.ffn.up))
    return layer.ffn_norm(middle + linear8(active, layer.ffn.down))


def half_of(device):
    return torch.bfloat16 if device.type == "cuda" else torch.float16


def run8(layer, x, bounds, kept=None):
    return run(layer, x, bounds, 0.0, kept, True)


@needs_eight_bits
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_left", [False, True])
def test_eight_bits_are_the_twins(layer, device, is_compiled, is_left):
    layer.attention.is_left = is_left
    x, gradient, bounds = make(device)
    wanted = layer8(layer, x, bounds, find_scale(gradient))
    wanted_gradients = walk_back(layer, x, wanted, gradient)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # as cuBLASLt wants it
    given, _, _ = make(device, dtype)
    encode = (
        torch.compile(run8, backend="aot_eager", fullgraph=True, dynamic=False)
        if is_compiled
        else run8
    )
    rows = encode(layer, given, bounds)
    gradients = walk_back(layer, given, rows, gradient.to(dtype))
    assert rows.dtype == dtype
    assert {one.dtype for one in gradients[1:]} == {torch.float32}
    most, most_of_gradients = EIGHT_BITS[dtype]
    assert error_of(rows, wanted) < most
    for place, (one, other) in enumerate(zip(gradients, wanted_gradients, strict=True)):
        assert error_of(one, other) < most_of_gradients, place
    exact = layer(x, bounds, 32)
    exact_gradients = walk_back(layer, x, exact, gradient)
    assert 0.01 < error_of(rows, exact) < 0.1  # it did round
    assert 0.01 < error_of(gradients[0], exact_gradients[0]) < 0.15


@needs_eight_bits
def test_eight_bits_drop_what_others_drop(layer, device):
    """With dropout, gradients of rows and of what was dropped part: near those without eight bits,
    and dropped where these are."""
    x, gradient, bounds = make(device, half_of(device))
    found, wanted = (
        [rows, *walk_back(layer, x, rows, gradient)]
        for rows in (run(layer, x, bounds, 0.3, is_float8=is_float8) for is_float8 in (True, False))
    )
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert error_of(one, other) < 0.15, place
    assert error_of(found[1], wanted[1]) > 0.005


@needs_eight_bits
@pytest.mark.parametrize("is_compiled", [False, True])
def test_rows_that_are_kept_have_no_eight_bits(layer, device, is_compiled):
    x, gradient, bounds = make(device, half_of(device))
    kept = torch.tensor([51, 0, 7, 30, 7], device=device)
    wanted = run(layer, x, bounds, kept=kept)
    wanted = [wanted, *walk_back(layer, x, wanted, gradient[: len(kept)])]
    encode = (
        torch.compile(run8, backend="aot_eager", fullgraph=True, dynamic=False)
        if is_compiled
        else run8
    )
    rows = encode(layer, x, bounds, kept)
    found = [rows, *walk_back(layer, x, rows, gradient[: len(kept)])]
    assert all(map(torch.equal, found, wanted))


@needs_eight_bits
def test_a_layer_reads_the_copy_that_the_one_before_has_left(layer, device):
    """And takes it off; without it, or computed again, rows and gradients are the same."""
    x, gradient, bounds = make(device, half_of(device))
    first = run8(layer, x, bounds)
    assert first.__dict__
    second = run8(layer, first, bounds)
    assert not first.__dict__ and second.__dict__
    wanted = [second, *walk_back(layer, x, second, gradient)]

    def lose(x):
        rows = run8(layer, x, bounds)
        rows.__dict__.clear()
        return run8(layer, rows, bounds)

    def recompute(x):
        rows = checkpoint(run8, layer, x, bounds, use_reentrant=False)
        return checkpoint(run8, layer, rows, bounds, use_reentrant=False)

    for twice in (lose, recompute):
        rows = twice(x)
        for one, other in zip([rows, *walk_back(layer, x, rows, gradient)], wanted, strict=True):
            assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(run8(layer, run8(layer, x, bounds), bounds), wanted[0])


@needs_eight_bits
def test_the_last_layer_leaves_no_copy(layer, device):
    """And takes the one that the layer before it has left."""
    x, _, bounds = make(device, half_of(device))
    rows = run8(layer, x, bounds)
    assert rows.__dict__
    assert not run8(layer, rows, bounds, torch.tensor([3, 1], device=device)).__dict__
    assert not rows.__dict__
    assert not run(layer, x, bounds).__dict__
