"""One item in, one answer out; many in, as many out, in their order, also from a stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from typing import Generic, TypeVar

from bertie.errors import UserError
from bertie.infer.arrivals import PAUSE

FIRST_TOKENS = 1_024  # who waits sees answers soon; each portion is twice the one before
AHEAD_TOKENS = 65_536  # a stream is read so far ahead: neighbours of equal length are faster
E = TypeVar("E")  # what is asked, checked and read
A = TypeVar("A")  # its answer


def alone(item: object) -> int:
    """Of what has no neighbours."""
    return -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb(Generic[E, A]):
    """A way to ask a model."""

    read: Callable[[object], E]  # raises a UserError where an item cannot be asked
    size: Callable[[E], int]  # about how many tokens it has
    answer: Callable[[Sequence[E]], Sequence[A]]  # some of them, in order
    what: str = "text"  # an item's name in messages
    document: Callable[[E], int] = alone  # that it is part of and answered with; below 0: none

    def one(self, item: object) -> A:
        return self.answer([self.read(item)])[0]

    def each(self, items: Iterable[object]) -> Iterator[A]:
        """The answers while the items come; what is no iterable is refused at once."""
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise UserError(f"wanted {self.what}s, or one; found {type(items).__name__}")
        return (answer for chunk in self.chunks(items) for answer in self.answer(chunk))

    def chunks(self, items: Iterable[object]) -> Iterator[list[E]]:
        """The items in the portions that are answered together.

        These depend on the items alone, and on where the stream pauses, if PAUSE stands in it.
        Between them no document is cut that has AHEAD_TOKENS at most.
        """
        chunk: list[E] = []
        num_tokens = num_items = 0
        room = min(FIRST_TOKENS, AHEAD_TOKENS)
        for item in items:
            if item is PAUSE:
                new, is_cut = [], True
            else:
                num_items += 1
                new = [self.read_numbered(item, num_items)]
                is_cut = num_tokens >= room and self.document(new[0]) != self.document(chunk[-1])
            if chunk and is_cut:
                yield chunk
                chunk, num_tokens, room = [], 0, min(2 * room, AHEAD_TOKENS)
            chunk += new
            num_tokens += sum(map(self.size, new))
            is_alone = bool(chunk) and self.document(chunk[-1]) < 0
            if num_tokens >= (room if is_alone else 2 * AHEAD_TOKENS):
                yield chunk
                chunk, num_tokens, room = [], 0, min(2 * room, AHEAD_TOKENS)
        if chunk:
            yield chunk

    def read_numbered(self, item: object, number: int) -> E:
        try:
            return self.read(item)
        except UserError as error:
            raise UserError(f"{self.what} {number}: {error}") from None


# What people give.


def check_text(text: object, what: str = "text") -> str:
    if not isinstance(text, str):
        raise UserError(f"the {what} must be a str; found {type(text).__name__}")
    return text


def is_pair(value: object) -> bool:
    """Whether this is one pair of texts, and not many of them."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(one, str) for one in value)
    )


def check_pair(pair: object) -> tuple[str, str]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"wanted two texts, as in (text, text); found {shown(pair)}")
    return check_text(pair[0], "first text"), check_text(pair[1], "second text")


def pair_up(first: object, second: object, *, what: str) -> Iterator[tuple[object, object]]:
    """Both in step; a single text goes with each of the many of the other side."""
    sides = [first, second]
    for one in sides:
        if isinstance(one, bytes) or not isinstance(one, Iterable):
            raise UserError(f"wanted {what}, each a text or many; found {type(one).__name__}")
    if isinstance(first, str) and isinstance(second, str):
        return iter([(first, second)])
    if isinstance(first, str):
        return zip(repeat(first), second, strict=False)  # type: ignore[call-overload, no-any-return]
    if isinstance(second, str):
        return zip(first, repeat(second), strict=False)  # type: ignore[call-overload, no-any-return]
    return in_step(first, second, what)  # type: ignore[arg-type]


def in_step(
    first: Iterable[object], second: Iterable[object], what: str
) -> Iterator[tuple[object, object]]:
    missing = object()
    for number, pair in enumerate(zip_longest(first, second, fillvalue=missing)):
        if missing in pair:
            raise UserError(f"wanted as many of both, {what}; one side ends after {number}")
        yield pair


def shown(value: object) -> str:
    """A value in a message, by its beginning where it is long."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_size(*texts: str) -> int:
    """About how many tokens texts have, without looking."""
    return 2 + sum(map(len, texts)) // 4
