"""The verb for studies: many small runs of equal budgets, and what they show."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.cli.show import may_stop
from bertie.cli.tuning import Sets
from bertie.errors import UserError

DEVICES = {"": "", "cpu": "cpu", "gpu": "cuda"}


def ablate(
    study: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped study.")],
    corpus: Annotated[Path, typer.Option(help="The token store to pre-train on.")],
    data: Annotated[Path, typer.Option(help="Folder of the tasks' files.")],
    out: Annotated[
        Path, typer.Option(help="Folder of runs and reports; equal runs of studies are shared.")
    ] = Path("studies"),
    budget: Annotated[
        str, typer.Option(help='Of each pre-training: "50M tokens", "2 minutes".')
    ] = "",
    size: Annotated[str, typer.Option(help="Of the model: mini, or layers/hidden/heads.")] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each row.")] = 1,
    on: Annotated[str, typer.Option(help="cpu or gpu; without it, whatever there is.")] = "",
    tasks: Annotated[str, typer.Option(help="Some of the tasks: MRPC,SST-2.")] = "",
    at_once: Annotated[int, typer.Option(help="Runs at the same time, if the device fits.")] = 1,
    sets: Sets = None,
) -> None:
    """Run a study: differences of one recipe, pre-trained and fine-tuned with equal budgets.

    Says what it will cost, runs what is not done yet, and writes report.html, report.md and
    report.json of what the runs have logged. What was stopped goes on if the same command is given
    again.

    `bertie ablate table5 --corpus my_store --data GLUE_AND_MORE --size 4/256/4 --seeds 2`

    `bertie ablate my_study.toml --corpus my_store --data tasks --budget "50M tokens" --at-once 6`
    """
    from bertie.ablate import describe_cost, plan_study, run_study
    from bertie.study import Scale, read_study
    from bertie.train.log import watch

    if on not in DEVICES:
        raise UserError(f"--on is cpu or gpu; found {on}")
    if seeds < 1 or at_once < 1:
        raise UserError("--seeds and --at-once are at least 1")
    scale = Scale(
        corpus=corpus,
        data=data,
        out=out,
        budget=budget,
        size=size,
        seeds=seeds,
        device=DEVICES[on],
        tasks=tuple(name.strip() for name in tasks.split(",") if name.strip()),
    )
    asked = read_study(study, sets or [])
    plan = plan_study(asked, scale)
    for line in describe_cost(plan):
        print(line, flush=True)
    folder = out / Path(study).stem
    with may_stop(), watch() as show:
        report = run_study(asked, scale, plan, folder, at_once=at_once, command=sys.argv, show=show)
    print(report)
