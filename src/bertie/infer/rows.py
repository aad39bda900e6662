"""Rows of any file, of standard input or of a pipe, one after the other, in constant memory."""

import codecs
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import TypeVar

from bertie.data.blocks import (
    CHUNK,
    PACKED,
    Source,
    decode_block,
    read_blocks,
    read_chunks,
    to_utf8,
)
from bertie.data.formats import DELIMITERS, JSON, PARQUET, kind_of, parse_row, read_rows
from bertie.data.parquet import ROWS, open_parquet
from bertie.data.signs import check_is_text
from bertie.errors import UserError, check_known
from bertie.tasks.tables import (
    RAGGED,
    Row,
    Table,
    find_names,
    is_quoted,
    missing,
    parse_line,
    split_literally,
)
from bertie.tasks.task import Rejects

STDIN = Path("-")
FORMATS = ("text", "csv", "tsv", "jsonl", "parquet")  # of rows; tasks have others of their own
BEGINNING = 100  # rows by which columns are guessed; of standard input, those that come first
T = TypeVar("T")
ROW_SIGNS = {"conll": b"\n\n", "squad": b'"question"', "cmrc": b'"query_text"'}  # one each
PEEKED = 65_536  # letters by which a format is guessed


@dataclass(slots=True)
class Lines:
    """Numbered lines, each once."""

    blocks: Iterator[list[tuple[int, str]]]
    may_pause: bool  # of a stream, the next block may not be there yet
    _left: deque[tuple[int, str]] = field(default_factory=deque)

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> tuple[int, str]:
        while not self._left:
            self._left.extend(next(self.blocks))
        return self._left.popleft()

    def is_next_there(self) -> bool:
        """Whether it can be had without a wait."""
        return bool(self._left) or not self.may_pause


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The rows of a file, and its beginning as a table."""

    table: Table
    rows: Iterator[Row]  # all of them, once
    is_text: bool = False  # lines of plain text, in the column `text`


def open_rows(
    path: Path, rejects: Rejects, *, known: Collection[str], format: str | None = None
) -> Stream:
    """The rows of a file, by its suffix or by `format`; `-` is standard input.

    Every line of plain text is a row, an empty one too. In tables with tabs, a first line with one
    of the `known` names is a header.
    """
    if format is not None:
        check_known("format", format, FORMATS)
    check_file(path, format)
    format = format or guess_format(path)
    if format == "parquet":
        return open_parquet_rows(path)
    lines = read_lines(path, rejects)
    if format == "jsonl":
        return make_stream(path, "JSON Lines", None, parse_objects(path, lines, rejects), lines)
    if format == "text":
        rows = (Row(f"{path}, line {number}", {"text": line}) for number, line in lines)
        return make_stream(path, "lines of text", ("text",), rows, lines, is_text=True)
    return open_delimited(path, lines, rejects, "," if format == "csv" else "\t", known)


def check_file(path: Path, format: str | None) -> None:
    """Refuses what is not there, or is no text; what a stream holds is seen when it comes."""
    if is_stream(path):
        return
    if not path.is_file():
        raise missing(path)
    if (format or guess_format(path)) != "parquet":
        check_is_text(path, next(read_bytes(path), b""))


def is_stream(path: Path) -> bool:
    """Whether it is read once, from its begin, as it comes: standard input, or a pipe's path.

    A shell makes paths of pipes: `bertie predict MODEL <(zcat reviews.gz)`.
    """
    return path == STDIN or (path.exists() and not path.is_file() and not path.is_dir())


def guess_format(path: Path) -> str:
    kind = kind_of(path)
    if kind in PARQUET:
        return "parquet"
    if kind in DELIMITERS:
        return "csv" if DELIMITERS[kind] == "," else "tsv"
    return "jsonl" if kind in JSON else "text"


def make_stream(
    path: Path,
    format: str,
    names: tuple[str, ...] | None,
    rows: Iterator[Row],
    lines: Lines | None = None,  # that the rows are made of
    *,
    has_header: bool = True,
    is_text: bool = False,
) -> Stream:
    """Looks at the beginning; without `names`, they are those of its rows."""
    beginning = [] if is_text else take_beginning(rows, lines)
    found = dict.fromkeys(name for row in beginning for name in row.values)
    table = Table(
        path=path,
        format=format,
        names=tuple(found) if names is None else names,
        has_header=has_header,
        rows=beginning,
    )
    return Stream(table=table, rows=chain(beginning, rows), is_text=is_text)


def take_beginning(items: Iterator[T], lines: Lines | None) -> list[T]:
    """What is looked at: as much as is there already of standard input, but something."""
    beginning: list[T] = []
    for item in islice(items, BEGINNING):
        beginning.append(item)
        if lines is not None and not lines.is_next_there():
            break
    return beginning


def read_bytes(path: Path) -> Iterator[bytes]:
    """A file, unpacked; of a stream what is there, as it comes."""
    if path == STDIN:
        if sys.stdin is None:
            raise UserError("stdin is closed: there is nothing to read")
        return iter(lambda: os.read(sys.stdin.fileno(), CHUNK), b"")
    if is_stream(path):
        return read_pipe(path)
    return read_chunks(path, 0, path.stat().st_size, lambda _: None)


def read_pipe(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def read_lines(path: Path, rejects: Rejects) -> Lines:
    """Bytes that are no UTF-8 are replaced, and counted."""
    source, problems = Source(path), rejects.problems
    blocks = (
        list(enumerate(text.removesuffix("\n").split("\n"), block.number))
        for block in read_blocks(read_bytes(path), problems, source)
        for text in (decode_block(block, problems, source),)
    )
    return Lines(blocks, may_pause=is_stream(path))


def read_parts(path: Path, rejects: Rejects) -> Iterator[str]:
    """The text of a file in parts of any length, where a line may be as long as the file."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in to_utf8(read_bytes(path), rejects.problems, Source(path)):
        yield decoder.decode(chunk)


def peek(path: Path) -> str:
    """How a file begins."""
    return next(read_parts(path, Rejects()), "")[:PEEKED]


def parse_objects(path: Path, lines: Lines, rejects: Rejects) -> Iterator[Row]:
    for number, line in lines:
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        if number == 1 and line.lstrip().startswith("["):
            raise UserError(
                f"{path} is one list; make lines of it: jq -c '.[]' {path} > lines.jsonl"
            )
        value = parse_line(line)
        if isinstance(value, dict):
            yield Row(place, value)
        else:
            rejects.add(place, "not a JSON object")


def open_delimited(
    path: Path, lines: Lines, rejects: Rejects, delimiter: str, known: Collection[str]
) -> Stream:
    """Lines of columns; whether quotes quote is seen from the first lines."""
    beginning = take_beginning(dropwhile(lambda one: not one[1].strip(), lines), lines)
    is_literal = delimiter == "\t" and not is_quoted("\n".join(line for _, line in beginning))
    first = next((line for _, line in beginning if line.strip()), "")
    parsed = [] if is_literal else parse_row([first], delimiter)
    cells = parsed or first.split(delimiter)
    names, has_header = find_names(path, cells, delimiter, known)
    every = chain(beginning, lines)
    split = (
        split_literally(every, delimiter) if is_literal else read_rows(every, delimiter, len(names))
    )
    rows = name_cells(path, islice(split, int(has_header), None), names, rejects)
    format = "CSV" if delimiter == "," else "table with tabs"
    return make_stream(path, format, tuple(names), rows, lines, has_header=has_header)


def name_cells(
    path: Path, split: Iterable[tuple[int, list[str]]], names: list[str], rejects: Rejects
) -> Iterator[Row]:
    for number, cells in split:
        place = f"{path}, line {number}"
        if len(cells) == len(names):
            yield Row(place, dict(zip(names, cells, strict=True)))
        else:
            rejects.add(place, RAGGED, f"found {len(cells)} and {len(names)}; mend it")


def open_parquet_rows(path: Path) -> Stream:
    if is_stream(path):
        raise UserError("a Parquet file is read from its end, so not from standard input or a pipe")
    file = open_parquet(path)
    values = (row for batch in file.iter_batches(ROWS) for row in batch.to_pylist())
    rows = (Row(f"{path}, row {number}", row) for number, row in enumerate(values, 1))
    return make_stream(path, "Parquet", tuple(file.schema_arrow.names), rows)


def estimate_rows(path: Path, format: str | None = None) -> int | None:
    """About how many rows there are, where a look at the file tells."""
    check_file(path, format)
    if is_stream(path) or path.suffix.lower() in PACKED:
        return None
    if (format or guess_format(path)) == "parquet":
        return int(open_parquet(path).metadata.num_rows)
    sign = ROW_SIGNS.get(format or "", b"\n")
    return sum(chunk.count(sign) for chunk in read_bytes(path))
