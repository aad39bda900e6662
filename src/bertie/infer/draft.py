"""A file that appears whole: it is written beside its place, by one run at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bertie.data.locks import try_lock
from bertie.errors import UserError


def check_free(out: Path) -> None:
    """Nothing that is there already is written over, such as the input."""
    if out.exists():
        raise UserError(f"{out} exists; remove it, or write to another file")


@contextmanager
def locked(draft: Path, out: Path) -> Iterator[BinaryIO]:
    """The draft of an output, to read and write, while no other run does; a dead one's is free."""
    check_free(out)
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.touch()
    try:
        with draft.open("r+b") as file:
            if not try_lock(file) or not is_still(file, draft):
                raise UserError(
                    f"another run is writing {out}; wait for it, or write to another file"
                )
            yield file
    except OSError as error:
        if error.errno:  # a full disk does not say where it is
            error.filename = error.filename or str(out)
        raise


def is_still(file: BinaryIO, draft: Path) -> bool:
    """Whether this is the draft: its run may have ended, and renamed it, as we opened it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), draft.stat())
    except FileNotFoundError:
        return False


def finish(file: BinaryIO, draft: Path, out: Path) -> None:
    """The draft becomes the output."""
    file.flush()
    os.fsync(file.fileno())
    check_free(out)
    draft.replace(out)
