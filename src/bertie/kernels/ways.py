"""Which of cuBLASLt's ways a large product takes: the fastest, of those that give the same bits.

The library's own first suggestion is often not the fastest. So when a large product has been asked
for many times, all that it suggests take turns, round after round: a card changes its clock within
a second, by more than ways differ. And they do so under load: what counts is how fast they are when
the card has come to the limit of its power, as it does in training.

Only ways whose result is equal to that of the first, bit for bit, at the number of tokens at which
they are measured, take part; none of those seen splits its sums, which are of a matrix's rows. (The
gradients of matrices are torch's: their sums over tokens are split, in parts that change with the
way and the number of tokens.)
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from bertie.kernels.cublaslt import Plan, Product, Way

LEAST_OPERATIONS = 5e10  # some 80 microseconds of a large GPU; below, ways are not compared
ASKED_BEFORE = 1000  # times that a family was asked for: short work does not pay for measuring
MOST_WAYS, ROUNDS = 8, 5
TURN_MS, WARM_MS = 4.0, 200.0  # of each way in a round; of all together before the first one
LEAST_GAIN = 0.01  # of the time, to prefer another than the first

# By family, while the process lives: how often it was asked for, and its ways, the fastest first.
ASKED: Counter[Product] = Counter()
CHOSEN: dict[Product, list[Way]] = {}


def is_large(product: Product) -> bool:
    return product.operations >= LEAST_OPERATIONS


def family_of(product: Product) -> Product:
    """The same for products that differ by some tokens, which are the columns of `out`: batches
    without padding are never alike."""
    return product._replace(n=1 << (product.n - 1).bit_length())


class Planned:
    """A plan and its way: the library's first, until its family has been measured."""

    def __init__(self, product: Product) -> None:
        self.lock, self.family = Lock(), family_of(product)
        self.is_settled = not is_large(product)
        with torch.cuda.device(product.device):
            self.plan = Plan(product)
            self.way = next(iter(self.plan.suggest(1)), None)  # none: there is no way at all

    def run(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        wide: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Threads that share a plan take turns: what bias, wide, scale are is told to the plan."""
        with self.lock, torch.cuda.device(out.device):
            self.plan.point(bias, wide, scale)
            if self.way is None:
                raise RuntimeError(f"cuBLASLt has no way to do {self.plan.product}")
            if not self.is_settled and not torch.cuda.is_current_stream_capturing():
                self.settle(a, b, out, wide)
            if status := self.plan.launch(self.way, a, b, out):
                raise RuntimeError(f"cuBLASLt gave status {status} for {self.plan.product}")

    def settle(self, a: Tensor, b: Tensor, out: Tensor, wide: Tensor | None) -> None:
        """Takes the family's way, if it has been measured or can be now."""
        ASKED[self.family] += 1
        if self.family not in CHOSEN and ASKED[self.family] > ASKED_BEFORE:
            if ways := rank_ways(self.plan, a, b, out, wide):
                CHOSEN[self.family] = ways
            else:
                ASKED[self.family] = 0  # perhaps there is memory, or a gradient, another time
        if self.family in CHOSEN:
            adopted = filter(None, map(self.plan.adopt, CHOSEN[self.family]))
            self.way, self.is_settled = next(adopted, self.way), True


def rank_ways(plan: Plan, a: Tensor, b: Tensor, out: Tensor, wide: Tensor | None) -> list[Way]:
    """The fastest first; none where nothing can be said."""
    try:
        ways = list_equal(plan, a, b, out, wide)
        scratch = out.clone()  # what is added is added there
        runs = [partial(plan.launch, way, a, b, scratch) for way in ways]
        return [ways[number] for number in rank(take_turns(runs))] if len(ways) > 1 else ways
    except torch.OutOfMemoryError:
        return []


def list_equal(
    plan: Plan,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    wide: Tensor | None = None,
    most: int = MOST_WAYS,
) -> list[Way]:
    """The library's suggestions that give, and save, what the first gives; `out` stays as it is.

    None where all is zeros, as gradients are when a graph is recorded: these are always equal.
    """
    found: list[Way] = []
    wanted: list[Tensor] | None = None
    for way in plan.suggest(most):
        made = out.clone()
        if plan.launch(way, a, b, made):
            continue
        parts = [made] if wide is None else [made, wide.clone()]
        if wanted is None:
            if not made.any():
                return []
            wanted = parts
        if all(map(torch.equal, parts, wanted)):
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


def rank(taken: Sequence[Sequence[float]]) -> list[int]:
    """Numbers, the fastest first; the first of all stays so if the gain may be chance.

    >>> rank([[1.0, 1.1, 5.0], [0.9, 0.9, 1.3]]), rank([[1.0, 1.0], [0.995, 0.995]])
    ([1, 0], [0, 1])
    """
    medians = [median(one) for one in taken]
    order = sorted(range(len(taken)), key=medians.__getitem__)
    if medians[order[0]] < (1 - LEAST_GAIN) * medians[0]:
        return order
    return [0, *(number for number in order if number)]
