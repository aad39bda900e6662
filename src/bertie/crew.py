"""Several runs at a time, each in a process of its own, which ends when its parent does."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from bertie.errors import UserError
from bertie.text.processes import watch
from bertie.train.loop import Stopped, on_signals

MOST_TRIES = 2  # of a run: when a process is killed, those beside it end with it


class Work(NamedTuple):
    """What is done, in a folder that is its own."""

    do: Callable[[], None]
    folder: Path


class Crew:
    """Works in processes. They are spawned, so that each has a device of its own."""

    def __init__(self, at_once: int, place: Path) -> None:
        self.at_once, self.place = at_once, place  # where what was stopped is saved
        self.left: deque[Work] = deque()

    def add(self, works: Iterable[Work]) -> None:
        self.left.extend(works)

    def run(self) -> Iterator[tuple[Work, Exception | None]]:
        """Each work that has ended, and what it failed of; others may be added meanwhile."""
        tries = Counter[Path]()
        while self.left:
            running: dict[Future[None], Work] = {}
            with self.pool() as pool, suppress(BrokenProcessPool):
                yield from self.run_in(pool, running)
            for work in running.values():  # none, unless a process was killed
                tries[work.folder] += 1
                if tries[work.folder] < MOST_TRIES:
                    self.left.append(work)
                else:
                    told = "its process was killed, or one beside it, twice: is memory short?"
                    yield work, UserError(told)

    def run_in(
        self, pool: ProcessPoolExecutor, running: dict[Future[None], Work]
    ) -> Iterator[tuple[Work, Exception | None]]:
        """Nothing is handed out before a process is free for it: what is stopped never begins."""
        while self.left or running:
            while self.left and len(running) < self.at_once:
                future = pool.submit(do_and_leave, self.left[0].do, os.getpid())
                running[future] = self.left.popleft()  # now: a pool that is broken takes none
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                error = future.exception()
                if isinstance(error, BrokenProcessPool) or not isinstance(error, Exception | None):
                    raise error
                yield running.pop(future), error

    @contextmanager
    def pool(self) -> Iterator[ProcessPoolExecutor]:
        """Processes that save what they are at when this one is asked to end."""
        pool = ProcessPoolExecutor(
            self.at_once, get_context("spawn"), initializer=watch, initargs=(os.getpid(),)
        )

        def stop(number: int, frame: FrameType | None) -> None:
            raise Stopped(number, self.place)  # here, where no run looks at signals

        try:
            with on_signals(stop):
                yield pool
        except BaseException:
            for child in active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def do_and_leave(do: Callable[[], None], parent: int) -> None:
    """One work; there is no other one for a process without a parent."""
    try:
        do()
    finally:
        if os.getppid() != parent:
            os._exit(1)
