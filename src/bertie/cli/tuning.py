"""The verbs of tasks: fine-tune a model, and evaluate it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertie.cli.show import may_stop, show_problems, show_table

if TYPE_CHECKING:
    from bertie.evaluate import Evaluated
    from bertie.report.results import FinetuneResults
    from bertie.tasks.task import Dataset

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change one setting; may be repeated."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out rows that cannot be used, and count them.")
]


def as_sets(given: Mapping[str, object]) -> list[str]:
    """Options as one would write them behind --set; those that are None were not given.

    JSON's texts, numbers and lists are TOML's, too; and quoted, a folder named 5 is no number.

    >>> as_sets({"out": Path("5"), "tune.seeds": 3, "data.dev": None, "data.test": [Path("a b")]})
    ['out="5"', 'tune.seeds=3', 'data.test=["a b"]']
    """
    return [
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in given.items()
        if value is not None
    ]


def finetune(
    recipe: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a shipped recipe.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model to start from; default: the one that ships.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classify (the default), tag, span (questions), choice.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="A file with labels to learn from.")] = None,
    dev: Annotated[
        Path | None,
        typer.Option(help="A file to choose the best model by; default: a tenth of --train."),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="A file for the best model to answer; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for model, report, answers.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many runs of the same settings, each with a seed of its own."),
    ] = None,
    skip_bad: SkipBad = False,
    sets: Sets = None,
) -> None:
    """Fine-tune a model for a task, keep the one that is best on dev, and report.

    It takes the files of GLUE, SQuAD, SWAG and CoNLL as they are, and CSV, TSV, JSON Lines or
    Parquet with columns of any name: they are guessed and shown, and
    `--set task.columns.first=NAME` names one. Recipes: classify, tag, tag-document, squad, choice.
    If it is stopped, the same command goes on.

    ```
    bertie finetune --task classify --train train.csv --out sentiment
    bertie finetune --task tag --train train.conll --dev dev.conll --out ner
    bertie finetune squad --model my_run/model --train squad.json --out qa
    bertie finetune --train RTE/train.tsv --out rte --set tune.grid=paper
    ```

    With feature stores (see `bertie features`) it trains a head on a frozen model:

    ```
    bertie finetune features --train train_store --dev dev_store --out head
    ```
    """
    from bertie.config import read_recipe
    from bertie.finetune import finetune as run
    from bertie.train.log import watch
    from bertie.tuning import FinetuneRecipe

    given = {
        "model": model,
        "out": out,
        "data.train": train,
        "data.dev": dev,
        "task.name": task,
        "data.test": test or None,
        "tune.seeds": seeds,
        "data.skip_bad": skip_bad or None,
    }
    settings = read_recipe(FinetuneRecipe, recipe, [*(sets or []), *as_sets(given)])
    with may_stop(), watch() as show:
        made = run(settings, command=sys.argv, show=show)
    show_results(made.results)
    print(f"{made.model}; {made.report}")


def show_results(results: "FinetuneResults") -> None:
    """Every run by the score that counts, the best one by all scores."""
    best = results.best()
    if len(results.runs) > 1:
        names = tuple(best.settings)
        rows = [
            (
                *(str(run.settings[name]) for name in names),
                str(run.seed),
                "broke down" if results.is_broken(run) else f"{results.score(run):.4f}",
            )
            for run in results.runs
        ]
        columns = (*names, "seed", results.metric)
        show_table(columns, rows, title=f"{results.name}, dev", right=columns)
    show_scores(f"{results.name}, dev, seed {best.seed}", best.scores)
    if results.majority is not None:
        print(f"{results.metric} of always giving the same answer: {results.majority:.4f}")
    for path, scores in results.tests.items():
        if scores:
            show_scores(path, scores)
        else:
            print(f"{path}: no labels; predictions written")


def show_scores(title: str, scores: Mapping[str, float]) -> None:
    rows = [
        (name.replace("_", " "), f"{value:,.0f}" if name.startswith("num_") else f"{value:.4f}")
        for name, value in scores.items()
    ]
    show_table(("score", "value"), rows, title=title, right=("value",))


def evaluate(
    model: Annotated[Path, typer.Argument(help="A fine-tuned model directory.")],
    data: Annotated[Path, typer.Option(help="A file of the task; scored if it has labels.")],
    out: Annotated[Path | None, typer.Option(help="A folder for the answers.")] = None,
    skip_bad: SkipBad = False,
    sets: Sets = None,
) -> None:
    """Score a fine-tuned model on a file, with the official metric of its task.

    With --out it writes the answers too, also to a file without labels.

    ```
    bertie evaluate sentiment/model --data test.csv
    bertie evaluate rte/model --data RTE/test.tsv --out submission
    bertie evaluate head/model --data test_store      # a head: a feature store
    ```
    """
    from bertie.evaluate import evaluate_file

    def show(read: "Dataset[Any]", evaluated: "Evaluated") -> None:
        show_problems(read.problems)
        if evaluated.scores:
            show_scores(f"{data}, {len(read.examples):,} examples", evaluated.scores)
        else:
            print(f"{data}: {len(read.examples):,} examples without labels")

    *_, written = evaluate_file(
        model, data, out, sets=sets or (), skip_bad=skip_bad, on_scores=show
    )
    for path in written:
        print(path)
