"""Runs what studies ask for and what is not done yet, and reports what the runs have logged."""

import math
import shutil
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from bertie.checkpoint.json_files import write_json
from bertie.crew import Crew, Work
from bertie.datasets import DataFiles
from bertie.errors import UserError
from bertie.features import make_features
from bertie.finetune import finetune
from bertie.pretrain import pretrain
from bertie.report.command import show_command
from bertie.report.pretraining import number, read_facts
from bertie.report.study import (
    Score,
    StudyResults,
    read_best,
    read_losses,
    read_machine,
    write_study,
)
from bertie.study import Pretraining, Tuning
from bertie.study_plan import (
    Plan,
    PlannedStudy,
    find_starts,
    is_pretrained,
    is_tuned,
    join,
    name_of,
)
from bertie.train.budget import Budget
from bertie.train.log import Show
from bertie.train.loop import Stopped

START = "start.json"  # of a fine-tuning: the model it started from, and how far that was trained
FAILURE = "failure.txt"  # of a run that failed: where


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
        told = "\n".join(f"  {plan.names[folder]}: {reason}" for folder, reason in failed.items())
        names = ", ".join(map(str, reports))
        raise UserError(
            f"{len(failed)} runs failed; {names} has the others, and the same command tries these "
            f"again:\n{told}"
        )
    return reports


def write_report(asked: PlannedStudy, command: Sequence[str], failed: Mapping[Path, str]) -> Path:
    return write_study(gather(asked, command, failed), asked.folder)


def check_at_once(plan: Plan, at_once: int) -> None:
    """Runs that share a device share its minutes too, and not in equal parts."""
    units = {Budget.parse(run.recipe.train.budget).unit for run in plan.pretrainings}
    if at_once > 1 and "minutes" in units:
        raise UserError(
            "minutes of runs at the same time are not equal budgets; take a budget in tokens, or "
            "--at-once 1"
        )


def run_plan(plan: Plan, at_once: int, command: Sequence[str], show: Show) -> dict[Path, str]:
    """What failed, by folder, and why. A model is fine-tuned as soon as it is there."""
    first: list[Pretraining | Tuning] = [*plan.to_pretrain]
    missing = {run.folder for run in first}
    behind: dict[Path, list[Tuning]] = {}  # by the folder of the model that they wait for
    for run in plan.to_tune:
        if run.source.folder in missing:
            behind.setdefault(run.source.folder, []).append(run)
        elif is_pretrained(run.source):
            first.append(run)
    run_some = run_in_turn if at_once == 1 else partial(run_in_processes, at_once=at_once)
    return run_some(first, behind, command=command, show=show)


def run_in_turn(
    runs: Sequence[Pretraining | Tuning],
    behind: Mapping[Path, Sequence[Tuning]],
    *,
    command: Sequence[str],
    show: Show,
) -> dict[Path, str]:
    failed: dict[Path, str] = {}
    left, count, total = list(runs), 0, len(runs) + sum(map(len, behind.values()))
    while left:
        run, count = left.pop(0), count + 1
        show({"note": f"{count} of {total}: {name_of(run)}"})
        try:
            run_one(run, show, command)
            left += behind.get(run.folder, ())
        except Exception as error:  # whatever it is, it says nothing of the others
            failed[run.folder] = note_failure(run, error)
            show({"warning": f"{name_of(run)}: {failed[run.folder]}"})
    return failed


def run_in_processes(
    runs: Sequence[Pretraining | Tuning],
    behind: Mapping[Path, Sequence[Tuning]],
    *,
    at_once: int,
    command: Sequence[str],
    show: Show,
) -> dict[Path, str]:
    """What processes say is in the metrics.jsonl of their runs."""
    failed: dict[Path, str] = {}
    by_folder = {run.folder: run for run in (*runs, *chain.from_iterable(behind.values()))}

    def works(runs: Sequence[Pretraining | Tuning]) -> list[Work]:
        return [Work(partial(run_one, run, silence, command), run.folder) for run in runs]

    if not runs:
        return failed
    crew = Crew(at_once, runs[0].folder.parent)
    crew.add(works(runs))
    for count, (work, error) in enumerate(crew.run(), 1):
        run = by_folder[work.folder]
        if error is None:
            crew.add(works(longest_first(behind.get(run.folder, ()))))
            show({"note": f"{count} of {len(by_folder)} done: {name_of(run)}"})
        else:
            failed[run.folder] = note_failure(run, error)
            show({"warning": f"{name_of(run)}: {failed[run.folder]}"})
    return failed


def longest_first(runs: Iterable[Tuning]) -> list[Tuning]:
    """By what they read: one that began last would run when all the others are done."""

    def count_bytes(run: Tuning) -> float:
        recipe = run.head if run.is_frozen else run.recipe
        train, budget = run.recipe.data.train, Budget.parse(recipe.train.budget)
        epochs = budget.amount if budget.unit == "epochs" else 1
        return 0 if train is None else train.stat().st_size * epochs

    return sorted(runs, key=count_bytes, reverse=True)


def note_failure(run: Pretraining | Tuning, error: Exception) -> str:
    """What happened, in a line; all of it is in a file of the run."""
    if isinstance(error, Stopped):
        raise error
    if isinstance(error, UserError):
        return str(error)
    run.folder.mkdir(parents=True, exist_ok=True)
    told = "".join(traceback.format_exception(error))
    (run.folder / FAILURE).write_text(told, encoding="utf-8")
    first = next(iter(str(error).strip().splitlines()), "no message")
    return f"{type(error).__name__}: {first} ({run.folder / FAILURE})"


def silence(line: object) -> None:
    """Shows nothing."""


def run_one(run: Pretraining | Tuning, show: Show, command: Sequence[str]) -> None:
    if isinstance(run, Pretraining):
        pretrain(run.recipe, command=command, show=show)
    else:
        run_tuning(run, show, command=command)


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


# --- what came out ---


def gather(asked: PlannedStudy, command: Sequence[str], failed: Mapping[Path, str]) -> StudyResults:
    """What the metrics of all runs that are done say."""
    study, scale, plan, _ = asked
    models = [run for run in plan.pretrainings if is_pretrained(run)]
    found = [(run, read_score(run)) for run in plan.tunings]
    losses = [read_losses(run.folder, row=run.row, seed=run.seed) for run in models]
    tasks = [name for name in study.questions if not scale.tasks or name in scale.tasks]
    machines = [read_machine(run.folder) for run in models]
    made = {run.folder for run in models}
    missing = [name_of(run) for run in plan.pretrainings if run.folder not in made | failed.keys()]
    for run, score in found:  # of models that are there
        if score is None and run.source.folder in made and run.folder not in failed:
            missing.append(name_of(run))
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
        scores=tuple(score for _, score in found if score is not None),
        losses=tuple(loss for loss in losses if loss is not None),
        failed={name: failed[folder] for folder, name in plan.names.items() if folder in failed},
        missing=tuple(missing),
        machine=" and ".join(dict.fromkeys(filter(None, machines))),
        command=show_command([word for word in command if word != "--only-report"]),
        frozen=describe_heads(plan.tunings),
    )


def describe_heads(runs: Iterable[Tuning]) -> str:
    """How heads on features learn, if there are any: not as models are fine-tuned."""
    heads = [run.head for run in runs if run.is_frozen]
    said = [
        f"{head.train.budget} to a rate of {head.optim.peak:g} in steps of {head.tune.batch_size}"
        for head in heads
    ]
    return " or ".join(dict.fromkeys(said))


def read_score(run: Tuning) -> Score | None:
    """None if it was not run, or if its files do not say what it found."""
    value = read_best(run.folder, run.metric) if is_tuned(run) else None
    progress = number(read_facts(run.folder / START), "progress")
    if value is None or math.isnan(progress):
        return None
    return Score(
        row=run.row,
        task=run.task,
        seed=run.seed,
        point=run.point,
        progress=progress,
        value=value,
    )
