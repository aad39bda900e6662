"""Which of cuBLASLt's ways a large product takes: the fastest, of those that give the same bits.

The library's own first suggestion is often not the fastest. So the first time a large product is
asked for, all that it suggests take turns, round after round: a card changes its clock within a
second, by more than ways differ. And they do so under load: what counts is how fast they are when
the card has come to the limit of its power, as it does in training.

Only ways whose result is equal to that of the first, bit for bit, take part: what is learned does
not depend on what was measured. (The gradients of matrices are torch's: their sums over tokens may
be split, in other parts for each way and number of tokens.)
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from bertie.kernels.cublaslt import Plan, Product, Way

LEAST_OPERATIONS = 5e10  # some 80 microseconds of a large GPU; below, ways are not compared
MOST_WAYS, ROUNDS = 8, 5
TURN_MS, WARM_MS = 4.0, 200.0  # of each way in a round; of all together before the first one
LEAST_GAIN = 0.01  # of the time, to prefer another than the first

CHOSEN: dict[Product, Way] = {}  # by family; what was measured once holds while the process lives


def family_of(product: Product) -> Product:
    """The same for products that differ by some tokens, which are the columns of `out`: batches
    without padding are never alike."""
    return product._replace(n=1 << product.n.bit_length())


class Planned:
    """A plan and its way."""

    def __init__(self, product: Product) -> None:
        self.plan, self.lock = Plan(product), Lock()
        self.family = family_of(product)
        chosen = CHOSEN.get(self.family)
        way = None if chosen is None else self.plan.adopt(chosen)
        self.is_settled = way is not None or product.operations < LEAST_OPERATIONS
        self.way = way or next(iter(self.plan.suggest(1)), None)  # none: there is no way at all

    def run(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        wide: Tensor | None = None,
    ) -> None:
        """Threads that share a plan take turns: what bias and wide are is told to the plan."""
        with self.lock, torch.cuda.device(out.device):
            self.plan.point(bias, wide)
            if self.way is None:
                raise RuntimeError(f"cuBLASLt has no way to do {self.plan.product}")
            if not self.is_settled and not torch.cuda.is_current_stream_capturing():
                self.way = CHOSEN[self.family] = choose_way(self.plan, a, b, out) or self.way
                self.is_settled = True
            if status := self.plan.launch(self.way, a, b, out):
                raise RuntimeError(f"cuBLASLt gave status {status} for {self.plan.product}")


def choose_way(plan: Plan, a: Tensor, b: Tensor, out: Tensor) -> Way | None:
    """The fastest; none if there is no memory to try, or nothing to choose from."""
    try:
        ways = list_equal(plan, a, b, out)
        if len(ways) < 2:
            return None
        scratch = torch.zeros_like(out)
        runs = [partial(plan.launch, way, a, b, scratch) for way in ways]
        return ways[pick(take_turns(runs))]
    except torch.OutOfMemoryError:
        return None


def list_equal(plan: Plan, a: Tensor, b: Tensor, out: Tensor, most: int = MOST_WAYS) -> list[Way]:
    """The library's suggestions that give what the first gives."""
    found: list[Way] = []
    wanted, made = torch.zeros_like(out), torch.zeros_like(out)
    for way in plan.suggest(most):
        if not found:
            if plan.launch(way, a, b, wanted) == 0:
                found.append(way)
        elif plan.launch(way, a, b, made.zero_()) == 0 and torch.equal(made, wanted):
            found.append(way)
    return found


def take_turns(runs: Sequence[Callable[[], Any]]) -> list[list[float]]:
    """Milliseconds of each in every round, as many times in a row; who begins changes."""
    taken: list[list[float]] = [[] for _ in runs]
    once_ms = max(1e-3, sum(time_ms(run, 2) for run in runs) / len(runs))
    repeats = math.ceil(TURN_MS / once_ms)
    for _ in range(math.ceil(WARM_MS / (len(runs) * repeats * once_ms))):
        for run in runs:
            time_ms(run, repeats)
    for turn in range(ROUNDS):
        for place in range(len(runs)):
            number = (turn + place) % len(runs)
            taken[number].append(time_ms(runs[number], repeats))
    return taken


def time_ms(run: Callable[[], Any], repeats: int) -> float:
    """Of one, over some in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def pick(taken: Sequence[Sequence[float]]) -> int:
    """The number of the fastest, if it is faster than the first by more than chance is.

    >>> pick([[1.0, 1.1, 5.0], [0.9, 0.9, 1.3]]), pick([[1.0, 1.0], [0.995, 0.995]])
    (1, 0)
    """
    medians = [median(one) for one in taken]
    best = min(range(len(taken)), key=medians.__getitem__)
    return best if medians[best] < (1 - LEAST_GAIN) * medians[0] else 0
