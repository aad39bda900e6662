"""Fine-tuning, its settings and a single run of it: wiring of task, model and loop."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.state import (
    Checkpoint,
    Saving,
    find_best,
    list_checkpoints,
    remove_drafts,
)
from bertie.datasets import DataFiles, Sets
from bertie.errors import UserError
from bertie.evaluate import predict_all
from bertie.learners import HeadConfig, Learner, RunSpec
from bertie.report.results import FinetuneRun
from bertie.tasks.steps import TaskLoader
from bertie.train.budget import Budget
from bertie.train.distributed import World
from bertie.train.log import METRICS, Log, Show
from bertie.train.loop import Diverged, TrainConfig, Trainer, switch_kernels
from bertie.train.optim import OptimConfig
from bertie.train.record import find_common_checkpoint

RESULT = "result.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """Which runs there are, and what of the model is tuned in each: all of it, unless said."""

    batch_size: int = 32  # examples of a step; windows of tagging and question answering
    micro_tokens: int = 0  # most tokens of a micro-batch; 0: what fits the memory
    grid: Literal["none", "paper"] = "none"  # paper: batch 16, 32; peak 5e-5, 3e-5, 2e-5; epochs
    seeds: int = 1  # runs of the same settings; of the output layer, the order and dropout
    freeze: int = 0  # layers that stay as they are, from below; the embeddings with them
    bilstm_layers: int = 0  # of a new LSTM between encoder and output layer (paper, Table 5)

    def __post_init__(self) -> None:
        limits = {"batch_size": 1, "micro_tokens": 0, "seeds": 1, "freeze": 0, "bilstm_layers": 0}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UserError(f"tune.{name} is at least {least}; found {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneRecipe:
    """All settings; those of the task are the fields of its own class, and `name`."""

    model: Path | None = None  # the directory to start from; none, if there is a head on features
    head: HeadConfig | None = None  # on features: then the data are feature stores
    out: Path | None = None
    task: dict[str, Any] = field(default_factory=lambda: {"name": "classify"})
    data: DataFiles = field(default_factory=DataFiles)
    tune: TuneConfig = field(default_factory=TuneConfig)
    # With bias correction: without it small sets fail to train for some seeds.
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            name="adamw", peak=3e-5, warmup=0.1, schedule="linear", eps=1e-6
        )
    )
    # Evaluated after each epoch (0), and saved with that.
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            budget="3 epochs", evaluate_every=0, save_every=0, keep=1
        )
    )

    def __post_init__(self) -> None:
        if self.train.compile:
            raise UserError("train.compile wants batches of one shape; those of tasks are not")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """What all runs have in common."""

    recipe: FinetuneRecipe
    source: Path  # the model directory to start from, or whose features are read
    out: Path
    sets: Sets
    learner: Learner
    settings: dict[str, Any]  # as JSON can hold them
    majority: float | None  # the score of always giving the same answer, the best one
    world: World
    command: Sequence[str]  # that was typed, word by word
    show: Show

    def folder(self, spec: RunSpec) -> Path:
        return self.out / "runs" / spec.name


def run_once(tuning: Tuning, spec: RunSpec) -> FinetuneRun:
    """One run, from its last checkpoint if there is one; nothing to do if it is finished."""
    folder = tuning.folder(spec)
    if not (folder / RESULT).is_file():
        train_once(tuning, spec)
    if tuning.world.is_first:  # a kill may have left them
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    values = read_json(folder / RESULT)
    return FinetuneRun(**values | {"curve": tuple(values["curve"])})


def train_once(tuning: Tuning, spec: RunSpec) -> None:
    """Trains, keeps the model of the best evaluation, and writes the result.

    One that breaks down has a result without scores: the other runs go on.
    """
    sets, world, folder = tuning.sets, tuning.world, tuning.folder(spec)
    checkpoint = find_common_checkpoint(folder, world)
    if world.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
    model = tuning.learner.make(spec, checkpoint).to(world.device)
    switch_kernels(tuning.recipe.train, world.device)  # before memory is tried
    micro_tokens = tuning.recipe.tune.micro_tokens
    if not micro_tokens:  # as before, where it goes on: another division is another dropout
        micro_tokens = (
            tuning.learner.find_micro_tokens(model, sets.task, world)
            if checkpoint is None
            else checkpoint.kept["micro_tokens"]
        )
    loader = TaskLoader(
        sets.train_instances,
        batch_size=spec.batch_size,
        micro_tokens=micro_tokens,
        seed=spec.seed,
        rank=world.rank,
        world_size=world.size,
    )
    trainer = make_trainer(tuning, spec, model, loader, checkpoint)
    loader.start_step = trainer.counters.step
    try:
        if trainer.progress < 1:
            trainer.run(loader)
    except Diverged:  # of all ranks alike
        tuning.show({"note": f"{spec.name} broke down: loss or gradient was no longer finite"})
        if world.is_first:
            write_result(tuning, spec, trainer, {})
    else:
        if world.is_first:
            finish_run(tuning, spec, trainer)
    world.wait()


def make_trainer(
    tuning: Tuning,
    spec: RunSpec,
    model: nn.Module,
    loader: TaskLoader,
    checkpoint: Checkpoint | None,
) -> Trainer[nn.Module]:
    recipe, world, folder = tuning.recipe, tuning.world, tuning.folder(spec)
    task = tuning.sets.task
    config = replace(
        recipe.train,
        seed=spec.seed,
        evaluate_every=recipe.train.evaluate_every or loader.steps_per_epoch,
    )
    return Trainer(
        model,
        task.objective,
        config=config,
        optim=replace(recipe.optim, peak=spec.peak),
        budget=in_steps(spec.budget, loader.steps_per_epoch),
        saving=Saving(
            folder=folder,
            settings=tuning.settings,
            write=lambda weights, path: tuning.learner.write(model, weights, path, task),
            keep=config.keep,
            kept={"micro_tokens": loader.micro_tokens},
        ),
        world=world,
        log=Log(
            folder,
            every=config.log_every,
            show=tuning.show,
            resume=checkpoint,
            is_silent=not world.is_first,
            tensorboard=config.tensorboard,
        ),
        evaluate=DevScores(tuning.sets, world, config.precision),
        resume=checkpoint,
    )


def in_steps(text: str, steps_per_epoch: int) -> Budget:
    budget = Budget.parse(text)
    if budget.unit != "epochs":
        return budget
    return Budget(max(1, round(budget.amount * steps_per_epoch)), "steps")


class DevScores:
    """The scores of a model on dev, with thresholds fitted there where the task has any."""

    def __init__(self, sets: Sets, world: World, precision: str) -> None:
        self.sets, self.world, self.precision = sets, world, precision

    def __call__(self, model: nn.Module) -> tuple[dict[str, float], float | None]:
        """Every rank predicts all of dev; the first one's scores count, for all to agree."""
        task, dev = self.sets.task, self.sets.dev
        scores = predict_all(
            model,
            task,
            dev.examples,
            self.sets.dev_instances,
            precision=self.precision,
            tunes=True,
        ).scores
        values = self.world.sum([v if self.world.is_first else 0.0 for v in scores.values()])
        agreed = dict(zip(scores, values, strict=True))
        return agreed, agreed[task.metric]


def finish_run(tuning: Tuning, spec: RunSpec, trainer: Trainer[nn.Module]) -> None:
    """Keeps the model of the best evaluation, with its thresholds; the result comes last.

    Scored in fp32 whatever the training's precision, so that `bertie evaluate` says the same.
    """
    folder, sets = tuning.folder(spec), tuning.sets
    best = find_best(folder) or list_checkpoints(folder)[-1]  # the last, if no score is a number
    model = tuning.learner.open(best / "model").to(tuning.world.device)
    evaluated = predict_all(model, sets.task, sets.dev.examples, sets.dev_instances, tunes=True)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tuning.learner.write(model, weights, folder / "model", evaluated.task)
    write_result(tuning, spec, trainer, evaluated.scores)


def write_result(
    tuning: Tuning, spec: RunSpec, trainer: Trainer[nn.Module], scores: Mapping[str, float]
) -> None:
    """Without scores of a run that broke down: it is not tried again, as it would end the same."""
    folder = tuning.folder(spec)
    run = FinetuneRun(
        seed=spec.seed,
        settings=spec.settings,
        scores=scores,
        seconds=round(trainer.counters.seconds, 3),
        curve=tuple(read_curve(folder, tuning.sets.task.metric)),
    )
    write_json(folder / RESULT, asdict(run))


def read_curve(folder: Path, metric: str) -> Iterator[float]:
    """The score that counts, evaluation by evaluation."""
    if not (folder / METRICS).is_file():  # it broke down before there was a line
        return
    for line in (folder / METRICS).read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        if "held_out" in values:
            yield values["held_out"][metric]
