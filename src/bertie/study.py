"""A study: one recipe, named differences of it, and tasks; expanded into runs of equal budgets."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bertie import finetune, pretrain
from bertie.config import assign, build, find_recipe, read_toml
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.model.config import ModelConfig, named_size
from bertie.model.feature_head import combined_layers
from bertie.pretrain import PretrainRecipe
from bertie.tasks import get_task, list_metrics
from bertie.text.disk import hash_file
from bertie.train.budget import Budget
from bertie.train.record import flatten, is_one_of
from bertie.tuning import FinetuneRecipe

Settings = dict[str, Any]  # a tree of settings, as TOML has it
RUNS = "runs"  # the folder of all runs, beside those of the reports
SHAPE = ("num_layers", "hidden_size", "num_heads")
SAVES_A_POINT = 8  # from one point to the next: a model is at most so much too far
KEEP_ALL = 10**6
FROZEN_TASKS = ("classify", "tag")  # those that a head on features can learn


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A task that all rows are fine-tuned for."""

    recipe: str  # of fine-tuning, shipped or a file
    train: Path  # below the folder of data
    dev: Path | None = None
    metric: str  # that counts
    frozen: bool = False  # a head on features, instead of fine-tuning
    finetune: Settings = field(default_factory=dict)  # on top of the recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What makes one model differ from the others."""

    title: str
    pretrain: Settings = field(default_factory=dict)
    finetune: Settings = field(default_factory=dict)
    frozen: bool = False  # its layers are mixed as features in all tasks
    paper: dict[str, float] = field(default_factory=dict)  # task -> score, in percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """All of a study file. The first row is what the others are compared with."""

    title: str
    asks: str
    recipe: str  # of pre-training: what all rows have in common
    pretrain: Settings = field(default_factory=dict)  # on top of it, for all rows
    finetune: Settings = field(default_factory=dict)  # on top of the tasks' own, for all rows
    frozen: Settings = field(default_factory=dict)  # on top of the recipe `features`
    tasks: tuple[str, ...]  # of those below, or of QUESTIONS
    own_tasks: dict[str, Question] = field(default_factory=dict)
    rows: dict[str, Row]
    points: tuple[float, ...] = (1.0,)  # of the budget: where the model is fine-tuned
    paper: str = ""  # what the paper's figures are of

    def __post_init__(self) -> None:
        if not self.rows or not self.tasks:
            raise UserError("a study has at least one row and one task")
        for name, row in self.rows.items():
            train = row.pretrain.get("train", {})
            if isinstance(train, Mapping) and "budget" in train:
                raise UserError(
                    f"rows.{name} has a budget of its own; all rows have one: pretrain.train.budget"
                )
            tuned = row.finetune.get("train", {})
            if isinstance(tuned, Mapping) and "budget" in tuned:
                raise UserError(
                    f"rows.{name} is fine-tuned with a budget of its own; all rows have one for "
                    "each task: own_tasks.TASK.finetune.train.budget, or finetune.train.budget"
                )
            check_seeds(f"rows.{name}.pretrain", row.pretrain)
            check_seeds(f"rows.{name}.finetune", row.finetune)
            if strange := sorted(row.paper.keys() - set(self.tasks)):
                raise UserError(f"rows.{name}.paper has {strange[0]}, which is no task here")
            check_frozen(f"rows.{name}.finetune", row.frozen, row.finetune)
        for path in ("pretrain", "finetune", "frozen"):
            check_seeds(path, getattr(self, path))
        known = QUESTIONS | self.own_tasks
        if unknown := [name for name in self.tasks if name not in known]:
            raise UserError(f"no task {unknown[0]}; there are: {', '.join(known)}")
        for name, task in self.own_tasks.items():
            if "," in name:
                raise UserError(f"{name!r} has a comma, at which --tasks is cut; rename the task")
            check_frozen(f"own_tasks.{name}.finetune", task.frozen, task.finetune)
            check_seeds(f"own_tasks.{name}.finetune", task.finetune)
        if not self.points or not all(0 < point <= 1 for point in self.points):
            raise UserError(f"points are shares of the budget, above 0 to 1; found {self.points}")
        if list(self.points) != sorted(set(self.points)):
            raise UserError(f"points ascend, each is there once; found {self.points}")

    @property
    def questions(self) -> dict[str, Question]:
        known = QUESTIONS | self.own_tasks
        return {name: known[name] for name in self.tasks}


def check_seeds(path: str, settings: Settings) -> None:
    """Each run has those of its number."""
    for name in flatten(settings):
        if name in ("train.seed", "data.loader.seed"):
            raise UserError(f"{path}.{name}: each row is run with --seeds 0, 1, ..")


def check_frozen(path: str, frozen: bool, settings: Settings) -> None:
    """How a head on features is trained is said in one place."""
    if frozen and (lost := sorted(settings.keys() - {"task", "data"})):
        raise UserError(f"{path}.{lost[0]} does not reach a head on features; set it in [frozen]")


def glue(name: str, metric: str, *, epochs: int) -> Question:
    folder = Path("GLUE") / name
    task = {"max_length": 128, "truncate": True}
    return Question(
        recipe="classify",
        train=folder / "train.tsv",
        dev=folder / "dev.tsv",
        metric=metric,
        finetune={"task": task, "train": {"budget": f"{epochs} epochs"}} | SMALL,
    )


def conll(*, frozen: bool) -> Question:
    folder = Path("CoNLL-2003")
    return Question(
        recipe="tag",
        train=folder / "eng.train",
        dev=folder / "eng.testa",
        metric="f1",
        frozen=frozen,
        finetune={"task": {"max_length": 128}} | ({} if frozen else SMALL),
    )


SMALL: Settings = {"optim": {"peak": 2e-4}}  # models smaller than BASE take larger steps
SHORT_WINDOWS = {"max_length": 128, "stride": 64, "max_question": 32}
# The files as published, each set in its folder; no longer than the sequences of pre-training.
QUESTIONS = {
    "SST-2": glue("SST-2", "accuracy", epochs=2),
    "MRPC": glue("MRPC", "accuracy", epochs=5),
    "RTE": glue("RTE", "accuracy", epochs=5),
    "STS-B": glue("STS-B", "spearman", epochs=5),
    "SNLI": Question(
        recipe="classify",
        train=Path("SNLI/snli_1.0_train_subset.jsonl"),
        metric="accuracy",
        finetune={"train": {"budget": "1 epochs"}} | SMALL,
    ),
    "CoNLL-2003": conll(frozen=False),
    "CoNLL-2003 frozen": conll(frozen=True),
    "SQuAD": Question(  # split by titles: benchmarks/splits.py dev-v1.1.json DATA/SQuAD-1.1
        recipe="squad",
        train=Path("SQuAD-1.1/train.json"),
        dev=Path("SQuAD-1.1/dev.json"),
        metric="f1",
        finetune={"task": SHORT_WINDOWS, "train": {"budget": "4 epochs"}} | SMALL,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What a study is run on, and how large."""

    corpus: Path  # the token store
    data: Path  # folder of the tasks' files
    out: Path  # of all studies: equal runs are shared
    budget: str = ""  # of each pre-training; "": the study's
    size: str = ""  # of the model; "": the study's
    seeds: int = 1
    device: str = ""  # cpu or cuda; "": whatever there is
    tasks: tuple[str, ...] = ()  # some of the study's; none: all

    @property
    def is_on_gpu(self) -> bool:
        return self.device == "cuda" or (not self.device and torch.cuda.is_available())


def read_study(study: str | Path, sets: Sequence[str] = ()) -> Study:
    """A file, or one that ships with the package."""
    if str(study) == "table7":
        raise UserError("table 7 is of one model's features: bertie table7 --help")
    values = read_toml(find_recipe(study, package="bertie.studies"))
    for assignment in sets:
        assign(values, assignment)
    return build(Study, values)


def merge(*trees: Mapping[str, Any]) -> Settings:
    """One tree on top of the other.

    >>> merge({"model": {"num_layers": 2}}, {"model": {"num_heads": 3}})
    {'model': {'num_layers': 2, 'num_heads': 3}}
    """
    merged: Settings = {}
    for tree in trees:
        for name, value in tree.items():
            if name in merged and isinstance(value, Mapping) != isinstance(merged[name], Mapping):
                raise UserError(f"{name} is a table of settings, or a value, but not both")
            is_table = name in merged and isinstance(value, Mapping)
            merged[name] = merge(merged[name], value) if is_table else value
    return merged


# --- runs ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretraining:
    """One model to be made."""

    row: str
    seed: int
    recipe: PretrainRecipe
    points: tuple[float, ...]  # of the budget: where checkpoints are wanted
    folder: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """One score to be found."""

    row: str
    task: str
    seed: int
    point: float  # of the budget of pre-training
    metric: str
    is_frozen: bool
    source: Pretraining
    recipe: FinetuneRecipe  # without the model, which is not there yet
    head: FinetuneRecipe  # of a head on features, where it is frozen
    folder: Path


def plan_pretraining(study: Study, scale: Scale, store: Store) -> list[Pretraining]:
    """A run for each row and seed; rows with equal settings have one folder."""
    found = []
    for name, row in study.rows.items():
        for seed in range(scale.seeds):
            values = merge(
                read_toml(find_recipe(study.recipe)),
                study.pretrain,
                scale_settings(scale),
                row.pretrain,
                {"store": str(scale.corpus), "train": {"seed": seed}},
                {"data": {"loader": {"seed": seed}}},
            )
            try:
                check_size(scale.size, row)
                recipe = build(PretrainRecipe, values)
                if recipe.start is None:
                    pretrain.shape_of(recipe)
                check_static(recipe, store)
            except UserError as error:
                raise UserError(f"rows.{name}: {error}") from None
            check_budget(recipe.train.budget)
            folder = scale.out / RUNS / f"pretrain-{pretraining_key(recipe, store)}"
            recipe = replace(with_saving(recipe, study.points), out=folder)
            found.append(
                Pretraining(row=name, seed=seed, recipe=recipe, points=study.points, folder=folder)
            )
    return found


def with_saving(recipe: PretrainRecipe, points: Sequence[float]) -> PretrainRecipe:
    """Where models on the way are wanted, all checkpoints are kept, several from point to point."""
    if points == (1.0,):
        return recipe
    train, budget = recipe.train, Budget.parse(recipe.train.budget)
    save_every = train.save_every
    if budget.unit == "tokens":
        most_tokens = recipe.data.loader.batch_size * recipe.data.instances.max_length  # of a step
        ends = (*points[1:], 1.0)
        gap = min(end - point for point, end in zip(points, ends, strict=True) if end > point)
        wanted = max(1, int(gap * budget.amount / most_tokens / SAVES_A_POINT))
        save_every = min(save_every or wanted, wanted)
    return replace(recipe, train=replace(train, save_every=save_every, keep=KEEP_ALL))


def pretraining_key(recipe: PretrainRecipe, store: Store) -> str:
    """Of all that decides what is learned; where patience may end it, evaluations do, too."""
    deciding = {"train.patience", "train.evaluate_every"} if recipe.train.patience else set()
    values = without(asdict(recipe), pretrain.HARMLESS - deciding)
    return digest([values, store.manifest.digest])


def scale_settings(scale: Scale) -> Settings:
    values: Settings = {"train": {}}
    if scale.budget:
        values["train"]["budget"] = scale.budget
    if scale.device:
        values["train"]["device"] = scale.device
    if scale.size:
        config = named_size(scale.size)
        values["model"] = {name: getattr(config, name) for name in SHAPE}
    return values


def check_budget(budget: str) -> None:
    """A step of one row may have more tokens than that of another; so steps are no budget."""
    if Budget.parse(budget).unit not in ("tokens", "minutes"):
        raise UserError(
            f"the rows of a study have equal budgets in tokens or minutes; found {budget!r}"
        )


def check_size(size: str, row: Row) -> None:
    shape = [name for name in SHAPE if name in row.pretrain.get("model", {})]
    if size and shape:
        raise UserError(f"has a model.{shape[0]} of its own, so --size would do nothing there")


def check_static(recipe: PretrainRecipe, store: Store) -> None:
    """Masks that come again are others than new ones only from the pass on in which they do."""
    budget, copies = Budget.parse(recipe.train.budget), recipe.data.masking.static_copies
    num_passes = budget.amount / max(1, store.manifest.num_tokens)
    if copies is not None and budget.unit == "tokens" and num_passes <= copies:
        raise UserError(
            f"data.masking.static_copies = {copies} changes nothing in {num_passes:.2g} passes "
            "over the store; take a larger --budget, a smaller store, or a study without this row"
        )


def plan_tuning(study: Study, scale: Scale, made: Sequence[Pretraining]) -> list[Tuning]:
    """A run for each model, task and point; what cannot be asked of a row is left out."""
    unknown = sorted(set(scale.tasks) - set(study.tasks))
    if unknown:
        raise UserError(f"no task {unknown[0]} in the study; there are: {', '.join(study.tasks)}")
    return [
        tuning
        for source in made
        for point in study.points
        for name in study.tasks
        if not scale.tasks or name in scale.tasks
        for tuning in plan_task(study, scale, source, name, point)
    ]


def plan_task(
    study: Study, scale: Scale, source: Pretraining, name: str, point: float
) -> Iterator[Tuning]:
    task, row = study.questions[name], study.rows[source.row]
    names = {"train": task.train, "dev": task.dev}
    files = {name: str(scale.data / path) for name, path in names.items() if path is not None}
    device = {"train": {"device": scale.device}} if scale.device else {}
    common = merge(device, {"train": {"seed": source.seed}, "task": {"metric": task.metric}})
    fast = {"train": {"precision": "bf16"}} if scale.is_on_gpu else {}
    values = merge(
        fast,
        read_toml(find_recipe(task.recipe)),
        task.finetune,
        study.finetune,
        row.finetune,
        common,
        {"data": files},
    )
    head = merge(fast, read_toml(find_recipe("features")), study.frozen, common)
    try:
        recipe, head_recipe = build(FinetuneRecipe, values), build(FinetuneRecipe, head)
        check_task(recipe.task, source.recipe)
    except UserError as error:
        raise UserError(f"rows.{source.row}, task {name}: {error}") from None
    is_frozen = row.frozen or task.frozen
    if is_frozen and recipe.task["name"] not in FROZEN_TASKS:
        return
    if is_frozen and head_recipe.head is not None:
        for combination in head_recipe.head.combinations:  # refused now where layers are too few
            combined_layers(combination, (source.recipe.model or ModelConfig()).num_layers)
    learned = asdict(recipe)
    if is_frozen:  # of the task's settings, those of the features
        learned = asdict(head_recipe) | {part: learned[part] for part in ("task", "data")}
    key = digest([source.folder.name, point, *tuning_key(task, scale.data, learned)])
    yield Tuning(
        row=source.row,
        task=name,
        seed=source.seed,
        point=point,
        metric=task.metric,
        is_frozen=is_frozen,
        source=source,
        recipe=recipe,
        head=head_recipe,
        folder=scale.out / RUNS / f"finetune-{key}",
    )


def tuning_key(task: Question, data: Path, settings: Settings) -> list[object]:
    """All that decides a score but the model: what the files hold, not where they lie."""
    harmless = finetune.HARMLESS - {"tune.seeds"}  # the best of more seeds is another score
    files = [task.train] if task.dev is None else [task.train, task.dev]
    held = [hash_data(data / path) for path in files if (data / path).is_file()]
    return [*map(str, files), *held, without(settings, harmless)]


def hash_data(path: Path) -> str:
    stat = path.stat()
    return hash_once(path, stat.st_size, stat.st_mtime_ns)


@cache
def hash_once(path: Path, size: int, changed_ns: int) -> str:
    """Read once for all runs, as long as nobody writes to it."""
    return hash_file(path)


def check_task(task: Mapping[str, Any], recipe: PretrainRecipe) -> None:
    """Found now, and not when all models are trained."""
    if "name" not in task:
        raise UserError("its recipe is none of fine-tuning: it has no task.name")
    settings = {key: value for key, value in task.items() if key != "name"}
    build(get_task(str(task["name"])), settings, "task.")
    most = (recipe.model or ModelConfig()).max_positions
    length = task.get("max_length", most)
    if length > most:
        raise UserError(f"task.max_length {length} is more than the {most} positions of the models")
    known = list_metrics(task["name"])
    if task["metric"] not in known:
        raise UserError(f"no metric {task['metric']}; there are: {', '.join(known)}")


def without(values: Settings, left_out: Collection[str]) -> Settings:
    """All settings in one table, but for some."""
    return {name: v for name, v in flatten(values).items() if not is_one_of(name, left_out)}


def digest(values: object) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
