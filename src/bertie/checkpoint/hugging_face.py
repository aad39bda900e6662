"""Hugging Face's names for what is in a BERT: its `config.json` and its weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from bertie.config import convert
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import Gelu, ModelConfig
from bertie.model.heads import HEADS

# --- config.json ---

SIZES = {  # ours -> theirs; without one of these nothing can be built
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
DETAILS = {  # ours -> theirs; absent in old files, and then as in the paper
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
GELUS: dict[str, Gelu] = {  # theirs -> ours
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
}
PLAIN = {  # what a BERT has in these fields, where they are there at all
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
ARCHITECTURES = {
    "BertModel": (),
    "BertForPreTraining": ("masked_lm", "next_sentence"),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("next_sentence",),
    "BertForSequenceClassification": ("sequence",),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
    "BertForMultipleChoice": ("choice",),
}


def parse_config(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model that a `config.json` or Google's `bert_config.json` describes."""
    _check_architecture(values, path)
    if missing := [theirs for theirs in SIZES.values() if theirs not in values]:
        raise UserError(f"{path} has no {missing[0]}; add what the model was trained with")
    hints = get_type_hints(ModelConfig)
    ours: dict[str, Any] = {
        name: convert(values[theirs], hints[name], f"{path}: {theirs}")
        for name, theirs in (SIZES | DETAILS).items()
        if theirs in values
    }
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in GELUS:
        raise UserError(
            f"{path}: hidden_act is {activation!r}; a BERT has one of {', '.join(GELUS)}"
        )
    try:
        return ModelConfig(gelu=GELUS[activation], **ours)
    except UserError as error:
        raise UserError(f"{path} contradicts itself: {error}") from None


def _check_architecture(values: Mapping[str, Any], path: Path) -> None:
    kind = values.get("model_type", "bert")
    names = declared_names(values)
    if kind != "bert" or any(name not in ARCHITECTURES for name in names):
        found = ", ".join([f"model_type {kind}", *names])
        raise UserError(
            f"{path} describes another kind of model ({found}); bertie opens plain BERT: "
            + ", ".join(ARCHITECTURES)
        )
    if values.get("embedding_size", values.get("hidden_size")) != values.get("hidden_size"):
        raise UserError(
            f"{path}: embedding_size {values['embedding_size']} differs from hidden_size "
            f"{values.get('hidden_size')}: factorised embeddings as in ALBERT, not a plain BERT"
        )
    for name, plain in PLAIN.items():
        if name in values and values[name] not in plain:
            raise UserError(f"{path}: {name} is {values[name]!r}, which a plain BERT has not")


def declared_names(values: Mapping[str, Any]) -> list[str]:
    names = values.get("architectures") or []
    return list(map(str, names)) if isinstance(names, list) else [str(names)]


def declared_heads(values: Mapping[str, Any]) -> list[str]:
    """The heads of the classes that config.json names."""
    return [head for name in declared_names(values) for head in ARCHITECTURES[name]]


def make_config(model: Bert, dtype: torch.dtype) -> dict[str, Any]:
    """The `config.json` of a model, without its labels."""
    config = model.config
    theirs_of = {ours: theirs for theirs, ours in reversed(GELUS.items())}
    return {
        "architectures": [architecture_of(model.heads)],
        "model_type": "bert",
        "hidden_act": theirs_of[config.gelu],
        **{theirs: getattr(config, ours) for ours, theirs in (SIZES | DETAILS).items()},
        "position_embedding_type": "absolute",
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def architecture_of(heads: Sequence[str]) -> str:
    """The class that has the head of the task, or else the heads of pre-training."""
    tasks = [head for head in heads if head not in ("masked_lm", "next_sentence")]
    if len(tasks) > 1:
        raise UserError(
            f"a model directory holds one task; this model has the heads {', '.join(tasks)}"
        )
    wanted = set(tasks or heads)
    return next(name for name, heads in ARCHITECTURES.items() if set(heads) == wanted)


# --- weights ---


class Row(NamedTuple):
    ours: str
    theirs: tuple[str, ...]  # one below the other in the tensor of our name


EMBEDDINGS = (
    Row("embeddings.token.weight", ("bert.embeddings.word_embeddings.weight",)),
    Row("embeddings.segment.weight", ("bert.embeddings.token_type_embeddings.weight",)),
    Row("embeddings.position.weight", ("bert.embeddings.position_embeddings.weight",)),
    Row("embeddings.norm", ("bert.embeddings.LayerNorm",)),
)
LAYER = (  # below layers.L and bert.encoder.layer.L; each a weight and a bias
    Row(
        "attention.qkv",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
    ),
    Row("attention.out", ("attention.output.dense",)),
    Row("attention_norm", ("attention.output.LayerNorm",)),
    Row("ffn.up", ("intermediate.dense",)),
    Row("ffn.down", ("output.dense",)),
    Row("ffn_norm", ("output.LayerNorm",)),
)
PARTS = {
    "pooler": (Row("pooler.dense", ("bert.pooler.dense",)),),
    "masked_lm": (
        Row("masked_lm.dense", ("cls.predictions.transform.dense",)),
        Row("masked_lm.norm", ("cls.predictions.transform.LayerNorm",)),
        Row("masked_lm.bias", ("cls.predictions.bias",)),
    ),
    "next_sentence": (Row("next_sentence.classifier", ("cls.seq_relationship",)),),
    "sequence": (Row("sequence.classifier", ("classifier",)),),
    "token": (Row("token.classifier", ("classifier",)),),
    "span": (Row("span.classifier", ("qa_outputs",)),),
    "choice": (Row("choice.classifier", ("classifier",)),),
}
SHARING = ("sequence", "token", "choice")  # three heads, one name: `classifier`
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in conversions from TensorFlow
POSITION_IDS = "bert.embeddings.position_ids"
PIECES, OUTPUT = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
OUTPUT_BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")


def make_rows(num_layers: int, parts: Sequence[str]) -> list[Row]:
    """Every tensor of such a model: our name and theirs."""
    rows = list(EMBEDDINGS)
    for layer in range(num_layers):
        for ours, theirs in LAYER:
            below = tuple(f"bert.encoder.layer.{layer}.{name}" for name in theirs)
            rows.append(Row(f"layers.{layer}.{ours}", below))
    for part in parts:
        rows.extend(PARTS[part])
    return [
        Row(ours + end, tuple(name + end for name in theirs))
        for ours, theirs in rows
        for end in ([""] if ours.endswith((".weight", ".bias")) else [".weight", ".bias"])
    ]


def from_ours(model: Bert) -> dict[str, Tensor]:
    """The weights by their names, as views; an encoder alone has no `bert.` before its names."""
    weights = model.state_dict()
    parts = (["pooler"] if model.pooler is not None else []) + list(model.heads)
    named: dict[str, Tensor] = {}
    for ours, theirs in make_rows(model.config.num_layers, parts):
        named |= zip(theirs, weights[ours].cpu().chunk(len(theirs)), strict=True)
    return named if model.heads else {n.removeprefix("bert."): w for n, w in named.items()}


def to_ours(
    weights: dict[str, Tensor], config: ModelConfig, declared: Sequence[str], source: Path
) -> dict[str, Tensor]:
    """Our names for all weights of a file; `declared` are the heads that its config.json tells of.

    Takes them out of `weights` one by one, so that none is held twice.
    """
    _settle_names(weights, source)
    _settle_duplicates(weights, config, source)
    parts = _find_parts(weights, declared, source)
    rows = make_rows(config.num_layers, parts)
    theirs = [name for row in rows for name in row.theirs]
    surplus = sorted(weights.keys() - theirs)
    if missing := [name for name in theirs if name not in weights]:
        instead = f" (it has {surplus[0]})" if surplus else ""
        raise UserError(
            f"{source} lacks {len(missing)} of the weights that its config.json asks for "
            f"({config.num_layers} layers, {', '.join(parts) or 'no head'}), first {missing[0]}"
            f"{instead}; the two do not belong together, or the file is not whole"
        )
    if surplus:
        raise UserError(
            f"{source} has {len(surplus)} weights that a BERT of {config.num_layers} layers has "
            f"not, first {surplus[0]}; is config.json the right one, and this a plain BERT?"
        )
    heads = [part for part in parts if part != "pooler"]
    num_labels = weights["classifier.bias"].numel() if "classifier.bias" in weights else 2
    with torch.device("meta"):
        shapes = Bert(config, heads, num_labels=num_labels, has_pooler="pooler" in parts)
    expected = {name: weight.shape for name, weight in shapes.state_dict().items()}
    return {row.ours: _take(weights, row, expected[row.ours], source) for row in rows}


def _settle_names(weights: dict[str, Tensor], source: Path) -> None:
    """Old names become those of today."""
    for name in list(weights):
        new = name
        for old, today in OLD_ENDINGS.items():
            if name.endswith(f"LayerNorm{old}"):
                new = name.removesuffix(old) + today
        if new.startswith(("embeddings.", "encoder.", "pooler.")):
            new = f"bert.{new}"
        if new != name and new in weights:
            raise UserError(f"{source} has both {name} and {new}; which one counts?")
        weights[new] = weights.pop(name)


def _settle_duplicates(weights: dict[str, Tensor], config: ModelConfig, source: Path) -> None:
    """What is stored twice must be the same twice; then once is enough."""
    positions = weights.pop(POSITION_IDS, None)
    if positions is not None and positions.flatten().tolist() != list(range(config.max_positions)):
        raise UserError(
            f"{source}: {POSITION_IDS} does not count from 0 to max_position_embeddings"
        )
    output = weights.pop(OUTPUT, None)
    if output is not None and not (PIECES in weights and torch.equal(output, weights[PIECES])):
        raise UserError(
            f"{source}: {OUTPUT} differs from {PIECES}; in BERT they are one and the same, "
            "and bertie has no place for a second one"
        )
    one, two = OUTPUT_BIASES
    if two in weights:
        second = weights.pop(two)
        if not torch.equal(weights.setdefault(one, second), second):
            raise UserError(
                f"{source}: {two} differs from {one}; in BERT they are one and the same"
            )


def _find_parts(weights: Mapping[str, Tensor], declared: Sequence[str], source: Path) -> list[str]:
    """The parts that have a weight in the file or must have one, in the order of our table."""
    found = set(declared)
    for part, rows in PARTS.items():
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
    return [part for part in PARTS if part in found]


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
