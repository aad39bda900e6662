"""Layers like ELMo's, in the place of a Transformer's: they read the same rows in the same way."""

# T tokens of all sequences in a row   N sequences   D hidden size   R rows that are kept

import torch
from torch import Tensor, nn

from bertie.kernels import can_read
from bertie.model.config import ModelConfig
from bertie.model.dropout import add_dropped
from bertie.model.lstm import by_position, read_in_kernel, read_one_way


class TwoWayLayer(nn.Module):
    """A layer of ELMo: the left half of a row has read all before it, the right half all behind it.

    The halves never meet, so that two language models are trained, each on its own. Each layer is
    added to what it reads, as ELMo's second is.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        half = config.hidden_size // 2
        self.ahead, self.back = nn.LSTM(half, half), nn.LSTM(half, half)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None = None
    ) -> Tensor:  # (T, D) -> (R, D)
        y = add_dropped(x, self.read(x, bounds), self.dropout if self.training else 0.0)
        return y if kept is None else y[kept]

    def read(self, x: Tensor, bounds: Tensor) -> Tensor:  # (T, D) -> (T, D)
        halves = list(zip((self.ahead, self.back), x.chunk(2, -1), strict=True))
        if can_read(x, self.ahead.hidden_size):
            sides = [
                read_in_kernel(lstm, side, bounds, "l0", is_back=lstm is self.back)
                for lstm, side in halves
            ]
            return torch.cat(sides, 1)
        lengths = bounds.diff()  # (N,)
        starts = bounds[:-1].repeat_interleave(lengths)  # (T,)
        positions = torch.arange(len(x), device=x.device) - starts
        ends = lengths.repeat_interleave(lengths) - 1 - positions
        sizes = positions.bincount()
        sides = [
            read_one_way(lstm, side, by_position(places, lengths), sizes)
            for (lstm, side), places in zip(halves, (positions, ends), strict=True)
        ]
        return torch.cat(sides, 1)
