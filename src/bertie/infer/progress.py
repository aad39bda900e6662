"""A bar on a terminal for what takes long: of the answers, and of what one of them is made of."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

A = TypeVar("A")
PATIENCE_S = 2.0  # no bar for what is faster
PART = "tokens of these"


class Bar:
    """Nothing at first, and lines on stderr once the work takes long."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._display: Progress | None = None
        self._lines: dict[str, TaskID] = {}

    def show(self, what: str, num_done: int, total: int | None) -> None:
        if self._display is None:
            if time.monotonic() - self._started_at <= PATIENCE_S:
                return
            self._display = make_display()
            self._display.start()
        if what not in self._lines:
            self._lines[what] = self._display.add_task(what, total=total)
        self._display.update(self._lines[what], completed=num_done, total=total)

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()


# What computes sequences for many verbs does not know who waits for them, or in which thread.
_bar: ContextVar[Bar | None] = ContextVar("bar", default=None)


def tell_part(num_done: int, total: int) -> None:
    """How much of a portion is computed, to those who wait for it."""
    bar = _bar.get()
    if bar is not None:
        bar.show(PART, num_done, total)


@contextmanager
def told_to(bar: Bar) -> Iterator[None]:
    token = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(token)


def make_display() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def watch(
    answers: Iterator[A], total: int | None, what: str = "answers", *, before: int = 0
) -> Iterator[A]:
    """The answers, with a bar on stderr once they take long, if that is a terminal.

    `total` counts those of an earlier run, of which there were `before`, too.
    """
    if not sys.stderr.isatty():
        yield from answers
        return
    bar, num_done = Bar(), before
    try:
        while True:
            with told_to(bar):  # not while those who asked do something else
                try:
                    answer = next(answers)
                except StopIteration:
                    return
            yield answer
            num_done += 1
            bar.show(what, num_done, total)
    finally:
        bar.close()


def watch_one(work: Callable[[], A]) -> A:
    """What the work makes, with a bar if it takes long."""
    if not sys.stderr.isatty():
        return work()
    bar = Bar()
    try:
        with told_to(bar):
            return work()
    finally:
        bar.close()
