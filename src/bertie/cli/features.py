"""The verbs of the feature-based way: a feature store, and the paper's Table 7."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.cli.asking import take_model
from bertie.cli.show import may_stop, progress_bar, show_table
from bertie.cli.tuning import Sets, SkipBad, as_sets
from bertie.embedded import find_model


def features(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] DATA",
            help="A file of the task, with labels or without. Before it, a model directory, if it "
            "is not the model that ships with bertie.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The feature store to write, a folder.")],
    task: Annotated[str, typer.Option(help="classify or tag: how the file is read.")] = "classify",
    layers: Annotated[
        str, typer.Option(help="all, or some: 0 is the embeddings, -1 the last layer.")
    ] = "all",
    skip_bad: SkipBad = False,
    sets: Sets = None,
) -> None:
    """Write what the layers of a frozen model make of every token, to train heads on.

    The store is memory-mapped float16, one file a layer, with an index; long texts are read in
    windows. `bertie finetune features` then trains heads on it, in minutes on a CPU.

    ```
    bertie features train.conll --task tag --out train_store
    bertie features my_run/model reviews.csv --layers -2,-1 --out reviews_store
    bertie features dev.conll --task tag --out dev --set task.context=document
    ```
    """
    from bertie.evaluate import read_settings
    from bertie.features import make_features

    model, (data,) = take_model(words, 1, "a file")
    settings = read_settings(sets or [], {"name": task})
    with progress_bar() as on_progress:
        store = make_features(
            model,
            Path(data),
            out,
            task=settings,
            layers=layers,
            skip_bad=skip_bad,
            on_progress=on_progress,
        )
    made = store.manifest
    for note in made.notes:
        print(note)
    num_bytes = sum(made.file_bytes.values())
    print(
        f"{out}: {made.num_examples:,} examples, {made.num_tokens:,} tokens, "
        f"{len(made.layers)} layers of {made.hidden_size}; {num_bytes / 1e6:,.1f} MB, "
        f"{num_bytes / made.num_tokens:,.0f} bytes a token"
    )


def table7(
    train: Annotated[Path, typer.Option(help="Tagged sentences to learn from.")],
    out: Annotated[Path, typer.Option(help="Folder for features, heads and the table.")],
    model: Annotated[
        Path | None, typer.Argument(help="A model directory; default: the one that ships.")
    ] = None,
    dev: Annotated[
        Path | None,
        typer.Option(help="Tagged sentences to choose by; default: a tenth of --train."),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Tagged sentences to score every head on; may be repeated."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each combination; default: 5.")
    ] = None,
    skip_bad: SkipBad = False,
    sets: Sets = None,
) -> None:
    """Make the paper's Table 7: six ways to read a frozen model, on a tagging set.

    Features are written once; then a BiLSTM is trained for each combination of layers and each
    seed, with the settings of the recipe table-7. It writes table.md, table.json and table.html.
    If it is stopped, the same command goes on.

    ```
    bertie table7 my_run/model --train eng.train --dev eng.testa --out table7
    bertie table7 --train eng.train --out quick --seeds 1 --set head.kind=linear
    ```
    """
    from bertie.config import read_recipe
    from bertie.report.table7 import cells_of, columns_of
    from bertie.table7 import make_stores, make_table7
    from bertie.train.log import watch
    from bertie.tuning import FinetuneRecipe

    source = find_model(model)
    given = {
        "data.train": train,
        "out": out,
        "data.dev": dev,
        "data.test": test or None,
        "tune.seeds": seeds,
        "data.skip_bad": skip_bad or None,
    }
    recipe = read_recipe(FinetuneRecipe, "table-7", [*(sets or []), *as_sets(given)])
    with may_stop():
        with progress_bar() as on_progress:
            stores = make_stores(source, recipe, on_progress=on_progress)
        with watch() as show:
            made = make_table7(source, recipe, stores, command=sys.argv, show=show)
    columns = columns_of(made.table)
    rows = [cells_of(made.table, row) for row in made.table.rows]
    show_table(columns, rows, title=f"{made.table.metric}, {source}", right=columns[1:])
    for note in made.table.notes:
        print(note)
    print(made.page)
