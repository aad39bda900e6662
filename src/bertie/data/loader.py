"""Steps of pre-training as tensors: flat batches without padding, made ahead by workers.

with Loader(store, config, start_step=1000) as loader:
    for step in loader:  # 1000, 1001, ...
        for batch in step.micro_batches:
            model(*batch[:5], predicted=batch.predicted)

`Loader.step(k)` depends on nothing but the store, the settings, k, the rank and the world size.
"""

# T tokens of all sequences in a row   N sequences   M predicted tokens

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertie.data.index import Header
from bertie.data.steps import DataConfig, Part, Shape, StepParts, Steps
from bertie.data.store import Store
from bertie.data.workers import Workers
from bertie.errors import UserError

IGNORED = -100  # a label that no loss counts; torch's default


class Batch(NamedTuple):
    """Sequences in a row; the first five are what the model takes. All int64, on the CPU.

    With fixed shapes the tail is sequences of [PAD] and then empty ones, and predicted tokens whose
    labels are ignored.
    """

    ids: Tensor  # (T,) with masks
    segments: Tensor  # (T,)
    positions: Tensor  # (T,) counted from 0 in each sequence
    bounds: Tensor  # (N + 1,) sequence n is rows bounds[n] .. bounds[n + 1]
    longest: int  # no sequence is longer
    predicted: Tensor  # (M,) rows whose tokens are predicted, ascending
    labels: Tensor  # (M,) their true ids, or IGNORED
    pair_labels: Tensor  # (N,) 0 or 1, or IGNORED

    @property
    def previous(self) -> Tensor:  # (M,)
        """Where labels are next tokens: the tokens before them, which nothing has hidden."""
        return torch.where(self.labels == IGNORED, IGNORED, self.ids[self.predicted])

    def to(self, device: torch.device) -> "Batch":
        """On a device; from pinned memory the copy runs while the device works."""
        moved = [part.to(device, non_blocking=True) for part in self if isinstance(part, Tensor)]
        return Batch._make([*moved[:4], self.longest, *moved[4:]])


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A global step: one rank's micro-batches, as many on every rank, and counts of all of them."""

    number: int
    epoch: int  # of its first instance
    micro_batches: tuple[Batch, ...]
    num_targets: dict[str, int]  # of all ranks and micro-batches: mlm, or lm and back; nsp, sop
    num_tokens: int  # of all ranks and micro-batches, without the tails
    num_filled: int  # tokens of this rank's tails

    @property
    def filled_share(self) -> float:
        """Of this rank's tokens, those of the tails."""
        return self.num_filled / sum(len(batch.ids) for batch in self.micro_batches)


class Loader:
    """The steps of a run from `start_step` on, to before `end_step` if it is given.

    Two phases of a run, such as lengths 128 and 512, are two loaders over the same store; each
    counts its steps from 0.
    """

    def __init__(
        self,
        store: Store,
        config: DataConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        end_step: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UserError(f"rank is 0 to world_size - 1; found {rank} of {world_size}")
        if start_step < 0:
            raise UserError(f"start_step is at least 0; found {start_step}")
        self.config = config
        self.start_step, self.end_step = start_step, end_step
        self.steps = Steps(store, config, rank=rank, world_size=world_size)
        # The thread that pins must use the device of the one who trains.
        self.device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._epoch: int | None = None
        self._ahead: Ahead | None = None

    def header(self, step: int = 0) -> Header:
        """Counts and shares of the epoch in which a step begins."""
        epochs = self.steps.epochs
        return epochs.index(epochs.find_epoch(step * self.config.loader.batch_size)).header

    def step(self, number: int) -> Step:
        """Step `number`, made here and now."""
        return self.finish(self.steps.make(number))

    def __iter__(self) -> Iterator[Step]:
        self.close()
        if self.config.loader.num_workers == 0:
            for number in count(self.start_step):
                if number == self.end_step:
                    break
                yield self.step(number)
            return
        self.header(self.start_step)  # built by all cores, before the workers ask for it
        self._ahead = Ahead(self)
        try:
            yield from self._ahead
        finally:
            self.close()

    def finish(self, made: StepParts) -> Step:
        """Tensors of what the workers made."""
        if made.epoch != self._epoch:
            self._epoch = made.epoch
            self._prepare_next(made.epoch)
        batches = tuple(self._expand(part) for part in made.parts)
        num_filled = sum(len(b.ids) - len(p.ids) for b, p in zip(batches, made.parts, strict=True))
        return Step(
            number=made.number,
            epoch=made.epoch,
            micro_batches=batches,
            num_targets=made.num_targets,
            num_tokens=made.num_tokens,
            num_filled=num_filled,
        )

    def _prepare_next(self, epoch: int) -> None:
        epochs, size = self.steps.epochs, self.config.loader.batch_size
        if self.end_step is None or self.end_step * size > epochs.find_end(epoch):
            epochs.advance(epoch)

    def _expand(self, part: Part) -> Batch:
        return expand(
            part,
            self.steps.shape or Shape(len(part.ids), len(part.seconds), len(part.labels)),
            max_length=self.config.instances.max_length,
            pad_id=self.steps.assembler.pad_id,
            pin=self.device is not None,
        )

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes that work ahead; iterating again starts new ones."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self.steps.epochs.close()


class Ahead:
    """A thread that takes steps from workers and makes tensors of them while the model trains."""

    def __init__(self, loader: Loader) -> None:
        steps = loader.steps
        self._workers = Workers(
            steps.store.folder,
            loader.config,
            rank=steps.rank,
            world_size=steps.world_size,
            first=loader.start_step,
            last=loader.end_step,
        )
        self._ready: queue.Queue[Step | Exception | None] = queue.Queue(2)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, args=(loader,), daemon=True)
        self._thread.start()

    def _run(self, loader: Loader) -> None:
        try:
            if loader.device is not None:
                torch.cuda.set_device(loader.device)
            for made in self._workers:
                self._put(loader.finish(made))
            self._put(None)
        except Exception as error:  # for the one who waits for the step
            self._put(error)

    def _put(self, item: Step | Exception | None) -> None:
        while not self._is_closed:
            try:
                self._ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Step]:
        while True:
            item = self._ready.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self._is_closed = True
        self._workers.stop()
        self._thread.join()
        self._workers.close()


def expand(part: Part, shape: Shape, *, max_length: int, pad_id: int, pin: bool) -> Batch:
    """A Batch of the shape, which is the part's own or larger."""
    size, num_sequences, num_predicted = shape
    sizes = [size, size, size, num_sequences + 1, num_predicted, num_predicted, num_sequences]
    # One block of memory: pinning is dear.
    tensors = torch.split(torch.empty(sum(sizes), dtype=torch.int64, pin_memory=pin), sizes)
    ids, segments, positions, bounds, predicted, labels, pair_labels = (t.numpy() for t in tensors)
    t, n, m = len(part.ids), len(part.seconds), len(part.labels)
    ids[:t], ids[t:] = part.ids, pad_id
    bounds[: n + 1] = part.bounds
    bounds[n + 1 :] = np.minimum(t + max_length * np.arange(1, num_sequences - n + 1), size)
    lengths = np.diff(bounds)
    np.subtract(np.arange(size), np.repeat(bounds[:-1], lengths), out=positions)
    seconds = np.concatenate([part.seconds, np.full(num_sequences - n, max_length)])
    segments[:] = positions >= np.repeat(seconds, lengths)
    predicted[:m], predicted[m:] = part.predicted, np.arange(m, num_predicted) % size
    labels[:m], labels[m:] = part.labels, IGNORED
    pair_labels[:n], pair_labels[n:] = part.pair_labels, IGNORED
    pair_labels[:n][part.pair_labels < 0] = IGNORED
    return Batch._make([*tensors[:4], max_length, *tensors[4:]])
