"""An LSTM in kernels against torch's own in float64, forward, backward and in both directions."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bertie.kernels.lstm import recur, shift
from bertie.model.elmo import TwoWayLayer
from bertie.model.lstm import BiLstm
from tests.kernels.closeness import check_close
from tests.model.tiny import VARIANTS

LENGTHS = [[1], [5, 0, 17, 1], [3] * 20 + [0, 0], [40, 2]]


def make(lengths, size, dtype):
    generator = torch.Generator().manual_seed(size)
    total = sum(lengths)
    projected = torch.randn(total, 4 * size, generator=generator).to(dtype)
    weight = (torch.randn(4 * size, size, generator=generator) * size**-0.5).to(dtype)
    gradient = torch.randn(total, size, generator=generator).to(dtype)
    return projected, weight, gradient, torch.tensor([0, *lengths]).cumsum(0)


def recur_plain(projected, weight, bounds, *, is_back):
    """The twin: sequence by sequence through torch's LSTM, whose input is what enters the gates."""
    size = weight.shape[1]
    cell = nn.LSTMCell(4 * size, size, bias=False, dtype=projected.dtype)
    found = []
    for start, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        rows = projected[start:end].flip(0) if is_back else projected[start:end]
        state, hidden = None, []
        for row in rows:
            own = {"weight_ih": torch.eye(4 * size, dtype=row.dtype), "weight_hh": weight}
            state = torch.func.functional_call(cell, own, (row[None], state))
            hidden.append(state[0][0])
        found += hidden[::-1] if is_back else hidden
    return torch.stack(found)


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: str(lengths[:4]))
def test_every_length_is_the_twins(lengths, is_back, dtype, device):
    projected, weight, gradient, bounds = make(lengths, 16, dtype)
    exact = [part.double().requires_grad_() for part in (projected, weight)]
    wanted = recur_plain(*exact, bounds, is_back=is_back)
    wanted.backward(gradient.double())
    moved = [part.to(device).requires_grad_() for part in (projected, weight.float())]
    hidden = recur(*moved, bounds.to(device), is_back=is_back)
    assert hidden.dtype == dtype
    hidden.backward(gradient.to(device))
    found = [hidden, *(part.grad for part in moved)]
    check_close(found[:2], [wanted, exact[0].grad], dtype)
    if max(lengths) > 1:  # else nothing was remembered, and no weight is read
        check_close(found[2:], [exact[1].grad], dtype)
    else:
        assert not found[2].any()


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_every_size_is_the_twins(size, is_held, device, monkeypatch):
    if not is_held:
        monkeypatch.setattr("bertie.kernels.lstm.can_hold", lambda inner: False)
    projected, weight, _, bounds = make([7, 3, 5], size, torch.float16)
    wanted = recur_plain(projected.double(), weight.double(), bounds, is_back=False)
    found = recur(projected.to(device), weight.to(device), bounds.to(device), is_back=False)
    check_close([found], [wanted], torch.float16)


@pytest.mark.parametrize("is_back", [False, True])
def test_what_was_remembered_when_a_row_was_read(is_back):
    hidden, bounds = torch.arange(1.0, 7.0)[:, None], torch.tensor([0, 0, 2, 5, 6, 6])
    wanted = [2, 0, 4, 5, 0, 0] if is_back else [0, 1, 0, 3, 4, 0]
    assert shift(hidden, bounds, is_back=is_back).flatten().tolist() == wanted


@pytest.mark.parametrize("kind", ["elmo", "on top"])
def test_models_read_as_torch_does(kind, device, monkeypatch):
    torch.manual_seed(0)
    lengths = [9, 1, 30, 0]
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    x = torch.randn(sum(lengths), 32, device=device, requires_grad=True)
    if kind == "elmo":
        layer, given = (
            TwoWayLayer(replace(VARIANTS["lstm"], hidden_size=32, num_heads=2, dropout=0.0)).to(
                device
            ),
            (bounds, 30),
        )
    else:
        layer = BiLstm(32, 16, num_layers=2, dropout=0.0).to(device)
        given = (positions, bounds)

    def run():
        rows = layer(x, *given)
        rows.square().sum().backward()
        found = [rows, x.grad, *(parameter.grad for parameter in layer.parameters())]
        x.grad = None
        layer.zero_grad()
        return found

    wanted = run()
    launched = []

    def watched(*inputs, **more):
        launched.append(more["is_back"])
        return recur(*inputs, **more)

    for place in ("elmo", "lstm"):
        monkeypatch.setattr(f"bertie.model.{place}.can_read", lambda x, size: size == 16)
    monkeypatch.setattr("bertie.kernels.lstm.recur", watched)
    check_close(run(), wanted, torch.float32)
    assert launched == [False, True] * (1 if kind == "elmo" else 2)


def test_recomputed_in_the_backward_pass_gradients_are_the_same(device):
    projected, weight, gradient, bounds = make([5, 17, 1], 16, torch.float32)
    bounds = bounds.to(device)
    found = []
    for is_recomputed in (False, True):
        given = [part.to(device).requires_grad_() for part in (projected, weight)]

        def run(*inputs):
            return recur(*inputs, bounds, is_back=True)

        rows = checkpoint(run, *given, use_reentrant=False) if is_recomputed else run(*given)
        rows.backward(gradient.to(device))
        found.append([rows, *(part.grad for part in given)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
