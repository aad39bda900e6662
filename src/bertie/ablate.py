"""Runs what a study asks for and what is not done yet, and reports what the runs have logged."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.state import STATE, Counters, list_checkpoints
from bertie.data.store import open_store
from bertie.datasets import DataFiles
from bertie.errors import UserError
from bertie.features import make_features
from bertie.finetune import finetune
from bertie.model.config import ModelConfig, train_flops
from bertie.pretrain import data_of, pretrain
from bertie.report.study import Score, StudyResults, read_best, read_losses, write_study
from bertie.study import Pretraining, Scale, Study, Tuning, plan_pretraining, plan_tuning
from bertie.train.budget import Budget
from bertie.train.log import Show

R = TypeVar("R", Pretraining, Tuning)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All runs of a study, each once."""

    pretrainings: tuple[Pretraining, ...]  # of every row and seed; some may have one folder
    tunings: tuple[Tuning, ...]

    @property
    def to_pretrain(self) -> list[Pretraining]:
        """Those that are not done."""
        return [run for run in once(self.pretrainings) if not is_pretrained(run)]

    @property
    def to_tune(self) -> list[Tuning]:
        return [run for run in once(self.tunings) if not is_tuned(run)]


def once(runs: Sequence[R]) -> list[R]:
    """One of those that share a folder."""
    return list({run.folder: run for run in reversed(runs)}.values())[::-1]


def is_pretrained(run: Pretraining) -> bool:
    return (run.folder / "model" / "config.json").is_file()


def is_tuned(run: Tuning) -> bool:
    return (run.folder / "report.json").is_file()


def plan_study(study: Study, scale: Scale) -> Plan:
    """Checks all settings and files before anything starts."""
    store = open_store(scale.corpus)
    pretrainings = plan_pretraining(study, scale, store)
    tunings = plan_tuning(study, scale, pretrainings)
    for run in tunings:
        for path in (run.recipe.data.train, run.recipe.data.dev):
            if path is not None and not path.is_file():
                raise UserError(
                    f"the task {run.task} reads {path}, which is not there; see --data, or leave "
                    "it out with --tasks"
                )
    return Plan(pretrainings=tuple(pretrainings), tunings=tuple(tunings))


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


def run_study(
    study: Study,
    scale: Scale,
    plan: Plan,
    folder: Path,
    *,
    at_once: int = 1,
    command: str = "",
    show: Show = lambda line: None,
) -> Path:
    """All runs that are not done, some `at_once`; then the report, from their metrics."""
    run_all(run_pretraining, plan.to_pretrain, at_once, show)
    run_all(run_tuning, plan.to_tune, at_once, show)
    return write_study(gather(study, scale, plan, command), folder)


def run_all(do: Callable[[R, Show], None], runs: Sequence[R], at_once: int, show: Show) -> None:
    if at_once == 1:
        for number, run in enumerate(runs, 1):
            show({"note": f"{number} of {len(runs)}: {name_of(run)}"})
            do(run, show)
        return
    # Spawned, so that each has a device of its own; what they say is in their metrics.jsonl.
    with ProcessPoolExecutor(at_once, get_context("spawn")) as pool:
        waiting = [(run, pool.submit(do, run, silence)) for run in runs]
        for number, (run, future) in enumerate(waiting, 1):
            future.result()
            show({"note": f"{number} of {len(runs)} done: {name_of(run)}"})


def silence(line: object) -> None:
    """Shows nothing."""


def name_of(run: Pretraining | Tuning) -> str:
    name = f"{run.row}, seed {run.seed}"
    return f"{name}, {run.task}" if isinstance(run, Tuning) else name


def run_pretraining(run: Pretraining, show: Show) -> None:
    try:
        pretrain(run.recipe, show=show)
    except UserError as error:
        raise UserError(f"{name_of(run)}: {error}") from None


def run_tuning(run: Tuning, show: Show) -> None:
    model = find_model(run.source, run.point)
    try:
        if run.is_frozen:
            tune_head(run, model, show)
        else:
            finetune(replace(run.recipe, model=model, out=run.folder), show=show)
    except UserError as error:
        raise UserError(f"{name_of(run)}: {error}") from None


def tune_head(run: Tuning, model: Path, show: Show) -> None:
    """A head on the features of the files, which are removed when it is trained."""
    stores, files = run.folder.with_name(f"{run.folder.name}-features"), run.recipe.data
    made = {}
    for name, path in (("train", files.train), ("dev", files.dev)):
        if path is not None:
            made[name] = stores / name
            task = {key: value for key, value in run.recipe.task.items() if key != "metric"}
            make_features(model, path, made[name], task=task, skip_bad=files.skip_bad)
    data = DataFiles(train=made["train"], dev=made.get("dev"), dev_share=files.dev_share)
    task = {"name": run.recipe.task["name"], "metric": run.metric}
    finetune(replace(run.head, task=task, data=data, out=run.folder), show=show)
    shutil.rmtree(stores)


def find_model(source: Pretraining, point: float) -> Path:
    """The model of a run at a share of its budget: that of the first checkpoint not before it."""
    if point == 1:
        return source.folder / "model"
    budget = Budget.parse(source.recipe.train.budget)
    for folder in list_checkpoints(source.folder):
        counters = Counters(**read_json(folder / STATE)["counters"])
        if budget.progress(counters) >= point:
            return folder / "model"
    raise UserError(
        f"{source.folder} kept no checkpoint at {point:.0%} of its budget; set train.save_every "
        "and train.keep"
    )


# --- what came out ---


def gather(study: Study, scale: Scale, plan: Plan, command: str) -> StudyResults:
    """What the metrics of all runs say; those that have none are left out."""
    scores = []
    for run in plan.tunings:
        found = read_best(run.folder, run.metric)
        if found is not None:
            scores.append(
                Score(row=run.row, task=run.task, seed=run.seed, point=run.point, value=found)
            )
    losses = [
        loss
        for run in plan.pretrainings
        if (loss := read_losses(run.folder, row=run.row, seed=run.seed)) is not None
    ]
    tasks = [name for name in study.questions if not scale.tasks or name in scale.tasks]
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
        command=command,
    )
