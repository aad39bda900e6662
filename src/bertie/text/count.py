"""Texts to word counts: streaming, in several processes, in bounded memory, always the same."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from bertie.text.files import TokenizerConfig
from bertie.text.memo import Memo
from bertie.text.processes import in_order, processes
from bertie.text.words import Splitter, mark_false_spaces

CAPACITY = 1 << 20  # different words; with all of them, learning peaks at about 1 GB


class WordCounts(Counter[str]):
    """How often each word came; the rarest are forgotten when there are more than `capacity`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.capacity = capacity
        self.num_forgotten = 0  # occurrences, not words

    def add(self, counts: dict[str, int]) -> None:
        for word, count in counts.items():
            self[word] += count
        floor = 1
        while len(self) > self.capacity:
            rare = [word for word, count in self.items() if count <= floor]
            self.num_forgotten += sum(self.pop(word) for word in rare)
            floor *= 2


class WordCounter:
    """Counts the words of texts by counting chunks, and splitting each kind of chunk once."""

    def __init__(self, config: TokenizerConfig) -> None:
        self.splitter = Splitter(config)
        self.words = Memo(self.splitter.words, capacity=1 << 16, longest=40)

    def count(self, texts: Iterable[str]) -> dict[str, int]:
        chunks: Counter[str] = Counter()
        for text in texts:
            for part in self.splitter.divide(text)[::2]:
                chunks.update(mark_false_spaces(part).split())
        counts: dict[str, int] = {}
        for chunk, count in chunks.items():
            for word in self.words[chunk]:
                counts[word] = counts.get(word, 0) + count
        return counts


def count_words(
    batches: Iterable[Sequence[str]],
    config: TokenizerConfig,
    *,
    workers: int = 1,
    capacity: int = CAPACITY,
) -> WordCounts:
    """Word counts over batches of texts; the same whatever the number of workers."""
    total = WordCounts(capacity)
    for counts in count_each(batches, config, workers=workers):
        total.add(counts)
    return total


def count_each(
    batches: Iterable[Sequence[str]], config: TokenizerConfig, *, workers: int
) -> Iterator[dict[str, int]]:
    """Counts of each batch, in the order of the batches; at most two batches a worker wait."""
    if workers <= 1:
        yield from map(WordCounter(config).count, batches)
        return
    with processes(workers, start_worker, config) as pool:
        yield from in_order(pool, count_in_worker, batches, ahead=2 * workers)


_worker: list[WordCounter] = []  # the counter of this process, if it is a worker


def start_worker(config: TokenizerConfig) -> None:
    _worker[:] = [WordCounter(config)]


def count_in_worker(texts: Sequence[str]) -> dict[str, int]:
    return _worker[0].count(texts)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
