"""Rows of a file of any kind or of standard input, one after the other, in constant memory."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from bertie.data.blocks import (
    CHUNK,
    PACKED,
    Source,
    decode_block,
    read_blocks,
    read_chunks,
)
from bertie.data.formats import parse_row, read_rows
from bertie.data.parquet import ROWS, open_parquet
from bertie.errors import UserError
from bertie.tasks.tables import (
    COMMAS,
    JSON,
    RAGGED,
    Row,
    Table,
    find_names,
    is_quoted,
    kind_of,
    parse_line,
    split_literally,
)
from bertie.tasks.task import Rejects

STDIN = Path("-")
FORMATS = ("text", "csv", "tsv", "jsonl", "parquet")
BEGINNING = 100  # rows by which columns are guessed
Lines = Iterator[tuple[int, str]]


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
    if format is not None and format not in FORMATS:
        raise UserError(f"no format {format!r}; there are: {', '.join(FORMATS)}")
    if path != STDIN and not path.is_file():
        raise UserError(f"no file {path}")
    format = format or guess_format(path)
    if format == "parquet":
        return open_parquet_rows(path)
    lines = read_lines(path, rejects)
    if format == "jsonl":
        return make_stream(path, "JSON Lines", None, parse_objects(path, lines, rejects))
    if format == "text":
        rows = (Row(f"{path}, line {number}", {"text": line}) for number, line in lines)
        return make_stream(path, "lines of text", ("text",), rows, is_text=True)
    return open_delimited(path, lines, rejects, "," if format == "csv" else "\t", known)


def guess_format(path: Path) -> str:
    kind = kind_of(path)
    if kind in (*COMMAS, *JSON):
        return "csv" if kind in COMMAS else "jsonl"
    return {".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet"}.get(kind, "text")


def make_stream(
    path: Path,
    format: str,
    names: tuple[str, ...] | None,
    rows: Iterator[Row],
    *,
    has_header: bool = True,
    is_text: bool = False,
) -> Stream:
    """Looks at the beginning; without `names`, they are those of its rows."""
    beginning = list(islice(rows, BEGINNING))
    found = dict.fromkeys(name for row in beginning for name in row.values)
    table = Table(
        path=path,
        format=format,
        names=tuple(found) if names is None else names,
        has_header=has_header,
        rows=beginning,
    )
    return Stream(table=table, rows=chain(beginning, rows), is_text=is_text)


def read_lines(path: Path, rejects: Rejects) -> Lines:
    """Numbered lines; bytes that are no UTF-8 are replaced, and counted."""
    source, problems = Source(path), rejects.problems
    chunks: Iterator[bytes] = (
        iter(lambda: os.read(sys.stdin.fileno(), CHUNK), b"")
        if path == STDIN
        else read_chunks(path, 0, path.stat().st_size, lambda _: None)
    )
    for block in read_blocks(chunks, problems, source):
        text = decode_block(block, problems, source)
        yield from enumerate(text.removesuffix("\n").split("\n"), block.number)


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
    beginning = list(islice(lines, BEGINNING))
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
    return make_stream(path, format, tuple(names), rows, has_header=has_header)


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
    if path == STDIN:
        raise UserError("a Parquet file is read from its end, so not from standard input")
    file = open_parquet(path)
    values = (row for batch in file.iter_batches(ROWS) for row in batch.to_pylist())
    rows = (Row(f"{path}, row {number}", row) for number, row in enumerate(values, 1))
    return make_stream(path, "Parquet", tuple(file.schema_arrow.names), rows)


def estimate_rows(path: Path, format: str | None = None) -> int | None:
    """About how many rows there are, where a look at the file tells."""
    if path == STDIN or path.suffix.lower() in PACKED:
        return None
    if (format or guess_format(path)) == "parquet":
        return int(open_parquet(path).metadata.num_rows)
    chunks = read_chunks(path, 0, path.stat().st_size, lambda _: None)
    return sum(chunk.count(b"\n") for chunk in chunks)
