"""Several runs at a time, each in a process of its own, which ends when its parent does."""

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from bertie.errors import UserError
from bertie.train.loop import Stopped

MOST_TRIES = 2  # of a run: when a process is killed, those beside it end with it
WATCH_S = 1.0  # how often a process looks whether its parent is still there


class Work(NamedTuple):
    """What is done, in a folder that is its own."""

    do: Callable[[], None]
    folder: Path


class Crew:
    """Works in processes. They are spawned, so that each has a device of its own."""

    def __init__(self, at_once: int, place: Path) -> None:
        self.at_once, self.place = at_once, place  # where what was stopped is saved

    def run(self, works: Iterable[Work]) -> Iterator[tuple[Work, Exception | None]]:
        """Each work that has ended, and what it failed of; `works` may grow meanwhile.

        Nothing is handed out before a process is free for it: what is stopped never begins.
        """
        left, tries = deque(works), Counter[Path]()
        self.left = left
        while left:
            running: dict[Future[None], Work] = {}
            with self.pool() as pool:
                try:
                    while left or running:
                        while left and len(running) < self.at_once:
                            work = left.popleft()
                            running[pool.submit(do_and_leave, work.do, os.getpid())] = work
                        for future in wait(running, return_when=FIRST_COMPLETED).done:
                            error = future.exception()
                            if isinstance(error, BrokenProcessPool):
                                raise error
                            if error is not None and not isinstance(error, Exception):
                                raise error
                            yield running.pop(future), error
                except BrokenProcessPool:
                    pass
            for work in running.values():
                tries[work.folder] += 1
                if tries[work.folder] < MOST_TRIES:
                    left.append(work)
                else:
                    told = "its process was killed, or one beside it, twice: is memory short?"
                    yield work, UserError(told)

    def add(self, works: Iterable[Work]) -> None:
        self.left.extend(works)

    @contextmanager
    def pool(self) -> Iterator[ProcessPoolExecutor]:
        """Processes that save what they are at when this one is asked to end."""
        pool = ProcessPoolExecutor(
            self.at_once, get_context("spawn"), initializer=watch, initargs=(os.getpid(),)
        )
        try:
            with signals_raise(self.place):
                yield pool
        except BaseException:
            for child in active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def signals_raise(place: Path) -> Iterator[None]:
    """Signals that ask to end do so here, where no run looks at them between its steps."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, place)

    before: dict[int, Any] = {}
    for kind in (signal.SIGTERM, signal.SIGINT):
        before[kind] = signal.signal(kind, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(parent: int) -> None:
    """Of a process: asks itself to end, and to save, when its parent has gone."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()


def do_and_leave(do: Callable[[], None], parent: int) -> None:
    """One work; there is no other one for a process without a parent."""
    try:
        do()
    finally:
        if os.getppid() != parent:
            os._exit(1)
