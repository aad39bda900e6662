"""A study of toy runs, and its files."""

import json
from pathlib import Path
from typing import Any

from bertie.ablate import run_studies
from bertie.data.store import Store
from bertie.study import Scale, read_study
from bertie.study_plan import PlannedStudy, plan_study
from tests.train.runs import TINY
from tests.tuned import write_classes, write_questions, write_tags

STUDY = """
title = "A toy"
asks = "Does it run?"
paper = "nobody's"
recipe = "tiny-cpu"
tasks = ["good", "names", "where", "frozen names"]
frozen = { head = { combinations = ["last"], hidden_size = 4 }, train = { budget = "2 epochs" } }

[pretrain.train]
budget = "4k tokens"

[rows.full]
title = "MLM + NSP"
paper = { good = 91.5 }

[rows.left]
title = "left to right"
pretrain.objective = "lm"
pretrain.model.attention = "left"

[rows.top]
title = "left to right + LSTM"
pretrain.objective = "lm"
pretrain.model.attention = "left"
finetune.tune.bilstm_layers = 1

[own_tasks.good]
recipe = "classify"
train = "good.csv"
dev = "good.csv"
metric = "accuracy"
finetune.task.max_length = 32
finetune.train.budget = "2 epochs"

[own_tasks.names]
recipe = "tag"
train = "names.conll"
dev = "names.conll"
metric = "f1"
finetune.task.max_length = 32
finetune.train.budget = "2 epochs"

[own_tasks."frozen names"]
recipe = "tag"
train = "names.conll"
dev = "names.conll"
metric = "f1"
frozen = true
finetune.task.max_length = 32

[own_tasks.where]
recipe = "squad"
train = "where.json"
dev = "where.json"
metric = "f1"
finetune.task = { max_length = 40, stride = 10, max_question = 8 }
finetune.train.budget = "1 epochs"
"""
SETS = [f"pretrain.{one}" for one in TINY if "budget" not in one]


def write_toy_data(folder: Path) -> Path:
    write_classes(folder / "good.csv")
    write_tags(folder / "names.conll")
    write_questions(folder / "where.json")
    return folder


def write_toy_study(folder: Path) -> Path:
    path = folder / "toy.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def prepare(
    file: Path, store: Store, data: Path, out: Path, *sets: str, **more: Any
) -> PlannedStudy:
    study = read_study(file, [*SETS, *sets])
    scale = Scale(corpus=store.folder, data=data, out=out, device="cpu", **more)
    return PlannedStudy(study, scale, plan_study(study, scale), out / file.stem)


def run_study(asked: PlannedStudy, **more: Any) -> Path:
    (report,) = run_studies([asked], **more)
    return report


def found_in(report: Path) -> dict[str, Any]:
    """The report as JSON, without what the clock says."""
    values: dict[str, Any] = json.loads(report.with_suffix(".json").read_text(encoding="utf-8"))
    for loss in values["losses"]:
        del loss["seconds"]
    return values
