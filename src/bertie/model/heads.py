"""Hidden rows to logits, one head per question; what the logits mean is the caller's business."""

# M predicted tokens   T tokens   N sequences   D hidden size   E size of embeddings   V pieces
# C labels   X columns of a row that are read

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import UserError, check_known
from bertie.model.config import DIRECTED, ModelConfig
from bertie.model.dropout import Dropout
from bertie.model.encoder import Gelu, layer_norm


class PieceHead(nn.Module):
    """Which piece stood here; the output matrix is the embedding of the pieces itself."""

    def __init__(self, config: ModelConfig, columns: slice) -> None:
        super().__init__()
        self.columns = columns  # of each row, the only ones that are read
        self.dense = nn.Linear(len(range(config.hidden_size)[columns]), config.input_size)
        self.gelu = Gelu(config)
        self.norm = layer_norm(config, config.input_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, pieces: Tensor | None) -> Tensor:  # (M, D), (V, E) -> (M, V)
        read = x[..., self.columns]  # (M, X)
        rows: Tensor = self.norm(self.gelu(self.dense(read)))  # (M, E), all there is without pieces
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

    reads: Literal["predicted", "behind", "pooled", "tokens"]  # behind: rows after the predicted
    num_outputs: int | Literal["vocabulary", "labels"]
    has_dropout: bool = False


# Where all tokens of a text are predicted, `predicted` are those that have a successor: next_token
# reads each of them and predicts the one behind it, previous_token the other way round.
HEADS = {
    "masked_lm": HeadKind(reads="predicted", num_outputs="vocabulary"),
    "next_token": HeadKind(reads="predicted", num_outputs="vocabulary"),
    "previous_token": HeadKind(reads="behind", num_outputs="vocabulary"),
    "next_sentence": HeadKind(reads="pooled", num_outputs=2),  # 0: B follows A, 1: it does not
    "sequence": HeadKind(reads="pooled", num_outputs="labels", has_dropout=True),
    "token": HeadKind(reads="tokens", num_outputs="labels", has_dropout=True),
    "span": HeadKind(reads="tokens", num_outputs=2),  # start, end
    "choice": HeadKind(reads="pooled", num_outputs=1, has_dropout=True),
}
PRETRAINED = ("masked_lm", *DIRECTED, "next_sentence")  # the others are of tasks


def get_head(name: str) -> HeadKind:
    check_known("head", name, HEADS)
    return HEADS[name]


def make_head(name: str, config: ModelConfig, num_labels: int) -> nn.Module:
    kind = get_head(name)
    if kind.num_outputs == "vocabulary":
        return PieceHead(config, read_columns(name, config))
    num_outputs = num_labels if kind.num_outputs == "labels" else kind.num_outputs
    if num_outputs < 1:
        raise UserError(f"the head {name} needs at least 1 label; found {num_outputs}")
    return Classifier(config, num_outputs, has_dropout=kind.has_dropout)


def read_columns(name: str, config: ModelConfig) -> slice:
    """What a head may see of a row: nothing that has seen the token it predicts."""
    half = config.hidden_size // 2
    if name not in DIRECTED:
        return slice(None)
    if config.bilstm_layers:
        raise UserError(
            f"the head {name} would see what it predicts: the LSTM on top (model.bilstm_layers) "
            "reads both ways; add it in fine-tuning, with tune.bilstm_layers"
        )
    if config.layer == "lstm":
        return slice(half) if name == "next_token" else slice(half, None)
    if name == "previous_token" or config.attention != "left":
        raise UserError(
            f"the head {name} would see what it predicts; it goes with "
            + ('model.attention = "left" or ' if name == "next_token" else "")
            + 'model.layer = "lstm"'
        )
    return slice(None)
