"""Pieces to model input: [CLS] A [SEP] (B [SEP]), truncation, windows. Lengths in, lengths out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertie.errors import UserError

Truncate = Literal["longest", "first", "second", "never"]
Keep = Literal["front", "back"]


class Pieces(NamedTuple):
    """The pieces of one text; piece i is text[starts[i]:ends[i]]."""

    ids: np.ndarray  # (n,) int32
    starts: np.ndarray  # (n,) int32, in characters
    ends: np.ndarray  # (n,) int32

    def part(self, start: int, end: int) -> "Pieces":
        return Pieces(self.ids[start:end], self.starts[start:end], self.ends[start:end])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Encoded:
    """One sequence as the model takes it. Special tokens have source -1 and the span (0, 0)."""

    ids: np.ndarray  # (L,) int32
    segments: np.ndarray  # (L,) int32; 0 for [CLS] A [SEP], 1 for B [SEP]
    sources: np.ndarray  # (L,) int32; 0: a piece of A, 1: of B
    starts: np.ndarray  # (L,) int32, characters in A or B
    ends: np.ndarray  # (L,) int32
    num_cut: int  # pieces that truncation left out
    first_piece: int = 0  # of a window: where it starts in the windowed text, in pieces


def num_specials(is_pair: bool) -> int:
    return 3 if is_pair else 2


def fit(num_first: int, num_second: int, room: int, truncate: Truncate) -> tuple[int, int]:
    """How many pieces of each text stay.

    >>> fit(10, 3, 8, "longest"), fit(10, 3, 8, "second")
    ((5, 3), (10, 0))
    """
    surplus = num_first + num_second - room
    if surplus <= 0 or truncate == "never":
        return num_first, num_second
    if truncate == "first":
        return max(0, num_first - surplus), num_second
    if truncate == "second":
        return num_first, max(0, num_second - surplus)
    shorter, longer = sorted((num_first, num_second))
    if shorter * 2 <= room:
        longer = room - shorter
    else:  # an odd place goes to the longer text, and to B where both are equally long
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if num_first > num_second else (shorter, longer)


def window_starts(num_pieces: int, size: int, stride: int) -> list[int]:
    """Where windows of `size` begin, `stride` apart, until one reaches the end.

    >>> window_starts(10, 4, 3)
    [0, 3, 6]
    """
    if not 1 <= stride <= size:
        raise UserError(f"a stride between windows of {size} pieces is 1 to {size}; found {stride}")
    return [0, *range(stride, num_pieces - size + stride, stride)]


def window_places(num_pieces: int, size: int, stride: int | None) -> list[tuple[int, int]]:
    """Where windows begin and end; without a `stride`, they are half a window apart.

    >>> window_places(10, 4, None)
    [(0, 4), (2, 6), (4, 8), (6, 10)]
    """
    if num_pieces <= size:
        return [(0, num_pieces)]
    stride = max(1, size // 2) if stride is None else min(stride, size)
    starts = window_starts(num_pieces, size, stride)
    return [(start, min(start + size, num_pieces)) for start in starts]


def most_central(
    pieces: NDArray[np.int64], places: Sequence[tuple[int, int]]
) -> list[NDArray[np.int64]]:
    """For each window, the numbers of those pieces that it has the most context for.

    `pieces` are where they stand, in order. Context is that on the poorer side; of windows that
    have equally much, the first.
    """
    starts, ends = (np.array(side, np.int64) for side in zip(*places, strict=True))
    first = np.searchsorted(ends, pieces, "right")  # the windows that a piece is in
    last = np.searchsorted(starts, pieces, "right") - 1
    best, most = first, np.full(len(pieces), -1)
    for number in range(int((last - first).max(initial=0)) + 1):
        window = np.minimum(first + number, last)
        context = np.minimum(pieces - starts[window], ends[window] - 1 - pieces)
        best, most = np.where(context > most, window, best), np.maximum(context, most)
    # It never falls from one piece to the next.
    return np.split(np.arange(len(pieces)), np.searchsorted(best, range(1, len(places))))


def assemble(
    first: Pieces, second: Pieces | None, *, cls_id: int, sep_id: int, num_cut: int, begin: int = 0
) -> Encoded:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
    cls, sep = special(cls_id), special(sep_id)
    parts = [(cls, 0, -1), (first, 0, 0), (sep, 0, -1)]
    if second is not None:
        parts += [(second, 1, 1), (sep, 1, -1)]
    counts = [len(pieces.ids) for pieces, _, _ in parts]
    return Encoded(
        ids=np.concatenate([pieces.ids for pieces, _, _ in parts]),
        segments=np.repeat(np.array([s for _, s, _ in parts], np.int32), counts),
        sources=np.repeat(np.array([s for _, _, s in parts], np.int32), counts),
        starts=np.concatenate([pieces.starts for pieces, _, _ in parts]),
        ends=np.concatenate([pieces.ends for pieces, _, _ in parts]),
        num_cut=num_cut,
        first_piece=begin,
    )


def special(id: int) -> Pieces:
    nowhere = np.zeros(1, np.int32)
    return Pieces(np.array([id], np.int32), nowhere, nowhere)
