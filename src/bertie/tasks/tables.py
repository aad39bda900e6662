"""Files of rows: CSV, TSV, JSON Lines, JSON lists, Parquet, packed or not; rows know their place.

Quotes: in CSV they quote. In tables with tabs they are literal, as in GLUE, unless every quote of
the file belongs to a field that is quoted as CSV does it.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from bertie.data.blocks import NOT_UTF8, Problems, Source, decode_block, read_blocks
from bertie.data.blocks import read_chunks as read_file
from bertie.data.formats import (
    DELIMITERS,
    JSON,
    PARQUET,
    SURROGATE,
    kind_of,
    parse_row,
    read_rows,
)
from bertie.data.parquet import open_parquet
from bertie.errors import UserError
from bertie.tasks.task import Ids, Rejects, check_some

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape of JSON that is half a character
QUOTED = re.compile(r'(?<![^\t\n])"(?:[^"]|"")*"(?![^\t\n])')
PLAIN = ".txt"  # here a table with tabs
RAGGED = "not as many columns as the first line"


class Row(NamedTuple):
    """One example-to-be."""

    place: str  # in words: the file and the line
    values: Mapping[str, object]

    def text(self, column: str) -> str:
        """A cell as text; none and numbers too."""
        return as_text(self.values.get(column))


def as_text(value: object) -> str:
    """A value of a row as text: Parquet has dates, decimals and bytes, too."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, default=as_text)
    return "" if value is None else str(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The rows of a file."""

    path: Path
    format: str  # in words
    names: tuple[str, ...]  # of the columns; "0", "1", ... where there is no header
    has_header: bool
    rows: list[Row]


class Named(Protocol):
    """An example, known by its id."""

    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=Named)


def missing(path: Path) -> UserError:
    return UserError(
        f"{path} is a folder; name a file in it" if path.is_dir() else f"no file {path}"
    )


def read_text(path: Path) -> str:
    """A whole file, unpacked; lines end with \\n. It must be UTF-8, or say that it is UTF-16."""
    if not path.is_file():
        raise missing(path)
    problems, source = Problems(), Source(path)
    chunks = read_file(path, 0, path.stat().st_size, lambda _: None)
    text = "".join(decode_block(b, problems, source) for b in read_blocks(chunks, problems, source))
    if problems.places:
        raise UserError(
            f"{problems.places[NOT_UTF8][0]}: not UTF-8; convert the file, such as by iconv"
        )
    return text


def read_table(
    path: Path, rejects: Rejects, *, known: Collection[str], literal: bool | None = None
) -> Table:
    """The rows of a file of any kind.

    A first line with one of the `known` names is a header, and so is that of CSV; `literal` says
    whether quotes are, where that is known.
    """
    if not path.is_file():
        raise missing(path)
    kind = kind_of(path)
    if kind in PARQUET:
        return read_parquet(path)
    if kind in JSON:
        return read_json(path, rejects)
    if kind not in (*DELIMITERS, PLAIN):
        listed = ", ".join((*DELIMITERS, PLAIN, *JSON, *PARQUET))
        raise UserError(f"{path} is of an unknown kind; there are: {listed}, also packed (.gz ...)")
    return read_delimited(path, rejects, known=known, literal=literal)


def find_names(
    path: Path, cells: Sequence[str], delimiter: str, known: Collection[str]
) -> tuple[list[str], bool]:
    """The names of the columns, by the cells of the first line; whether that line is a header.

    Commas have one; tabs have one if a name in it is known. Without it, columns have numbers.
    """
    names = [cell.strip() for cell in cells]
    has_header = delimiter == "," or bool({name.casefold() for name in names} & set(known))
    if not has_header:
        names = [str(number) for number in range(len(names))]
    if len(set(names)) != len(names):
        raise UserError(f"{path} has two columns of one name: {', '.join(names)}; rename one")
    return names, has_header


def read_delimited(
    path: Path, rejects: Rejects, *, known: Collection[str], literal: bool | None
) -> Table:
    """Lines of columns, between commas or tabs."""
    text = read_text(path)
    delimiter = DELIMITERS.get(kind_of(path), "\t")
    is_literal = delimiter == "\t" and (not is_quoted(text) if literal is None else literal)
    lines = list(enumerate(text.split("\n"), 1))
    first = next((line for _, line in lines if line.strip()), "")
    parsed = [] if is_literal else parse_row([first], delimiter)
    cells = parsed or first.split(delimiter)
    names, has_header = find_names(path, cells, delimiter, known)
    split = split_literally(lines, delimiter)
    rows = []
    for number, row in split if is_literal else read_rows(iter(lines), delimiter, len(names)):
        place = f"{path}, line {number}"
        if len(row) == len(names):
            rows.append(Row(place, dict(zip(names, row, strict=True))))
        else:
            rejects.add(place, RAGGED, f"found {len(row)} and {len(names)}; mend it")
    kind = "CSV" if delimiter == "," else "table with tabs"
    return Table(
        path=path,
        format=kind if has_header else f"{kind}, without a header",
        names=tuple(names),
        has_header=has_header,
        rows=rows[has_header:],
    )


def is_quoted(text: str) -> bool:
    """Whether every quote belongs to a quoted field, and there is one."""
    return '"' in text and '"' not in QUOTED.sub("", text)


def split_literally(
    lines: Iterable[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split(delimiter)) for number, line in lines if line.strip())


def read_json(path: Path, rejects: Rejects) -> Table:
    """Objects, one a line or in one list."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        values = parse_json(text, path)
        numbered = [(f"{path}, record {n}", value) for n, value in enumerate(values, 1)]
    else:
        numbered = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                numbered.append((f"{path}, line {number}", parse_line(line)))
    rows = []
    for place, value in numbered:
        if isinstance(value, dict):
            rows.append(Row(place, value))
        else:
            rejects.add(place, "not a JSON object")
    names = dict.fromkeys(name for row in rows for name in row.values)
    return Table(path=path, format="JSON", names=tuple(names), has_header=True, rows=rows)


def parse_json(text: str, path: Path) -> list[object]:
    try:
        values: list[object] = load_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}; is it complete?") from None
    return values


def parse_line(line: str) -> object:
    try:
        return load_json(line)
    except (ValueError, RecursionError):
        return None


def load_json(text: str) -> Any:
    """What JSON says; half a character, which only its escapes can give, becomes U+FFFD."""
    value = json.loads(text, strict=False)
    return without_halves(value) if HALF.search(text) else value


def without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_halves(one) for one in value]
    if isinstance(value, dict):
        return {without_halves(name): without_halves(one) for name, one in value.items()}
    return value


def read_parquet(path: Path) -> Table:
    file = open_parquet(path)
    try:
        values = file.read().to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's are these, too
        raise UserError(f"cannot read {path}: {first_line(error)}; is it complete?") from None
    return Table(
        path=path,
        format="Parquet",
        names=tuple(file.schema_arrow.names),
        has_header=True,
        rows=[Row(f"{path}, row {number}", row) for number, row in enumerate(values, 1)],
    )


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def list_columns(table: Table) -> str:
    """What columns there are, for errors; of those without names, what the first line has."""
    if table.has_header or not table.rows:
        return f"{', '.join(table.names):.300}"
    cells = ", ".join(f"{name} ({table.rows[0].text(name):.40})" for name in table.names)
    return f"{cells:.300}; as no name in the first line is known, it is taken for a row"


def find_column(names: Collection[str], candidates: Collection[str]) -> str | None:
    """The first of the candidates that is there, whatever its case."""
    by_case = {name.casefold(): name for name in reversed(list(names))}
    return next((by_case[name] for name in candidates if name in by_case), None)


def check_columns(table: Table, columns: Mapping[str, str], *, optional: Collection[str]) -> None:
    """That the columns are there; those of `optional` roles may be missing."""
    for role, name in columns.items():
        if name not in table.names and role not in optional:
            raise UserError(
                f"{table.path} has no column {name!r} for {role}; there are: "
                f"{list_columns(table)}. Name it: --set task.columns.{role}=NAME"
            )


def read_examples(
    table: Table,
    columns: dict[str, str],
    read_row: Callable[[Row, dict[str, str], str, Rejects], E | None],
    rejects: Rejects,
    *,
    needs_labels: bool,
) -> list[E]:
    """The examples of the rows that can be used, each id once."""
    if needs_labels and "label" not in columns:
        raise UserError(
            f"{table.path} has no column of labels; there are: {list_columns(table)}. "
            "Name it: --set task.columns.label=NAME"
        )
    examples, ids = list[E](), Ids()
    for number, row in enumerate(table.rows):
        example = read_row(row, columns, str(number), rejects)
        if example is not None and ids.is_new(example.id, row.place, rejects):
            examples.append(example)
    check_some(examples, table.path, rejects.problems)
    return examples
