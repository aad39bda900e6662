"""A file or a folder that one process at a time holds; a dead one's is free."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bertie.errors import UserError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One process at a time works in a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # folders cannot be opened there, nor held
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(opened):
            raise UserError(
                f"another process is at work in {folder}; wait for it, or choose another --out"
            )
        yield
    finally:
        os.close(opened)


def take_lock(file: IO[Any]) -> None:
    """Waits until nobody else holds it."""
    try:
        from fcntl import LOCK_EX, flock
    except ImportError:  # no Unix: two may do the same work at once, the last one's stays
        return
    flock(file, LOCK_EX)


def try_lock(file: IO[Any] | int) -> bool:
    """Takes it at once or not at all."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        return True
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
