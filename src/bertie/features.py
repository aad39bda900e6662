"""From a model directory and a file to a feature store: wiring only."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import hash_file, remove_drafts
from bertie.data.features import (
    FeatureManifest,
    FeatureStore,
    create_layers,
    finish_features,
    is_features,
    open_features,
    read_feature_manifest,
)
from bertie.datasets import describe_left_out, make_task
from bertie.errors import UserError
from bertie.infer.features import choose_layers, keep_all, keep_words, write_vectors
from bertie.tasks import name_of
from bertie.tasks.classify import Classify
from bertie.tasks.tag import Tag
from bertie.text.tokenizer import Tokenizer

OnProgress = Callable[[str, int, int], None]  # what is being done, how much is done, of how much
WEIGHTS = (".safetensors", ".bin", ".txt")  # what decides a model's answers: weights, vocabulary


def make_features(
    source: Path,
    data: Path,
    out: Path,
    *,
    task: Mapping[str, Any],
    layers: str = "all",
    skip_bad: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
) -> FeatureStore:
    """Writes a store, whole or not at all; one that was made of the same before is left as it is.

    `task` are the settings of the task, with its `name`: how the file is read and divided.
    """
    if out.exists() and not is_features(out):
        raise UserError(f"{out} is there, and no feature store; take another --out")
    made, notes = make_task(task, source)
    if not isinstance(made, Classify | Tag):
        raise UserError(
            f"features are for the tasks classify and tag; found {name_of(made)!r}"
        )
    read = made.read(data, skip_bad=skip_bad)
    if read.is_labelled:
        made = made.settle(read)
    tokenizer = Tokenizer.load(source)
    instances = made.encode(read.examples, tokenizer)
    if isinstance(made, Tag):
        kept, index = keep_words(made, read.examples, tokenizer, instances)
    else:
        kept, index = keep_all(instances)
    model = open_model(source).model.to("cuda" if torch.cuda.is_available() else "cpu")
    notes += [*describe_left_out("data", read), *(f"{n:,} {k}" for k, n in instances.counts.items())]
    manifest = FeatureManifest(
        model=str(source),
        model_sha256=hash_model(source),
        num_layers=model.config.num_layers,
        hidden_size=model.config.hidden_size,
        layers=choose_layers(layers, model.config.num_layers),
        data=str(data),
        data_sha256=hash_file(data),
        task=name_of(made),
        settings=asdict(made),
        is_labelled=read.is_labelled,
        num_examples=len(read.examples),
        num_inputs=len(index.inputs) - 1,
        num_tokens=len(kept),
        notes=tuple(notes),
    )
    if out.exists():
        return check_made(out, manifest)
    remove_drafts(out.parent)
    with draft_of(out) as draft:
        tables = create_layers(
            draft, manifest.layers, num_tokens=len(kept), hidden_size=manifest.hidden_size
        )
        for num_done in write_vectors(model, instances, kept, tables):
            on_progress("reading tokens", num_done, len(instances.ids))
        for table in tables.values():
            table.flush()
        finish_features(draft, manifest, index, map(asdict, read.examples))
    return open_features(out)


def hash_model(source: Path) -> str:
    """The identity of a model: all that decides what it makes of a text."""
    files = sorted(path for path in source.iterdir() if path.suffix in WEIGHTS)
    found = "".join(f"{path.name} {hash_file(path)}\n" for path in files)
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
