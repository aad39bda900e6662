"""What a model looks at, and what it would guess after each layer."""

# L tokens of the text   D hidden size   H heads   K head size   V pieces   G guesses

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertie.errors import UserError
from bertie.infer.batches import fetch, make_batches, pack_inputs
from bertie.infer.fill import Guess
from bertie.infer.verb import check_text
from bertie.model.attention import is_before
from bertie.model.bert import Bert, Packed
from bertie.model.cpu_layer import NativeLayer
from bertie.model.encoder import Layer
from bertie.tasks.instances import Framer, Input
from bertie.text.tokenizer import Tokenizer

GUESSED_TOKENS = 128  # a text is read once for each of its tokens
BATCH_TOKENS = 4_096


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attention:
    """How much each token of a text takes of each other, in every layer and head."""

    text: str
    pieces: tuple[str, ...]  # with [CLS] and [SEP]
    weights: np.ndarray  # (layers, H, L, L) float32; what row i takes of column j, rows sum to 1


class PieceGuess(NamedTuple):
    """A piece for a mask."""

    piece: str
    probability: float


class LayerGuess(NamedTuple):
    """A masked token: what stood there, and what the masked LM head makes of each layer."""

    piece: str
    layers: list[list[PieceGuess]]  # of the embeddings, then of each layer; the best first


def read_whole(text: object, tokenizer: Tokenizer, max_length: int, limit: str) -> Input:
    """[CLS] text [SEP]; "[MASK]" in it is a mask. `limit` says in an error what has one."""
    pieces = tokenizer.split_masked(check_text(text)).ids
    if len(pieces) > max_length - 2:
        raise UserError(
            f"the text has {len(pieces):,} pieces; {limit} {max_length - 2:,} at most: give a part "
            "of it"
        )
    return Framer.of(tokenizer).frame(pieces)


@torch.inference_mode()
def attend_to(text: object, model: Bert, tokenizer: Tokenizer, max_length: int) -> Attention:
    one = read_whole(text, tokenizer, max_length, "attention is over")
    packed = pack_inputs([one], model.embeddings.token.weight.device)
    weights = fetch(torch.stack(weigh(model, packed)))
    pieces = tuple(tokenizer.tokens(one.ids))
    return Attention(text=str(text), pieces=pieces, weights=weights)


def weigh(model: Bert, packed: Packed) -> list[Tensor]:
    """The weights (H, L, L) of every layer, of a single sequence."""
    hidden = model.embeddings(packed.ids, packed.segments, packed.positions)  # (L, D)
    found = []
    for layer in model.layers:
        if not isinstance(layer, Layer | NativeLayer):
            raise UserError("a model of LSTM layers has no attention to show")
        query, key, _ = layer.project(hidden).permute(1, 2, 0, 3)  # (H, L, K)
        scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5  # (H, L, L)
        if model.config.attention == "left":
            scores = scores.masked_fill(~is_before(len(hidden), hidden.device), -torch.inf)
        found.append(scores.softmax(-1))
        hidden = layer(hidden, packed.bounds, packed.longest)
    return found


def guess_layers(
    text: object, model: Bert, tokenizer: Tokenizer, max_length: int, *, top: int = 3
) -> list[LayerGuess]:
    """Each token but [CLS] and [SEP] masked in turn; of a text with masks, these alone.

    The head was trained on the last layer: what it makes of the others shows where an answer
    begins to stand, not what they hold.
    """
    limit = "guesses after each layer are made for texts of"
    one = read_whole(text, tokenizer, min(max_length, GUESSED_TOKENS), limit)
    mask_id = tokenizer.id(tokenizer.config.mask_token)
    masked = np.flatnonzero(one.ids == mask_id)
    places = masked if len(masked) else np.arange(1, len(one.ids) - 1)
    sequences = [mask_one(one, int(place), mask_id) for place in places]
    guesses: list[LayerGuess] = []
    for batch in make_batches([len(one.ids)] * len(sequences), BATCH_TOKENS):
        rows = [int(places[number]) for number in batch]
        ranked = rank_layers([sequences[number] for number in batch], rows, model, top)
        for piece, layers in zip(tokenizer.tokens(one.ids[rows]), ranked, strict=True):
            named = [
                [PieceGuess(tokenizer.pieces[guess.id], guess.probability) for guess in best]
                for best in layers
            ]
            guesses.append(LayerGuess(piece, named))
    return guesses


def mask_one(one: Input, place: int, mask_id: int) -> Input:
    ids = one.ids.copy()
    ids[place] = mask_id
    return Input(ids, one.second)


@torch.inference_mode()
def rank_layers(
    sequences: Sequence[Input], rows: Sequence[int], model: Bert, top: int
) -> list[list[list[Guess]]]:
    """The best pieces for one row of each sequence, from every layer."""
    packed = pack_inputs(sequences, model.embeddings.token.weight.device)
    wanted = packed.bounds[:-1] + torch.tensor(rows, device=packed.bounds.device)  # (N,)
    head, pieces = model.get_submodule("masked_lm"), model.embeddings.token.weight
    found: list[list[list[Guess]]] = [[] for _ in sequences]
    for hidden in model.states(*packed):
        chances, ids = head(hidden[wanted], pieces).float().softmax(-1).topk(top)  # (N, G)
        for number, best in enumerate(zip(ids.tolist(), fetch(chances).tolist(), strict=True)):
            found[number].append([Guess(*guess) for guess in zip(*best, strict=True)])
    return found
