"""Files of text to documents: plain text or JSON Lines, each also gzip or xz."""

import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from bertie.errors import UserError

DECOMPRESS: dict[str, Callable[[BinaryIO], io.BufferedIOBase]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """How files are read."""

    field: str = "text"  # of a JSON line
    held_out_percent: int = 1  # documents kept back to test with, chosen by a hash of their text


class Batch(NamedTuple):
    """Consecutive documents, and how many bytes of their files were read for them."""

    documents: Sequence[str]
    num_bytes: int


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those below the folders named, in order of their paths."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"no file or folder {path}")
        below = path.rglob("*") if path.is_dir() else [path]
        found += sorted(p for p in below if p.is_file() and not p.name.startswith("."))
    if not found:
        raise UserError(f"no files in {', '.join(map(str, paths))}")
    return found


def read_batches(
    files: Iterable[Path], config: CorpusConfig, *, num_chars: int = 2_000_000
) -> Iterator[Batch]:
    """All documents, in batches of about `num_chars`; no batch crosses files."""
    for path in files:
        with path.open("rb") as raw:
            documents: list[str] = []
            size = read_before = 0
            for document in _documents(raw, path, config.field):
                documents.append(document)
                size += len(document)
                if size >= num_chars:
                    yield Batch(documents, raw.tell() - read_before)
                    documents, size, read_before = [], 0, raw.tell()
            yield Batch(documents, raw.tell() - read_before)


def read_documents(path: Path, config: CorpusConfig | None = None) -> Iterator[str]:
    """The documents of one file: a line each in JSON Lines, blocks between blank lines in text."""
    with path.open("rb") as raw:
        yield from _documents(raw, path, (config or CorpusConfig()).field)


def _documents(raw: BinaryIO, path: Path, field: str) -> Iterator[str]:
    is_packed = path.suffix in DECOMPRESS
    kind = Path(path.stem).suffix if is_packed else path.suffix
    file = cast(BinaryIO, DECOMPRESS[path.suffix](raw)) if is_packed else raw
    # Bytes that are no UTF-8 become U+FFFD, which the tokenizer drops.
    lines = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
    try:
        yield from _json_documents(lines, path, field) if kind in JSON_LINES else blocks(lines)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}; is it complete?") from None
    finally:
        lines.detach()  # the caller closes the file


def _json_documents(lines: Iterable[str], path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[field]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise UserError(
                f"{path}, line {number}: no JSON object with the field {field!r}; name the field: "
                f"--set corpus.field=NAME. Found: {line.strip():.60}"
            ) from None
        if not isinstance(text, str):
            raise UserError(f"{path}, line {number}: {field!r} is no text but {text!r:.60}")
        yield text


def blocks(lines: Iterable[str]) -> Iterator[str]:
    """Runs of lines that are not blank, each joined again."""
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "".join(block)
            block = []
    if block:
        yield "".join(block)


def is_held_out(document: str, percent: int) -> bool:
    """Whether the document is one of the share to test with; depends on its text alone."""
    digest = hashlib.sha1(document.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest) % 100 < percent
