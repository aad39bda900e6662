"""Layers like ELMo's, in the place of a Transformer's: they read the same rows in the same way."""

# T tokens of all sequences in a row   N sequences   D hidden size   R rows that are kept

import torch
from torch import Tensor, nn

from bertie.model.config import ModelConfig
from bertie.model.dropout import add_dropped
from bertie.model.lstm import by_position, read_one_way


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
        lengths = bounds.diff()  # (N,)
        starts = bounds[:-1].repeat_interleave(lengths)  # (T,)
        positions = torch.arange(len(x), device=x.device) - starts
        ends = lengths.repeat_interleave(lengths) - 1 - positions
        sizes = positions.bincount()
        sides = [
            read_one_way(lstm, side, by_position(places, lengths), sizes)
            for lstm, side, places in zip(
                (self.ahead, self.back), x.chunk(2, -1), (positions, ends), strict=True
            )
        ]
        y = add_dropped(x, torch.cat(sides, 1), self.dropout if self.training else 0.0)
        return y if kept is None else y[kept]
