"""From a model directory and a file to a feature store: wiring only."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.model_dir import list_files, open_model, read_config
from bertie.data.chance import Ints
from bertie.data.corpus import Progress
from bertie.data.features import (
    FeatureIndex,
    FeatureManifest,
    FeatureStore,
    create_layers,
    finish_features,
    is_features,
    open_features,
    read_feature_manifest,
)
from bertie.datasets import describe_context, describe_left_out, make_task
from bertie.errors import UserError
from bertie.infer.features import choose_layers, flush_all, keep_all, keep_words, write_vectors
from bertie.model.bert import Bert
from bertie.model.cpu_linear import hasten
from bertie.tasks import name_of
from bertie.tasks.classify import Classify
from bertie.tasks.instances import Instances
from bertie.tasks.tag import Tag
from bertie.tasks.task import Dataset
from bertie.text.disk import hash_file
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Encoded:
    """A file as a task reads it, and which of its rows a store keeps."""

    task: Classify | Tag
    data: Dataset[Any]
    instances: Instances
    kept: Ints  # (R,) rows of the instances
    index: FeatureIndex
    notes: tuple[str, ...]


def make_features(
    source: Path,
    data: Path,
    out: Path,
    *,
    task: Mapping[str, Any],
    layers: str = "all",
    skip_bad: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    on_progress: Progress = lambda what, done, total: None,
) -> FeatureStore:
    """Writes a store, whole or not at all; one that was made of the same before is left as it is.

    `task` are the settings of the task, with its `name`: how the file is read and divided.
    """
    if out.exists() and not is_features(out):
        raise UserError(f"{out} is there, and no feature store; take another --out")
    encoded = encode_file(source, data, task, skip_bad)
    manifest = describe_store(source, data, encoded, layers)
    if out.exists():
        return check_made(out, manifest)
    model = open_frozen(source, device)
    remove_drafts_of(out)
    with draft_of(out) as draft:
        size = {"num_tokens": manifest.num_tokens, "hidden_size": manifest.hidden_size}
        tables = create_layers(draft, manifest.layers, **size)
        for num_done in write_vectors(model, encoded.instances, encoded.kept, tables):
            on_progress("reading tokens", num_done, len(encoded.instances.ids))
        flush_all(tables)
        finish_features(draft, manifest, encoded.index, map(asdict, encoded.data.examples))
    return open_features(out)


def open_frozen(source: Path, device: Literal["auto", "cpu", "cuda"]) -> Bert:
    """A model that only answers; on a CPU it is laid out for that. auto: a GPU if there is one."""
    model = open_model(source).model
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return model.to("cuda")
    hasten(model, "fp32")
    return model


def encode_file(source: Path, path: Path, settings: Mapping[str, Any], skip_bad: bool) -> Encoded:
    """Reads and divides a file. Its labels are kept, and settled where they are learned from."""
    task, notes = make_task(settings, source)
    if not isinstance(task, Classify | Tag):
        raise UserError(f"features are for the tasks classify and tag; found {name_of(task)!r}")
    data: Dataset[Any] = task.read(path, skip_bad=skip_bad)
    task = replace(task, columns=dict(data.columns))
    if isinstance(task, Classify):
        task = replace(task, benchmark=data.benchmark)
    tokenizer = Tokenizer.load(source)
    instances = task.encode(without_labels(task, data.examples), tokenizer)
    if isinstance(task, Tag):
        kept, index = keep_words(task, data.examples, tokenizer, instances)
    else:
        kept, index = keep_all(instances)
    notes += [*describe_left_out(path.name, data), *describe_context(task, path.name, data)]
    notes += [f"{path.name}: {count:,} {what}" for what, count in instances.counts.items()]
    return Encoded(
        task=task, data=data, instances=instances, kept=kept, index=index, notes=tuple(notes)
    )


def without_labels(task: Classify | Tag, examples: Sequence[Any]) -> list[Any]:
    name = "tags" if isinstance(task, Tag) else "label"
    return [replace(example, **{name: None}) for example in examples]


def describe_store(source: Path, path: Path, encoded: Encoded, layers: str) -> FeatureManifest:
    config = read_config(source)
    return FeatureManifest(
        model=str(source),
        model_sha256=hash_model(source),
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        layers=choose_layers(layers, config.num_layers),
        data=str(path),
        data_sha256=hash_file(path),
        task=name_of(encoded.task),
        settings=asdict(encoded.task),
        is_labelled=encoded.data.is_labelled,
        num_examples=len(encoded.data.examples),
        num_inputs=len(encoded.index.inputs) - 1,
        num_tokens=len(encoded.kept),
        notes=encoded.notes,
    )


def remove_drafts_of(out: Path) -> None:
    """What a run that was killed in mid-write left behind; a store may be large."""
    for left in out.resolve().parent.glob(f".{out.name}.draft-*"):
        shutil.rmtree(left)


def hash_model(source: Path) -> str:
    """The identity of a model: all that decides what it makes of a text."""
    found = "".join(f"{path.name} {hash_file(path)}\n" for path in list_files(source))
    return hashlib.sha256(found.encode()).hexdigest()


def check_made(out: Path, wanted: FeatureManifest) -> FeatureStore:
    """The store that is there, if it was made of the same model, data and settings."""
    there = read_feature_manifest(out)
    for name in ("model_sha256", "data_sha256", "layers", "task", "settings"):
        found, asked = (json.loads(json.dumps(asdict(one)[name])) for one in (there, wanted))
        if found != asked:
            raise UserError(
                f"{out} was made with another {name.removesuffix('_sha256')}: {found}, not "
                f"{asked}; remove it, or take another --out"
            )
    return open_features(out)
