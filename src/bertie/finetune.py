"""From a model directory and labelled data to a model that does a task: wiring of task and loop."""

import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.model_dir import open_model, read_config, save_model
from bertie.checkpoint.state import Checkpoint, Saving, find_best, find_checkpoint, remove_drafts
from bertie.config import build
from bertie.errors import UserError
from bertie.evaluate import Evaluated, predict_all, write_predictions
from bertie.findings import Findings, find_majority, make_findings
from bertie.model.bert import Bert, initialise
from bertie.model.config import train_memory
from bertie.pretrain import check_same
from bertie.report.finetuning import write_finetuning_report
from bertie.report.results import FinetuneResults, FinetuneRun
from bertie.tasks import describe, get_task
from bertie.tasks.instances import Instances
from bertie.tasks.steps import TaskLoader
from bertie.tasks.task import Dataset, Task
from bertie.text.tokenizer import Tokenizer
from bertie.train.budget import Budget
from bertie.train.distributed import World, open_world
from bertie.train.hardware import find_free_bytes
from bertie.train.log import Log, Show
from bertie.train.loop import TrainConfig, Trainer
from bertie.train.memory import find_micro_tokens
from bertie.train.optim import OptimConfig

AnyTask = Task[Any, Any]
RESULT = "result.json"
# The paper's grid (A.3).
BATCH_SIZES, PEAKS, EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """What to learn from, what to choose by, what to answer in the end."""

    train: Path | None = None
    dev: Path | None = None  # none: a share of train, those with the lowest hash of their text
    dev_share: float = 0.1  # of train, where there is no dev
    test: tuple[Path, ...] = ()  # predicted by the chosen model; scored where they have labels
    skip_bad: bool = False  # leave rows out that cannot be read, and count them

    def __post_init__(self) -> None:
        if not 0 < self.dev_share < 1:
            raise UserError(f"data.dev_share is between 0 and 1; found {self.dev_share}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """Which runs there are, and what of the model is tuned in each: all of it, unless said."""

    batch_size: int = 32  # examples of a step; windows of tagging and question answering
    micro_tokens: int = 0  # most tokens of a micro-batch; 0: what fits the memory
    grid: Literal["none", "paper"] = "none"  # paper: batch 16, 32; peak 5e-5, 3e-5, 2e-5; epochs
    seeds: int = 1  # runs of the same settings; of the output layer, the order and dropout
    freeze: int = 0  # layers that stay as they are, from below; the embeddings with them

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("micro_tokens", 0), ("seeds", 1), ("freeze", 0)):
            if getattr(self, name) < least:
                raise UserError(f"tune.{name} is at least {least}; found {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneRecipe:
    """All settings; those of the task are the fields of its own class, and `name`."""

    model: Path | None = None  # the directory to start from
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
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(budget="3 epochs", evaluate_every=0, save_every=0)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sets:
    """Read, settled and encoded."""

    task: AnyTask
    train: Dataset[Any]
    dev: Dataset[Any]
    train_instances: Instances
    dev_instances: Instances
    tokenizer: Tokenizer
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """What makes a run differ from its neighbours."""

    seed: int
    batch_size: int
    peak: float
    budget: str

    @property
    def name(self) -> str:
        budget = self.budget.replace(" ", "-")
        return f"peak-{self.peak:g}-batch-{self.batch_size}-{budget}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetuned:
    """A finished fine-tuning."""

    model: Path
    results: FinetuneResults
    tests: dict[str, dict[str, float]]  # file -> scores; empty: it has no labels
    report: Path


def finetune(recipe: FinetuneRecipe, *, show: Show = lambda line: None) -> Finetuned:
    """Runs what is not done yet, keeps the model that is best on dev, and reports."""
    source, out = recipe.model, recipe.out
    if source is None or out is None or recipe.data.train is None:
        raise UserError(
            "say what to start from, what to learn and where to write: --model DIR --train FILE "
            "--out DIR"
        )
    with open_world(recipe.train.device) as world:
        show = show if world.is_first else lambda line: None
        sets = read_sets(recipe, source)
        for note in sets.notes:
            show({"note": note})
        specs = list(plan_runs(recipe))
        done: list[FinetuneRun] = []
        for number, spec in enumerate(specs, 1):
            show({"note": f"run {number} of {len(specs)}: {spec.name}"})
            done.append(run_once(recipe, source, out, sets, spec, world, show))
            world.wait()
        best = specs[max(range(len(done)), key=lambda n: done[n].scores[sets.task.metric])]
        results, tests = summarise(recipe, sets, done, None, ()), dict[str, dict[str, float]]()
        if world.is_first:
            results, tests = conclude(recipe, out, sets, done, best, world)
            write_finetuning_report(results, out)
        world.wait()
        return Finetuned(
            model=out / "model", results=results, tests=tests, report=out / "report.html"
        )


# --- data ---


def read_sets(recipe: FinetuneRecipe, source: Path) -> Sets:
    """The data, and a task that knows all that they decide."""
    settings = dict(recipe.task)
    name = settings.pop("name", "classify")
    task: AnyTask = build(get_task(name), settings, "task.")
    files, skip_bad = recipe.data, recipe.data.skip_bad
    assert files.train is not None
    train = task.read(files.train, skip_bad=skip_bad, needs_labels=True)
    task = task.settle(train)
    if files.dev is None:
        train, dev = hold_out(train, files.dev_share)
    else:
        dev = task.read(files.dev, skip_bad=skip_bad)
        if not dev.is_labelled:
            raise UserError(
                f"{files.dev} has no labels to choose by; leave --dev out to take a share of the "
                "training data, and give it as --test to have it predicted"
            )
    longest = read_config(source).max_positions
    if task.max_length > longest:
        raise UserError(
            f"task.max_length {task.max_length} is more than the {longest} positions of {source}; "
            f"lower it: --set task.max_length={longest}"
        )
    tokenizer = Tokenizer.load(source)
    train_instances = task.encode(train.examples, tokenizer)
    dev_instances = task.encode(dev.examples, tokenizer)
    return Sets(
        task=task,
        train=train,
        dev=dev,
        train_instances=train_instances,
        dev_instances=dev_instances,
        tokenizer=tokenizer,
        notes=tuple(
            describe_sets(task, {"train": (train, train_instances), "dev": (dev, dev_instances)})
        ),
    )


def hold_out(data: Dataset[Any], share: float) -> tuple[Dataset[Any], Dataset[Any]]:
    """Training data without, and dev made of, the examples with the lowest hash of their text.

    Examples about the same text stay together.
    """
    keys = [hashlib.sha256(text_of(example).encode()).digest() for example in data.examples]
    texts = sorted(set(keys))
    chosen = set(texts[: max(1, round(share * len(texts)))])
    if len(chosen) == len(texts):
        raise UserError(f"{data.path} has one text only; give examples to choose by: --dev FILE")
    parts = [
        [e for e, key in zip(data.examples, keys, strict=True) if (key in chosen) == is_dev]
        for is_dev in (False, True)
    ]
    return replace(data, examples=parts[0]), replace(data, examples=parts[1])


def text_of(example: Any) -> str:
    """What an example is about: its context, its text or its words."""
    for name in ("context", "first", "text"):
        if hasattr(example, name):
            return str(getattr(example, name))
    raise AssertionError(f"no text in {example}")


def describe_sets(
    task: AnyTask, sets: Mapping[str, tuple[Dataset[Any], Instances]]
) -> Iterator[str]:
    """How the files were understood, and what had to be left out or cut."""
    for name, (data, instances) in sets.items():
        columns = ", ".join(f"{role} = {column}" for role, column in data.columns.items())
        yield (
            f"{name}: {len(data.examples):,} examples of {data.path}, {data.format}"
            + (f"; columns: {columns}" if columns else "")
        )
        for what, count in data.problems.counts.items():
            places = ", ".join(data.problems.places[what][:3])
            yield f"  left out {count:,}: {what} ({places})"
        for what, count in instances.counts.items():
            if count:
                yield f"  {count:,} {what}"
    if labels := getattr(task, "labels", ()):
        shown = ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if labels[20:] else "")
        yield f"{len(labels)} labels: {shown}"
    yield f"chosen by {task.metric} on dev"


# --- runs ---


def plan_runs(recipe: FinetuneRecipe) -> Iterator[RunSpec]:
    tune = recipe.tune
    sizes, peaks, budgets = [tune.batch_size], [recipe.optim.peak], [recipe.train.budget]
    if tune.grid == "paper":
        sizes, peaks = list(BATCH_SIZES), list(PEAKS)
        budgets = [f"{epochs} epochs" for epochs in EPOCHS]
    seeds = range(recipe.train.seed, recipe.train.seed + tune.seeds)
    for size, peak, budget, seed in itertools.product(sizes, peaks, budgets, seeds):
        yield RunSpec(seed=seed, batch_size=size, peak=peak, budget=budget)


def run_once(
    recipe: FinetuneRecipe,
    source: Path,
    out: Path,
    sets: Sets,
    spec: RunSpec,
    world: World,
    show: Show,
) -> FinetuneRun:
    """One run, from its last checkpoint if there is one; nothing to do if it is finished."""
    folder = out / "runs" / spec.name
    settings = settings_of(recipe, spec, source, sets)
    if (folder / RESULT).is_file():
        found = read_json(folder / RESULT)
        check_same(Checkpoint(folder=folder, counters=None, settings=found["settings"]), settings)  # type: ignore[arg-type]
        return FinetuneRun(**found["run"])
    checkpoint = find_checkpoint(folder)
    if checkpoint is not None:
        check_same(checkpoint, settings)
    if world.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
    model = make_model(recipe, source, sets.task, spec.seed, checkpoint).to(world.device)
    micro_tokens = recipe.tune.micro_tokens or find_fitting(model, sets.task, recipe, world)
    loader = TaskLoader(
        sets.train_instances,
        batch_size=spec.batch_size,
        micro_tokens=micro_tokens,
        seed=spec.seed,
        rank=world.rank,
        world_size=world.size,
    )
    budget = in_steps(spec.budget, loader.steps_per_epoch)
    config = replace(
        recipe.train,
        seed=spec.seed,
        evaluate_every=recipe.train.evaluate_every or loader.steps_per_epoch,
    )
    evaluate = DevScore(sets, micro_tokens, config.precision)
    trainer = Trainer(
        model,
        sets.task.objective,
        config=config,
        optim=replace(recipe.optim, peak=spec.peak),
        budget=budget,
        saving=Saving(
            folder=folder,
            settings=settings,
            tokenizer_from=source,
            keep=1,
            card=TaskCard(**describe(sets.task)),
        ),
        world=world,
        log=Log(
            folder,
            every=config.log_every,
            show=show,
            resume=checkpoint,
            is_silent=not world.is_first,
            tensorboard=config.tensorboard,
        ),
        evaluate=evaluate,
        resume=checkpoint,
    )
    loader.start_step = trainer.counters.step
    if trainer.progress < 1:
        trainer.run(loader)
    run = FinetuneRun(
        seed=spec.seed,
        settings={"peak": spec.peak, "batch_size": spec.batch_size, "budget": spec.budget},
        scores={},
        seconds=round(trainer.counters.seconds, 1),
        curve=tuple(read_curve(folder, sets.task.metric)),
    )
    if world.is_first:
        run = finish_run(folder, source, sets, run, settings, micro_tokens, config.precision)
    world.wait()
    return FinetuneRun(**read_json(folder / RESULT)["run"])


def settings_of(recipe: FinetuneRecipe, spec: RunSpec, source: Path, sets: Sets) -> dict[str, Any]:
    """What decides the outcome of a run, as JSON can hold it."""
    return {
        "model": str(source),
        "task": asdict(sets.task),  # type: ignore[call-overload]
        "data": {"train": str(sets.train.path), "dev": str(sets.dev.path)},
        "num_train": len(sets.train.examples),
        "num_dev": len(sets.dev.examples),
        "tune": {"freeze": recipe.tune.freeze, "batch_size": spec.batch_size},
        "optim": asdict(replace(recipe.optim, peak=spec.peak)),
        "train": asdict(replace(recipe.train, seed=spec.seed, budget=spec.budget)),
    }


def make_model(
    recipe: FinetuneRecipe,
    source: Path,
    task: AnyTask,
    seed: int,
    checkpoint: Checkpoint | None,
) -> Bert:
    """The encoder of the directory with a fresh output layer; or the model of a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    model = open_model(
        source if checkpoint is None else checkpoint.model,
        heads=(task.head,),
        num_labels=task.num_labels,
        generator=generator,
    ).model
    for parameter in model.parameters():  # mapped from the file, which stays as it is
        parameter.data = parameter.data.clone()
    if checkpoint is None:
        initialise(model.get_submodule(task.head), model.config.init_std, generator)
    if recipe.tune.freeze > len(model.layers):
        raise UserError(
            f"tune.freeze is {recipe.tune.freeze}, the model has {len(model.layers)} layers"
        )
    if recipe.tune.freeze:
        for part in (model.embeddings, *model.layers[: recipe.tune.freeze]):
            part.requires_grad_(False)
    if model.pooler is not None and task.head in ("token", "span"):
        model.pooler.requires_grad_(False)  # kept for the next task; nothing here trains it
    return model


def find_fitting(model: Bert, task: AnyTask, recipe: FinetuneRecipe, world: World) -> int:
    memory = train_memory(model.config, batch_size=1, length=task.max_length)
    found = find_micro_tokens(
        None,
        free_bytes=find_free_bytes(world.device) - memory.gradients - memory.optimizer,
        bytes_per_token=memory.activations / task.max_length,
        least=task.max_length,
        device=world.device,
    )
    return world.least(found)


def in_steps(text: str, steps_per_epoch: int) -> Budget:
    budget = Budget.parse(text)
    if budget.unit != "epochs":
        return budget
    return Budget(max(1, round(budget.amount * steps_per_epoch)), "steps")


class DevScore:
    """The scores of a model on dev, with thresholds fitted there where the task has any."""

    def __init__(self, sets: Sets, micro_tokens: int, precision: str) -> None:
        self.sets, self.micro_tokens, self.precision = sets, micro_tokens, precision

    def __call__(self, model: Bert) -> tuple[dict[str, float], float | None]:
        evaluated = self.evaluate(model)
        return evaluated.scores, evaluated.scores[evaluated.task.metric]

    def evaluate(self, model: Bert) -> Evaluated:
        sets = self.sets
        return predict_all(
            model,
            sets.task,
            sets.dev.examples,
            sets.dev_instances,
            micro_tokens=self.micro_tokens,
            precision=self.precision,
            tunes=True,
        )


def read_curve(folder: Path, metric: str) -> Iterator[float]:
    """The score that counts, evaluation by evaluation."""
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        if "held_out" in values:
            yield values["held_out"][metric]


def finish_run(
    folder: Path,
    source: Path,
    sets: Sets,
    run: FinetuneRun,
    settings: Mapping[str, Any],
    micro_tokens: int,
    precision: str,
) -> FinetuneRun:
    """Keeps the best epoch's model with its thresholds, and removes the checkpoints."""
    best = find_best(folder)
    assert best is not None
    model = open_model(best / "model").model
    evaluated = DevScore(sets, micro_tokens, precision).evaluate(model)
    card = TaskCard(**describe(evaluated.task))
    save_model(model, folder / "model", card=card, tokenizer_from=source)
    run = replace(run, scores=evaluated.scores)
    write_json(folder / RESULT, {"run": asdict(run), "settings": dict(settings)})
    shutil.rmtree(folder / "checkpoints")
    return run


# --- the end ---


def conclude(
    recipe: FinetuneRecipe,
    out: Path,
    sets: Sets,
    done: Sequence[FinetuneRun],
    best: RunSpec,
    world: World,
) -> tuple[FinetuneResults, dict[str, dict[str, float]]]:
    """The best run's model becomes the model; its answers on dev and test are written."""
    with draft_of(out / "model") as draft:
        shutil.copytree(out / "runs" / best.name / "model", draft, dirs_exist_ok=True)
    opened = open_model(out / "model")
    model = opened.model.to(world.device)
    precision = recipe.train.precision
    micro_tokens = recipe.tune.micro_tokens or 8192
    evaluated = DevScore(sets, micro_tokens, precision).evaluate(model)
    write_predictions(out / "predictions", sets.dev, evaluated)
    tests = {}
    for path in recipe.data.test:
        data = evaluated.task.read(path, skip_bad=recipe.data.skip_bad)
        instances = evaluated.task.encode(data.examples, sets.tokenizer)
        answered = predict_all(
            model,
            evaluated.task,
            data.examples,
            instances,
            micro_tokens=micro_tokens,
            precision=precision,
        )
        write_predictions(out / "predictions", data, answered)
        tests[str(path)] = answered.scores
    findings = make_findings(evaluated.task, sets.dev.examples, evaluated.predictions)
    scored = [
        f"{path}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        for path, scores in tests.items()
        if scores
    ]
    return summarise(recipe, sets, done, findings, [*sets.notes, *scored]), tests


def summarise(
    recipe: FinetuneRecipe,
    sets: Sets,
    done: Sequence[FinetuneRun],
    findings: Findings | None,
    notes: Sequence[str],
) -> FinetuneResults:
    details: dict[str, Any] = {} if findings is None else findings.as_fields()
    return FinetuneResults(
        name=sets.train.benchmark or sets.train.path.stem,
        task=str(recipe.task.get("name", "classify")),
        model=str(recipe.model),
        metric=sets.task.metric,
        runs=tuple(done),
        num_train=len(sets.train.examples),
        num_dev=len(sets.dev.examples),
        command=" ".join(["bertie", *sys.argv[1:]]),
        majority=find_majority(sets.task, sets.train.examples, sets.dev.examples),
        notes=tuple(notes),
        **details,
    )
