"""What has come is taken along while the rest is waited for; order and errors are kept."""

import queue
import threading
from collections.abc import Iterator
from itertools import count, islice

import pytest

from bertie.errors import UserError
from bertie.infer import arrivals
from bertie.infer.arrivals import PAUSE, as_they_come
from bertie.infer.verb import Verb, check_text

SHOUT = Verb(read=check_text, size=len, answer=lambda texts: [text.upper() for text in texts])


def from_queue(items: "queue.Queue[str | None]") -> Iterator[str]:
    while (item := items.get(timeout=60)) is not None:
        yield item


def test_what_has_come_is_answered_before_the_next_comes() -> None:
    items: queue.Queue[str | None] = queue.Queue()
    answers = SHOUT.each(as_they_come(from_queue(items)))
    for texts in (["a"], ["b", "c"], ["d"]):
        for text in texts:
            items.put(text)
        assert list(islice(answers, len(texts))) == [text.upper() for text in texts]
    items.put(None)
    assert list(answers) == []


def test_nothing_is_lost_and_pauses_are_no_items() -> None:
    items = [str(number) for number in range(5_000)]
    assert [one for one in as_they_come(items) if one is not PAUSE] == items
    assert list(SHOUT.each([PAUSE, "a", PAUSE, PAUSE, "b"])) == ["A", "B"]
    with pytest.raises(UserError, match="text 2: the text must be a str"):
        list(SHOUT.each([PAUSE, "a", PAUSE, 7]))


def test_a_stream_that_only_drips_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PATIENCE_S", 0.0)
    monkeypatch.setattr(arrivals, "PAUSE_S", 60)
    assert list(as_they_come(["a", "b"])) == ["a", PAUSE, "b", PAUSE]


def test_what_came_before_an_error_is_answered() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise UserError("line 2 is broken")

    answers = as_they_come(broken())
    assert next(answers) == "a"
    with pytest.raises(UserError, match="line 2 is broken"):
        list(answers)


def test_the_reader_ends_with_whom_it_reads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PATIENCE_S", 0.01)
    before = {*threading.enumerate()}
    answers = as_they_come(count())
    assert next(answers) == 0
    readers = {*threading.enumerate()} - before
    answers.close()  # type: ignore[attr-defined]
    for reader in readers:
        reader.join(timeout=60)
        assert not reader.is_alive()
