"""What fine-tuning found, over seeds and settings, and what to make of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bertie.errors import UserError
from bertie.metrics.classes import Calibration, ClassScore
from bertie.metrics.intervals import mean, spread

Setting = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneRun:
    """One training, from one seed."""

    seed: int
    settings: Mapping[str, Setting]  # what differs between runs: rate, batch size, epochs
    scores: Mapping[str, float]  # on dev, of the epoch that was kept; none: it broke down
    seconds: float
    curve: tuple[float, ...] = ()  # the score that counts, of each evaluation (epoch)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongExample:
    """Where the model was wrong, and how sure it was."""

    text: str
    gold: str
    predicted: str
    confidence: float  # 0 to 1; not a number where the task has none
    place: str  # file and line, or the question's id


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneResults:
    """All runs, and the details of the best one; what a task does not have stays empty."""

    name: str  # of the data
    task: str
    model: str  # what was fine-tuned
    metric: str  # the score that counts; every run that learned has it, and more is better
    runs: tuple[FinetuneRun, ...]
    num_train: int  # examples
    num_dev: int
    command: str
    settings: Mapping[str, Setting] = field(default_factory=dict)  # the same in all runs
    majority: float | None = None  # the metric of always giving the same answer, the best one
    interval: tuple[float, float] | None = None  # 95% bootstrap interval of the best run
    class_scores: Mapping[str, ClassScore] = field(default_factory=dict)  # per class or span type
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()  # (C, C), rows gold, in the order of `labels`
    calibration: Calibration | None = None
    gold_and_predicted: tuple[tuple[float, float], ...] = ()  # of regression
    thresholds: Mapping[str, float] = field(default_factory=dict)  # fitted on dev
    errors: tuple[WrongExample, ...] = ()  # the worst first
    cost: Mapping[str, str] = field(default_factory=dict)  # device, memory, ...
    tests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # file -> scores
    data: tuple[str, ...] = ()  # how the files were understood
    notes: tuple[str, ...] = ()  # truncated texts, skipped rows: what the reader must know

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("a fine-tuning report needs at least one run; found none")
        for run in self.runs:
            if run.scores and self.metric not in run.scores:
                known = ", ".join(run.scores)
                raise UserError(f"seed {run.seed} has no score {self.metric!r}; it has: {known}")
        if self.confusion and len(self.confusion) != len(self.labels):
            num_rows, num_labels = len(self.confusion), len(self.labels)
            raise UserError(f"a confusion of {num_rows} rows does not fit {num_labels} labels")

    def score(self, run: FinetuneRun) -> float:
        """The score that counts; that of a run which broke down is not a number."""
        value = float(run.scores.get(self.metric, math.nan))
        return value if math.isfinite(value) else math.nan

    def best(self) -> FinetuneRun:
        return max(self.runs, key=self.rank)

    def rank(self, run: FinetuneRun) -> tuple[bool, float]:
        """What runs are compared by; one without scores has no model either."""
        return bool(run.scores), -math.inf if self.is_broken(run) else self.score(run)

    def is_broken(self, run: FinetuneRun) -> bool:
        return math.isnan(self.score(run))

    def is_stuck(self, run: FinetuneRun) -> bool:
        """Whether it broke down, or is no better than giving the same answer always.

        Where that is all there is to do, what is perfect is not stuck.
        """
        score = self.score(run)
        return self.is_broken(run) or (
            self.majority is not None and score <= self.majority and score < 1
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs that differ in their seed alone."""

    settings: Mapping[str, Setting]
    runs: tuple[FinetuneRun, ...]
    mean: float
    spread: float  # standard deviation of the sample
    best: float


def groups(results: FinetuneResults) -> list[Group]:
    """Runs of equal settings together, the best mean first."""
    members: dict[str, list[FinetuneRun]] = {}
    for run in results.runs:
        members.setdefault(repr(sorted(run.settings.items())), []).append(run)
    found = [make_group(results, runs) for runs in members.values()]
    return sorted(found, key=lambda g: -math.inf if math.isnan(g.mean) else g.mean, reverse=True)


def make_group(results: FinetuneResults, runs: Sequence[FinetuneRun]) -> Group:
    scores = [results.score(run) for run in runs]
    return Group(
        settings=runs[0].settings,
        runs=tuple(runs),
        mean=mean(scores),
        spread=spread(scores),
        best=max((score for score in scores if not math.isnan(score)), default=math.nan),
    )


def group_of(results: FinetuneResults, run: FinetuneRun) -> Group:
    return next(group for group in groups(results) if run in group.runs)
