"""The instances of a whole run in order: number -> epoch -> place in it -> row of its index.

Instances are counted from 0 over the run. Epoch after epoch, each row comes exactly once, in an
order of its own; nothing is dropped at the end of an epoch, a step may take from two of them.
"""

from bisect import bisect_right
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np

from bertie.data.chance import Bits, Ints, Permutation, fold, stream
from bertie.data.index import (
    Index,
    IndexSpec,
    build_in_background,
    delete_rows,
    open_index,
    read_counts,
)
from bertie.data.instances import InstanceConfig
from bertie.data.store import Store

SHUFFLE, MASKS = 2, 3  # streams of chance; 1 is the walk
MANY_SENTENCES = 1 << 20  # below, an index is built in less time than a process takes to start


class Drawn(NamedTuple):
    """Instances of a step, in the order of their numbers."""

    rows: np.ndarray  # (B,) ROW
    keys: Bits  # (B,) of their masks
    epoch: int  # of the first


class Epochs:
    """Reads the indexes of a run's epochs, one after the other."""

    def __init__(
        self,
        store: Store,
        config: InstanceConfig,
        *,
        seed: int,
        static_copies: int | None = None,
        processes: int | None = None,  # that build an index, where it is not there
    ) -> None:
        self.store, self.config, self.seed = store, config, seed
        self.static_copies, self.processes = static_copies, processes
        self._ends = [0]  # instances before each epoch
        self._open: dict[int, Index] = {}
        self._background: BaseProcess | None = None
        self._begun = self._freed = 0  # the epoch begun last; those before this one have no rows

    def spec(self, epoch: int) -> IndexSpec:
        """With static copies, epoch e is the same walk as epoch e - copies."""
        version = epoch if self.static_copies is None else epoch % self.static_copies
        return IndexSpec(store=self.store, config=self.config, seed=self.seed, epoch=version)

    def index(self, epoch: int) -> Index:
        version = self.spec(epoch).epoch
        if version not in self._open:
            if len(self._open) > 2:
                del self._open[next(iter(self._open))]
            self._open[version] = open_index(self.spec(epoch), processes=self.processes)
        return self._open[version]

    def find_end(self, epoch: int) -> int:
        """How many instances there are up to the end of an epoch.

        On a disk that has seen the run this reads a small file per epoch; elsewhere each epoch is
        walked once to be counted.
        """
        while len(self._ends) <= epoch + 1:
            number = len(self._ends) - 1
            version = self.spec(number).epoch
            if version < number:  # a static copy that was counted before
                count = self._ends[version + 1] - self._ends[version]
            else:
                count = read_counts(self.spec(number), processes=self.processes).num_instances
            self._ends.append(self._ends[-1] + count)
        return self._ends[epoch + 1]

    def find_epoch(self, instance: int) -> int:
        """The epoch of an instance number."""
        while self._ends[-1] <= instance:
            self.find_end(len(self._ends) - 1)
        return bisect_right(self._ends, instance) - 1

    def draw(self, first: int, last: int) -> Drawn:
        """Instances number `first` .. `last` - 1, over the ends of epochs where need be."""
        rows, keys = [], []
        begun = epoch = self.find_epoch(first)
        while first < last:
            low, high = self._ends[epoch], self.find_end(epoch)
            places = np.arange(first - low, min(last, high) - low)
            some_rows, some_keys = self._rows(epoch, places, high - low)
            rows.append(some_rows)
            keys.append(some_keys)
            first, epoch = min(last, high), epoch + 1
        return Drawn(np.concatenate(rows), np.concatenate(keys), begun)

    def _rows(self, epoch: int, places: Ints, size: int) -> tuple[np.ndarray, Bits]:
        number = Permutation(size, stream(self.seed, epoch, SHUFFLE))(places)
        spec = self.spec(epoch)
        rows = np.asarray(self.index(epoch).rows)[number]
        return rows, fold(stream(self.seed, spec.epoch, MASKS), number)

    def advance(self, epoch: int) -> None:
        """Starts to build what comes after `epoch`, in the background, and frees what lies behind.

        One of the two last epochs may still be wanted, by a slower process or for a step back; of
        a tiny text, those of the step before.
        """
        if self.static_copies is None:
            end = max(self._freed, min(epoch - 1, self._begun))
            for past in range(self._freed, end):
                delete_rows(self.spec(past))
            self._freed, self._begun = end, epoch
        coming = self.spec(epoch + 1)
        if self.store.manifest.num_sentences >= MANY_SENTENCES and coming.epoch == epoch + 1:
            self._background = build_in_background(coming)

    def close(self) -> None:
        if self._background is not None and self._background.is_alive():
            self._background.terminate()
            self._background.join()
