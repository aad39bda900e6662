"""Runs what studies ask for and what is not done yet, and reports what the runs have logged."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.state import STATE, Counters, list_checkpoints
from bertie.data.store import open_store
from bertie.datasets import DataFiles
from bertie.errors import UserError
from bertie.features import make_features
from bertie.finetune import finetune
from bertie.model.config import ModelConfig, train_flops
from bertie.pretrain import data_of, pretrain
from bertie.report.command import show_command
from bertie.report.page import REPORT_JSON
from bertie.report.study import (
    Score,
    StudyResults,
    read_best,
    read_losses,
    read_machine,
    write_study,
)
from bertie.study import Pretraining, Scale, Study, Tuning, plan_pretraining, plan_tuning
from bertie.train.budget import Budget
from bertie.train.log import Show
from bertie.train.loop import Stopped

R = TypeVar("R", Pretraining, Tuning)
START = "start.json"  # of a fine-tuning: the model it started from, and how far that was trained


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
    keeps = other if len(other.points) > len(one.points) else one  # its recipe saves often
    return replace(keeps, points=tuple(sorted({*one.points, *other.points})))


def is_pretrained(run: Pretraining) -> bool:
    """Whether the model is there, and for each point on the way one from before the next point."""
    starts = [find_checkpoint_at(run, point) for point in run.points[:-1]]
    return is_made(run) and all(
        start is not None and start.progress < behind
        for start, behind in zip(starts, run.points[1:], strict=True)
    )


def is_made(run: Pretraining) -> bool:
    return (run.folder / "model" / "config.json").is_file()


def is_tuned(run: Tuning) -> bool:
    return (run.folder / REPORT_JSON).is_file()


def plan_study(study: Study, scale: Scale) -> Plan:
    """Checks all settings and files before anything starts."""
    store = open_store(scale.corpus)
    pretrainings = [with_room(run) for run in plan_pretraining(study, scale, store)]
    tunings = plan_tuning(study, scale, pretrainings)
    for run in tunings:
        for path in (run.recipe.data.train, run.recipe.data.dev):
            if path is not None and not path.is_file():
                raise UserError(
                    f"the task {run.task} reads {path}, which is not there; see --data, or leave "
                    "it out with --tasks"
                )
    return Plan(pretrainings=tuple(pretrainings), tunings=tuple(tunings))


def with_room(run: Pretraining) -> Pretraining:
    """In a folder of its own where an equal run is done that kept no models on the way."""
    if is_made(run) and not is_pretrained(run):
        folder = run.folder.with_name(f"{run.folder.name}-kept")
        return replace(run, folder=folder, recipe=replace(run.recipe, out=folder))
    return run


def describe_cost(plan: Plan) -> Iterator[str]:
    """What is left to do, before it starts."""
    left = plan.to_pretrain
    done = len(once(plan.pretrainings)) - len(left)
    yield f"pre-training: {len(left)} runs to do, {done} done"
    budgets = [Budget.parse(run.recipe.train.budget) for run in left]
    if budgets and budgets[0].unit == "minutes":
        yield f"  {sum(budget.amount for budget in budgets):,.0f} minutes, one after the other"
    elif budgets:
        operations = sum(map(count_operations, left))
        tokens = sum(budget.amount for budget in budgets)
        yield f"  {tokens:,.0f} tokens, about {operations:.1e} operations"
    to_tune = plan.to_tune
    done = len(once(plan.tunings)) - len(to_tune)
    yield f"fine-tuning: {len(to_tune)} runs to do, {done} done"


def count_operations(run: Pretraining) -> float:
    recipe = run.recipe
    length = recipe.data.instances.max_length
    share = data_of(recipe).masking.predicted_share
    config = recipe.model or ModelConfig()
    each = train_flops(config, length=length, predicted_share=share) / length
    return each * Budget.parse(recipe.train.budget).amount


# --- running ---


def run_studies(
    asked: Sequence[PlannedStudy],
    *,
    at_once: int = 1,
    command: Sequence[str] = (),
    show: Show = lambda line: None,
) -> list[Path]:
    """All runs that are not done, some `at_once`; then the reports, from their metrics.

    A run that fails is told at the end, and the others are run all the same.
    """
    plan = join([one.plan for one in asked])
    check_at_once(plan, at_once)
    failed = run_plan(plan, at_once, command, show)
    reports = [write_report(one, command, failed) for one in asked]
    if failed:
        told = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        names = ", ".join(map(str, reports))
        raise UserError(
            f"{len(failed)} runs failed; {names} has the others, and the same command tries these "
            f"again:\n{told}"
        )
    return reports


def write_report(asked: PlannedStudy, command: Sequence[str], failed: Mapping[str, str]) -> Path:
    return write_study(gather(asked, command, failed), asked.folder)


def check_at_once(plan: Plan, at_once: int) -> None:
    """Runs that share a device share its minutes too, and not in equal parts."""
    units = {Budget.parse(run.recipe.train.budget).unit for run in plan.pretrainings}
    if at_once > 1 and "minutes" in units:
        raise UserError(
            "minutes of runs at the same time are no equal budgets; take a budget in tokens, or "
            "--at-once 1"
        )


class Work(NamedTuple):
    """A run, and what does it."""

    do: Callable[[Any, Show], None]
    run: Pretraining | Tuning


def run_plan(plan: Plan, at_once: int, command: Sequence[str], show: Show) -> dict[str, str]:
    """What failed, by name, and why. A model is fine-tuned as soon as it is there."""
    first = [Work(partial(run_pretraining, command=command), run) for run in plan.to_pretrain]
    missing = {work.run.folder for work in first}
    ready: list[Work] = []
    behind: dict[Path, list[Work]] = {}  # by the folder of the model that they wait for
    for run in plan.to_tune:
        work = Work(partial(run_tuning, command=command), run)
        if run.source.folder in missing:
            behind.setdefault(run.source.folder, []).append(work)
        elif is_pretrained(run.source):
            ready.append(work)
    if at_once > 1:
        return run_in_processes([*first, *ready], behind, at_once, show)
    return run_in_turn([*first, *ready], behind, show)


def run_in_turn(
    works: Sequence[Work], behind: Mapping[Path, Sequence[Work]], show: Show
) -> dict[str, str]:
    failed, left, number = {}, list(works), 0
    while left:
        (do, run), number = left.pop(0), number + 1
        show({"note": f"{number} of {number + len(left)}: {name_of(run)}"})
        try:
            do(run, show)
            left += behind.get(run.folder, ())
        except Stopped:
            raise
        except Exception as error:  # whatever it is, it says nothing of the others
            failed[name_of(run)] = describe_failure(error)
            show({"warning": f"{name_of(run)}: {failed[name_of(run)]}"})
    return failed


def run_in_processes(
    works: Sequence[Work], behind: Mapping[Path, Sequence[Work]], at_once: int, show: Show
) -> dict[str, str]:
    """Spawned, so that each has a device of its own; what they say is in their metrics.jsonl."""
    failed, number = {}, 0
    with ProcessPoolExecutor(at_once, get_context("spawn")) as pool:

        def begin(works: Sequence[Work]) -> dict[Future[None], Pretraining | Tuning]:
            return {pool.submit(work.do, work.run, silence): work.run for work in works}

        waiting = begin(works)
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    run, number = waiting.pop(future), number + 1
                    name = name_of(run)
                    try:
                        future.result()
                        waiting |= begin(behind.get(run.folder, ()))
                        show({"note": f"{number} of {number + len(waiting)} done: {name}"})
                    except Stopped:
                        raise
                    except Exception as error:  # whatever it is
                        failed[name] = describe_failure(error)
                        show({"warning": f"{name}: {failed[name]}"})
        except BaseException:  # such as Stopped: what has begun saves itself, the rest never begins
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def describe_failure(error: BaseException) -> str:
    """What is no message to people has its kind before its first line."""
    if isinstance(error, UserError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "no message")
    return f"{type(error).__name__}: {first}"


def silence(line: object) -> None:
    """Shows nothing."""


def name_of(run: Pretraining | Tuning) -> str:
    name = f"{run.row}, seed {run.seed}"
    if isinstance(run, Pretraining):
        return name
    return f"{name}, {run.task}" + (f" at {run.point:.0%}" if run.point < 1 else "")


def run_pretraining(run: Pretraining, show: Show, *, command: Sequence[str]) -> None:
    pretrain(run.recipe, command=command, show=show)


def run_tuning(run: Tuning, show: Show, *, command: Sequence[str]) -> None:
    start = find_starts(run.source)[run.point]
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(run.folder / START, {"model": str(start.model), "progress": start.progress})
    if run.is_frozen:
        tune_head(run, start.model, show, command=command)
    else:
        recipe = replace(run.recipe, model=start.model, out=run.folder)
        finetune(recipe, command=command, show=show)


def tune_head(run: Tuning, model: Path, show: Show, *, command: Sequence[str]) -> None:
    """A head on the features of the files, which are removed when it is trained."""
    stores, files = run.folder.with_name(f"{run.folder.name}-features"), run.recipe.data
    made = {}
    for name, path in (("train", files.train), ("dev", files.dev)):
        if path is not None:
            made[name] = stores / name
            task = {key: value for key, value in run.recipe.task.items() if key != "metric"}
            make_features(
                model,
                path,
                made[name],
                task=task,
                skip_bad=files.skip_bad,
                device=run.head.train.device,
            )
    data = DataFiles(train=made["train"], dev=made.get("dev"), dev_share=files.dev_share)
    task = {"name": run.recipe.task["name"], "metric": run.metric}
    recipe = replace(run.head, task=task, data=data, out=run.folder)
    finetune(recipe, command=command, show=show)
    shutil.rmtree(stores)


class Start(NamedTuple):
    """What a fine-tuning begins with."""

    model: Path
    progress: float  # of the budget of pre-training; a checkpoint lies somewhat behind its point


def find_starts(source: Pretraining) -> dict[float, Start]:
    """The model of each point: that of the first checkpoint not before it; no two have the same."""
    found: dict[float, Start] = {}
    for point in source.points:
        start = find_checkpoint_at(source, point)
        if start is None:
            raise UserError(
                f"{source.folder} kept no checkpoint at {point:.0%} of its budget; set "
                "train.save_every and train.keep, and remove it to train it again"
            )
        if start.progress in [other.progress for other in found.values()]:
            raise UserError(
                f"{source.folder} has one checkpoint for two points, {point:.0%} and the one "
                "before; set a smaller train.save_every, and remove it to train it again"
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


# --- what came out ---


def gather(asked: PlannedStudy, command: Sequence[str], failed: Mapping[str, str]) -> StudyResults:
    """What the metrics of all runs that are done say."""
    study, scale, plan, _ = asked
    scores = [score for run in plan.tunings if (score := read_score(run)) is not None]
    losses = [
        loss
        for run in plan.pretrainings
        if is_pretrained(run)
        and (loss := read_losses(run.folder, row=run.row, seed=run.seed)) is not None
    ]
    tasks = [name for name in study.questions if not scale.tasks or name in scale.tasks]
    machines = (read_machine(run.folder) for run in plan.pretrainings)
    return StudyResults(
        title=study.title,
        asks=study.asks,
        rows={name: row.title for name, row in study.rows.items()},
        tasks={name: study.questions[name].metric for name in tasks},
        paper={name: row.paper for name, row in study.rows.items() if row.paper},
        about_paper=study.paper,
        points=study.points,
        budget=plan.pretrainings[0].recipe.train.budget,
        seeds=scale.seeds,
        scores=tuple(scores),
        losses=tuple(losses),
        failed=dict(failed),
        missing=tuple(name for name in find_missing(plan) if name not in failed),
        machine=next(filter(None, machines), ""),
        command=show_command([word for word in command if word != "--only-report"]),
    )


def find_missing(plan: Plan) -> Iterator[str]:
    """Models that are not there; and scores that are not, of those that are."""
    yield from (name_of(run) for run in plan.pretrainings if not is_pretrained(run))
    for run in plan.tunings:
        if is_pretrained(run.source) and not is_tuned(run):
            yield name_of(run)


def read_score(run: Tuning) -> Score | None:
    value = read_best(run.folder, run.metric) if is_tuned(run) else None
    if value is None:
        return None
    progress = read_json(run.folder / START)["progress"]
    return Score(
        row=run.row,
        task=run.task,
        seed=run.seed,
        point=run.point,
        progress=progress,
        value=value,
    )
