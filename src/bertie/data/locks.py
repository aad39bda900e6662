"""A file that one process at a time holds; a dead one's is free."""

from typing import IO, Any


def take_lock(file: IO[Any]) -> None:
    """Waits until nobody else holds it."""
    try:
        from fcntl import LOCK_EX, flock
    except ImportError:  # no Unix: two may do the same work at once, the last one's stays
        return
    flock(file, LOCK_EX)


def try_lock(file: IO[Any]) -> bool:
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
