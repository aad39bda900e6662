"""Training steps and evaluation batches of encoded examples.

Step k of a run is a pure function of the instances, the settings and k: draw i of an epoch is the
p(i)-th, p a shuffle keyed by (seed, epoch). A step takes `batch_size` draws; the last of an epoch
takes what is left, so that an epoch sees each once. Instances that are drawn together may lie in
several micro-batches: a long text has more windows than the memory holds.
"""

# T tokens   N inputs   G instances   B instances of a step

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from bertie.data.chance import Ints, Permutation, stream
from bertie.data.masking import runs
from bertie.data.steps import deal
from bertie.errors import UserError
from bertie.tasks.instances import Instances, TaskBatch

CHUNK = 4096  # instances sorted by length at a time, when evaluating


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStep:
    """A global step: one rank's micro-batches, as many on every rank, and counts of all of them."""

    number: int
    epoch: int
    micro_batches: tuple[TaskBatch, ...]
    num_targets: dict[str, float]  # of all ranks and micro-batches: the sum of the weights
    num_tokens: int  # of all ranks and micro-batches
    filled_share: ClassVar[float] = 0.0  # batches have the shapes they have


class TaskLoader:
    """The steps of a run from `start_step` on, to before `end_step` if it is given."""

    def __init__(
        self,
        instances: Instances,
        *,
        batch_size: int = 32,
        micro_tokens: int = 16_384,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        end_step: int | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("micro_tokens", micro_tokens)):
            if value < 1:
                raise UserError(f"{name} is at least 1; found {value}")
        if not 0 <= rank < world_size:
            raise UserError(f"rank is 0 to world_size - 1; found {rank} of {world_size}")
        self.instances = instances
        is_labelled = np.add.reduceat(instances.weights, instances.draws[:-1]) > 0
        self.trained = np.flatnonzero(is_labelled)  # the draws that have a label
        if not len(self.trained):
            raise UserError("there is no labelled example to train on")
        self.batch_size, self.micro_tokens, self.seed = batch_size, micro_tokens, seed
        self.rank, self.world_size = rank, world_size
        self.start_step, self.end_step = start_step, end_step
        self._lengths = instances.lengths  # (G,)

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.trained) // self.batch_size)

    def __iter__(self) -> Iterator[TaskStep]:
        for number in count(self.start_step):
            if number == self.end_step:
                return
            yield self.step(number)

    def step(self, number: int) -> TaskStep:
        """Step `number` of the run, counted from 0."""
        epoch, place = divmod(number, self.steps_per_epoch)
        start = place * self.batch_size
        places = np.arange(start, min(start + self.batch_size, len(self.trained)))
        draws = self.trained[Permutation(len(self.trained), stream(self.seed, epoch))(places)]
        firsts, ends = self.instances.draws[draws], self.instances.draws[draws + 1]
        drawn = runs(firsts, ends - firsts)  # (B,)
        lengths = self._lengths[drawn]
        ranks, micro = share_out(lengths, self.world_size, self.micro_tokens)
        batches = []
        for batch in range(int(micro.max()) + 1):
            own = np.flatnonzero((ranks == self.rank) & (micro == batch))
            own = own[np.argsort(-lengths[own], kind="stable")]
            if len(own):
                batches.append(self.instances.take(drawn[own]))
            else:  # all ranks run the same number: one more, of no weight
                batches.append(self.instances.take(drawn[:1], weights=np.zeros(1, np.float32)))
        return TaskStep(
            number=number,
            epoch=epoch,
            micro_batches=tuple(batches),
            num_targets={"task": float(self.instances.weights[drawn].sum(dtype=np.float64))},
            num_tokens=int(lengths.sum()),
        )


def share_out(lengths: Ints, world_size: int, micro_tokens: int) -> tuple[Ints, Ints]:
    """(B,) -> the rank and the micro-batch of each instance, (B,) each; all weigh about the same.

    As few micro-batches as keep the budget; an instance that exceeds it is alone in its own.
    """
    order = np.argsort(-lengths, kind="stable")
    place = np.arange(len(lengths))
    rank, place_in_rank = deal(place, world_size), place // world_size
    count = -(-int(np.bincount(rank, lengths[order]).max()) // micro_tokens)
    while True:
        micro = deal(place_in_rank, count)
        bins = rank * count + micro
        fits = np.bincount(bins, lengths[order]) <= micro_tokens
        if (fits | (np.bincount(bins) <= 1)).all():
            back = np.argsort(order)
            return rank[back], micro[back]
        count += 1


def evaluation_batches(
    instances: Instances, *, micro_tokens: int
) -> Iterator[tuple[Ints, TaskBatch]]:
    """All instances once, those of similar length together: their numbers, and the batch."""
    lengths = instances.lengths
    for start in range(0, len(instances), CHUNK):
        numbers = np.arange(start, min(start + CHUNK, len(instances)))
        numbers = numbers[np.argsort(-lengths[numbers], kind="stable")]
        first = num_tokens = 0
        for place, number in enumerate(numbers):
            if num_tokens + lengths[number] > micro_tokens and place > first:
                yield numbers[first:place], instances.take(numbers[first:place])
                first, num_tokens = place, 0
            num_tokens += int(lengths[number])
        yield numbers[first:], instances.take(numbers[first:])


@torch.no_grad()
def predict(
    model: nn.Module, instances: Instances, *, micro_tokens: int = 16_384, precision: str = "fp32"
) -> list[np.ndarray]:
    """The logits of each input, in order: (C,) of a head on sequences, (L, C) of one on tokens."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    outputs: list[np.ndarray] = [np.zeros(0)] * (len(instances.bounds) - 1)
    for numbers, batch in evaluation_batches(instances, micro_tokens=micro_tokens):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            (logits,) = model(*batch.to(device)[:5])
        found = logits.float().cpu().numpy()
        is_of_tokens = len(found) == len(batch.ids)  # every input has at least two
        parts = np.split(found, batch.bounds[1:-1].numpy()) if is_of_tokens else list(found)
        inputs = [n for g in numbers for n in range(instances.groups[g], instances.groups[g + 1])]
        for number, part in zip(inputs, parts, strict=True):
            outputs[number] = part
    model.train(was_training)
    return outputs
