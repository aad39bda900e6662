"""[MASK] in a text: what of the text the model reads, and the text with its masks filled."""

# L tokens of a window   m masks of a window   M masks of a batch   T tokens of a batch
# D hidden size   V pieces   K the best of them

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from bertie.errors import UserError
from bertie.infer.batches import fetch, in_batches, pack_inputs
from bertie.infer.verb import shown
from bertie.model.bert import Bert
from bertie.tasks.instances import Input
from bertie.text.sequences import num_specials
from bertie.text.tokenizer import Tokenizer
from bertie.text.wordpiece import PREFIX

HEAD_ROWS = 512  # masks whose logits are made at once; 60 MB of them for 30,000 pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    """A piece for a mask."""

    piece: str  # as the vocabulary writes it; "##s" continues the word before the mask
    id: int
    probability: float
    span: tuple[int, int]  # where the mask stands in its text, in characters
    masked: str = field(repr=False)  # that text

    @property
    def text(self) -> str:
        """The whole text with this mask filled and all others left."""
        return put(self.masked, [self.span], [self.piece])


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """A text and what its masks may stand for.

    Each mask is filled on its own, while the others stay masks: the best pieces of two masks need
    not fit each other.
    """

    text: str
    best: str  # the text with the best piece for each mask
    masks: tuple[tuple[Fill, ...], ...]  # of each mask, in the order of the text; best first

    def to_json(self) -> dict[str, object]:
        """What `bertie fill --json` prints, and a server answers.

        Without the whole text for each piece: a long one with many masks would fill the memory.
        """
        names = ("piece", "id", "probability", "span")
        masks = [[{n: getattr(fill, n) for n in names} for fill in fills] for fills in self.masks]
        return {"text": self.text, "best": self.best, "masks": masks}


class Window(NamedTuple):
    """A part of a text as the model reads it."""

    ids: np.ndarray  # (L,) [CLS] .. [SEP]
    rows: np.ndarray  # (m,) the masks that are predicted in it


class Masked(NamedTuple):
    """A text with its masks found."""

    text: str
    spans: list[tuple[int, int]]  # of each mask, in characters
    windows: list[Window]  # which predict each mask once, in order


class Guess(NamedTuple):
    """A piece and its probability."""

    id: int
    probability: float


def read_masks(text: str, tokenizer: Tokenizer, max_length: int) -> Masked:
    """Finds the masks, and cuts the text into windows where it is too long for the model.

    A mask of a long text stands in the middle of its window, or nearer to an end of the text.
    Masks with the same window share it; others that lie in it are left to their own.
    """
    pieces = tokenizer.split_masked(text)
    config = tokenizer.config
    places = np.flatnonzero(pieces.ids == tokenizer.id(config.mask_token))
    if not len(places):
        raise UserError(
            f"no {config.mask_token} in {shown(text)}; write {config.mask_token} where a piece is "
            f"wanted, as in: Paris is the {config.mask_token} of France."
        )
    size = max_length - num_specials(is_pair=False)
    starts = np.clip(places - size // 2, 0, max(0, len(pieces.ids) - size))
    cls_id, sep_id = tokenizer.id(config.cls_token), tokenizer.id(config.sep_token)
    groups = np.split(places, np.flatnonzero(np.diff(starts)) + 1)  # one for each window
    windows = [
        Window(
            ids=np.concatenate([[cls_id], pieces.ids[start : start + size], [sep_id]]),
            rows=group - start + 1,
        )
        for start, group in zip(np.unique(starts), groups, strict=True)
    ]
    spans = zip(pieces.starts[places].tolist(), pieces.ends[places].tolist(), strict=True)
    return Masked(text, list(spans), windows)


def fill_all(
    texts: Sequence[Masked], model: Bert, tokenizer: Tokenizer, *, top: int
) -> list[Filled]:
    """The texts with the `top` best pieces for each of their masks."""
    windows = [window for text in texts for window in text.windows]
    ranked = iter(
        in_batches(
            [len(window.ids) for window in windows],
            lambda batch: rank([windows[number] for number in batch], model, top),
            model.embeddings.token.weight.device,
        )
    )
    return [
        make_filled(text, [one for _ in text.windows for one in next(ranked)], tokenizer)
        for text in texts
    ]


@torch.inference_mode()
def rank(windows: Sequence[Window], model: Bert, top: int) -> Iterator[list[list[Guess]]]:
    """The best pieces for each mask of each window."""
    device = model.embeddings.token.weight.device
    packed = pack_inputs([Input(window.ids, len(window.ids)) for window in windows], device)
    begins = packed.bounds[:-1].tolist()
    pairs = zip(windows, begins, strict=True)
    rows = np.concatenate([window.rows + begin for window, begin in pairs])  # (M,)
    hidden = model.encode(*packed, kept=torch.from_numpy(rows).to(device))  # (M, D)
    head = model.get_submodule("masked_lm")
    guesses: list[list[Guess]] = []
    for part in hidden.split(HEAD_ROWS):
        logits = head(part, model.embeddings.token.weight)  # (M, V)
        probabilities, ids = logits.float().softmax(-1).topk(top)  # (M, K)
        for numbers in zip(ids.tolist(), fetch(probabilities).tolist(), strict=True):
            guesses.append([Guess(*guess) for guess in zip(*numbers, strict=True)])
    ranked = iter(guesses)
    return iter([[next(ranked) for _ in window.rows] for window in windows])


def make_filled(masked: Masked, guesses: Sequence[Sequence[Guess]], tokenizer: Tokenizer) -> Filled:
    """The answers for people; `guesses` are those of each mask, best first."""
    best = [tokenizer.pieces[ranked[0].id] for ranked in guesses]
    return Filled(
        text=masked.text,
        best=put(masked.text, masked.spans, best),
        masks=tuple(
            tuple(
                Fill(
                    piece=tokenizer.pieces[guess.id],
                    id=guess.id,
                    probability=guess.probability,
                    span=span,
                    masked=masked.text,
                )
                for guess in ranked
            )
            for span, ranked in zip(masked.spans, guesses, strict=True)
        ),
    )


def put(text: str, spans: Sequence[tuple[int, int]], pieces: Sequence[str]) -> str:
    """The text with pieces in the place of spans; a continuation joins the word before it.

    >>> put("He play * *.", [(8, 9), (10, 11)], ["##s", "chess"])
    'He plays chess.'
    """
    done, filled = 0, ""
    for (start, end), piece in zip(spans, pieces, strict=True):
        filled += text[done:start]
        if piece.startswith(PREFIX) and piece != PREFIX:
            filled, piece = filled.rstrip(), piece.removeprefix(PREFIX)
        filled += piece
        done = end
    return filled + text[done:]
