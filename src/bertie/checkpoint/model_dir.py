"""The model directory: the one native format, a Hugging Face BERT or ALBERT directory.

config.json, model.safetensors (or shards of it), vocab.txt and tokenizer_config.json; and
task.json, which says of the head what config.json has no place for. `transformers` opens it too,
unless the weights are stored in eight bits (`packed.py`).
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bertie.checkpoint import hugging_face
from bertie.checkpoint.card import (
    TASK,
    TaskCard,
    check_card,
    derive_card,
    describe_labels,
    read_card,
    write_card,
)
from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.head_dir import refuse_head
from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.packed import write_packed
from bertie.checkpoint.weights import LISTED, SUFFIXES, read_weights, write_weights
from bertie.errors import UserError, check_known
from bertie.model.bert import Bert, initialise, make_bilstm
from bertie.model.config import ModelConfig
from bertie.model.encoder import Pooler
from bertie.model.heads import HEADS, get_head, make_head
from bertie.text.files import VOCAB, read_vocab
from bertie.text.hugging_face import ADDED, SETTINGS, SPECIALS, WHOLE, read_settings

CONFIG = "config.json"
TOKENIZER_FILES = (VOCAB, WHOLE, SETTINGS, SPECIALS, ADDED)
SENTENCE_PIECES = ("spiece.model", "sentencepiece.bpe.model")
Storage = Literal["float", "int8"]  # the numbers as they are, or matrices in eight bits
POOLING = Path("1_Pooling") / "config.json"  # sentence-transformers': how its vectors are made
# What may be replaced when a directory is written again; anything else is somebody's work.
WRITTEN = re.compile(
    "|".join(map(re.escape, (CONFIG, TASK, *TOKENIZER_FILES, LISTED)))
    + rf"|{POOLING.parent}|model(-\d{{5}}-of-\d{{5}}|\.int8)?\.safetensors"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A model and what is to be known about it."""

    model: Bert
    card: TaskCard | None
    fresh: tuple[str, ...] = ()  # parts that the directory lacks: new, untrained
    notes: tuple[str, ...] = ()  # what was odd in the directory, and how it was taken


def open_model(
    directory: Path,
    *,
    heads: Sequence[str] | None = None,
    num_labels: int | None = None,
    bilstm_layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    generator: torch.Generator | None = None,
) -> Opened:
    """The model of a directory, with the heads it has, or with `heads`, new where it lacks them.

    With `bilstm_layers`, an LSTM of so many is on top, new where the directory's has not as many.

    >>> open_model(Path("bert-base"), heads=("sequence",), num_labels=3).fresh
    ('sequence',)
    """
    path = directory / CONFIG
    if not path.is_file() and (directory / "bert_config.json").is_file():
        raise UserError(
            f"{directory} is one of Google's checkpoints; make a model directory of it: "
            f"bertie import {directory} --out NEW"
        )
    refuse_head(directory)
    values = read_json(path)
    config = hugging_face.parse_config(values, path)
    check_vocab(directory, config)
    card = read_card(directory)
    declared = hugging_face.declared_heads(values) + ([] if card is None else [card.head])
    weights = hugging_face.to_ours(read_weights(directory), config, declared, directory)
    if bilstm_layers is not None and bilstm_layers != config.bilstm_layers:
        config = replace(config, bilstm_layers=bilstm_layers)
        weights = {name: w for name, w in weights.items() if not name.startswith("bilstm.")}
    model, fresh = build_model(
        config, weights, heads=heads, num_labels=num_labels, dtype=dtype, generator=generator
    )
    trained = [head for head in model.heads if head not in fresh]
    notes: list[str] = []
    if card is None:
        card = derive_card(values, trained, model.num_labels, notes, path)
    if card is not None and card.head not in trained:
        card = None
    if card is not None:
        check_card(card, model, directory / TASK)
    return Opened(model=model.eval(), card=card, fresh=fresh, notes=tuple(notes))


def read_config(directory: Path) -> ModelConfig:
    """The shape of the model in a directory, without its weights."""
    return hugging_face.parse_config(read_json(directory / CONFIG), directory / CONFIG)


def build_model(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    heads: Sequence[str] | None = None,
    num_labels: int | None = None,
    dtype: torch.dtype = torch.float32,
    generator: torch.Generator | None = None,
) -> tuple[Bert, tuple[str, ...]]:
    """A model around weights by our names, which are not copied; and the parts of it that are new.

    Without `heads`, those that have weights; a head with another number of labels is new.
    """
    stored = {name.split(".")[0] for name in weights}
    heads = [head for head in HEADS if head in stored] if heads is None else heads
    labelled = [head for head in heads if get_head(head).num_outputs == "labels"]
    labels_of = {h: len(weights[f"{h}.classifier.bias"]) for h in labelled if h in stored}
    if num_labels is None:
        num_labels = next(iter(labels_of.values()), None)
    if num_labels is None and labelled:
        raise UserError(f"the head {labelled[0]} would be new; say how many labels it has")
    num_labels = 2 if num_labels is None else num_labels  # 2: then no head asks for it
    with torch.device("meta"):
        model = Bert(config, heads, num_labels=num_labels, has_pooler="pooler" in stored)
    parts = ["pooler", *heads] if model.pooler is not None else list(heads)
    parts += ["bilstm"] if model.bilstm is not None else []
    fresh = [p for p in parts if p not in stored or labels_of.get(p, num_labels) != num_labels]
    for part in fresh:
        new = make_part(part, config, num_labels)
        initialise(new, config.init_std, generator)
        model.set_submodule(part, new)
    _assign(model, weights, {"embeddings", "layers", *parts} - set(fresh), dtype)
    return model.to(dtype), tuple(fresh)


def make_part(part: str, config: ModelConfig, num_labels: int) -> nn.Module:
    if part == "bilstm":
        bilstm = make_bilstm(config)
        assert bilstm is not None
        return bilstm
    return Pooler(config) if part == "pooler" else make_head(part, config, num_labels)


def _assign(
    model: nn.Module, weights: Mapping[str, Tensor], parts: set[str], dtype: torch.dtype
) -> None:
    """Makes the weights the parameters of those parts; each must be there in the right shape."""
    for name, parameter in list(model.named_parameters()):
        if name.split(".")[0] not in parts:
            continue
        if name not in weights or weights[name].shape != parameter.shape:
            found = tuple(weights[name].shape) if name in weights else "not there"
            raise UserError(
                f"{name} is {found}, the config asks for {tuple(parameter.shape)}; "
                "the weights and the config do not belong together"
            )
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(weights[name].to(dtype)))


def save_model(
    model: Bert,
    directory: Path,
    *,
    card: TaskCard | None = None,
    tokenizer_from: Path | None = None,
    shard_bytes: int = 5_000_000_000,
    storage: Storage = "float",
) -> None:
    """Writes a model directory, whole or not at all; an older one of that name is replaced."""
    check_known("storage", storage, get_args(Storage))
    if directory.exists():
        check_replaceable(directory)
    if tokenizer_from is not None:
        check_vocab(tokenizer_from, model.config)
    if card is not None:
        check_card(card, model, directory / TASK)
    weights = hugging_face.from_ours(model)
    dtype = next(iter(weights.values())).dtype
    values = hugging_face.make_config(model, dtype) | describe_labels(model, card)
    with draft_of(directory) as draft:
        if storage == "int8":
            write_packed(draft, weights)
        else:
            write_weights(draft, weights, shard_bytes)
        write_json(draft / CONFIG, values)
        if card is not None:
            write_card(draft, card)
        for name in TOKENIZER_FILES:
            if tokenizer_from is not None and (tokenizer_from / name).is_file():
                shutil.copyfile(tokenizer_from / name, draft / name)
        for path in draft.iterdir():  # safetensors lets only the owner read
            shutil.copymode(draft / CONFIG, path)


def save_weights(
    weights: Mapping[str, Tensor],
    directory: Path,
    *,
    config: ModelConfig,
    heads: Sequence[str],
    card: TaskCard | None = None,
    tokenizer_from: Path,
) -> None:
    """Writes a model directory of all weights of a model, by our names."""
    model, _ = build_model(config, weights, heads=heads)
    save_model(model, directory, card=card, tokenizer_from=tokenizer_from)


def copy_model(source: Path, directory: Path) -> None:
    """A model directory in another place, whole or not at all; an older one there is replaced."""
    if directory.exists():
        check_replaceable(directory, *(path.name for path in source.iterdir()))
    with draft_of(directory) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True)


def copy_pooling(source: Path, directory: Path) -> None:
    """What a model was trained to make vectors by, where it was; fine-tuned, it no longer holds."""
    if (source / POOLING).is_file():
        (directory / POOLING).parent.mkdir()
        shutil.copyfile(source / POOLING, directory / POOLING)


def list_files(source: Path) -> list[Path]:
    """The files of a model that decide what it makes of a text.

    Its settings count as much as its weights: they say which GELU it is, and which letters are one.
    """
    named = {CONFIG, *TOKENIZER_FILES}
    return sorted(p for p in source.iterdir() if p.suffix in SUFFIXES or p.name in named)


def check_replaceable(directory: Path, *names: str) -> None:
    """A directory is written over only if all in it was written by us, or has one of `names`."""
    if not directory.is_dir():
        raise UserError(f"{directory} is a file; a model directory cannot be written there")
    found = {path.name for path in directory.iterdir()} - {*names}
    if strange := sorted(name for name in found if not WRITTEN.fullmatch(name)):
        raise UserError(
            f"{directory} holds {strange[0]}, which is not part of a model directory; "
            "move it away, or write to another folder"
        )


# --- vocabulary ---


def check_vocab(directory: Path, config: ModelConfig) -> None:
    """A vocabulary beside the weights must have a piece for each row of the embedding."""
    if not (directory / VOCAB).is_file() and has_sentence_pieces(directory):
        raise UserError(
            f"the vocabulary of {directory} is of SentencePiece, whose pieces are cut by chances "
            "and not by bertie's WordPiece; take a model with a vocab.txt"
        )
    for path, count in _count_pieces(directory):
        if count == config.vocab_size:
            continue
        advice = (
            f"append {config.vocab_size - count} lines such as [unused1]"
            if count < config.vocab_size and path.name == VOCAB
            else "take the vocabulary that the model was trained with"
        )
        raise UserError(
            f"{path} has {count} pieces, the embedding has {config.vocab_size} rows; {advice}"
        )


def has_sentence_pieces(directory: Path) -> bool:
    """As Google's ALBERTs have them: a file of SentencePiece, or its pieces in tokenizer.json."""
    if any((directory / name).is_file() for name in SENTENCE_PIECES):
        return True
    whole = directory / WHOLE
    model = read_json(whole).get("model") if whole.is_file() else None
    return isinstance(model, dict) and model.get("type") == "Unigram"


def _count_pieces(directory: Path) -> list[tuple[Path, int]]:
    counts = []
    whole = directory / WHOLE  # where it is, its pieces count, as in transformers
    if (directory / VOCAB).is_file() and not whole.is_file():
        pieces = read_vocab(directory / VOCAB)
        added = read_settings(directory / SETTINGS).ids.keys() - {*pieces}
        counts.append((directory / VOCAB, len(pieces) + len(added)))
    if whole.is_file():
        values = read_json(whole)
        try:
            ids = {*values["model"]["vocab"].values(), *(t["id"] for t in values["added_tokens"])}
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f"{whole} is not a BERT tokenizer: it has no table model.vocab"
            ) from None
        counts.append((whole, len(ids)))
    return counts
