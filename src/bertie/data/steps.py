"""A global step in numpy: which instances, which rank and micro-batch each goes to, and its masks.

`Steps.make(k)` depends on nothing but the store, the settings, k, the rank and the number of ranks.
"""

# B instances of a global step   T tokens in a row   N sequences   M predicted tokens

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bertie.data.assemble import Assembler, find_seconds
from bertie.data.chance import Ints
from bertie.data.epochs import Drawn, Epochs
from bertie.data.instances import InstanceConfig, row_lengths
from bertie.data.masking import MAX_SEQUENCES, MaskConfig, count_predicted, find_budgets, mask
from bertie.data.store import Store
from bertie.errors import UserError

TERMS = {"nsp": "nsp", "sentences": "nsp", "sop": "sop"}  # kind -> the loss of its pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """How instances become steps and micro-batches."""

    batch_size: int = 256  # instances of a global step, over all ranks
    micro_tokens: int = 0  # most tokens of a micro-batch; 0: training finds what fits the memory
    seed: int = 0
    num_workers: int = 0  # processes that work ahead; 0: none, steps are made when asked for
    prefetch: int = 2  # steps each worker is ahead
    fill: bool = False  # micro-batches are filled up to fixed shapes by a tail that is ignored
    max_sequences: int | None = None  # of a filled micro-batch; none: for lengths of 80% on average
    max_predicted: int | None = None  # of a filled micro-batch; none: what the mask rate gives

    def __post_init__(self) -> None:
        if self.batch_size > MAX_SEQUENCES:
            raise UserError(f"batch_size is at most {MAX_SEQUENCES:,}; found {self.batch_size:,}")
        for name in ("batch_size", "prefetch", "max_sequences", "max_predicted"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is at least 1; found {value}")
        for name in ("num_workers", "micro_tokens"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is at least 0; found {getattr(self, name)}")

    @property
    def most_tokens(self) -> int:
        """Of a micro-batch, where nobody has looked at the memory too."""
        return self.micro_tokens or 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """From a store to batches."""

    instances: InstanceConfig = field(default_factory=InstanceConfig)
    masking: MaskConfig = field(default_factory=MaskConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)


class Shape(NamedTuple):
    """Most tokens, sequences and predicted tokens of a filled micro-batch."""

    num_tokens: int
    num_sequences: int
    num_predicted: int


class Part(NamedTuple):
    """A micro-batch in few bytes; the loader makes a Batch of it."""

    ids: np.ndarray  # (T,)
    bounds: Ints  # (N + 1,)
    seconds: Ints  # (N,) position at which segment 1 begins
    predicted: Ints  # (M,)
    labels: np.ndarray  # (M,)
    pair_labels: np.ndarray  # (N,) int8; -1: none


class StepParts(NamedTuple):
    """One rank's part of a global step, and the counts of the whole of it."""

    number: int
    epoch: int  # of its first instance
    parts: list[Part]
    num_targets: dict[str, int]  # of all ranks: mlm, or lm and back; and nsp or sop
    num_tokens: int  # of all ranks


def find_shape(config: DataConfig) -> Shape | None:
    """The fixed shape of micro-batches, if they have one."""
    loader, max_length = config.loader, config.instances.max_length
    if not loader.fill:
        return None
    num_tokens = loader.most_tokens
    # The tail counts as sequences too.
    num_sequences = loader.max_sequences or -(-5 * num_tokens // (4 * max_length)) + 2
    num_predicted = loader.max_predicted or int(
        config.masking.predicted_share * num_tokens + num_sequences / 2
    )
    return Shape(num_tokens, num_sequences, num_predicted)


def fit_micro_tokens(
    config: DataConfig, samples: Sequence[Ints], *, world_size: int, at_most: int
) -> int:
    """The micro_tokens, at most what memory allows, that waste the least on tails.

    `samples` are the lengths of some steps' instances. A shape just above the mean is too small for
    many a step, which then takes a micro-batch more, nearly empty; a large one has long tails.
    """
    least, batch_size = 2 * config.instances.max_length, len(samples[0])
    lengths = np.concatenate(samples)
    count = math.ceil(float(lengths.mean()) * batch_size / world_size / at_most)  # of a rank
    while True:
        mean = float(np.mean([find_largest_part(one, world_size, count) for one in samples]))
        deviation = float(lengths.std()) * math.sqrt(batch_size) / (world_size * count)
        size = math.ceil(mean + find_margin(deviation / mean, count) * deviation)
        if size <= max(at_most, least):
            return max(size, least)
        count += 1


def find_largest_part(lengths: Ints, world_size: int, count: int) -> int:
    """Tokens of the largest of `count` micro-batches of all ranks, dealt as `share_out` does."""
    place = np.arange(len(lengths))
    bins = deal(place, world_size) * count + deal(place // world_size, count)
    return int(np.bincount(bins, -np.sort(-lengths)).max())


def find_margin(deviation: float, count: int) -> float:
    """Deviations above the mean at which tails, and now and then a micro-batch more, cost least.

    `deviation` is a share of the mean; one more of `count` micro-batches costs 1 / count.

    >>> find_margin(0.04, 1), find_margin(0.005, 1), find_margin(0.005, 8)
    (2.25, 3.0, 2.25)
    """
    chance = NormalDist()
    margins = [step / 4 for step in range(17)]
    return min(margins, key=lambda m: m * deviation + (1 - chance.cdf(m)) / count)


def check_fit(config: DataConfig, world_size: int) -> None:
    """Refuses settings under which some step could not be shared out."""
    loader, max_length = config.loader, config.instances.max_length
    if loader.batch_size < world_size:
        raise UserError(
            f"batch_size {loader.batch_size} is less than the number of ranks, {world_size}"
        )
    least = 1 if loader.batch_size % world_size == 0 else 2  # instances a micro-batch must take
    if loader.most_tokens < least * max_length:
        reason = f", as {world_size} ranks cannot share {loader.batch_size} evenly"
        raise UserError(
            f"micro_tokens must be at least {least} x max_length = {least * max_length}"
            f"{reason if least > 1 else ''}; found {loader.most_tokens}"
        )
    shape = find_shape(config)
    if shape is None:
        return
    budget = int(find_budgets(np.array([max_length]), config.masking)[0])
    for name, found, needed in (
        ("max_sequences", shape.num_sequences, least + -(-shape.num_tokens // max_length)),
        ("max_predicted", shape.num_predicted, least * budget),
    ):
        if found < needed:
            raise UserError(f"{name} must be at least {needed} for these settings; found {found}")


class Steps:
    """Makes any step of a run."""

    def __init__(
        self,
        store: Store,
        config: DataConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        processes: int | None = None,
    ) -> None:
        check_fit(config, world_size)
        self.store, self.config = store, config
        self.rank, self.world_size = rank, world_size
        self.shape = find_shape(config)
        self.epochs = Epochs(
            store,
            config.instances,
            seed=config.loader.seed,
            static_copies=config.masking.static_copies,
            processes=processes,
        )
        self.assembler = Assembler(
            store,
            reads_words=config.masking.unit in ("word", "span"),
            framed=config.instances.framed,
        )

    def make(self, number: int) -> StepParts:
        """Step `number` of the run, counted from 0."""
        masking, drawn = self.config.masking, self._draw(number)
        lengths = self._measure(drawn)
        share, micro = self._share_out(lengths)
        own = np.flatnonzero(share == self.rank)
        # A rank's instances lie in the order of its micro-batches, the longest first in each.
        own = own[np.lexsort((-lengths[own], micro[own]))]
        rows = drawn.rows[own]
        sequences = self.assembler.assemble(rows, drawn.keys[own])
        masked = mask(sequences, masking, self.assembler.vocabulary)
        num_predicted = len(masked.predicted)
        if self.world_size > 1:
            others = np.flatnonzero(share != self.rank)
            rest = self.assembler.assemble(drawn.rows[others], drawn.keys[others])
            num_predicted += count_predicted(rest, masking, self.assembler.vocabulary)
        words = ("lm", "back") if masking.unit == "next" else ("mlm",)
        num_targets = dict.fromkeys(words, num_predicted)
        if self.config.instances.kind in TERMS:
            num_pairs = int((drawn.rows["label"] >= 0).sum())
            num_targets[TERMS[self.config.instances.kind]] = num_pairs
        whole = Part(
            masked.ids,
            sequences.bounds,
            find_seconds(rows, lengths[own]),
            masked.predicted,
            masked.labels,
            rows["label"],
        )
        parts = divide(whole, np.bincount(micro[own]))
        return StepParts(number, drawn.epoch, parts, num_targets, int(lengths.sum()))

    def lengths(self, number: int) -> Ints:  # (B,)
        """Of all instances of a step, over all ranks."""
        return self._measure(self._draw(number))

    def _draw(self, number: int) -> Drawn:
        size = self.config.loader.batch_size
        return self.epochs.draw(number * size, (number + 1) * size)

    def _measure(self, drawn: Drawn) -> Ints:  # (B,)
        return row_lengths(drawn.rows, framed=self.config.instances.framed)

    def _share_out(self, lengths: Ints) -> tuple[Ints, Ints]:
        budgets = find_budgets(lengths, self.config.masking)
        return share_out(
            lengths,
            budgets,
            world_size=self.world_size,
            micro_tokens=self.config.loader.most_tokens,
            max_length=self.config.instances.max_length,
            shape=self.shape,
        )


def share_out(
    lengths: Ints,
    budgets: Ints,
    *,
    world_size: int,
    micro_tokens: int,
    max_length: int,
    shape: Shape | None,
) -> tuple[Ints, Ints]:
    """(B,), (B,) -> the rank and the micro-batch of each instance, (B,) each.

    Every rank has the same number of micro-batches, the smallest that keeps all limits; all are of
    about the same length and none is empty.
    """
    order = np.argsort(-lengths, kind="stable")
    place = np.arange(len(lengths))
    rank, place_in_rank = deal(place, world_size), place // world_size
    least = -(-int(np.bincount(rank, lengths[order]).max()) // micro_tokens)
    for count in range(least, len(lengths) // world_size + 1):
        micro = deal(place_in_rank, count)
        bins, size = rank * count + micro, world_size * count
        num_tokens = np.bincount(bins, lengths[order], size)
        ok = (num_tokens <= micro_tokens).all()
        if shape is not None:
            num_tail = np.ceil((shape.num_tokens - num_tokens) / max_length)
            ok &= (np.bincount(bins, minlength=size) + num_tail <= shape.num_sequences).all()
            ok &= (np.bincount(bins, budgets[order], size) <= shape.num_predicted).all()
        if ok:
            back = np.argsort(order)
            return rank[back], micro[back]
    raise AssertionError("check_fit let settings pass that do not fit")


def deal(places: Ints, num_hands: int) -> Ints:
    """Deals sorted things to and fro, so that the hands weigh about the same.

    >>> deal(np.arange(7), 3)
    array([0, 1, 2, 2, 1, 0, 0])
    """
    turn = places % (2 * num_hands)
    return np.where(turn < num_hands, turn, 2 * num_hands - 1 - turn)


def divide(whole: Part, counts: Ints) -> list[Part]:
    """Cuts a rank's share into micro-batches of `counts` sequences each."""
    ends = np.concatenate([[0], np.cumsum(counts)])  # in sequences
    places = whole.bounds[ends]  # in tokens
    predicted = np.searchsorted(whole.predicted, places)
    return [
        Part(
            whole.ids[places[n] : places[n + 1]],
            whole.bounds[ends[n] : ends[n + 1] + 1] - places[n],
            whole.seconds[ends[n] : ends[n + 1]],
            whole.predicted[predicted[n] : predicted[n + 1]] - places[n],
            whole.labels[predicted[n] : predicted[n + 1]],
            whole.pair_labels[ends[n] : ends[n + 1]],
        )
        for n in range(len(counts))
    ]
