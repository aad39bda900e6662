"""An LSTM over sequences in a row, in both directions, without padding.

The weights are those of torch's `nn.LSTM`. On a GPU it runs in torch, or, in half precision and of
up to 128 hidden numbers, in bertie.kernels.lstm. On a CPU, torch's backward pass fills a gradient
of all rows with zeros at every position of a sequence; here each row's gradient is written once,
and the weights' gradient is one product: 1.4 times as fast (32 sentences, H = 128).
"""

# T rows of all sequences   N sequences   n sequences that have a position   X input size
# H hidden size in each direction

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertie.kernels import can_read
from bertie.model.dropout import Dropout

DIRECTIONS = ("", "_reverse")  # torch's endings of the names of weights


class BiLstm(nn.Module):
    """Layers of an LSTM in both directions."""

    def __init__(
        self, input_size: int, hidden_size: int, *, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)  # between layers
        self.lstm = nn.LSTM(
            input_size,
            hidden_size,
            num_layers,
            bidirectional=True,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, positions: Tensor, bounds: Tensor) -> Tensor:  # (T, X) -> (T, 2H)
        if can_read(x, self.lstm.hidden_size):
            return self.read_in_kernels(x, bounds)
        lengths = bounds.diff()  # (N,)
        sizes = positions.bincount()  # n of each position
        ends = lengths.repeat_interleave(lengths) - 1 - positions  # (T,) positions from the end
        orders = [by_position(places, lengths) for places in (positions, ends)]
        if x.device.type == "cpu":
            return self.read(x, orders, sizes.tolist())
        return read_packed(self.lstm, x, orders[0], sizes)

    def read(self, x: Tensor, orders: list[Tensor], sizes: list[int]) -> Tensor:
        """Layer by layer; `orders` are those of the rows in each direction."""
        inverses = [order.argsort() for order in orders]
        for layer in range(self.lstm.num_layers):
            if layer:
                x = self.dropout(x)
            sides = []
            for direction, order, inverse in zip(DIRECTIONS, orders, inverses, strict=True):
                inner, outer, *biases = (
                    self.lstm.get_parameter(f"{name}_l{layer}{direction}")
                    for name in ("weight_hh", "weight_ih", "bias_ih", "bias_hh")
                )
                projected = project(x.index_select(0, order), outer, biases[0] + biases[1])
                hidden: Tensor = Recurrence.apply(projected, inner, sizes)  # type: ignore[no-untyped-call]
                sides.append(hidden.index_select(0, inverse))
            x = torch.cat(sides, 1)  # (T, 2H)
        return x

    def read_in_kernels(self, x: Tensor, bounds: Tensor) -> Tensor:  # (T, X) -> (T, 2H)
        for layer in range(self.lstm.num_layers):
            if layer:
                x = self.dropout(x)
            sides = [
                read_in_kernel(
                    self.lstm, x, bounds, f"l{layer}{direction}", is_back=direction != ""
                )
                for direction in DIRECTIONS
            ]
            x = torch.cat(sides, 1)
        return x


def read_in_kernel(lstm: nn.LSTM, x: Tensor, bounds: Tensor, name: str, *, is_back: bool) -> Tensor:
    """One layer in one direction, whose weights have this ending. (T, X) -> (T, H)"""
    from bertie.kernels.lstm import recur

    inner, outer, *biases = (
        lstm.get_parameter(f"{kind}_{name}")
        for kind in ("weight_hh", "weight_ih", "bias_ih", "bias_hh")
    )
    return recur(F.linear(x, outer, biases[0] + biases[1]), inner, bounds, is_back=is_back)


def read_one_way(lstm: nn.LSTM, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """One layer in the direction of `order` (T,). (T, X) -> (T, H)"""
    if x.device.type != "cpu":
        return read_packed(lstm, x, order, sizes)
    inner, outer = lstm.get_parameter("weight_hh_l0"), lstm.get_parameter("weight_ih_l0")
    bias = lstm.get_parameter("bias_ih_l0") + lstm.get_parameter("bias_hh_l0")
    projected = project(x.index_select(0, order), outer, bias)
    hidden: Tensor = Recurrence.apply(projected, inner, sizes.tolist())  # type: ignore[no-untyped-call]
    return hidden.index_select(0, order.argsort())


def read_packed(lstm: nn.LSTM, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """Through torch's LSTM, whose autocast is always fp16: small gradients would be lost.

    (T, X) -> (T, H), or (T, 2H) in both directions
    """
    with torch.autocast(x.device.type, enabled=False):
        rows = x[order].to(lstm.get_parameter("weight_ih_l0").dtype)
        out: Tensor = lstm(PackedSequence(rows, sizes.cpu()))[0].data
    return out[order.argsort()]


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # (T, X) -> (T, 4H)
    """In the precision of the weights, which is that of the recurrence, too."""
    with torch.autocast("cpu", enabled=False):
        return F.linear(x.to(weight.dtype), weight, bias)


def by_position(positions: Tensor, lengths: Tensor) -> Tensor:  # (T,), (N,) -> (T,)
    """Rows as an LSTM wants them: all of position 0, the longest sequence's first; then of 1, .."""
    ranks = (-lengths).argsort(stable=True).argsort()  # (N,)
    return (positions * len(lengths) + ranks.repeat_interleave(lengths)).argsort()


class Recurrence(torch.autograd.Function):
    """One layer in one direction: what enters the gates (T, 4H) -> hidden rows (T, H).

    Rows are ordered by position: `sizes` says how many each has. Gates are torch's: input, forget,
    cell, output.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
        size = weight.shape[1]
        gates = projected.clone()  # (T, 4H)
        cells, hidden = (projected.new_empty(len(projected), size) for _ in range(2))
        start = before = 0
        for count in sizes:
            rows, last = slice(start, start + count), slice(before, before + count)
            own, cell = gates[rows], cells[rows]  # (n, 4H), (n, H)
            if start:
                own.addmm_(hidden[last], weight.t())
            own[:, : 2 * size].sigmoid_()
            own[:, 2 * size : 3 * size].tanh_()
            own[:, 3 * size :].sigmoid_()
            enters, forgets, new, shows = own.split(size, 1)
            torch.mul(enters, new, out=cell)
            if start:
                cell.addcmul_(forgets, cells[last])
            torch.mul(shows, cell.tanh(), out=hidden[rows])
            before, start = start, start + count
        ctx.save_for_backward(gates, cells, hidden, weight)
        ctx.sizes = sizes
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """What depends on one row alone is computed for all rows at once, before the loop."""
        gates, cells, hidden, weight = ctx.saved_tensors
        size, sizes, (of_hidden,) = weight.shape[1], ctx.sizes, gradients
        enters, forgets, new, shows = gates.split(size, 1)
        bent = cells.tanh()
        counts = torch.tensor(sizes)
        before = torch.arange(len(gates))[sizes[0] :] - counts[:-1].repeat_interleave(counts[1:])
        cells_before = torch.zeros_like(cells)
        cells_before[sizes[0] :] = cells.index_select(0, before)
        to_cell = shows * (1 - bent * bent)  # (T, H)
        to_shows = bent * shows * (1 - shows)
        to_gates = torch.stack(  # (T, 3, H)
            (
                new * enters * (1 - enters),
                cells_before * forgets * (1 - forgets),
                enters * (1 - new * new),
            ),
            1,
        )
        of_gates = torch.empty_like(gates)  # (T, 4H)
        of_cells = torch.zeros_like(cells)  # (T, H)
        of_hidden = of_hidden.clone()
        end = len(gates)
        for step in range(len(sizes) - 1, -1, -1):
            count = sizes[step]
            rows = slice(end - count, end)
            own, cell, above = of_gates[rows], of_cells[rows], of_hidden[rows]
            cell.addcmul_(above, to_cell[rows])
            torch.mul(cell[:, None], to_gates[rows], out=own[:, : 3 * size].view(-1, 3, size))
            torch.mul(above, to_shows[rows], out=own[:, 3 * size :])
            if step:
                last = slice(end - count - sizes[step - 1], end - sizes[step - 1])
                of_hidden[last].addmm_(own, weight)
                torch.mul(cell, forgets[rows], out=of_cells[last])
            end -= count
        of_weight = of_gates[sizes[0] :].t() @ hidden.index_select(0, before)
        return of_gates, of_weight, None
