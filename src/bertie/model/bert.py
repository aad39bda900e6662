"""The whole model: encoder, pooler where it is needed, and the heads that were asked for.

The names of the parameters are those of the attributes, without a prefix:
`embeddings.token.weight`, `layers.0.attention.qkv.weight`, `pooler.dense.weight`, `masked_lm.bias`,
`sequence.classifier.weight`.
"""

# T tokens of all sequences in a row   N sequences   M predicted tokens   D hidden size
# E size of embeddings   R rows that are kept

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.errors import UserError
from bertie.model.config import ModelConfig
from bertie.model.elmo import TwoWayLayer
from bertie.model.encoder import Embeddings, Layer, Pooler, pooled_rows
from bertie.model.graphs import MOST_TOKENS, Flat, Graphs
from bertie.model.heads import get_head, make_head
from bertie.model.lstm import BiLstm


class Packed(NamedTuple):
    """Sequences in a row, without padding: what a model reads. `model(*packed)`"""

    ids: Tensor  # (T,)
    segments: Tensor  # (T,)
    positions: Tensor  # (T,) counted from 0 in each sequence
    bounds: Tensor  # (N + 1,) sequence n is rows bounds[n] .. bounds[n + 1]
    longest: int  # no sequence is longer; a fixed number keeps shapes fixed on a GPU


def pack(sequences: Sequence[Tensor], segments: Sequence[Tensor] | None = None) -> Packed:
    """Puts sequences of ids in a row; without `segments`, all tokens are of segment 0.

    Order is free; on a CPU, sequences of equal length are faster side by side.
    """
    lengths = [len(sequence) for sequence in sequences]
    ids = torch.cat(list(sequences))
    return Packed(
        ids,
        torch.zeros_like(ids) if segments is None else torch.cat(list(segments)),
        torch.cat([torch.arange(length, device=ids.device) for length in lengths]),
        torch.tensor([0, *lengths], device=ids.device).cumsum(0),
        max(lengths),
    )


class Bert(nn.Module):
    """BERT with any of the heads; those that were not asked for are not there."""

    def __init__(
        self,
        config: ModelConfig,
        heads: Sequence[str] = (),
        *,
        num_labels: int = 2,
        has_pooler: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if len(set(heads)) != len(heads):
            raise UserError(f"a head can be there once; found {', '.join(heads)}")
        self.config = config
        self.heads = tuple(heads)
        self.num_labels = num_labels
        self.graphs: Graphs | None = None  # of the encoder, for training with small batches
        self.recomputes = False  # layers in the backward pass, rather than keeping what they made
        self.reads = {get_head(name).reads for name in heads}
        self.embeddings = Embeddings(config)
        self.layers = make_layers(config)
        self.bilstm = make_bilstm(config)
        self.pooler = Pooler(config) if has_pooler or "pooled" in self.reads else None
        for name in heads:
            self.add_module(name, make_head(name, config, num_labels))
        initialise(self, config.init_std, generator)

    def record(self, most_tokens: int = MOST_TOKENS) -> None:
        """From now on, training with small batches plays the encoder from CUDA graphs."""
        parameters = [*self.embeddings.parameters(), *self.layers.parameters()]
        self.graphs = Graphs(parameters, self.config.max_positions, most_tokens)

    def encode(
        self,
        ids: Tensor,
        segments: Tensor,
        positions: Tensor,
        bounds: Tensor,
        longest: int,
        *,
        num_layers: int | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:  # (T,), (T,), (T,), (N + 1,) -> (T, D), or (R, D)
        """The last layer's rows, one per token; or those of the first `num_layers`' last.

        With `kept` (R,), only these rows: three quarters of the last layer are spared then (on a
        GPU, not of a model that looks left).
        """
        self._check_length(longest)
        hidden: Tensor = self.embeddings(ids, segments, positions)
        layers = list(self.layers)[:num_layers]
        top = self.bilstm if num_layers is None else None
        for number, layer in enumerate(layers, 1):
            rows = kept if number == len(layers) and top is None else None
            if self.recomputes and self.training:
                hidden = checkpoint(layer, hidden, bounds, longest, rows, use_reentrant=False)
            else:
                hidden = layer(hidden, bounds, longest, rows)
        if top is not None:
            hidden = top(hidden, positions, bounds)
        is_done = kept is None or (layers and top is None)  # the last layer kept them already
        return hidden if is_done else hidden[kept]

    def states(
        self,
        ids: Tensor,
        segments: Tensor,
        positions: Tensor,
        bounds: Tensor,
        longest: int,
        *,
        num_layers: int | None = None,
        kept: Tensor | None = None,
    ) -> list[Tensor]:  # (T,), (T,), (T,), (N + 1,) -> num_layers + 1 times (T, D) or (R, D)
        """The embeddings and every layer's rows; the last is what `encode` gives, if no LSTM is
        on top. With `kept` (R,), only these rows of each.
        """
        self._check_length(longest)
        states: list[Tensor] = [self.embeddings(ids, segments, positions)]
        layers = list(self.layers)[:num_layers]
        for number, layer in enumerate(layers, 1):
            rows = kept if number == len(layers) else None  # the others are read by the next
            states.append(layer(states[-1], bounds, longest, rows))
        if kept is None:
            return states
        whole = states[:-1] if layers else states
        return [state[kept] for state in whole] + states[len(whole) :]

    def _check_length(self, longest: int) -> None:
        if longest > self.config.max_positions:
            raise UserError(
                f"a sequence of {longest} tokens; the model has {self.config.max_positions} "
                "positions: cut it, or divide it into windows"
            )

    def pool(self, hidden: Tensor, bounds: Tensor) -> Tensor:  # (T, D), (N + 1,) -> (N, D)
        if self.pooler is None:
            raise UserError("this model has no pooler; build or open it with has_pooler=True")
        pooled: Tensor = self.pooler(hidden[self.pooled_rows(bounds, len(hidden))])
        return pooled

    def output_layer(self, head: str = "masked_lm") -> tuple[Tensor, Tensor]:  # (V, E), (V,)
        """The weight and bias that make logits of a head's rows."""
        return self.embeddings.token.weight, self.get_parameter(f"{head}.bias")

    def forward(
        self,
        ids: Tensor,
        segments: Tensor,
        positions: Tensor,
        bounds: Tensor,
        longest: int,
        *,
        predicted: Tensor | None = None,
        is_projected: bool = True,
    ) -> tuple[Tensor, ...]:
        """The logits of each head, in the order of `heads`.

        masked_lm and next_token (M, vocabulary) at the rows `predicted` (M,), or at all where none
        are given, previous_token at those behind them;
        next_sentence (N, 2), sequence (N, C), choice (N, 1); token (T, C), span (T, 2).
        With `is_projected` false the first are (M, E), what `output_layer` is to be applied to: for
        a loss that never stores all the logits.
        """
        read = self._rows_read(Flat(ids, segments, positions, bounds), longest, predicted)
        logits = []
        for name in self.heads:
            head, reads = self.get_submodule(name), get_head(name).reads
            if reads in ("predicted", "behind"):
                pieces = self.embeddings.token.weight if is_projected else None
                logits.append(head(read[reads], pieces))
            else:
                logits.append(head(read[reads]))
        return tuple(logits)

    def _rows_read(
        self, flat: Flat, longest: int, predicted: Tensor | None
    ) -> dict[str, Tensor]:  # (T, D), (N, D) or (M, D) each
        """What the heads read: all tokens, pooled rows, those that are predicted or behind these.

        If none reads all, the last layer makes no more than what is read: of base at 15% predicted
        tokens, a twentieth of all the work is spared.
        """
        num_tokens = len(flat.ids)
        parts = {}  # (R,) each
        if "pooled" in self.reads:
            parts["pooled"] = self.pooled_rows(flat.bounds, num_tokens)
        if predicted is not None:
            # A tail that is ignored may point behind the last row.
            places = {"predicted": predicted, "behind": (predicted + 1).clamp(max=num_tokens - 1)}
            parts |= {reads: rows for reads, rows in places.items() if reads in self.reads}
        if parts and self.reads == set(parts):
            rows = self._play_or_encode(flat, longest, torch.cat(list(parts.values())))
            found = dict(zip(parts, rows.split([len(p) for p in parts.values()]), strict=True))
        else:
            hidden = self._play_or_encode(flat, longest, None)
            found = dict.fromkeys(self.reads, hidden)
            found |= {reads: hidden[rows] for reads, rows in parts.items()}
        if self.pooler is not None and "pooled" in found:
            found["pooled"] = self.pooler(found["pooled"])
        return found

    def pooled_rows(self, bounds: Tensor, num_tokens: int) -> Tensor:  # (N + 1,) -> (N,)
        """Which row of each sequence is pooled."""
        return pooled_rows(bounds, num_tokens, is_last=self.config.reads_last)

    def _play_or_encode(self, flat: Flat, longest: int, kept: Tensor | None) -> Tensor:
        """(T, D), or the (R, D) that are kept; played where it is recorded."""
        if self.graphs is not None and self.training and torch.is_grad_enabled():
            self._check_length(longest)
            rows = self.graphs.play(self.encode, flat, longest, kept)
            if rows is not None:
                return rows
        return self.encode(*flat, longest, kept=kept)


def make_layers(config: ModelConfig) -> nn.ModuleList:
    kind = TwoWayLayer if config.layer == "lstm" else Layer
    if config.share_layers:  # one and the same, so often
        return nn.ModuleList([kind(config)] * config.num_layers)
    return nn.ModuleList(kind(config) for _ in range(config.num_layers))


def make_bilstm(config: ModelConfig) -> BiLstm | None:
    """The LSTM on top; its two directions together are as wide as what it reads."""
    if not config.bilstm_layers:
        return None
    return BiLstm(
        config.hidden_size,
        config.hidden_size // 2,
        num_layers=config.bilstm_layers,
        dropout=config.dropout,
    )


@torch.no_grad()
def initialise(module: nn.Module, std: float, generator: torch.Generator | None = None) -> None:
    """Matrices from a normal distribution cut at two deviations; biases 0, norms 1.

    LSTMs as torch does it: all of them uniform, by their size.
    """
    for part in module.modules():
        if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
            continue  # a shape without values
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LSTM):
            most = part.hidden_size**-0.5
            for parameter in part.parameters():
                nn.init.uniform_(parameter, -most, most, generator=generator)
