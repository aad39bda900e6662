"""Feature stores as the labelled data of a fine-tuning: examples, and rows in place of pieces."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertie.checkpoint.head_dir import open_head, read_head
from bertie.config import build
from bertie.data.chance import Ints
from bertie.data.features import FeatureRows, FeatureStore, is_features, open_features
from bertie.datasets import (
    DataFiles,
    Sets,
    check_labelled,
    check_metric,
    describe_data,
    describe_missing,
    describe_task,
    is_held_out,
    labels_of,
)
from bertie.errors import UserError
from bertie.model.feature_head import FeatureHead, LookUp
from bertie.objectives import IGNORED
from bertie.tasks import get_task
from bertie.tasks.classify import Classify, TextExample
from bertie.tasks.instances import Input, Instance, Instances, gather
from bertie.tasks.sentences import TagExample
from bertie.tasks.tag import Tag
from bertie.tasks.task import Dataset

FeatureTask = Classify | Tag
# What must be the same in all stores of a fine-tuning, besides the model and its layers.
ENCODING = ("max_length", "stride", "context", "truncate")


def open_alike(files: DataFiles) -> FeatureRows:
    """The stores of train, dev and tests, in this order; they must be of one model and task."""
    assert files.train is not None
    paths = [files.train, *([] if files.dev is None else [files.dev]), *files.test]
    for path in paths:
        if not is_features(path):
            raise UserError(
                f"{path} is not a feature store; make one: bertie features MODEL DATA --out STORE"
            )
    stores = [open_features(path) for path in paths]
    for store in stores[1:]:
        check_alike(stores[0], store)
    return FeatureRows(stores)


def check_alike(first: FeatureStore, second: FeatureStore) -> None:
    one, two = first.manifest, second.manifest
    for name in ("model_sha256", "layers", "task"):
        if getattr(one, name) != getattr(two, name):
            what = name.removesuffix("_sha256")
            raise UserError(
                f"{second.folder} is of another {what} than {first.folder}: "
                f"{getattr(two, what)}, not {getattr(one, what)}"
            )
    check_encoding(one.settings, second, str(first.folder))


def check_encoding(settings: Mapping[str, Any], store: FeatureStore, of: str) -> None:
    """A store's texts must be divided into inputs as those that `of` was made of."""
    for name in ENCODING:
        found, wanted = store.manifest.settings.get(name), settings.get(name)
        if found != wanted:
            raise UserError(f"{store.folder} was made with task.{name}={found}, {of} with {wanted}")


def read_feature_sets(files: DataFiles, rows: FeatureRows, metric: str = "") -> Sets:
    """As `read_sets` of files; the task and its labels are those of the training store."""
    train_store = rows.stores[0]
    task = stored_task(train_store)
    if not train_store.manifest.is_labelled:
        raise UserError(f"{train_store.folder} has no labels to learn")
    task = settle(replace(task, metric=metric or task.metric), train_store)
    check_metric(task)
    parts = [read_part(rows, owner, task) for owner in range(len(rows.stores))]
    if files.dev is None:
        parts[:1] = hold_out_part(task, parts[0], files.dev_share)
    train, dev, *tests = parts
    check_labelled(dev.data)
    made = [row_instances(task, part, rows) for part in parts]
    dev_name = "dev, held out" if files.dev is None else "dev"
    names = ("train", dev_name, *(f"test {number}" for number, _ in enumerate(tests, 1)))
    read = [describe_data(name, part.data) for name, part in zip(names, parts, strict=True)]
    return Sets(
        task=task,
        train=train.data,
        dev=dev.data,
        tests=tuple(part.data for part in tests),
        train_instances=made[0],
        dev_instances=made[1],
        test_instances=tuple(made[2:]),
        notes=(*read, *describe_task(task)),
        remarks=(
            *(note for store in rows.stores for note in store.manifest.notes),
            *describe_missing(task, "train", train.data),
            *describe_missing(task, dev_name, dev.data),
        ),
    )


class Part(NamedTuple):
    """Some examples of a store."""

    data: Dataset[Any]
    owner: int  # the store's number
    numbers: Ints  # of the examples, in the store


def read_part(rows: FeatureRows, owner: int, task: FeatureTask) -> Part:
    """All examples of a store."""
    data = read_store(rows.stores[owner], task)
    return Part(data, owner, np.arange(len(data.examples)))


def hold_out_part(task: FeatureTask, part: Part, share: float) -> tuple[Part, Part]:
    """What is left to train on, and dev; the same examples as of the file itself."""
    is_dev = np.array(is_held_out(task, part.data, share))
    train, dev = (
        Part(replace(part.data, examples=[part.data.examples[n] for n in own]), part.owner, own)
        for own in (np.flatnonzero(~is_dev), np.flatnonzero(is_dev))
    )
    return train, dev


def stored_task(store: FeatureStore) -> FeatureTask:
    task = build(get_task(store.manifest.task), store.manifest.settings, "task.")
    assert isinstance(task, Classify | Tag)
    return task


def settle(task: FeatureTask, store: FeatureStore) -> FeatureTask:
    """With all that the examples to learn from decide."""
    data = read_examples(store, task)
    benchmark = task.benchmark if isinstance(task, Classify) else ""
    return task.settle(replace(data, columns=task.columns, benchmark=benchmark))


def read_store(store: FeatureStore, task: FeatureTask) -> Dataset[Any]:
    """The examples of a store, whose labels must be the task's."""
    data = read_examples(store, task)
    for example in data.examples:
        if strange := sorted(set(labels_of(task, [example])) - set(task.labels)):
            raise UserError(
                f"{example.place}, in {store.folder}: the label {strange[0]!r} does not occur in "
                f"training, where they are: {', '.join(task.labels)}"
            )
    return data


def read_examples(store: FeatureStore, task: FeatureTask) -> Dataset[Any]:
    kind: type[TextExample | TagExample]
    kind = TextExample if isinstance(task, Classify) else TagExample
    return Dataset(
        path=store.folder,
        format=f"features of layers {', '.join(map(str, store.manifest.layers))}",
        examples=[build(kind, values) for values in store.read_examples()],
        is_labelled=store.manifest.is_labelled,
    )


def row_instances(task: FeatureTask, part: Part, rows: FeatureRows) -> Instances:
    """Examples as numbers of rows."""
    store, start = rows.stores[part.owner], int(rows.starts[part.owner])
    index = store.index
    pairs = list(zip(part.data.examples, part.numbers.tolist(), strict=True))
    if isinstance(task, Tag):
        assert index.words is not None
        slices = [store.rows_of(number) for _, number in pairs]
        encoded = [
            [sentence(task, example, own.start + start, index.words[own])]
            for (example, _), own in zip(pairs, slices, strict=True)
        ]
        return gather(encoded, labels_rows=True)
    encoded = []
    for example, number in pairs:
        ends = index.inputs[index.examples[number] : index.examples[number + 1] + 1] + start
        windows = [np.arange(low, high) for low, high in pairwise(ends.tolist())]
        inputs = [Input(own, len(own)) for own in windows]
        encoded.append(task.instances_of(example, inputs))
    return task.gather(encoded)


def sentence(task: Tag, example: TagExample, start: int, words: np.ndarray) -> Instance:
    """A sentence's words by their first pieces: those alone are read."""
    own = np.flatnonzero(words >= 0)
    labels = task.label_ids(example)
    places = words[own].astype(np.int32)
    of_rows = np.full(len(own), IGNORED, np.int64) if labels is None else labels[places]
    weight = 0 if labels is None else len(own)
    return Instance([Input(own + start, len(own), of_rows, places)], weight=weight)


# Heads on stores.


def open_stored_head(folder: Path, rows: FeatureRows) -> FeatureHead:
    """A head on features of the model it was trained on; those of another are refused."""
    record, store = read_head(folder), rows.stores[0]
    if record.model_sha256 != store.manifest.model_sha256:
        raise UserError(
            f"{folder} reads features of {record.model}; {store.folder} is of another model, "
            f"{store.manifest.model}"
        )
    if missing := sorted(set(record.layers) - set(store.manifest.layers)):
        raise UserError(f"{store.folder} lacks layer {missing[0]}, which {folder} reads")
    return open_head(folder, look_up_in(rows, record.layers))


def look_up_in(rows: FeatureRows, layers: tuple[int, ...]) -> LookUp:
    """Numbers of rows (T,) -> the vectors of some layers (T, K, D), where the numbers are."""

    def look_up(numbers: Tensor) -> Tensor:
        return torch.from_numpy(rows.take(numbers.cpu().numpy(), layers)).to(numbers.device)

    return look_up
