"""What a fine-tuning task is: read, encode, head, objective, decode, score.

A task is a frozen dataclass of its settings. What a recipe leaves open (labels, columns, kind) is
settled by the training data; settled, it is what the model directory remembers.

    task = Classify(max_length=128)
    train = task.read(Path("train.csv"), needs_labels=True)
    task = task.settle(train)
    instances = task.encode(train.examples, tokenizer)
    ...                                     # TaskLoader, task.objective, predict
    predictions = task.decode(dev.examples, instances, outputs)
    task.score(dev.examples, predictions)[task.metric]
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from torch import nn

from bertie.data.blocks import Problems
from bertie.errors import UserError
from bertie.objectives import Term
from bertie.tasks.instances import Instances, TaskBatch
from bertie.text.tokenizer import Tokenizer

SHORTEST = 8  # pieces of an input
E = TypeVar("E")  # an example
P = TypeVar("P")  # a prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset(Generic[E]):
    """Examples of a file, and how it was understood."""

    path: Path
    format: str  # in words, to be shown
    examples: list[E]
    columns: Mapping[str, str] = field(default_factory=dict)  # role -> column, to be shown
    is_labelled: bool = True
    problems: Problems = field(default_factory=Problems)  # what was left out, by kind
    benchmark: str = ""  # the name of a known set, which brings labels and a metric along


class Task(Protocol[E, P]):
    """What the four tasks have in common; nothing inherits from it."""

    @property
    def head(self) -> str: ...
    @property
    def columns(self) -> dict[str, str]:
        """Role -> column of a table, where it is not guessed."""

    @property
    def num_labels(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that may decide."""

    @property
    def metric(self) -> str:
        """The score that decides, one of `score`'s."""

    def read(self, path: Path, *, skip_bad: bool = False, needs_labels: bool = False) -> Dataset[E]:
        """The examples of a file. Labels are needed to train, not to predict."""

    def settle(self, train: Dataset[E]) -> Self:
        """With all that the training data decide."""

    def encode(self, examples: Sequence[E], tokenizer: Tokenizer) -> Instances: ...
    def objective(self, model: nn.Module, batch: TaskBatch) -> dict[str, Term]: ...
    def tune(
        self, examples: Sequence[E], instances: Instances, outputs: Sequence[np.ndarray]
    ) -> Self:
        """With thresholds fitted on labelled examples, where the task has any."""

    def decode(
        self, examples: Sequence[E], instances: Instances, outputs: Sequence[np.ndarray]
    ) -> list[P]: ...
    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]: ...


AnyTask = Task[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejects:
    """What becomes of a row that cannot be used: an error, or if so wished a count."""

    skip_bad: bool = False
    problems: Problems = field(default_factory=Problems)

    def add(self, place: str, what: str, advice: str = "mend it") -> None:
        """`what` is the kind of problem, the same words for each of its kind."""
        if not self.skip_bad:
            raise UserError(f"{place}: {what}; {advice}, or leave such rows out: --skip-bad")
        self.leave_out(place, what)

    def leave_out(self, place: str, what: str) -> None:
        """Of a row that the data set itself declares void."""
        self.problems.add(what, lambda _: place, 0)


class Ids:
    """Names of examples, each once."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def is_new(self, name: str, place: str, rejects: Rejects) -> bool:
        if name in self._places:
            advice = f"{name!r} stands first at {self._places[name]}; give each row its own"
            rejects.add(place, "an id for the second time", advice)
            return False
        self._places[name] = place
        return True


def check_some(examples: Sequence[object], path: Path, problems: Problems) -> None:
    if not examples:
        left_out = ", ".join(f"{n} x {what}" for what, n in problems.counts.items())
        raise UserError(f"{path} has no example{f': left out {left_out}' if left_out else ''}")


def check_roles(columns: Mapping[str, str], roles: Iterable[str]) -> None:
    known = tuple(roles)
    for role in columns:
        if role not in known:
            raise UserError(f"no role {role!r} of a column; there are: {', '.join(known)}")


def check_given(data: Dataset[Any], given: Mapping[str, str]) -> None:
    """That a column which was asked for is there; in a file without labels it may not be."""
    for role, name in given.items():
        if data.columns and role not in data.columns:
            found = ", ".join(f"{role} = {name}" for role, name in data.columns.items())
            raise UserError(f"{data.path} has no column {name!r} for {role}; found: {found}")


def check_sizes(max_length: int, stride: int | None) -> None:
    """An input has [CLS], two times [SEP], and some pieces of both texts."""
    if max_length < SHORTEST:
        raise UserError(f"max_length is at least {SHORTEST}; found {max_length}")
    check_positive({"stride": stride})


def check_positive(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if value is not None and value < 1:
            raise UserError(f"{name} is at least 1; found {value}")
