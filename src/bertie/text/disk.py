"""Files of any kind: whether they can be written, written whole, read as JSON, their hash."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from bertie.errors import UserError


def check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written; better before the work than after it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{folder} cannot be written: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK):
        raise UserError(f"{folder} cannot be written: no permission in {nearest}")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all, even where the power goes."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_object(path: Path) -> dict[str, Any]:
    """What a file of JSON holds, which must be one object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}, not a JSON object")
    return values


def hash_file(path: Path) -> str:
    """The SHA-256 of what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
