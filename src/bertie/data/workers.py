"""Processes that make steps ahead of the one who trains; they know numpy, not torch.

Worker w of W makes the steps first + w, first + w + W, ...: who makes a step changes nothing in it.
"""

import signal
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from bertie.data.steps import DataConfig, StepParts, Steps
from bertie.data.store import open_store
from bertie.errors import UserError


class Workers:
    """Steps in order, from `first` to before `last`, made by `config.loader.num_workers`."""

    def __init__(
        self,
        folder: Path,
        config: DataConfig,
        *,
        rank: int,
        world_size: int,
        first: int,
        last: int | None,
    ) -> None:
        self.first, self.last = first, last
        # Spawned, not forked: the parent has threads, of torch and its own.
        context = get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(config.loader.num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(theirs, folder, config, rank, world_size), daemon=True
            )
            process.start()
            theirs.close()  # so that the pipe ends when the worker does
            self._connections.append(ours)
            self._processes.append(process)
        for number in range(first, first + config.loader.prefetch * len(self._processes)):
            self._ask(number)
        self._ahead = config.loader.prefetch * len(self._processes)

    def _ask(self, number: int) -> None:
        if self.last is None or number < self.last:
            connection = self._connections[(number - self.first) % len(self._connections)]
            try:
                connection.send(number)
            except OSError:
                self._report_death(number)

    def __iter__(self) -> Iterator[StepParts]:
        number = self.first
        while self.last is None or number < self.last:
            connection = self._connections[(number - self.first) % len(self._connections)]
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                self._report_death(number)
            if isinstance(answer, UserError):
                raise answer
            yield answer
            self._ask(number + self._ahead)
            number += 1

    def _report_death(self, number: int) -> NoReturn:
        process = self._processes[(number - self.first) % len(self._processes)]
        process.join(5)
        raise UserError(
            f"a worker of the loader died (exit code {process.exitcode}) before step {number}; "
            "its own message, if any, stands above. Code -9: the machine ran out of memory, take "
            "fewer num_workers"
        )

    def stop(self) -> None:
        """Ends the workers; who waits for one of them learns of its death."""
        for process in self._processes:
            process.kill()  # they do not listen to anything milder, and hold nothing
        for process in self._processes:
            process.join()

    def close(self) -> None:
        """When nobody waits any more."""
        for connection in self._connections:
            connection.close()


def work(
    connection: Connection, folder: Path, config: DataConfig, rank: int, world_size: int
) -> None:
    """Answers numbers with steps, until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a run: the parent
        signal.signal(number, signal.SIG_IGN)  # saves first, and needs the step it waits for
    try:
        steps = Steps(open_store(folder), config, rank=rank, world_size=world_size, processes=1)
        while True:
            connection.send(steps.make(connection.recv()))
    except UserError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
