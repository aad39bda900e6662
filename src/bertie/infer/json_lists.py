"""Values of a long JSON list, one after the other, in the memory that one of them takes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bertie.errors import UserError

BETWEEN = re.compile(r"[\s,]*")
DECODER = json.JSONDecoder(strict=False)


def parse_items(parts: Iterator[str], path: Path) -> Iterator[object]:
    """The values of a list whose text comes in parts and begins behind its bracket."""
    text, place = "", 0
    while True:
        place = find_next(text, place)
        if text.startswith("]", place):
            return
        try:
            value, place = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):  # so far, or at all
            more = take(parts, len(text) - place)
            if not more:
                raise UserError(f"{path} is not JSON, or ends too early; is it complete?") from None
            text, place = text[place:] + more, 0
            continue
        yield value


def find_next(text: str, place: int) -> int:
    found = BETWEEN.match(text, place)
    assert found is not None
    return found.end()


def take(parts: Iterator[str], num_letters: int) -> str:
    """Some more: at least as much as is there, so that a long value is not tried too often."""
    taken: list[str] = []
    for part in parts:
        taken.append(part)
        num_letters -= len(part)
        if num_letters <= 0:
            break
    return "".join(taken)
