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
    studies: Annotated[list[str], typer.Argument(help="TOML files, or names of shipped studies.")],
    corpus: Annotated[Path, typer.Option(help="The token store to pre-train on.")],
    data: Annotated[Path, typer.Option(help="Folder of the tasks' files.")],
    out: Annotated[
        Path, typer.Option(help="Folder of runs and reports; equal runs of studies are shared.")
    ] = Path("studies"),
    budget: Annotated[
        str, typer.Option(help='Budget of each pre-training: "50M tokens", "2 minutes".')
    ] = "",
    size: Annotated[
        str, typer.Option(help="Size of the model: mini, or layers/hidden/heads.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(help="How many runs of each row, each with a seed of its own.")
    ] = 1,
    on: Annotated[str, typer.Option(help="cpu or gpu; default: a GPU where there is one.")] = "",
    tasks: Annotated[str, typer.Option(help="Only these of the tasks, such as MRPC,SST-2.")] = "",
    at_once: Annotated[
        int, typer.Option(help="Runs at the same time; the device must hold them.")
    ] = 1,
    only_report: Annotated[
        bool,
        typer.Option(
            "--only-report", help="Run nothing: report what is done, with the same options."
        ),
    ] = False,
    sets: Sets = None,
) -> None:
    """Run studies: variants of one recipe, pre-trained and fine-tuned with equal budgets.

    It tells what they will cost, runs what is not done yet, and writes report.html, report.md and
    report.json for each study. Runs that several studies ask for are done once. If it is stopped,
    the same command goes on. Studies: table5, table6, table8, figure5, mask-rate, relatives, input.

    ```
    bertie ablate table5 --corpus my_store --data tasks --size 4/256/4 --seeds 2
    bertie ablate table5 table8 --corpus my_store --data tasks --at-once 8
    bertie ablate mine.toml --corpus my_store --data tasks --budget "50M tokens"
    ```
    """
    from torch.cuda import is_available as is_there

    from bertie.ablate import run_studies, write_report
    from bertie.study import RUNS, Scale, read_study
    from bertie.study_plan import PlannedStudy, describe_cost, join, plan_study
    from bertie.train.log import watch

    if on not in DEVICES:
        raise UserError(f"--on is cpu or gpu; found {on}")
    if on == "gpu" and not only_report and not is_there():
        raise UserError("--on gpu: there is none here that torch can use")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; runs and reports need a folder")
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
    read = {Path(name).stem: read_study(name, sets or []) for name in studies}  # typos first
    if len(read) < len(studies):
        raise UserError("two studies have one name, and their reports one folder; rename a file")
    if RUNS in read:
        raise UserError(f"a study is called {RUNS}, as is the folder of all runs; rename the file")
    asked = [
        PlannedStudy(study, scale, plan_study(study, scale), out / name)
        for name, study in read.items()
    ]
    for line in describe_cost(join([one.plan for one in asked])):
        print(line, flush=True)
    if only_report:
        reports = [write_report(one, sys.argv, {}) for one in asked]
    else:
        with may_stop(), watch() as show:
            reports = run_studies(asked, at_once=at_once, command=sys.argv, show=show)
    for report in reports:
        print(report)
