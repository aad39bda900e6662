"""Any BERT checkpoint, Hugging Face's or Google's TensorFlow one, becomes a model directory."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.card import derive_card
from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.hugging_face import check_depth, parse_config
from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.model_dir import (
    CONFIG,
    TOKENIZER_FILES,
    Opened,
    Storage,
    build_model,
    check_vocab,
    copy_pooling,
    open_model,
    save_model,
)
from bertie.checkpoint.tensorflow import read_checkpoint, rename
from bertie.checkpoint.weights import has_weights
from bertie.errors import UserError
from bertie.model.config import Gelu
from bertie.text.files import VOCAB
from bertie.text.hugging_face import SETTINGS, WHOLE, stated_casing

GOOGLE_CONFIG = "bert_config.json"


def import_model(
    source: Path,
    out: Path,
    *,
    lower_case: bool | None = None,
    gelu: str | None = None,
    storage: Storage = "float",
) -> Opened:
    """Opens a checkpoint of any kind and writes it as a model directory, with its tokenizer files.

    `lower_case` says what a source without tokenizer settings cannot; `gelu` what Google's cannot.
    """
    if gelu not in (None, "erf", "tanh"):
        raise UserError(f"--gelu is erf or tanh; found {gelu}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; name a new folder with --out")
    if not source.is_dir():
        raise UserError(f"no directory {source}; name one with config.json or bert_config.json")
    casing = settle_casing(source, lower_case)  # first: reading the weights may take a while
    if is_google(source):
        opened = open_google(source, "tanh" if gelu == "tanh" else "erf")
    elif gelu is None:
        opened = open_model(source)
    else:
        raise UserError(f"{source / CONFIG} says which GELU it is; leave --gelu out")
    with tempfile.TemporaryDirectory() as folder, draft_of(out) as draft:
        copy_tokenizer(source, Path(folder), casing, opened.model.config.max_positions)
        save_model(
            opened.model, draft, card=opened.card, tokenizer_from=Path(folder), storage=storage
        )
        copy_pooling(source, draft)
    return opened


def is_google(directory: Path) -> bool:
    """A directory may hold both; then Hugging Face's files count, which say more."""
    if (directory / CONFIG).is_file() and has_weights(directory):
        return False
    return (directory / GOOGLE_CONFIG).is_file() or any(directory.glob("*.index"))


def open_google(directory: Path, gelu: Gelu) -> Opened:
    """The model of a TensorFlow checkpoint; its config says "gelu" for either form of it."""
    path = directory / GOOGLE_CONFIG
    if not path.is_file():
        raise UserError(f"no file {path} beside the TensorFlow checkpoint; put it there")
    config = replace(parse_config(read_json(path), path), gelu=gelu)
    check_vocab(directory, config)
    variables = read_checkpoint(directory)
    check_depth(config, len(variables), directory)
    named = rename(variables, config.num_layers)
    weights = {name: torch.from_numpy(array) for name, array in named.items()}
    model, _ = build_model(config, weights)
    card = derive_card({}, model.heads, model.num_labels, [], path)
    return Opened(model=model.eval(), card=card)


def settle_casing(source: Path, lower_case: bool | None) -> bool | None:
    """What must be written down about casing: nothing where the files tell it or have no pieces."""
    known = stated_casing(source)
    if known is not None:
        if lower_case not in (None, known):
            found = "uncased" if known else "cased"
            raise UserError(f"the tokenizer files in {source} say {found}; leave the option out")
        return None
    has_pieces = (source / VOCAB).is_file() or (source / WHOLE).is_file()
    if has_pieces and lower_case is None:
        raise UserError(
            f"nothing in {source} says whether its vocabulary is cased; say so: --cased or "
            "--uncased"
        )
    return lower_case if has_pieces else None


def copy_tokenizer(source: Path, target: Path, casing: bool | None, max_length: int) -> None:
    """The tokenizer's files as they are, and the casing where they did not tell it."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if casing is None:
        return
    settings: dict[str, Any] = {"tokenizer_class": "BertTokenizer", "model_max_length": max_length}
    if (target / SETTINGS).is_file():
        settings |= read_json(target / SETTINGS)
    write_json(target / SETTINGS, settings | {"do_lower_case": casing})
