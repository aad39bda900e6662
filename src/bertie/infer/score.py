"""How probable a text is to a masked LM: each token masked in turn, and guessed from the rest.

The sum of the log-probabilities is the text's pseudo-log-likelihood: no probability of the text,
but texts of about equal length can be ranked by it. It costs one sequence for each token, which
for a book would be days: a longer text than MAX_PIECES is refused, not cut.
"""

# L tokens of a window   N windows of a batch   T tokens of a batch   D hidden size   V pieces

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from bertie.errors import UserError
from bertie.infer.batches import fetch, in_batches, pack_inputs
from bertie.infer.fill import HEAD_ROWS
from bertie.infer.verb import check_text, shown
from bertie.model.bert import Bert
from bertie.tasks.instances import Framer, Input
from bertie.text.sequences import Pieces, num_specials
from bertie.text.tokenizer import Tokenizer

MAX_PIECES = 2_048  # a million tokens in windows of 512: minutes on a CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScore:
    """A token, and how probable it is where it stands."""

    piece: str
    start: int  # in characters of the text
    end: int
    log_probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A text and its pseudo-log-likelihood."""

    text: str
    total: float  # the sum over the tokens
    tokens: tuple[TokenScore, ...]

    @property
    def perplexity(self) -> float:
        """Of the mean token; lower is better, and texts of different length compare."""
        return math.exp(-self.total / len(self.tokens))


class Scorable(NamedTuple):
    """A text and those of its pieces that are to be guessed."""

    text: str
    pieces: Pieces
    places: np.ndarray  # of the pieces, all but [MASK]


def read_scorable(text: object, tokenizer: Tokenizer) -> Scorable:
    """A [MASK] in the text stays hidden and is not scored; "[SEP]" and its like are text."""
    text = check_text(text)
    pieces = tokenizer.split_masked(text)
    places = np.flatnonzero(pieces.ids != tokenizer.id(tokenizer.config.mask_token))
    if not len(places):
        raise UserError(f"no token to score in {shown(text)}; give a text with words")
    if len(places) > MAX_PIECES:
        raise UserError(
            f"the text has {len(places):,} pieces, and would be read as often; {MAX_PIECES:,} are "
            "scored at most: give its sentences or paragraphs one by one, and add up their totals"
        )
    return Scorable(text, pieces, places)


def score_all(
    texts: Sequence[Scorable], model: Bert, tokenizer: Tokenizer, *, max_length: int
) -> list[Scored]:
    room = max_length - num_specials(is_pair=False)
    framer, mask_id = Framer.of(tokenizer), tokenizer.id(tokenizer.config.mask_token)
    asked = [(number, place) for number, text in enumerate(texts) for place in text.places.tolist()]
    lengths = [min(len(texts[number].pieces.ids), room) for number, _ in asked]

    def compute(batch: list[int]) -> list[float]:
        """Windows are made when they are needed: together they take the square of a text."""
        windows = []
        for number, place in (asked[one] for one in batch):
            ids = texts[number].pieces.ids
            start = min(max(0, place - room // 2), max(0, len(ids) - room))
            framed = framer.frame(ids[start : start + room])
            windows.append((framed, place - start + 1))
        return guess(windows, model, mask_id)

    scores = iter(in_batches(lengths, compute, model.embeddings.token.weight.device))
    return [make_scored(text, [next(scores) for _ in text.places], tokenizer) for text in texts]


@torch.inference_mode()
def guess(windows: Sequence[tuple[Input, int]], model: Bert, mask_id: int) -> list[float]:
    """The log-probability of one row's token of each window, while it is masked."""
    device = model.embeddings.token.weight.device
    packed = pack_inputs([framed for framed, _ in windows], device)
    rows = packed.bounds[:-1] + torch.tensor([row for _, row in windows], device=device)  # (N,)
    wanted = packed.ids[rows]  # (N,)
    masked = packed._replace(ids=packed.ids.index_fill(0, rows, mask_id))
    hidden = model.encode(*masked, kept=rows)  # (N, D)
    head = model.get_submodule("masked_lm")
    found: list[float] = []
    for part, ids in zip(hidden.split(HEAD_ROWS), wanted.split(HEAD_ROWS), strict=True):
        logits = head(part, model.embeddings.token.weight).float()  # (N, V)
        found += fetch(logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]).tolist()
    return found


def make_scored(text: Scorable, scores: Sequence[float], tokenizer: Tokenizer) -> Scored:
    tokens = tuple(
        TokenScore(
            piece=tokenizer.pieces[text.pieces.ids[place]],
            start=int(text.pieces.starts[place]),
            end=int(text.pieces.ends[place]),
            log_probability=score,
        )
        for place, score in zip(text.places.tolist(), scores, strict=True)
    )
    return Scored(text=text.text, total=math.fsum(scores), tokens=tokens)


def score_size(text: Scorable) -> int:
    return len(text.places) * (len(text.pieces.ids) + num_specials(is_pair=False))
