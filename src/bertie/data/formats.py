"""Blocks of lines to documents: plain text, JSON Lines, CSV and TSV. What is broken is skipped."""

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bertie.data.blocks import LEFT_OUT, PACKED, Block, Problems, Source, decode, decode_block
from bertie.errors import UserError

# What a file holds, by its suffix; all else is plain text.
JSON = (".jsonl", ".json", ".ndjson")
DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")

BLANK_LINES = re.compile(r"\n\s*\n")
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_CHARS = 4_000_000  # of a document; longer than any book, short enough for any memory
MAX_ROW_LINES = 10_000  # a quoted field of a table may span so many; a stray quote no more

NOT_JSON = "not JSON"
EMPTY = "empty text"
RAGGED = "not as many columns as the header"


def kind_of(path: Path) -> str:
    """The suffix that says what a file holds, in small letters and without that of its packing."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


class Wanted(NamedTuple):
    """What of a line or row is the document, and which are left out."""

    field: str  # that holds the text
    without: Mapping[str, Collection[str]] = {}  # other fields, and the values that are not wanted

    def find_reason(self, get: Callable[[str], object], problems: Problems) -> str | None:
        """Why a line or row is left out; `get` gives its field of a name, KeyError if it has none.

        Lists count by their members.
        """
        reason = None
        for name, values in self.without.items():
            try:
                found = get(name)
            except KeyError:
                continue
            problems.seen[name] = problems.seen.get(name, 0) + 1
            members = found if isinstance(found, list | tuple) else (found,)
            for member in map(spell, members):
                if member in values and reason is None:
                    reason = f"{LEFT_OUT}: {name} is {member[:60]!r}"
        return reason


def spell(value: object) -> str:
    """As JSON spells it: true, not True."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def read_plain(blocks: Iterable[Block], problems: Problems, source: Source) -> Iterator[str]:
    """What stands between blank lines."""
    parts: list[str] = []  # of a document that may go on in the next block
    for block in blocks:
        # With the end of the line before, blank lines are found at the start, too.
        first, *others = BLANK_LINES.split("\n" + decode_block(block, problems, source))
        parts.append(first[1:])
        if not others and sum(map(len, parts)) > MAX_CHARS:  # no end in sight
            known = "".join(parts)
            text = known.removesuffix("\n")  # the document may end here
            *pieces, rest = cut_long(text)
            yield from pieces
            parts = [rest + known[len(text) :]]
        for other in others:
            if document := "".join(parts).removesuffix("\n"):
                yield document
            parts = [other]
    if document := "".join(parts).removesuffix("\n"):
        yield document


def read_whole(blocks: Iterable[Block], problems: Problems, source: Source) -> Iterator[str]:
    """The file as one document, or as several if it is very long."""
    rest, has_begun = "", False
    for block in blocks:
        rest += decode_block(block, problems, source)
        if not has_begun:
            rest = rest.lstrip("\n")
            has_begun = bool(rest)
        if len(rest) > MAX_CHARS:
            text = rest.rstrip("\n")
            *pieces, last = cut_long(text)
            yield from pieces
            rest = last + rest[len(text) :]
    yield rest.rstrip("\n")


def cut_long(document: str) -> Iterator[str]:
    """A document in pieces of at most `MAX_CHARS`, cut at ends of lines or spaces if it can be.

    Where a piece ends depends on it alone, so what is known of a document can be cut already.
    """
    start = 0
    while len(document) - start > MAX_CHARS:
        limit = start + MAX_CHARS
        end = max(document.rfind("\n", start, limit), start)
        if end == start:
            end = max(document.rfind(" ", start, limit), start)
        if end == start:
            end = limit
        yield document[start:end]
        start = end
    yield document[start:]


class Broken(Exception):
    """Why a line gives no document."""


def read_json_lines(
    blocks: Iterable[Block], wanted: Wanted, problems: Problems, source: Source
) -> Iterator[str]:
    """The field of each line's object."""
    parse = json.JSONDecoder(strict=False).raw_decode  # control characters in strings do no harm
    for block in blocks:
        # Half a surrogate pair is no character; only an escape can bring one.
        may_have_halves = b"\\ud" in block.data or b"\\uD" in block.data
        for number, line in enumerate(block.data[:-1].split(b"\n"), block.number):
            if not line or line.isspace():
                continue
            text = decode(line, problems, source.place, number)
            try:
                document = find_text(text, wanted, parse, problems)
            except Broken as broken:
                problems.add(str(broken), source.place, number)
                continue
            yield SURROGATE.sub("\ufffd", document) if may_have_halves else document


def find_text(
    line: str, wanted: Wanted, parse: Callable[[str, int], tuple[object, int]], problems: Problems
) -> str:
    """The text of one line of JSON."""
    field = wanted.field
    try:
        value, end = parse(line, 0 if line[0] > " " else len(line) - len(line.lstrip()))
    except (ValueError, RecursionError):
        raise Broken(NOT_JSON) from None
    if end < len(line) and not line[end:].isspace():
        raise Broken(NOT_JSON)
    try:
        document = find_field(value, field)
    except KeyError:
        raise Broken(f"no field {field!r}") from None
    if not isinstance(document, str):
        raise Broken(f"no text in the field {field!r}")
    if not document or document.isspace():
        raise Broken(EMPTY)
    if wanted.without and (reason := wanted.find_reason(partial(find_field, value), problems)):
        raise Broken(reason)
    return document


def json_fields(blocks: Iterable[Block]) -> list[str]:
    """Names of the fields of the first lines' objects."""
    names: dict[str, None] = {}
    lines = (line for block in blocks for line in block.data.split(b"\n"))
    for line in islice(lines, 100):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            names |= dict.fromkeys(value if isinstance(value, dict) else ())
    return list(names)


def find_field(value: object, field: str) -> object:
    """The value of a field, or of one below others: `meta.text`; KeyError if there is none."""
    if isinstance(value, dict) and field in value:
        return value[field]
    for name in field.split("."):
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[name]
    return value


def read_table(
    blocks: Iterable[Block], delimiter: str, wanted: Wanted, problems: Problems, source: Source
) -> Iterator[str]:
    """The column that the header calls as the field."""
    field = wanted.field
    lines = (
        (number, line)
        for block in blocks
        for number, line in enumerate(
            decode_block(block, problems, source)[:-1].split("\n"), block.number
        )
    )
    header = next((line for _, line in lines if line and not line.isspace()), "")
    names = [name.strip() for name in parse_row([header], delimiter) or header.split(delimiter)]
    if field not in names:
        if not header:
            return
        raise missing_field(source.path, field, names)
    for name in wanted.without:
        if name not in names:
            raise missing_field(source.path, name, names, setting="corpus.without")
    column = names.index(field)
    for number, row in read_rows(lines, delimiter, len(names)):
        if len(row) != len(names):
            problems.add(RAGGED, source.place, number)
        elif not row[column] or row[column].isspace():
            problems.add(EMPTY, source.place, number)
        elif wanted.without and (
            reason := wanted.find_reason(dict(zip(names, row, strict=True)).__getitem__, problems)
        ):
            problems.add(reason, source.place, number)
        else:
            yield row[column]


def read_rows(
    lines: Iterator[tuple[int, str]], delimiter: str, width: int
) -> Iterator[tuple[int, list[str]]]:
    """Rows with the numbers of their first lines. Quotes that make no row are literal ones."""
    again: deque[tuple[int, str]] = deque()  # lines that were no part of the row before
    while numbered := again.popleft() if again else next(lines, None):
        number, line = numbered
        if not line or line.isspace():
            continue
        if '"' not in line:
            yield number, line.split(delimiter)
            continue
        taken = [numbered]
        num_quotes = line.count('"')
        while num_quotes % 2 and len(taken) < MAX_ROW_LINES:
            following = again.popleft() if again else next(lines, None)
            if following is None:
                break
            # Few tables with tabs quote at all: there two lines with all columns are two rows.
            if delimiter == "\t" and line.count("\t") == following[1].count("\t") == width - 1 > 0:
                again.appendleft(following)
                break
            taken.append(following)
            num_quotes += following[1].count('"')
        row = parse_row([text for _, text in taken], delimiter)
        if len(row) != width:
            row = line.split(delimiter)
            again.extendleft(reversed(taken[1:]))
        yield number, row


def parse_row(lines: Sequence[str], delimiter: str) -> list[str]:
    """The one row that lines make; none if they make no row or more of them."""
    csv.field_size_limit(2**31 - 1)  # texts are longer than csv expects
    try:
        rows = list(csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True))
    except csv.Error:
        return []
    return rows[0] if len(rows) == 1 else []


def missing_field(
    path: Path, field: str, names: Sequence[str], *, setting: str = "corpus.field"
) -> UserError:
    if len(names) == 1 and ";" in names[0]:
        return UserError(
            f"{path} has no column {field!r}; its columns seem to be parted by semicolons: a .csv "
            "has commas, a .tsv tabs. Write it so, or as .jsonl"
        )
    hint = "Name it: --set corpus.field=NAME" if setting == "corpus.field" else f"See {setting}"
    known = ", ".join(names) or "none"
    return UserError(f"{path} has no column {field!r}; there are: {known:.300}. {hint}")
