"""Pieces to model input: [CLS] A [SEP] (B [SEP]), truncation, windows. Lengths in, lengths out."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

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


def check_choice(name: str, value: str, choices: Any) -> None:
    """Whether the value is one of a Literal's."""
    if value not in get_args(choices):
        listed = ", ".join(get_args(choices))
        raise UserError(f"no {name} {value!r}; there are: {listed}")


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
