"""What the verbs print, and the lines they read."""

import codecs
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from bertie.errors import UserError

if TYPE_CHECKING:
    from bertie.data.blocks import Problems
    from bertie.data.corpus import Progress
    from bertie.infer.fill import Filled
    from bertie.text.coverage import Coverage
    from bertie.vocab import Learned

READING = ("counting words", "encoding text")  # stages whose progress is bytes of files
BAR_WIDTH, EIGHTHS = 20, " ▏▎▍▌▋▊▉█"  # of a full bar; parts of a character cell
PLAIN = dict(zip(EIGHTHS, "    #####", strict=True))  # for a terminal that has no such cells
NEAR = 40  # characters shown on each side of a filled mask


def show_learned(learned: "Learned", out: Path) -> None:
    print(
        f"{out}: {len(learned.tokenizer.pieces):,} pieces from {learned.num_words:,} words, "
        f"{learned.num_distinct:,} of them different."
    )
    if learned.num_old:
        num_new = len(learned.tokenizer.pieces) - learned.num_old
        print(f"{learned.num_old:,} of them are the old ones with their ids; {num_new:,} are new.")
    if learned.num_spare > 0:
        instead = "they are left out" if learned.num_old else "[unused] slots fill the rest"
        print(f"The text gave {learned.num_spare:,} pieces too few; {instead}.")
    if learned.num_forgotten:
        print(f"Memory was bounded: {learned.num_forgotten:,} rare words were not counted.")
    show_problems(learned.problems)


def show_problems(problems: "Problems") -> None:
    """What of the text could not be read."""
    from bertie.data.blocks import NOT_UTF8

    if problems.num_skipped:
        print(f"Skipped {problems.num_skipped:,} lines or rows:")
    for what, count in problems.counts.items():
        places = problems.places[what]
        print(f"  {count:,} x {what} ({'; '.join(places)}{'; ...' if count > len(places) else ''})")
    if NOT_UTF8 in problems.counts:
        print("Text in another encoding: iconv -f gb18030 -t utf-8 OLD > NEW")


def read_lines(path: Path) -> Iterator[str]:
    if str(path) == "-":
        if sys.stdin is None:
            raise UserError("stdin is closed: there is nothing to read")
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    if not path.exists() or path.is_dir():
        raise UserError(f"no file {path}")
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from (line.rstrip("\n") for line in lines)


def plainly(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that stdout has no bytes for: # in bars, or an escape.

    >>> codecs.register_error("plainly", plainly)
    >>> "███▌ of Malmö".encode("ascii", "plainly")
    b'#### of Malm\\\\xf6'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    escaped = (PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking)
    return "".join(escaped), error.end


def print_json(value: object) -> None:
    """A line that is JSON in any encoding; what stdout has no bytes for is escaped as JSON does."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    print(json.dumps(value, ensure_ascii=not is_utf8, allow_nan=False), flush=True)


def show_filled(filled: "Filled") -> None:
    """A table for each mask, and the text with all masks filled where there are several."""
    for number, fills in enumerate(filled.masks, start=1):
        rows = [
            (
                fill.piece,
                f"{fill.probability:.1%}",
                bar(fill.probability),
                around_difference(fill.text, filled.text),
            )
            for fill in fills
        ]
        many = f"mask {number} of {len(filled.masks)}" if len(filled.masks) > 1 else None
        show_table(("piece", "probability", "", "text"), rows, title=many, right=["probability"])
    if len(filled.masks) > 1:
        print(f"each with its best piece: {filled.best}")


def bar(share: float) -> str:
    """A share of 1 as a bar.

    >>> bar(0.375)
    '███████▌'
    """
    full, rest = divmod(round(share * BAR_WIDTH * 8), 8)
    return (EIGHTHS[8] * full + EIGHTHS[rest]).rstrip()


def around_difference(text: str, other: str) -> str:
    """The text, or the part of a long one where it begins to differ from the other."""
    if len(text) <= 2 * NEAR:
        return text
    pairs = enumerate(zip(text, other, strict=False))
    place = next((place for place, (one, two) in pairs if one != two), len(text))
    begin, end = max(0, place - NEAR), place + NEAR
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")


def show_coverage(rows: "dict[str, Coverage]", title: str) -> None:
    first = next(iter(rows.values()))
    show_table(
        ("vocabulary", "pieces per word", "whole words", "unknown words", "characters per piece"),
        [
            (
                name,
                f"{c.pieces_per_word:.4f}",
                f"{c.whole_share:.2%}",
                f"{c.unknown_share:.4%}",
                f"{c.characters_per_piece:.2f}",
            )
            for name, c in rows.items()
        ],
        title=f"{title}: {first.num_words:,} words",
    )
    for name, c in rows.items():
        if c.most_unknown:
            words = ", ".join(f"{word} ({count})" for word, count in c.most_unknown)
            print(f"Most frequent unknown words of {name}: {words}")


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """A table on stdout; the columns in `right` stand on the right, as numbers should."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Plain

    shown = None if title is None else Plain(title, style="italic")  # not read as markup
    table = Table(title=shown, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Plain(cell) for cell in row))
    Console().print(table)


@contextmanager
def may_stop() -> Iterator[None]:
    """What a signal stops says how to go on, and ends with the signal's exit code."""
    from bertie.train.loop import Stopped

    try:
        yield
    except Stopped as stopped:
        print(f"bertie: {stopped}; the same command goes on from there", file=sys.stderr)
        raise SystemExit(128 + stopped.number) from None


@contextmanager
def may_be_interrupted() -> Iterator[None]:
    """Of work that is kept as it is done: Ctrl-C says so, and ends with the signal's exit code."""
    try:
        yield
    except KeyboardInterrupt:
        print("bertie: stopped; the same command goes on where it was", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """A bar a stage on stderr, with the time left, and the rate where bytes are read."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        stages: dict[str, tuple[TaskID, float, int]] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in stages:
                task = progress.add_task(what, total=total, rate="")
                stages[what] = task, time.monotonic(), done  # a resumed run starts with some done
            task, started_at, before = stages[what]
            megabytes_per_s = (done - before) / 1e6 / max(1e-3, time.monotonic() - started_at)
            rate = f"{megabytes_per_s:.1f} MB/s of files" if what in READING else ""
            progress.update(task, completed=done, total=total, rate=rate)

        yield on_progress
