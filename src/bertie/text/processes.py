"""Processes that share a work: none outlives the one that began them, nor its being stopped."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from types import FrameType
from typing import Any, TypeVar

from bertie.errors import UserError

A = TypeVar("A")
R = TypeVar("R")
WATCH_S = 1.0  # how often a process looks whether its parent is still there


@contextmanager
def processes(
    count: int, begin: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """So many processes, each of which begins with `begin(*arguments)`.

    A signal ends them, and so what waits for them. It does not interrupt the waiting itself: that
    would leave locks of futures behind, for which the pool would wait for ever.
    """
    others = set(active_children())
    signals: list[int] = []

    def end_processes(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        running = set(active_children()) - others
        for process in running:
            process.terminate()
        if not running or len(signals) > 1:
            raise KeyboardInterrupt

    # Spawned, not forked: a caller may have threads (torch, progress bars).
    pool = ProcessPoolExecutor(count, get_context("spawn"), start, (os.getpid(), begin, *arguments))
    try:
        with handling(end_processes):
            yield pool
        if signals:  # when all was done
            raise KeyboardInterrupt
    except BrokenProcessPool:
        if signals:
            raise KeyboardInterrupt from None
        raise UserError(
            "a worker process died, perhaps for want of memory; give the same command again, with "
            "fewer --workers where it has them"
        ) from None
    except BaseException:  # an interrupt, say
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(
    pool: Executor, work: Callable[[A], R], given: Iterable[A], *, ahead: int
) -> Iterator[R]:
    """What the processes make of each, in order; `ahead` are given out before they are asked for.

    `Executor.map` would read all that is given at once.
    """
    waiting: deque[Future[R]] = deque()
    for one in given:
        waiting.append(pool.submit(work, one))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def start(parent: int, begin: Callable[..., None] | None, *arguments: Any) -> None:
    """What each process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    watch(parent)
    if begin is not None:
        begin(*arguments)


def watch(parent: int) -> None:
    """Of a process: asks itself to end when its parent has gone."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()


@contextmanager
def handling(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """SIGINT and SIGTERM are handled so, where nobody handles them otherwise."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python lets no other catch them
        for kind in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(kind) in (signal.SIG_DFL, signal.default_int_handler):
                before[kind] = signal.signal(kind, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
