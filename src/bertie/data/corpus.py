"""Any pile of text to documents: files, folders and patterns, cut into units of work.

    for unit in plan_units(find_files([Path("my_text")]), config):
        for document in read_unit(unit, config, problems): ...

The units in order give every document once. Those of uncompressed plain text, JSON Lines and
Parquet are about `unit_bytes` long; any other file is one unit.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from bertie.data.blocks import (
    CHUNK,
    LONG_LINE,
    PACKED,
    UNSEEN,
    UTF16,
    Problems,
    Source,
    read_blocks,
    read_chunks,
)
from bertie.data.formats import (
    DELIMITERS,
    JSON,
    MAX_CHARS,
    PARQUET,
    Wanted,
    cut_long,
    json_fields,
    kind_of,
    read_json_lines,
    read_plain,
    read_table,
    read_whole,
)
from bertie.data.signs import check_is_text
from bertie.errors import UserError

LOOK_AHEAD_BYTES = 1_000_000_000

Progress = Callable[[str, int, int], None]  # what is being done, how much is done, of how much


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """How files are read."""

    field: str = "text"  # of a JSON line, a table, a Parquet file; a.b for one inside another
    # Lines and rows to leave out: other fields and their values, such as {source: [forum, ads]};
    # a.b for one inside another, true and false for those of JSON and Parquet.
    without: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    document: Literal["block", "file"] = "block"  # of plain text: between blank lines, or a file
    held_out_percent: int = 1  # documents kept back to test with, chosen by a hash of their text
    unit_bytes: int = 16_000_000  # about as much of a file is one unit of work

    def __post_init__(self) -> None:
        if self.unit_bytes < 1:
            raise UserError(f"corpus.unit_bytes must be at least 1; found {self.unit_bytes}")
        if not 0 <= self.held_out_percent <= 100:
            raise UserError(f"corpus.held_out_percent is 0 to 100; found {self.held_out_percent}")

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.field, {name: frozenset(v) for name, v in self.without.items()})


class Unit(NamedTuple):
    """A part of a file that can be read by itself: bytes from `start` to `end`."""

    path: Path
    start: int
    end: int


class Batch(NamedTuple):
    """Consecutive documents, and how many bytes of their files were read for them."""

    documents: Sequence[str]
    num_bytes: int


def plan_units(files: Iterable[Path], config: CorpusConfig) -> list[Unit]:
    """The units of all files in order; they touch and cover each file that is not empty.

    A file that holds no text is refused.
    """
    return [unit for path in files for unit in plan_file(path, config)]


def plan_file(path: Path, config: CorpusConfig) -> list[Unit]:
    units: list[Unit] = []
    try:
        if kind_of(path) not in PARQUET:
            chunks = read_chunks(path, 0, path.stat().st_size, ignore)
            check_is_text(path, next(chunks, b""))
        with path.open("rb") as file:
            start, size = 0, end_of_file(file)
            find_cut = choose_cut(file, path, config)
            while start < size:
                wanted = start + config.unit_bytes
                end = find_cut(file, wanted) if wanted < size else size
                units.append(Unit(path, start, end))
                start = end
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return units


def choose_cut(file: BinaryIO, path: Path, config: CorpusConfig) -> Callable[[BinaryIO, int], int]:
    """The function that finds the first place at or after another where a unit may end."""
    kind = kind_of(path)
    if path.suffix.lower() in PACKED or kind in DELIMITERS:
        return end_of_file
    if kind in PARQUET:
        from bertie.data.parquet import group_starts, open_parquet

        with open_parquet(path) as parquet:
            starts = group_starts(parquet)[1:]
        return lambda file, place: min((s for s in starts if s >= place), default=end_of_file(file))
    file.seek(0)
    if file.read(2) in UTF16 or (config.document == "file" and kind not in JSON):
        return end_of_file
    return next_line if kind in JSON else next_blank_line


def end_of_file(file: BinaryIO, place: int = 0) -> int:
    return file.seek(0, 2)


def next_line(file: BinaryIO, place: int) -> int:
    """The first start of a line at or after `place`, which is not 0."""
    file.seek(place - 1)
    return place - 1 + skip_line(file)[0]


def next_blank_line(file: BinaryIO, place: int) -> int:
    """The first start of a blank line at or after `place`: a document ends before it."""
    place = next_line(file, place)
    while True:
        size, is_blank = skip_line(file)
        if is_blank:
            return place
        place += size


def skip_line(file: BinaryIO) -> tuple[int, bool]:
    """The bytes of a line, and whether it is blank, as that behind the last one is."""
    size, is_blank = 0, True
    while piece := file.readline(CHUNK):
        size += len(piece)
        is_blank = is_blank and not piece.strip()
        if piece.endswith(b"\n"):
            break
    return size, is_blank


def ignore(num_bytes: int) -> None:
    pass


def read_unit(
    unit: Unit,
    config: CorpusConfig,
    problems: Problems,
    on_bytes: Callable[[int], object] = ignore,
) -> Iterator[str]:
    """The documents of a unit, none of them empty or longer than `MAX_CHARS`, in bounded memory.

    What cannot be read is counted, and added to `problems` at the end; only a file of which nothing
    can be read is an error. `on_bytes` is told how many bytes were read since it was told before.
    """
    own, num_found = Problems(), 0
    try:
        for document in _read(unit, config, own, on_bytes):
            for piece in [document] if len(document) <= MAX_CHARS else cut_long(document):
                if piece and not piece.isspace():
                    num_found += 1
                    yield piece
    finally:  # also if the caller has enough
        problems.merge(own)
    if unit.start == 0 and not num_found:
        _check_rest(unit, config, own)


def _check_rest(first: Unit, config: CorpusConfig, problems: Problems) -> None:
    """Refuses a file that has no document in its first unit, and none later, but broken lines."""
    size = first.path.stat().st_size
    if first.end < size:
        later = Unit(first.path, first.end, min(size, first.end + LOOK_AHEAD_BYTES))
        if any(True for _ in _read(later, config, problems, ignore)):
            return
    if problems.num_skipped:
        raise _all_broken(first.path, config, problems)


def _read(
    unit: Unit, config: CorpusConfig, problems: Problems, on_bytes: Callable[[int], object]
) -> Iterator[str]:
    kind = kind_of(unit.path)
    if kind in PARQUET:
        return _read_parquet(unit, config, problems, on_bytes)
    source = Source(unit.path, unit.start)
    is_plain = kind not in JSON and kind not in DELIMITERS
    longest = LONG_LINE if is_plain else None
    chunks = read_chunks(*unit, on_bytes)
    found = read_blocks(chunks, problems, source, longest)
    if kind in JSON:
        return read_json_lines(found, config.wanted, problems, source)
    if kind in DELIMITERS:
        return read_table(found, DELIMITERS[kind], config.wanted, problems, source)
    read = read_whole if config.document == "file" else read_plain
    return read(found, problems, source)


def _read_parquet(
    unit: Unit, config: CorpusConfig, problems: Problems, on_bytes: Callable[[int], object]
) -> Iterator[str]:
    from bertie.data.parquet import open_parquet, read_parquet, unpack_to_file

    if unit.path.suffix.lower() in PACKED:
        with unpack_to_file(read_chunks(*unit, on_bytes)) as unpacked:
            size = end_of_file(unpacked)
            with open_parquet(unit.path, unpacked) as file:
                yield from read_parquet(file, unit._replace(end=size), config.wanted, problems)
    elif unit.start < unit.end:
        with open_parquet(unit.path) as file:
            yield from read_parquet(file, unit, config.wanted, problems)
        on_bytes(unit.end - unit.start)


def _all_broken(path: Path, config: CorpusConfig, problems: Problems) -> UserError:
    why = ", ".join(
        f"{count} {what}, first: {problems.places[what][0]}"
        for what, count in problems.counts.items()
    )
    names: list[str] = []
    if kind_of(path) in JSON:
        chunks = read_chunks(path, 0, path.stat().st_size, ignore)
        names = json_fields(read_blocks(chunks, Problems(), Source(path)))
    return UserError(
        f"no line or row of {path} has text in the field {config.field!r}: {why}. The fields are: "
        f"{', '.join(names) or 'unknown'}. Name the right one: --set corpus.field=NAME"
    )


def read_documents(
    path: Path, config: CorpusConfig | None = None, problems: Problems | None = None
) -> Iterator[str]:
    """The documents of one file."""
    whole = Unit(path, 0, path.stat().st_size)
    return read_unit(whole, config or CorpusConfig(), problems or Problems())


def read_batches(
    files: Iterable[Path],
    config: CorpusConfig,
    problems: Problems | None = None,
    *,
    num_chars: int = 2_000_000,
) -> Iterator[Batch]:
    """All documents, in batches of about `num_chars`; no batch crosses units."""
    problems = Problems() if problems is None else problems
    for unit in (unit for path in files for unit in plan_file(path, config)):
        yield from read_unit_batches(unit, config, problems, num_chars=num_chars)


def read_unit_batches(
    unit: Unit, config: CorpusConfig, problems: Problems, *, num_chars: int = 2_000_000
) -> Iterator[Batch]:
    """The documents of a unit, in batches of about `num_chars`."""
    steps: list[int] = []  # bytes read since the last batch
    documents: list[str] = []
    size = 0
    for document in read_unit(unit, config, problems, steps.append):
        documents.append(document)
        size += len(document)
        if size >= num_chars:
            yield Batch(documents, sum(steps))
            documents, size = [], 0
            steps.clear()
    yield Batch(documents, sum(steps))


def note_unseen(config: CorpusConfig, problems: Problems) -> None:
    """Says, when all was read, which fields of `without` nothing had: they may be misspelt."""
    for name in config.without:
        if name not in problems.seen:
            problems.add(UNSEEN, [name].__getitem__, 0)


def source_hash(path: Path) -> str:
    """A hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def document_hash(document: str) -> bytes:
    """The SHA-1 of a document's text: equal texts are duplicates."""
    return hashlib.sha1(document.encode("utf-8", "replace"), usedforsecurity=False).digest()


def is_held_out(hash: bytes, percent: int) -> bool:
    """Whether the document with this hash is one of the share to test with."""
    return int.from_bytes(hash) % 100 < percent
