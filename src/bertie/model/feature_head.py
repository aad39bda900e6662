"""Heads on frozen features: chosen layers are combined, and a small network reads the rest.

The six combinations are those of the paper's Table 7.
"""

# T tokens of all inputs in a row   N inputs   K layers   D size of a vector   X size of combined
# ones   H hidden size of the LSTM   C labels

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.model.dropout import Dropout
from bertie.model.lstm import BiLstm

Combination = Literal[
    "embeddings", "second-to-last", "last", "weighted-last-4", "concat-last-4", "weighted-all"
]
HeadKind = Literal["bilstm", "linear", "mean"]
LookUp = Callable[[Tensor], Tensor]  # numbers of rows (T,) -> their vectors (T, K, D)


def combined_layers(combination: Combination, num_layers: int) -> tuple[int, ...]:
    """Which layers of a model a combination reads; 0 are the embeddings.

    >>> combined_layers("weighted-last-4", 12), combined_layers("second-to-last", 12)
    ((9, 10, 11, 12), (11,))
    """
    layers = {
        "embeddings": (0,),
        "second-to-last": (num_layers - 1,),
        "last": (num_layers,),
        "weighted-last-4": tuple(range(num_layers - 3, num_layers + 1)),
        "concat-last-4": tuple(range(num_layers - 3, num_layers + 1)),
        "weighted-all": tuple(range(1, num_layers + 1)),  # "all 12 layers": not the embeddings
    }[combination]
    if min(layers) < (0 if combination == "embeddings" else 1):
        raise UserError(
            f"{combination} reads more layers than the model has, which are {num_layers}; take "
            "another of head.combinations"
        )
    return layers


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShape:
    """All that decides the parameters of a head."""

    kind: HeadKind
    reads: Literal["tokens", "inputs"]  # a label for each token, or for each input
    combination: Combination
    num_vectors: int  # K, layers that are combined
    vector_size: int  # D
    hidden_size: int  # H, in each direction
    num_layers: int  # of the LSTM
    dropout: float
    num_labels: int

    def __post_init__(self) -> None:
        if self.kind == "mean" and self.reads == "tokens":
            raise UserError("the head mean gives a text one label, not each word; take linear")

    @property
    def combined_size(self) -> int:  # X
        is_concat = self.combination.startswith("concat")
        return self.num_vectors * self.vector_size if is_concat else self.vector_size


class WeightedSum(nn.Module):
    """Layers by learned shares, equal at first, and times a learned scale (as ELMo has it)."""

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_vectors))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, vectors: Tensor) -> Tensor:  # (T, K, D) -> (T, D)
        return self.scale * torch.einsum("tkd,k->td", vectors, self.logits.softmax(0))


class FeatureHead(nn.Module):
    """Labels from stored vectors: to this model, a token's id is the number of its row."""

    def __init__(self, shape: HeadShape, look_up: LookUp) -> None:
        super().__init__()
        self.shape, self.look_up = shape, look_up
        is_sum = shape.combination.startswith("weighted")
        self.mix: nn.Module = WeightedSum(shape.num_vectors) if is_sum else nn.Flatten(1)
        self.dropout = Dropout(shape.dropout)
        self.bilstm = make_lstm(shape) if shape.kind == "bilstm" else None
        size = 2 * shape.hidden_size if shape.kind == "bilstm" else shape.combined_size
        self.classifier = nn.Linear(size, shape.num_labels)

    def forward(
        self, ids: Tensor, segments: Tensor, positions: Tensor, bounds: Tensor, longest: int
    ) -> tuple[Tensor]:  # (T,), -, (T,), (N + 1,) -> (T, C) or (N, C)
        x = self.dropout(self.mix(self.look_up(ids).float()))  # (T, X)
        if self.bilstm is not None:
            x = self.dropout(self.bilstm(x, positions, bounds))  # (T, 2H)
        if self.shape.reads == "inputs":
            x = x[bounds[:-1]] if self.shape.kind == "linear" else mean_rows(x, bounds)
        return (self.classifier(x),)


def make_lstm(shape: HeadShape) -> BiLstm:
    return BiLstm(
        shape.combined_size,
        shape.hidden_size,
        num_layers=shape.num_layers,
        dropout=shape.dropout,
    )


def mean_rows(x: Tensor, bounds: Tensor) -> Tensor:  # (T, X), (N + 1,) -> (N, X)
    """The mean of each input's rows, in float32: of sums, half precision would lose a hundredth."""
    lengths = bounds.diff()
    owners = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)  # (T,)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    sums = x.new_zeros(len(lengths), x.shape[1]).index_add(0, owners, x)
    return sums / lengths[:, None]


def make_feature_head(shape: HeadShape, look_up: LookUp, seed: int) -> FeatureHead:
    """With fresh weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeatureHead(shape, look_up)
