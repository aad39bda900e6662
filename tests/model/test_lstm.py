"""The LSTM in a row is torch's, in values and in gradients."""

import pytest
import torch
from torch import Tensor, nn

from bertie.model.lstm import BiLstm, by_position, read_one_way, read_packed


def pack(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, positions and bounds of sequences."""
    generator = torch.Generator().manual_seed(len(lengths))
    x = torch.randn(sum(lengths), 3, generator=generator, dtype=torch.float64)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return x, positions, torch.tensor([0, *lengths]).cumsum(0)


def make_lstm(num_layers: int, dropout: float = 0.0) -> BiLstm:
    torch.manual_seed(5)
    return BiLstm(3, 4, num_layers=num_layers, dropout=dropout).double()


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("lengths", [[5], [1], [1, 1], [2, 7, 1, 7, 3], [4, 4, 4]])
def test_values_and_gradients_are_torchs(lengths: list[int], num_layers: int) -> None:
    lstm = make_lstm(num_layers)
    x, positions, bounds = pack(lengths)
    pull = torch.randn(len(x), 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradients(out: Tensor, read: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((out * pull).sum(), [read, *lstm.parameters()]))

    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = lstm(ours, positions, bounds)
    expected = torch.cat([lstm.lstm(part)[0] for part in theirs.split(lengths)])
    torch.testing.assert_close(found, expected)
    for one, two in zip(gradients(found, ours), gradients(expected, theirs), strict=True):
        torch.testing.assert_close(one, two)


def test_dropout_is_between_layers_and_in_training_alone() -> None:
    x, positions, bounds = pack([4, 2])
    lstm = make_lstm(2, dropout=0.5)
    assert not torch.equal(lstm(x, positions, bounds), lstm(x, positions, bounds))
    torch.manual_seed(3)
    one = lstm(x, positions, bounds)
    torch.manual_seed(3)
    assert torch.equal(one, lstm(x, positions, bounds))
    lstm.eval()
    assert torch.equal(lstm(x, positions, bounds), lstm(x, positions, bounds))
    single = make_lstm(1, dropout=0.5)
    assert torch.equal(single(x, positions, bounds), single(x, positions, bounds))


def test_no_gradient_is_wanted_where_none_is() -> None:
    x, positions, bounds = pack([4, 2])
    lstm = make_lstm(1)
    with torch.no_grad():
        assert not lstm(x, positions, bounds).requires_grad
    assert isinstance(lstm.lstm, nn.LSTM) and x.grad is None


def test_rows_that_are_packed_for_torch_are_read_alike() -> None:
    """What a GPU runs, on a CPU; also where autocast is on."""
    rows, lengths = torch.randn(9, 4), torch.tensor([3, 5, 1])
    positions = torch.cat([torch.arange(3), torch.arange(5), torch.arange(1)])
    order, sizes = by_position(positions, lengths), positions.bincount()
    lstm = torch.nn.LSTM(4, 6)
    expected = read_one_way(lstm, rows, order, sizes)
    with torch.autocast("cpu", torch.bfloat16):
        found = read_packed(lstm, rows, order, sizes)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
