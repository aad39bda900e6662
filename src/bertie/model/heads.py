"""Hidden rows to logits, one head per question; what the logits mean is the caller's business."""

# M predicted tokens   T tokens   N sequences   D hidden size   V pieces   C labels

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.model.config import ModelConfig
from bertie.model.dropout import Dropout
from bertie.model.encoder import Gelu, layer_norm


class MaskedLM(nn.Module):
    """Which piece stood here; the output matrix is the embedding of the pieces itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.gelu = Gelu(config)
        self.norm = layer_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, pieces: Tensor | None) -> Tensor:  # (M, D), (V, D) -> (M, V)
        rows: Tensor = self.norm(self.gelu(self.dense(x)))  # (M, D), all there is without pieces
        return rows if pieces is None else F.linear(rows, pieces, self.bias)


class Classifier(nn.Module):
    """One linear layer on pooled sequences (N, D) -> (N, C) or on tokens (T, D) -> (T, C)."""

    def __init__(self, config: ModelConfig, num_outputs: int, *, has_dropout: bool) -> None:
        super().__init__()
        dropout = config.dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(dropout if has_dropout else 0.0)
        self.classifier = nn.Linear(config.hidden_size, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(x))
        return logits


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadKind:
    """What a head reads and how many numbers it gives for each row."""

    reads: Literal["predicted", "pooled", "tokens"]
    num_outputs: int | Literal["vocabulary", "labels"]
    has_dropout: bool = False


HEADS = {
    "masked_lm": HeadKind(reads="predicted", num_outputs="vocabulary"),
    "next_sentence": HeadKind(reads="pooled", num_outputs=2),  # 0: B follows A, 1: it does not
    "sequence": HeadKind(reads="pooled", num_outputs="labels", has_dropout=True),
    "token": HeadKind(reads="tokens", num_outputs="labels", has_dropout=True),
    "span": HeadKind(reads="tokens", num_outputs=2),  # start, end
    "choice": HeadKind(reads="pooled", num_outputs=1, has_dropout=True),
}


def get_head(name: str) -> HeadKind:
    if name not in HEADS:
        raise UserError(f"no head {name!r}; there are: {', '.join(HEADS)}")
    return HEADS[name]


def make_head(name: str, config: ModelConfig, num_labels: int) -> nn.Module:
    kind = get_head(name)
    if kind.num_outputs == "vocabulary":
        return MaskedLM(config)
    num_outputs = num_labels if kind.num_outputs == "labels" else kind.num_outputs
    if num_outputs < 1:
        raise UserError(f"the head {name} needs at least 1 label; found {num_outputs}")
    return Classifier(config, num_outputs, has_dropout=kind.has_dropout)
