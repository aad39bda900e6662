"""Files of text to documents: plain text or JSON Lines, each also gzip or xz."""

import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from bertie.errors import UserError

OPENERS: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open}


def find_files(paths: Iterable[Path]) -> list[Path]:
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


def read_documents(path: Path, field: str = "text") -> Iterator[str]:
    """The documents of one file: a line each in JSON Lines, blocks between blank lines in text."""
    opener = OPENERS.get(path.suffix, open)
    kind = Path(path.stem).suffix if path.suffix in OPENERS else path.suffix
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline=None) as lines:
            yield from read_json_lines(lines, path, field) if kind == ".jsonl" else blocks(lines)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def read_json_lines(lines: Iterable[str], path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[field]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: no JSON object with {field!r}: {error}"
            ) from None
        if not isinstance(text, str):
            raise UserError(f"{path}, line {number}: {field!r} is no text but {text!r:.40}")
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


def batches(documents: Iterable[str], num_chars: int) -> Iterator[Sequence[str]]:
    """Consecutive documents in groups of at least `num_chars` characters; the last has the rest."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= num_chars:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
