"""The whole of the paper's Table 7 for a model and a tagging set: features, heads, table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bertie.checkpoint.model_dir import read_config
from bertie.data.corpus import Progress
from bertie.datasets import DataFiles
from bertie.errors import UserError
from bertie.evaluate import evaluate_file
from bertie.features import make_features
from bertie.finetune import finetune, plan_runs
from bertie.model.feature_head import Combination, combined_layers
from bertie.report.command import show_command
from bertie.report.results import FinetuneRun
from bertie.report.table7 import CombinationScores, Table7, write_table7
from bertie.train.log import Show
from bertie.tuning import FinetuneRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class TableMade:
    """A finished table and its page."""

    table: Table7
    page: Path


def make_stores(
    source: Path,
    recipe: FinetuneRecipe,
    *,
    on_progress: Progress = lambda what, done, total: None,
) -> DataFiles:
    """The recipe's files as feature stores, OUT/features/NAME, with the layers that are read.

    Those that are there already are left as they are.
    """
    if recipe.out is None or recipe.data.train is None:
        raise UserError("say what to learn from and where to write: --train FILE --out FOLDER")
    num_layers = read_config(source).num_layers
    read = {n for c in possible_of(source, recipe) for n in combined_layers(c, num_layers)}
    files = {"train": recipe.data.train}
    files |= {} if recipe.data.dev is None else {"dev": recipe.data.dev}
    files |= {f"test-{number}": path for number, path in enumerate(recipe.data.test, 1)}
    stores = {name: recipe.out / "features" / name for name in files}
    for name, path in files.items():
        make_features(
            source,
            path,
            stores[name],
            task=recipe.task,
            layers=",".join(map(str, sorted(read))),
            skip_bad=recipe.data.skip_bad,
            on_progress=partial(progress_of, name, on_progress),
        )
    tests = tuple(folder for name, folder in stores.items() if name.startswith("test-"))
    return replace(
        recipe.data, train=stores["train"], dev=stores.get("dev"), test=tests, skip_bad=False
    )


def progress_of(name: str, on_progress: Progress, what: str, done: int, total: int) -> None:
    on_progress(f"{name}: {what}", done, total)


def possible_of(source: Path, recipe: FinetuneRecipe) -> list[Combination]:
    """The combinations that the model has enough layers for."""
    num_layers = read_config(source).num_layers
    wished = () if recipe.head is None else recipe.head.combinations
    possible = [c for c in wished if is_possible(c, num_layers)]
    if not possible:
        raise UserError(f"{source} has {num_layers} layers; no combination reads so few")
    return possible


def is_possible(combination: Combination, num_layers: int) -> bool:
    try:
        return bool(combined_layers(combination, num_layers))
    except UserError:
        return False


def make_table7(
    source: Path,
    recipe: FinetuneRecipe,
    stores: DataFiles,
    *,
    command: Sequence[str],
    show: Show = lambda line: None,
) -> TableMade:
    """Trains the heads on the stores, in OUT/heads, and writes OUT/table.*; goes on if stopped.

    `command` is what was typed, word by word: it makes the same table again, and is read in it.
    """
    assert recipe.out is not None and recipe.head is not None
    possible = possible_of(source, recipe)
    heads = replace(
        recipe,
        task={"name": "tag"},
        data=stores,
        head=replace(recipe.head, combinations=tuple(possible)),
        out=recipe.out / "heads",
    )
    results = finetune(heads, command=command, show=show).results
    left_out = [c for c in recipe.head.combinations if c not in possible]
    broken = [
        spec.name
        for spec, run in zip(plan_runs(heads), results.runs, strict=True)
        if not run.scores
    ]
    made = Table7(
        model=str(source),
        data=str(recipe.data.train),
        metric=results.metric,
        rows=tuple(make_rows(heads, results.metric, results.runs, recipe.data.test)),
        command=show_command(command),
        notes=(
            *(f"left out: {c}; the model has too few layers" for c in left_out),
            *(f"left out: {name}; the run broke down" for name in broken),
        ),
    )
    return TableMade(table=made, page=write_table7(made, recipe.out))


def make_rows(
    recipe: FinetuneRecipe, metric: str, runs: Sequence[FinetuneRun], tests: Sequence[Path]
) -> list[CombinationScores]:
    """A row for each combination, with the scores of all its seeds; `tests` are the files."""
    assert recipe.head is not None and recipe.out is not None
    specs = list(plan_runs(recipe))
    rows = []
    for combination in recipe.head.combinations:
        own = [n for n, spec in enumerate(specs) if spec.combination == combination]
        learned = [n for n in own if runs[n].scores]  # the others broke down
        folders = [recipe.out / "runs" / specs[n].name / "model" for n in learned]
        on_tests = {}
        for path, store in zip(tests, recipe.data.test, strict=True):
            found = [evaluate_file(folder, store)[1].scores for folder in folders]
            on_tests[str(path)] = tuple(scores[metric] for scores in found if metric in scores)
        rows.append(
            CombinationScores(
                combination=combination,
                dev=tuple(runs[n].scores[metric] for n in learned),
                tests=on_tests,
                seconds=sum(runs[n].seconds for n in own),
            )
        )
    return rows
