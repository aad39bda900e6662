"""What a server has done, in the text format that Prometheus reads."""

import resource
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
Labels = tuple[tuple[str, str], ...]


@dataclass(kw_only=True, slots=True)
class Count:
    """A number for each set of labels, that only grows."""

    name: str
    help: str
    values: Counter[Labels] = field(default_factory=Counter)

    def add(self, amount: int = 1, **labels: str) -> None:
        self.values[tuple(labels.items())] += amount

    def lines(self) -> Iterator[str]:
        yield from header(self.name, self.help, "counter")
        for labels, value in self.values.items():
            yield f"{self.name}{show(labels)} {value}"


@dataclass(kw_only=True, slots=True)
class Histogram:
    """How often values were at most so large, for each set of labels."""

    name: str
    help: str
    bounds: tuple[float, ...]
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=dict)

    def see(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value

    def lines(self) -> Iterator[str]:
        yield from header(self.name, self.help, "histogram")
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{show((*labels, ('le', str(bound))))} {total}"
            yield f"{self.name}_sum{show(labels)} {self.sums[labels]:.9g}"
            yield f"{self.name}_count{show(labels)} {total}"


class Metrics:
    """All of a server's numbers; touched by the event loop alone."""

    def __init__(self) -> None:
        self.requests = Count(name="bertie_requests_total", help="Requests, by how they ended.")
        self.tokens = Count(
            name="bertie_tokens_total", help="Tokens computed, estimated by characters."
        )
        self.texts = Count(name="bertie_texts_total", help="Texts computed.")
        self.latency = Histogram(
            name="bertie_request_seconds", help="From request to answer.", bounds=SECONDS
        )
        self.batch_texts = Histogram(name="bertie_batch_texts", help="Of a batch.", bounds=SIZES)
        self.batch_tokens = Histogram(
            name="bertie_batch_tokens", help="Of a batch, estimated by characters.", bounds=SIZES
        )
        self.batch_seconds = Histogram(
            name="bertie_batch_seconds", help="To compute a batch.", bounds=SECONDS
        )
        self.now: dict[str, Callable[[], float]] = {  # what can go down again
            "process_resident_memory_bytes": resident_bytes,
        }
        self.started_at = time.time()

    def write(self) -> str:
        lines: list[str] = []
        counts = (self.requests, self.tokens, self.texts)
        histograms = (self.latency, self.batch_texts, self.batch_tokens, self.batch_seconds)
        for one in (*counts, *histograms):
            lines += one.lines()
        for name, read in self.now.items():
            lines += [*header(name, "Now.", "gauge"), f"{name} {read():.0f}"]
        started = "process_start_time_seconds"
        lines += [*header(started, "Since 1970.", "gauge"), f"{started} {self.started_at:.3f}"]
        return "\n".join(lines) + "\n"


def header(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def show(labels: Labels) -> str:
    """
    >>> show((("model", "a"), ("verb", "fill")))
    '{model="a",verb="fill"}'
    """
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def resident_bytes() -> float:
    """Of this process; where the system does not say it, the most there has been."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
