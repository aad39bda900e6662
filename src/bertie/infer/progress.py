"""A bar on a terminal for what takes long."""

import sys
import time
from collections.abc import Iterator
from typing import TypeVar

A = TypeVar("A")
PATIENCE_S = 2.0  # no bar for what is faster


def watch(
    answers: Iterator[A], total: int | None, what: str = "answers", *, before: int = 0
) -> Iterator[A]:
    """The answers, with a bar on stderr once they take long, if that is a terminal.

    `total` counts those of an earlier run, of which there were `before`, too.
    """
    if not sys.stderr.isatty():
        yield from answers
        return
    started_at = time.monotonic()
    for num_done, answer in enumerate(answers, start=before + 1):
        yield answer
        if time.monotonic() - started_at > PATIENCE_S:
            yield from watch_with_bar(answers, num_done, total, what)
            return


def watch_with_bar(
    answers: Iterator[A], num_done: int, total: int | None, what: str
) -> Iterator[A]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total, completed=num_done)
        for answer in answers:
            yield answer
            bars.advance(task)
