"""From a model directory and labelled data to a model that does a task: many runs, the best kept.

OUT/runs/NAME is one run: a seed of one setting. The model of the run that is best on dev becomes
OUT/model.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.model_dir import copy_model, list_files
from bertie.data.features import is_features
from bertie.data.locks import held
from bertie.data.store import MANIFEST
from bertie.datasets import Sets, read_sets
from bertie.embedded import find_model
from bertie.errors import UserError
from bertie.evaluate import open_task, predict_all, write_predictions
from bertie.feature_sets import open_alike, read_feature_sets
from bertie.findings import find_majority, make_findings
from bertie.learners import BertLearner, HeadLearner, Learner, RunSpec
from bertie.report.command import show_command
from bertie.report.finetuning import write_finetuning_report
from bertie.report.page import REPORT
from bertie.report.results import FinetuneResults, FinetuneRun
from bertie.tasks import name_of
from bertie.text.disk import hash_file
from bertie.train.distributed import World, open_world
from bertie.train.log import Show
from bertie.train.record import (
    HARMLESS_TO_ALL,
    RECORD,
    begin_record,
    check_same,
    flatten,
    is_one_of,
    name_gpu,
)
from bertie.tuning import RESULT, FinetuneRecipe, Tuning, run_once

# The paper's grid (A.3).
BATCH_SIZES, PEAKS, EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4)
# What may be changed when a fine-tuning goes on: it does not change what a run learns. Model and
# data are known by what is in them.
HARMLESS = HARMLESS_TO_ALL | {
    "model",
    "out",
    "data.train",
    "data.dev",
    "data.test",
    "tune.seeds",  # more of them: those that are done stay
    "tune.micro_tokens",
}

# What the report shows in other places, as it differs between runs, is long or is fitted.
ELSEWHERE = {
    "optim.peak",
    "tune.batch_size",
    "head.combinations",
    "task.labels",
    "task.columns",
    "task.threshold",
    "task.thresholds",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetuned:
    """A finished fine-tuning."""

    model: Path
    results: FinetuneResults
    report: Path


def finetune(
    recipe: FinetuneRecipe, *, command: Sequence[str] = (), show: Show = lambda line: None
) -> Finetuned:
    """Runs what is not done yet, keeps the model that is best on dev, and reports.

    `command` is what was typed, word by word; it is recorded.
    """
    with open_world(recipe.train.device) as world, ExitStack() as stack:
        tuning = begin(recipe, world, command, show if world.is_first else lambda line: None)
        if world.is_first:
            stack.enter_context(held(tuning.out))
            note_beginning(tuning)
        specs, runs = list(plan_runs(recipe)), list[FinetuneRun]()
        for number, spec in enumerate(specs, 1):
            tuning.show({"note": f"run {number} of {len(specs)}: {spec.name}"})
            runs.append(run_once(tuning, spec))
            results = summarise(tuning, runs)
            best = specs[runs.index(results.best())]
            if world.is_first and recipe.head is None:  # heads are small
                remove_models(tuning, specs[:number], best)
            world.wait()
        check_some_learned(runs)
        if world.is_first:
            results = conclude(tuning, results, best)
            write_finetuning_report(results, tuning.out)
        world.wait()
        out = tuning.out
        return Finetuned(model=out / "model", results=results, report=out / REPORT)


# --- what a fine-tuning begins with ---


def begin(recipe: FinetuneRecipe, world: World, command: Sequence[str], show: Show) -> Tuning:
    """Reads the data, and sees that what the folder holds is of the same settings."""
    out = recipe.out
    if out is None or recipe.data.train is None:
        raise UserError(
            "say what to learn and where to write: --train FILE --out DIR; and what to start from, "
            "--model DIR, if it is not the model that ships with bertie"
        )
    check_folder(out)
    source, sets, learner = open_features_of(recipe) if recipe.head else open_files_of(recipe, show)
    settings = settings_of(recipe, source, sets)
    has_begun = any(out.glob(f"runs/*/{RESULT}")) or any(out.glob("runs/*/checkpoints/step-*"))
    if has_begun and (out / RECORD).is_file():
        check_same(out, read_json(out / RECORD)["settings"], settings, harmless=HARMLESS)
    world.wait()  # the first one writes there
    return Tuning(
        recipe=recipe,
        source=source,
        out=out,
        sets=sets,
        learner=learner,
        settings=settings,
        majority=find_majority(sets.task, sets.train.examples, sets.dev.examples),
        world=world,
        command=command,
        show=show,
    )


def note_beginning(tuning: Tuning) -> None:
    sets = tuning.sets
    begin_record(tuning.out, tuning.settings, tuning.world, command=tuning.command)
    for note in (*sets.notes, *sets.remarks, *describe_grid(tuning.recipe)):
        tuning.show({"note": note})


def open_files_of(recipe: FinetuneRecipe, show: Show) -> tuple[Path, Sets, Learner]:
    """The directory to start from, the data, and what is trained: all of the model."""
    source = find_model(recipe.model)
    if recipe.data.train is not None and is_features(recipe.data.train):
        raise UserError(
            f"{recipe.data.train} is a feature store; train a head on it: bertie finetune features "
            f"--train {recipe.data.train} --out DIR"
        )
    sets = read_sets(recipe.task, recipe.data, source)
    learner = BertLearner(
        source=source,
        task=sets.task,
        freeze=recipe.tune.freeze,
        bilstm_layers=recipe.tune.bilstm_layers,
        show=show,
    )
    return source, sets, learner


def open_features_of(recipe: FinetuneRecipe) -> tuple[Path, Sets, Learner]:
    """The model whose features these are, the data, and what is trained: a head."""
    assert recipe.head is not None
    if recipe.model is not None or recipe.tune.freeze or recipe.tune.bilstm_layers:
        raise UserError("a head on features trains nothing of the model: leave out --model")
    rows = open_alike(recipe.data)
    manifest = rows.stores[0].manifest
    asked = {"name": manifest.task} | dict(recipe.task)
    if asked.pop("name") not in ("classify", manifest.task) or asked.keys() - {"metric"}:
        raise UserError(
            f"{rows.stores[0].folder} is of the task {manifest.task}, with its settings; of "
            "those, only task.metric can be changed"
        )
    sets = read_feature_sets(recipe.data, rows, metric=str(asked.get("metric", "")))
    learner = HeadLearner(config=recipe.head, rows=rows, task=sets.task)
    for combination in recipe.head.combinations:
        learner.layers_of(combination)  # what is missing is found now, not an hour later
    return Path(manifest.model), sets, learner


def check_folder(out: Path) -> None:
    """A folder with a model of another kind is somebody's work, such as that of a pre-training."""
    there = [name for name in ("model", RECORD) if (out / name).exists()]
    is_ours = RECORD in there and "tune" in read_json(out / RECORD).get("settings", {})
    if there and not is_ours:
        raise UserError(f"{out} holds something else than a fine-tuning; take another --out")


def settings_of(recipe: FinetuneRecipe, source: Path, sets: Sets) -> dict[str, Any]:
    """All that decides the outcome, as JSON can hold it; model and data by what is in them."""
    values = asdict(recipe) | {"task": {"name": name_of(sets.task), **task_settings(sets)}}
    values |= {"model": str(source), "out": str(recipe.out)}
    values["data"] |= {
        "train": str(recipe.data.train),
        "dev": recipe.data.dev and str(recipe.data.dev),
        "test": [str(path) for path in recipe.data.test],
        "train_sha256": hash_data(sets.train.path),
        "dev_sha256": hash_data(sets.dev.path),
    }
    if recipe.head is None:
        values["model_sha256"] = {path.name: hash_file(path) for path in list_files(source)}
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def hash_data(path: Path) -> str:
    """Of a feature store, the manifest's: it knows the model and all of the store's files."""
    return hash_file(path / MANIFEST if path.is_dir() else path)


def task_settings(sets: Sets) -> dict[str, Any]:
    found: dict[str, Any] = asdict(sets.task)  # type: ignore[call-overload]
    return found


def describe_grid(recipe: FinetuneRecipe) -> Iterator[str]:
    """What of the settings the grid has others for."""
    if recipe.tune.grid == "paper":
        for name, value, tried in (
            ("tune.batch_size", recipe.tune.batch_size, list(BATCH_SIZES)),
            ("optim.peak", recipe.optim.peak, list(PEAKS)),
            ("train.budget", recipe.train.budget, [f"{epochs} epochs" for epochs in EPOCHS]),
        ):
            if value not in tried:
                shown = ", ".join(map(str, tried))
                yield f"tune.grid=paper has {name} {shown}; {value} is not used"


def plan_runs(recipe: FinetuneRecipe) -> Iterator[RunSpec]:
    """Every setting of the grid with every seed."""
    tune = recipe.tune
    sizes, peaks, budgets = [tune.batch_size], [recipe.optim.peak], [recipe.train.budget]
    if tune.grid == "paper":
        sizes, peaks = list(BATCH_SIZES), list(PEAKS)
        budgets = [f"{epochs} epochs" for epochs in EPOCHS]
    seeds = range(recipe.train.seed, recipe.train.seed + tune.seeds)
    combinations = (None,) if recipe.head is None else recipe.head.combinations
    for combination, size, peak, budget, seed in itertools.product(
        combinations, sizes, peaks, budgets, seeds
    ):
        yield RunSpec(seed=seed, batch_size=size, peak=peak, budget=budget, combination=combination)


# --- the end ---


def remove_models(tuning: Tuning, specs: Sequence[RunSpec], best: RunSpec) -> None:
    """Of many runs, only the best one's weights stay: a grid of large models fills a disk."""
    for spec in specs:
        if spec != best:
            shutil.rmtree(tuning.folder(spec) / "model", ignore_errors=True)


def conclude(tuning: Tuning, results: FinetuneResults, best: RunSpec) -> FinetuneResults:
    """The best run's model becomes the model; its answers on dev and test are written."""
    sets, model_dir, answers = tuning.sets, tuning.out / "model", tuning.out / "predictions"
    publish(tuning.folder(best) / "model", model_dir)
    task, model = open_task(model_dir), tuning.learner.open(model_dir).to(tuning.world.device)
    on_dev = predict_all(model, task, sets.dev.examples, sets.dev_instances)
    write_predictions(answers, sets.dev, on_dev, "dev")
    names, tests = {"dev"}, {}
    for data, instances in zip(sets.tests, sets.test_instances, strict=True):
        answered = predict_all(model, task, data.examples, instances)
        write_predictions(answers, data, answered, new_name(data.path.stem, names))
        tests[str(data.path)] = answered.scores
    findings = make_findings(task, sets.dev.examples, on_dev.predictions)
    return replace(results, tests=tests, **findings.as_fields())


def check_some_learned(runs: Sequence[FinetuneRun]) -> None:
    if not any(run.scores for run in runs):
        what = "the run" if len(runs) == 1 else f"all {len(runs)} runs"
        raise UserError(
            f"{what} broke down: loss or gradient was no longer finite. Lower optim.peak, lengthen "
            "optim.warmup, or take train.precision=fp32; and another --out"
        )


def publish(source: Path, model: Path) -> None:
    if not source.is_dir():
        raise UserError(
            f"{source} was removed when another run was better; to train it again, remove "
            f"{source.parent}"
        )
    copy_model(source, model)


def new_name(wished: str, taken: set[str]) -> str:
    """
    >>> new_name("test", {"dev", "test"})
    'test-2'
    """
    names = itertools.chain([wished], (f"{wished}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def summarise(tuning: Tuning, runs: Sequence[FinetuneRun]) -> FinetuneResults:
    """What the report says of all runs."""
    sets, recipe, world = tuning.sets, tuning.recipe, tuning.world
    hours = sum(run.seconds for run in runs) / 3600 * world.size
    values = {
        "task": task_settings(sets),
        "tune": asdict(recipe.tune),
        "optim": asdict(recipe.optim),
    }
    values |= {} if recipe.head is None else {"head": asdict(recipe.head)}
    return FinetuneResults(
        name=sets.train.benchmark or sets.train.path.stem,
        task=name_of(sets.task),
        model=str(tuning.source),
        metric=sets.task.metric,
        runs=tuple(runs),
        num_train=len(sets.train.examples),
        num_dev=len(sets.dev.examples),
        command=show_command(tuning.command),
        settings={k: v for k, v in flatten(values).items() if not is_one_of(k, ELSEWHERE)},
        majority=tuning.majority,
        data=sets.notes,
        notes=sets.remarks,
        cost={
            "device": name_gpu(world) or f"CPU, {torch.get_num_threads()} threads",
            "processes": str(world.size),
            "precision": recipe.train.precision,
            "device hours": f"{hours:.3f}",
        },
    )
