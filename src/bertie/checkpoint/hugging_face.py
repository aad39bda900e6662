"""Settings and weights of a model directory: those of a BERT or an ALBERT by Hugging Face's names.

A model that is neither says `"model_type": "bertie"`, so that no other program takes it for one;
its settings and weights have our names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from bertie.checkpoint.families import (
    FAMILIES,
    GELUS,
    Family,
    Row,
    family_of,
    make_rows,
)
from bertie.config import build, convert
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.model.heads import HEADS, PRETRAINED

OURS = "bertie"  # the model_type of what only bertie opens
LARGEST = 2**28  # number in a config.json; of larger ones, torch cannot count the bytes
MOST_SHARED = 1_000  # layers with the same weights, of which the weights tell nothing

# --- config.json ---


def parse_config(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model that a `config.json` or Google's `bert_config.json` describes."""
    is_ours = values.get("model_type") == OURS
    config = _parse_ours(values, path) if is_ours else _parse_theirs(values, path)
    for name, size in asdict(config).items():
        if isinstance(size, int) and size > LARGEST:
            raise UserError(f"{path}: {name} is {size:.3g}, which no model has; mend it")
    return config


def _parse_theirs(values: Mapping[str, Any], path: Path) -> ModelConfig:
    family = _find_family(values, path)
    if missing := [theirs for theirs in family.sizes.values() if theirs not in values]:
        raise UserError(f"{path} has no {missing[0]}; add what the model was trained with")
    hints = get_type_hints(ModelConfig)
    ours: dict[str, Any] = {
        name: convert(values[theirs], hints[name], f"{path}: {theirs}")
        for name, theirs in ({**family.sizes, **family.details}).items()
        if theirs in values
    }
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in GELUS:
        raise UserError(
            f"{path}: hidden_act is {activation!r}; a BERT has one of {', '.join(GELUS)}"
        )
    try:
        return ModelConfig(gelu=GELUS[activation], **ours, **family.switches)
    except UserError as error:
        raise UserError(f"{path} contradicts itself: {error}") from None


def _parse_ours(values: Mapping[str, Any], path: Path) -> ModelConfig:
    try:
        model, heads = values.get("model", {}), values.get("heads", [])
        if not isinstance(model, Mapping) or not isinstance(heads, list):
            raise UserError("model is a table of settings, heads a list of names; mend them")
        return build(ModelConfig, model, "model.")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _find_family(values: Mapping[str, Any], path: Path) -> Family:
    kind = values.get("model_type", "bert")
    names = declared_names(values)
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None or any(name not in family.architectures for name in names):
        found = ", ".join([f"model_type {kind}", *names])
        known = [name for one in FAMILIES.values() for name in one.architectures]
        raise UserError(
            f"{path} describes another kind of model ({found}); bertie opens plain BERT and "
            f"ALBERT: {', '.join(known)}"
        )
    size = values.get("hidden_size")
    is_wide = "embedding_size" not in family.sizes and "embedding_size" in values
    if is_wide and values["embedding_size"] != size:
        raise UserError(
            f"{path}: embedding_size {values['embedding_size']} differs from hidden_size "
            f"{size}: factorised embeddings as in ALBERT, not a plain BERT"
        )
    for name, plain in family.plain.items():
        if name in values and values[name] not in plain:
            raise UserError(f"{path}: {name} is {values[name]!r}, which {family.title} has not")
    return family


def declared_names(values: Mapping[str, Any]) -> list[str]:
    names = values.get("architectures") or []
    return list(map(str, names)) if isinstance(names, list) else [str(names)]


def declared_heads(values: Mapping[str, Any]) -> list[str]:
    """The heads of the classes that config.json names."""
    if values.get("model_type") == OURS:
        return [str(name) for name in values.get("heads", ())]
    architectures = FAMILIES[values.get("model_type", "bert")].architectures
    return [head for name in declared_names(values) for head in architectures[name]]


def make_config(model: Bert, dtype: torch.dtype) -> dict[str, Any]:
    """The `config.json` of a model, without its labels."""
    config, family = model.config, family_of(model.config)
    named_dtype = str(dtype).removeprefix("torch.")
    check_heads(model.heads)
    if family is None:
        return {
            "model_type": OURS,
            "heads": list(model.heads),
            "model": asdict(config),
            "torch_dtype": named_dtype,
        }
    theirs_of = {ours: theirs for theirs, ours in reversed(GELUS.items())}
    names = {**family.sizes, **family.details}
    values = {theirs: getattr(config, ours) for ours, theirs in names.items()}
    if values.get("classifier_dropout_prob", 0.0) is None:  # which in ALBERT must be a number
        values["classifier_dropout_prob"] = config.dropout
    return {
        "architectures": [architecture_of(model.heads, family)],
        "model_type": family.model_type,
        "hidden_act": theirs_of[config.gelu],
        **values,
        "position_embedding_type": "absolute",
        "torch_dtype": named_dtype,
    }


def check_written(model: Bert) -> None:
    """Refuses a model that no model directory can hold."""
    check_heads(model.heads)
    family = family_of(model.config)
    if family is not None:
        architecture_of(model.heads, family)


def check_heads(heads: Sequence[str]) -> None:
    tasks = find_tasks(heads)
    if len(tasks) > 1:
        raise UserError(
            f"a model directory holds one task; this model has the heads {', '.join(tasks)}"
        )


def find_tasks(heads: Sequence[str]) -> list[str]:
    """The heads that are not of pre-training."""
    return [head for head in heads if head not in PRETRAINED]


def architecture_of(heads: Sequence[str], family: Family) -> str:
    """The class that has the head of the task, or else the heads of pre-training."""
    wanted = set(find_tasks(heads) or heads)
    names = [name for name, known in family.architectures.items() if set(known) == wanted]
    if not names:
        raise UserError(
            f"transformers has no class of {family.model_type} with {', '.join(sorted(wanted))} "
            "alone; train masked_lm beside it"
        )
    return names[0]


# --- weights ---


SHARING = ("sequence", "token", "choice")  # three heads, one name: `classifier`
POOLER = "pooler.dense.weight"
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in conversions from TensorFlow


def from_ours(model: Bert) -> dict[str, Tensor]:
    """The weights by their names, as views; an encoder alone has no `bert.` before its names."""
    family = family_of(model.config)
    if family is None:
        return {name: weight.detach().cpu() for name, weight in model.named_parameters()}
    weights = model.state_dict()
    parts = (["pooler"] if model.pooler is not None else []) + list(model.heads)
    named: dict[str, Tensor] = {}
    for ours, theirs in make_rows(family, model.config.num_layer_weights, parts):
        named |= zip(theirs, weights[ours].cpu().chunk(len(theirs)), strict=True)
    return named if model.heads else {n.removeprefix(family.prefix): w for n, w in named.items()}


def to_ours(
    weights: dict[str, Tensor], config: ModelConfig, declared: Sequence[str], source: Path
) -> dict[str, Tensor]:
    """Our names for all weights of a file; `declared` are the heads that its config.json tells of.

    Takes them out of `weights` one by one, so that none is held twice.
    """
    check_depth(config, len(weights), source)
    family = family_of(config)
    if family is None:
        parts = [*dict.fromkeys(declared), *(["pooler"] if POOLER in weights else [])]
        rows = [Row(name, (name,)) for name in _find_shapes(weights, config, parts)]
    else:
        _settle_names(weights, family, source)
        _settle_duplicates(weights, family, config, source)
        parts = _find_parts(weights, family, declared, source)
        rows = make_rows(family, config.num_layer_weights, parts)
    described = f"{config.num_layers} layers, {', '.join(parts) or 'no head'}"
    _check_names(weights, rows, described, source)
    shapes = _find_shapes(weights, config, parts)
    return {row.ours: _take(weights, row, shapes[row.ours], source) for row in rows}


def check_depth(config: ModelConfig, num_weights: int, source: Path) -> None:
    """Before anything is made for each layer: every one has weights of its own, or all the same."""
    own = config.num_layer_weights + config.bilstm_layers
    if own > num_weights or config.num_layers > max(num_weights, MOST_SHARED):
        raise UserError(
            f"{source} lacks weights: its config.json tells of {max(own, config.num_layers):,} "
            f"layers, and the file has {num_weights:,} weights in all; the two do not belong "
            "together"
        )


def _find_shapes(
    weights: Mapping[str, Tensor], config: ModelConfig, parts: Sequence[str]
) -> dict[str, torch.Size]:
    """Of all weights that the model must have; how many labels it has, its weights tell."""
    heads = [part for part in parts if part != "pooler"]
    names = ["classifier.bias", *(f"{head}.classifier.bias" for head in heads)]
    num_labels = next((weights[name].numel() for name in names if name in weights), 2)
    with torch.device("meta"):
        model = Bert(config, heads, num_labels=num_labels, has_pooler="pooler" in parts)
    return {name: weight.shape for name, weight in model.named_parameters()}


def _check_names(
    weights: Mapping[str, Tensor], rows: Sequence[Row], shape: str, source: Path
) -> None:
    """Every row must be there, and nothing else."""
    theirs = [name for row in rows for name in row.theirs]
    surplus = sorted(weights.keys() - theirs)
    if missing := [name for name in theirs if name not in weights]:
        instead = f" (it has {surplus[0]})" if surplus else ""
        raise UserError(
            f"{source} lacks {len(missing)} of the weights that its config.json asks for "
            f"({shape}), first {missing[0]}{instead}; the two do not belong together, or the file "
            "is not whole"
        )
    if surplus:
        raise UserError(
            f"{source} has {len(surplus)} weights that a model of {shape} has not, first "
            f"{surplus[0]}; is config.json the right one, and this a plain BERT?"
        )


def _settle_names(weights: dict[str, Tensor], family: Family, source: Path) -> None:
    """Old names become those of today."""
    for name in list(weights):
        new = name
        for old, today in OLD_ENDINGS.items():
            if name.endswith(f"LayerNorm{old}"):
                new = name.removesuffix(old) + today
        if new.startswith(("embeddings.", "encoder.", "pooler.")):
            new = family.prefix + new
        if new != name and new in weights:
            raise UserError(f"{source} has both {name} and {new}; which one counts?")
        weights[new] = weights.pop(name)


def _settle_duplicates(
    weights: dict[str, Tensor], family: Family, config: ModelConfig, source: Path
) -> None:
    """What is stored twice must be the same twice; then once is enough."""
    position_ids = f"{family.prefix}embeddings.position_ids"
    positions = weights.pop(position_ids, None)
    if positions is not None and positions.flatten().tolist() != list(range(config.max_positions)):
        raise UserError(
            f"{source}: {position_ids} does not count from 0 to max_position_embeddings"
        )
    output, pieces = weights.pop(family.output, None), weights.get(family.pieces)
    if output is not None and (pieces is None or not torch.equal(output, pieces)):
        raise UserError(
            f"{source}: {family.output} differs from {family.pieces}; in BERT they are one and the "
            "same, and bertie has no place for a second one"
        )
    one, two = family.output_biases
    if two in weights:
        second = weights.pop(two)
        if not torch.equal(weights.setdefault(one, second), second):
            raise UserError(
                f"{source}: {two} differs from {one}; in BERT they are one and the same"
            )


def _find_parts(
    weights: Mapping[str, Tensor], family: Family, declared: Sequence[str], source: Path
) -> list[str]:
    """The parts that have a weight in the file or must have one, in the order of our table."""
    found = set(declared)
    for part, rows in family.parts.items():
        names = [name for row in rows for name in row.theirs]
        if any(name + end in weights for name in names for end in ("", ".weight", ".bias")):
            found.add(part)
    if len(found & set(SHARING)) > 1:  # one name, and what is declared says which of them it is
        found -= set(SHARING) - set(declared)
        if len(found & set(SHARING)) != 1:
            raise UserError(
                f"{source} has a classifier, and config.json does not say of what; put there "
                '"architectures": ["BertForSequenceClassification"] (or '
                "BertForTokenClassification, BertForMultipleChoice), the same as task.json"
            )
    if any(HEADS[part].reads == "pooled" for part in found - {"pooler"}):
        found.add("pooler")
    return [part for part in family.parts if part in found]


def _take(weights: dict[str, Tensor], row: Row, expected: Sequence[int], source: Path) -> Tensor:
    taken = [weights.pop(name) for name in row.theirs]
    shape = (expected[0] // len(taken), *expected[1:])
    for name, weight in zip(row.theirs, taken, strict=True):
        if not weight.is_floating_point():
            raise UserError(
                f"{source}: {name} holds {weight.dtype} numbers; quantised weights are not read"
            )
        if tuple(weight.shape) != shape:
            raise UserError(
                f"{source}: {name} has the shape {tuple(weight.shape)}, config.json asks for "
                f"{shape}; the two do not belong together"
            )
    # Conversions from TensorFlow left some matrices transposed in memory.
    return taken[0].contiguous() if len(taken) == 1 else torch.cat(taken)
