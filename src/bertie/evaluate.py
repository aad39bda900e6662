"""A fine-tuned model on a file: the official scores, and the answers as files."""

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertie.checkpoint.card import read_card
from bertie.checkpoint.head_dir import is_head
from bertie.checkpoint.model_dir import open_model
from bertie.config import assign, build
from bertie.data.features import FeatureRows, open_features
from bertie.errors import UserError
from bertie.feature_sets import check_encoding, open_stored_head, read_part, row_instances
from bertie.tasks import get_task
from bertie.tasks.classify import Classify
from bertie.tasks.glue import submission_name, write_submission
from bertie.tasks.instances import Instances
from bertie.tasks.span import Span
from bertie.tasks.steps import predict
from bertie.tasks.tag import Tag
from bertie.tasks.task import AnyTask, Dataset, check_given
from bertie.text.disk import write_text
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What a model answered, and how good that was."""

    task: AnyTask  # with thresholds
    predictions: list[Any]
    scores: dict[str, float]  # empty: there are no labels


def predict_all(
    model: nn.Module,
    task: AnyTask,
    examples: Sequence[Any],
    instances: Instances,
    *,
    precision: str = "fp32",
    tunes: bool = False,
) -> Evaluated:
    """Predicts, decodes and scores; `tunes` fits the thresholds on these very examples."""
    outputs = predict(model, instances, precision=precision)
    if tunes:
        task = task.tune(examples, instances, outputs)
    predictions = task.decode(examples, instances, outputs)
    return Evaluated(task=task, predictions=predictions, scores=task.score(examples, predictions))


def evaluate_file(
    directory: Path,
    path: Path,
    out: Path | None = None,
    *,
    sets: Sequence[str] = (),
    skip_bad: bool = False,
    on_scores: Callable[[Dataset[Any], Evaluated], None] = lambda data, evaluated: None,
) -> tuple[Dataset[Any], Evaluated, list[Path]]:
    """A fine-tuned model's answers to a file; written to the folder `out`, if it is given.

    To a head on features, the file is a feature store.

    `sets` are assignments to the task's settings, such as "task.columns.first=review". `on_scores`
    is called before anything is written: a full disk does not cost the scores.
    """
    task = open_task(directory, sets)
    if out is not None:
        make_folder(out)
    if is_head(directory):
        data, evaluated = evaluate_store(directory, path, task)
    else:
        data = task.read(path, skip_bad=skip_bad)
        check_given(data, dict(read_settings(sets).get("columns", {})))
        if out is not None:
            choose_targets(out, data, task)
        instances = task.encode(data.examples, Tokenizer.load(directory))
        model = open_model(directory).model.to("cuda" if torch.cuda.is_available() else "cpu")
        evaluated = predict_all(model, task, data.examples, instances)
    on_scores(data, evaluated)
    return data, evaluated, [] if out is None else write_predictions(out, data, evaluated)


def evaluate_store(directory: Path, path: Path, task: AnyTask) -> tuple[Dataset[Any], Evaluated]:
    """The answers of a head on features to a feature store."""
    assert isinstance(task, Classify | Tag)
    store = open_features(path)
    check_encoding(asdict(task), store, str(directory))
    rows = FeatureRows([store])
    head, part = open_stored_head(directory, rows), read_part(rows, 0, task)
    examples, instances = part.data.examples, row_instances(task, part, rows)
    return part.data, predict_all(head, task, examples, instances)


def open_task(directory: Path, sets: Sequence[str] = ()) -> AnyTask:
    """The task that a directory was fine-tuned for, settled."""
    if not directory.is_dir():
        raise UserError(f"no model directory at {directory}")
    card = read_card(directory)
    if card is None or not card.task:
        raise UserError(
            f"{directory} does not say what it was fine-tuned for (task.json); fine-tune it: "
            "bertie finetune --model DIR --task classify --train FILE --out DIR"
        )
    task: AnyTask = build(get_task(card.task), read_settings(sets, card.settings), "task.")
    return task


def read_settings(sets: Sequence[str], settled: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The settings of a task after the assignments."""
    settings = {"task": copy.deepcopy(dict(settled))}
    for assignment in sets:
        if not assignment.startswith("task."):
            raise UserError(f"only task.* can be set; found {assignment!r}")
        assign(settings, assignment)
    return settings["task"]


def make_folder(out: Path) -> None:
    """Now, and not after all is predicted."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be a folder: {error.strerror}; take another --out") from None
    if not os.access(out, os.W_OK):
        raise UserError(f"nothing can be written to {out}; take another --out")


def choose_targets(out: Path, data: Dataset[Any], task: AnyTask, name: str = "") -> list[Path]:
    """The files of answers: lines of JSON, SQuAD's, a submission to GLUE; none may be the data."""
    name = name or data.path.stem
    targets = [out / f"{name}.jsonl"]
    if isinstance(task, Span):
        targets.append(out / f"{name}.answers.json")
    if data.benchmark and not data.is_labelled:
        targets.append(out / submission_name(data.benchmark, data.path))
    for target in targets:
        if target.exists() and target.samefile(data.path):
            raise UserError(f"the answers would replace {data.path}; take another --out")
    return targets


def write_predictions(
    out: Path, data: Dataset[Any], evaluated: Evaluated, name: str = ""
) -> list[Path]:
    """Each answer as a line of JSON; and as the leaderboards of GLUE and SQuAD take them.

    The files are called `name`, or as that of the data.
    """
    targets = choose_targets(out, data, evaluated.task, name)
    make_folder(out)
    pairs = list(zip(data.examples, evaluated.predictions, strict=True))
    lines = [json.dumps({"id": e.id} | to_json(p), ensure_ascii=False) for e, p in pairs]
    write_text(targets[0], "".join(f"{line}\n" for line in lines))
    if isinstance(evaluated.task, Span):
        answers = {example.id: prediction.text for example, prediction in pairs}
        write_text(targets[1], json.dumps(answers, ensure_ascii=False))
    if data.benchmark and not data.is_labelled:
        labels = [prediction.label for _, prediction in pairs]
        write_submission(targets[-1], [example.id for example, _ in pairs], labels)
    return targets


def to_json(prediction: Any) -> dict[str, Any]:
    """A prediction's fields, as JSON can hold them."""
    values = {name: getattr(prediction, name) for name in prediction.__slots__}
    return {name: plain(value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """
    >>> plain((np.float32(0.5), "x"))
    [0.5, 'x']
    """
    if isinstance(value, np.ndarray):
        return [round(float(one), 6) for one in value.ravel()]
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__dataclass_fields__"):
        return to_json(value)
    if hasattr(value, "_asdict"):  # a named tuple
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
