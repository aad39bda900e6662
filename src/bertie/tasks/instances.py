"""Encoded examples in a row, and batches of them: flat, without padding.

An example gives one or more instances, an instance one or more inputs (sequences of ids). A step
draws so many instances, or so many examples with all of their instances; micro-batches divide what
was drawn between instances:

| task | instance | its inputs | drawn |
|---|---|---|---|
| classify | a window; those of an example share its weight | itself | examples |
| tag | a window | itself | instances |
| span | a window, as in the paper's code | itself | instances |
| choice | a window; those of an example share its weight | its options | instances |
"""

# T tokens of all inputs in a row   N inputs   G instances   D draws   E examples   C labels

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertie.data.chance import Ints
from bertie.data.masking import runs
from bertie.text.sequences import fit, num_specials, window_places
from bertie.text.tokenizer import Tokenizer


class TaskBatch(NamedTuple):
    """Inputs in a row; the first five are what the model takes. On the CPU."""

    ids: Tensor  # (T,)
    segments: Tensor  # (T,)
    positions: Tensor  # (T,) counted from 0 in each input
    bounds: Tensor  # (N + 1,) input n is rows bounds[n] .. bounds[n + 1]
    longest: int  # no input is longer
    labels: Tensor  # (G,) or (G, ...) of instances, or (T,) of tokens; what they are, the task says
    weights: Tensor  # (G,) float32, how much each instance counts in the loss
    groups: Tensor  # (G + 1,) instance g is inputs groups[g] .. groups[g + 1]

    def to(self, device: torch.device) -> "TaskBatch":
        moved = [part.to(device, non_blocking=True) for part in self if isinstance(part, Tensor)]
        return TaskBatch._make([*moved[:4], self.longest, *moved[4:]])


class Input(NamedTuple):
    """One sequence as the model takes it, and what is known of its rows."""

    ids: np.ndarray  # (L,)
    second: int  # where segment 1 begins; L if there is none
    labels: np.ndarray | None = None  # (L,) where rows have labels
    places: np.ndarray | None = None  # (L,) or (L, 2) what the rows stand for, for decoding


class Instance(NamedTuple):
    """What is trained together."""

    inputs: Sequence[Input]
    label: float | Sequence[float] = 0  # of the instance, where not of its rows
    weight: float = 1.0  # 0: no label


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Instances:
    """All instances of a data set, in the order of its examples."""

    ids: np.ndarray  # (T,) int32
    bounds: Ints  # (N + 1,)
    seconds: Ints  # (N,) the position at which segment 1 begins
    groups: Ints  # (G + 1,) instance g is inputs groups[g] .. groups[g + 1]
    draws: (
        Ints  # (D + 1,) draw d, what a step takes as a whole, is instances draws[d] .. draws[d + 1]
    )
    examples: Ints  # (E + 1,) example e is inputs examples[e] .. examples[e + 1]
    labels: np.ndarray  # (G,), (G, ...) or (T,)
    labels_rows: bool  # whether the labels are of rows (T,)
    weights: np.ndarray  # (G,) float32
    places: np.ndarray | None  # (T,) or (T, 2)
    num_cut: Ints  # (E,) pieces of each example that did not fit
    counts: Mapping[str, int]  # of what had to be cut, by kind

    def __len__(self) -> int:
        return len(self.groups) - 1

    @property
    def lengths(self) -> Ints:  # (G,) tokens of each instance
        return np.diff(self.bounds[self.groups])

    def inputs_of(self, example: int) -> range:
        return range(int(self.examples[example]), int(self.examples[example + 1]))

    def input(self, number: int) -> Input:
        ids = self.ids[self.bounds[number] : self.bounds[number + 1]]
        return Input(ids, int(self.seconds[number]))

    def places_of(self, number: int) -> np.ndarray:
        """What the rows of an input stand for, (L,) or (L, 2)."""
        assert self.places is not None
        return self.places[self.bounds[number] : self.bounds[number + 1]]

    def take(self, numbers: Ints, *, weights: np.ndarray | None = None) -> TaskBatch:
        """A batch of some instances, in this order; their weights can be others."""
        sizes = self.groups[numbers + 1] - self.groups[numbers]  # (G,)
        inputs = runs(self.groups[numbers], sizes)  # (N,)
        starts, lengths = self.bounds[inputs], self.bounds[inputs + 1] - self.bounds[inputs]  # (N,)
        rows = runs(starts, lengths)  # (T,)
        positions = rows - np.repeat(starts, lengths)
        weights = self.weights[numbers] if weights is None else weights
        return TaskBatch(
            ids=torch.from_numpy(self.ids[rows].astype(np.int64)),
            segments=torch.from_numpy(
                (positions >= np.repeat(self.seconds[inputs], lengths)).astype(np.int64)
            ),
            positions=torch.from_numpy(positions),
            bounds=torch.from_numpy(sums(lengths)),
            longest=int(lengths.max()),
            labels=torch.from_numpy(self.labels[rows if self.labels_rows else numbers]),
            weights=torch.from_numpy(weights.astype(np.float32)),
            groups=torch.from_numpy(sums(sizes)),
        )


def gather(
    encoded: Iterable[Sequence[Instance]],
    *,
    label_type: type[np.generic] = np.int64,
    labels_rows: bool = False,
    draws_examples: bool = False,
    num_cut: Sequence[int] | None = None,
    counts: Mapping[str, int] | None = None,
) -> Instances:
    """The instances of each example, in a row; a step draws examples, or each instance alone."""
    by_example = list(encoded)
    instances = [instance for example in by_example for instance in example]
    inputs = [one for instance in instances for one in instance.inputs]
    per_instance = np.array([len(instance.inputs) for instance in instances], np.int64)
    per_example = [sum(len(instance.inputs) for instance in example) for example in by_example]
    per_draw = [len(example) for example in by_example] if draws_examples else [1] * len(instances)
    places = [one.places for one in inputs if one.places is not None]
    return Instances(
        ids=join([one.ids for one in inputs], np.int32),
        bounds=sums(np.array([len(one.ids) for one in inputs], np.int64)),
        seconds=np.array([one.second for one in inputs], np.int64),
        groups=sums(per_instance),
        draws=sums(np.array(per_draw, np.int64)),
        examples=sums(np.array(per_example, np.int64)),
        labels=join([one.labels for one in inputs if one.labels is not None], label_type)
        if labels_rows
        else np.array([instance.label for instance in instances], label_type),
        labels_rows=labels_rows,
        weights=np.array([instance.weight for instance in instances], np.float32),
        places=join(places, np.int32) if places else None,
        num_cut=np.array(num_cut or [0] * len(by_example), np.int64),
        counts={name: count for name, count in (counts or {}).items() if count},
    )


def join(parts: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)


def sums(counts: Ints) -> Ints:
    """(n,) -> (n + 1,) where each begins, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Framer:
    """Puts [CLS] and [SEP] around pieces."""

    cls_id: int
    sep_id: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Framer":
        config = tokenizer.config
        return cls(cls_id=tokenizer.id(config.cls_token), sep_id=tokenizer.id(config.sep_token))

    def frame(self, first: np.ndarray, second: np.ndarray | None = None) -> Input:
        """[CLS] first [SEP] (second [SEP])"""
        cls, sep = np.array([self.cls_id], np.int32), np.array([self.sep_id], np.int32)
        parts = [cls, first, sep] if second is None else [cls, first, sep, second, sep]
        return Input(np.concatenate(parts), len(first) + 2)

    def windows(
        self, first: np.ndarray, second: np.ndarray | None, max_length: int, stride: int | None
    ) -> list[Input]:
        """All of one text or of a pair, in inputs of at most `max_length`.

        Of a pair, the shorter text stands whole in each window if it takes no more than half the
        room; else both are cut into windows, and the windows of both go side by side from start to
        end. Without a `stride`, windows are half a window apart.
        """
        room = max_length - num_specials(second is not None)
        if second is None:
            return [self.frame(part) for part in cut(first, room, stride)]
        kept = fit(len(first), len(second), room, "longest")
        parts = [cut(t, size, stride) for t, size in zip((first, second), kept, strict=True)]
        count = max(map(len, parts))
        return [self.frame(*(part[n * len(part) // count] for part in parts)) for n in range(count)]


def cut(pieces: np.ndarray, size: int, stride: int | None) -> list[np.ndarray]:
    return [pieces[start:end] for start, end in window_places(len(pieces), size, stride)]
