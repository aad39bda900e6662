"""What studies need: all their runs, those that are equal once, and what of them is done."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.state import STATE, Counters, list_checkpoints
from bertie.data.store import open_store
from bertie.errors import UserError
from bertie.model.config import ModelConfig, train_flops
from bertie.pretrain import data_of
from bertie.report.page import REPORT_JSON
from bertie.study import Pretraining, Scale, Study, Tuning, plan_pretraining, plan_tuning
from bertie.train.budget import Budget

R = TypeVar("R", Pretraining, Tuning)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All runs of a study, or of several."""

    pretrainings: tuple[Pretraining, ...]  # of every row and seed; some may have one folder
    tunings: tuple[Tuning, ...]

    @property
    def to_pretrain(self) -> list[Pretraining]:
        """Those that are not done."""
        return [run for run in once(self.pretrainings) if not is_pretrained(run)]

    @property
    def to_tune(self) -> list[Tuning]:
        return [run for run in once(self.tunings) if not is_tuned(run)]

    @property
    def names(self) -> dict[Path, str]:
        """What the runs are called, by folder; of those that share one, the first."""
        models = {run.folder: name_of(run) for run in reversed(self.pretrainings)}
        return models | {run.folder: name_of(run) for run in reversed(self.tunings)}


class PlannedStudy(NamedTuple):
    """A study to be run: how large, which runs, and where its report goes."""

    study: Study
    scale: Scale
    plan: Plan
    folder: Path


def join(plans: Sequence[Plan]) -> Plan:
    """All runs of some studies, the first seed of each row first: what was stopped is a table."""

    def by_seed(runs: Iterator[R]) -> tuple[R, ...]:
        return tuple(sorted(runs, key=lambda run: run.seed))

    return Plan(
        pretrainings=by_seed(run for plan in plans for run in plan.pretrainings),
        tunings=by_seed(run for plan in plans for run in plan.tunings),
    )


def once(runs: Sequence[R]) -> list[R]:
    """One of those that share a folder; of models, one that is kept at the points of all."""
    found: dict[Path, R] = {}
    for run in runs:
        found[run.folder] = unite(found[run.folder], run) if run.folder in found else run
    return list(found.values())


def unite(one: R, other: R) -> R:
    if not isinstance(one, Pretraining) or not isinstance(other, Pretraining):
        return one
    points = tuple(sorted({*one.points, *other.points}))
    return replace(with_keeping(one, keeping_of(other)), points=points)


class Keeping(NamedTuple):
    """How often a run saves, and how many checkpoints it keeps."""

    save_every: int
    keep: int


def keeping_of(run: Pretraining) -> Keeping:
    return Keeping(run.recipe.train.save_every, run.recipe.train.keep)


def with_keeping(run: Pretraining, other: Keeping) -> Pretraining:
    """As often and as many as both ask for; these settings change nothing that is learned."""
    own = keeping_of(run)
    often = [steps for steps in (own.save_every, other.save_every) if steps]  # 0: at evaluations
    train = replace(
        run.recipe.train, save_every=min(often, default=0), keep=max(own.keep, other.keep)
    )
    return replace(run, recipe=replace(run.recipe, train=train))


def is_pretrained(run: Pretraining) -> bool:
    """Whether the model is there, and one of its own for each point on the way."""
    if not is_made(run):
        return False
    try:
        find_starts(run)
    except UserError:
        return False
    return True


def is_made(run: Pretraining) -> bool:
    return (run.folder / "model" / "config.json").is_file()


def is_tuned(run: Tuning) -> bool:
    return (run.folder / REPORT_JSON).is_file()


def plan_study(study: Study, scale: Scale) -> Plan:
    """Checks all settings and files before anything starts."""
    store = open_store(scale.corpus)
    pretrainings = [settle(run) for run in plan_pretraining(study, scale, store)]
    tunings = plan_tuning(study, scale, pretrainings)
    for run in tunings:
        for path in (run.recipe.data.train, run.recipe.data.dev):
            if path is not None and not path.is_file():
                raise UserError(
                    f"the task {run.task} reads {path}, which is not there; see --data, or leave "
                    "it out with --tasks"
                )
    return Plan(pretrainings=tuple(pretrainings), tunings=tuple(tunings))


def settle(run: Pretraining) -> Pretraining:
    """Where it goes on, or begins: a run that was begun keeps what it was to keep.

    Where an equal run is done that kept no models on the way, in a folder of its own; but not if it
    was to keep them as this one is, and would do no better again.
    """
    begun = read_keeping(run)
    if not is_made(run):
        return run if begun is None else with_keeping(run, begun)
    if is_pretrained(run):
        return run
    if begun == keeping_of(run):
        find_starts(run)  # says what is missing
    folder = run.folder.with_name(f"{run.folder.name}-kept")
    return settle(replace(run, folder=folder, recipe=replace(run.recipe, out=folder)))


def read_keeping(run: Pretraining) -> Keeping | None:
    """Of the run that wrote the newest checkpoint; none if there is none."""
    for folder in reversed(list_checkpoints(run.folder)):
        train = read_json(folder / STATE)["settings"]["train"]
        return Keeping(train["save_every"], train["keep"])
    return None


def describe_cost(plan: Plan) -> Iterator[str]:
    """What is left to do, before it starts."""
    left = plan.to_pretrain
    done = len(once(plan.pretrainings)) - len(left)
    yield f"pre-training: {len(left)} runs to do, {done} done"
    by_unit: dict[str, list[Pretraining]] = {"minutes": [], "tokens": []}
    for run in left:
        by_unit[Budget.parse(run.recipe.train.budget).unit].append(run)
    if timed := by_unit["minutes"]:
        yield f"  {add_budgets(timed):,.12g} minutes, one after the other"
    if counted := by_unit["tokens"]:
        operations = sum(map(count_operations, counted))
        yield f"  {add_budgets(counted):,.0f} tokens, about {operations:.1e} operations"
    to_tune = plan.to_tune
    done = len(once(plan.tunings)) - len(to_tune)
    yield f"fine-tuning: {len(to_tune)} runs to do, {done} done"


def add_budgets(runs: Sequence[Pretraining]) -> float:
    return sum(Budget.parse(run.recipe.train.budget).amount for run in runs)


def count_operations(run: Pretraining) -> float:
    recipe = run.recipe
    length = recipe.data.instances.max_length
    share = data_of(recipe).masking.predicted_share
    config = recipe.model or ModelConfig()
    each = train_flops(config, length=length, predicted_share=share) / length
    return each * Budget.parse(recipe.train.budget).amount


# --- how far a model was trained ---


class Start(NamedTuple):
    """What a fine-tuning begins with."""

    model: Path
    progress: float  # of the budget of pre-training; a checkpoint lies somewhat behind its point


def find_starts(source: Pretraining) -> dict[float, Start]:
    """The model of each point: of the first checkpoint not before it, but before the next point."""
    found: dict[float, Start] = {}
    for point, end in zip(source.points, (*source.points[1:], 1.0), strict=True):
        start = find_checkpoint_at(source, point)
        if start is None or (point < 1 and start.progress >= end):
            raise UserError(
                f"{source.folder} kept no checkpoint from {point:.0%} to {end:.0%} of its budget; "
                "set a smaller train.save_every or a larger train.keep, and remove it to train it "
                "again"
            )
        found[point] = start
    return found


def find_checkpoint_at(source: Pretraining, point: float) -> Start | None:
    budget = Budget.parse(source.recipe.train.budget)
    for folder in list_checkpoints(source.folder):
        progress = budget.progress(Counters(**read_json(folder / STATE)["counters"]))
        if progress >= point:
            return Start(source.folder / "model" if point == 1 else folder / "model", progress)
    return Start(source.folder / "model", 1.0) if point == 1 else None


def name_of(run: Pretraining | Tuning) -> str:
    name = f"{run.row}, seed {run.seed}"
    if isinstance(run, Pretraining):
        return name
    return f"{name}, {run.task}" + (f" at {run.point:.0%}" if run.point < 1 else "")
