"""Texts as vectors: the rows of a layer, pooled.

Which layer, where none is asked for:

- of a pre-trained model (with a masked LM head, or an encoder alone) the last but one, -2: the last
  is bent to the pieces that it predicts; of single layers, the last but one served best as features
  (paper, Table 7: 95.6 F1 against 94.9);
- of a fine-tuned model the last, -1: it is what the head reads, so it was trained to matter;
- of a sentence-transformers model the last, with the pooling that its `1_Pooling/config.json`
  names: it was trained to be used so.

The mean, not [CLS]: before fine-tuning, [CLS] was only trained to tell which sentences follow each
other. The mean is over all tokens with [CLS] and [SEP], as elsewhere, so that an empty text has a
vector, too. Of a text in several windows, each piece counts once, in the window in which it stands
most centrally; [CLS] is the mean of the windows' own.
"""

# L tokens of a window   T tokens of a batch   N windows of a batch   R rows that count   D hidden

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.model_dir import POOLING
from bertie.errors import UserError, check_known
from bertie.infer.batches import fetch, in_batches, pack_inputs
from bertie.model.bert import Bert
from bertie.tasks.instances import Framer, Input
from bertie.text.sequences import most_central, num_specials, window_places
from bertie.text.tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "max"]
POOLING_KEYS: dict[str, Pooling] = {  # sentence-transformers' -> ours
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


class Embedding(NamedTuple):
    """How vectors are made."""

    pooling: Pooling
    layer: int  # 0 are the embeddings, 1 the first layer, ...; -1 is the last, -2 the one before
    normalise: bool = False  # to length 1

    def num_layers(self, total: int) -> int:
        """The layers that have to be computed."""
        return self.layer if self.layer >= 0 else total + 1 + self.layer


class Part(NamedTuple):
    """A window of a text."""

    input: Input
    is_counted: np.ndarray  # (L,) rows that are pooled


def default_embedding(directory: Path, card: TaskCard | None) -> Embedding:
    """What suits a model, by what is known of its training."""
    path = directory / POOLING
    if path.is_file():
        values = read_json(path)
        found = [ours for theirs, ours in POOLING_KEYS.items() if values.get(theirs)]
        return Embedding(found[0] if len(found) == 1 else "mean", -1)
    return Embedding("mean", -2 if card is None else -1)


def check_embedding(embedding: Embedding, num_layers: int) -> None:
    check_known("pooling", embedding.pooling, get_args(Pooling))
    layer: object = embedding.layer
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise UserError(f"a layer is a whole number, as in -2; found {layer!r}")
    if not -num_layers - 1 <= layer <= num_layers:
        raise UserError(
            f"no layer {layer}: the model has 0 (embeddings) to {num_layers}, or "
            f"counted from the last -1 to {-num_layers - 1}"
        )


def embed_all(
    texts: Sequence[str],
    model: Bert,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    embedding: Embedding,
) -> list[np.ndarray]:  # (D,) each
    cut = [divide(text, tokenizer, max_length, embedding.pooling) for text in texts]
    parts = [part for text in cut for part in text]
    pooled = iter(
        in_batches(
            [len(part.input.ids) for part in parts],
            lambda batch: pool([parts[number] for number in batch], model, embedding),
            model.embeddings.token.weight.device,
        )
    )
    return [merge(text, [next(pooled) for _ in text], embedding) for text in cut]


def divide(text: str, tokenizer: Tokenizer, max_length: int, pooling: Pooling) -> list[Part]:
    """The windows of a text, half a window apart."""
    framer, pieces = Framer.of(tokenizer), tokenizer.ids(text)
    places = window_places(len(pieces), max_length - num_specials(is_pair=False), None)
    own = most_central(np.arange(len(pieces)), places)
    parts = []
    for number, ((start, end), rows) in enumerate(zip(places, own, strict=True)):
        framed = framer.frame(pieces[start:end])
        is_counted = np.zeros(len(framed.ids), bool)
        is_counted[rows - start + 1] = pooling != "cls"
        is_counted[0] = number == 0 or pooling == "cls"
        is_counted[-1] = number == len(places) - 1 and pooling != "cls"
        parts.append(Part(framed, is_counted))
    return parts


@torch.inference_mode()
def pool(parts: Sequence[Part], model: Bert, embedding: Embedding) -> list[np.ndarray]:
    """The sum, or the maximum, of the rows that count of each window, (D,)."""
    device = model.embeddings.token.weight.device
    packed = pack_inputs([part.input for part in parts], device)
    num_layers = embedding.num_layers(model.config.num_layers)
    hidden = model.encode(*packed, num_layers=num_layers)  # (T, D)
    is_counted = torch.from_numpy(np.concatenate([part.is_counted for part in parts]))
    rows = hidden[is_counted.to(device)].float()  # (R, D)
    lengths = torch.tensor([int(part.is_counted.sum()) for part in parts], device=device)  # (N,)
    how = "max" if embedding.pooling == "max" else "sum"
    reduced = torch.segment_reduce(rows, how, lengths=lengths, axis=0)  # (N, D)
    return list(fetch(reduced))


def merge(parts: Sequence[Part], pooled: Sequence[np.ndarray], embedding: Embedding) -> np.ndarray:
    """The vector of a text, from those of its windows."""
    if embedding.pooling == "max":
        vector = np.max(pooled, 0)
    else:
        num_rows = sum(int(part.is_counted.sum()) for part in parts)
        vector = np.sum(pooled, 0, np.float64) / num_rows
    if embedding.normalise:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return np.asarray(vector, np.float32)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:  # 2 (..., D) -> (...)
    """Of vectors of length 1."""
    return np.asarray((first.astype(np.float64) * second).sum(-1))
