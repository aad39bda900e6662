"""A folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def draft_of(directory: Path) -> Iterator[Path]:
    """A new folder beside `directory`; it takes its place at the end, or vanishes on an error.

    with draft_of(Path("model")) as draft:
        (draft / "config.json").write_text("{}")
    """
    directory = directory.resolve()  # where a link points, not the link, is replaced
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = directory.with_name(f".{directory.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for path in draft.rglob("*"):
            _flush(path)
        _flush(draft)
        _swap(draft, directory)
    except SafetensorError as error:  # of what is written: a full disk, above all
        raise OSError(f"{directory}: {error}") from None
    except OSError as error:
        if error.errno:  # a full disk does not say where it is
            error.filename = error.filename or str(directory)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _flush(path: Path) -> None:
    """The bytes must be on the disk before the name is, or a power cut leaves an empty file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(draft: Path, directory: Path) -> None:
    if not directory.exists():
        draft.rename(directory)
        return
    old = draft.with_name(f".{directory.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    directory.rename(old)
    try:
        draft.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    shutil.rmtree(old)
