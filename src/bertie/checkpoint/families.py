"""What Hugging Face calls the settings and the weights of BERT and of ALBERT: tables, one place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertie.model.config import SWITCHES, Gelu, ModelConfig


class Row(NamedTuple):
    ours: str
    theirs: tuple[str, ...]  # one below the other in the tensor of our name


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """The names of one kind of model."""

    model_type: str
    title: str
    sizes: Mapping[str, str]  # ours -> theirs; without one of these nothing can be built
    details: Mapping[str, str]  # ours -> theirs; absent in old files, and then as in the paper
    plain: Mapping[str, tuple[Any, ...]]  # what these fields hold, where they are there at all
    switches: Mapping[str, Any]  # settings of ours that all of the family have
    architectures: Mapping[str, tuple[str, ...]]  # class -> heads
    embeddings: tuple[Row, ...]
    layer_at: str  # before the names of a layer, which has a number
    layer: tuple[Row, ...]  # each a weight and a bias
    parts: Mapping[str, tuple[Row, ...]]
    pieces: str
    output: str  # the same, once more
    output_biases: tuple[str, str]  # the same twice

    @property
    def prefix(self) -> str:
        """Before all names of the encoder, where there are heads beside it."""
        return f"{self.model_type}."


GELUS: dict[str, Gelu] = {  # theirs -> ours
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
}
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
DETAILS = {
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
PLAIN: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
TASKS = {
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("token",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("choice",),
}
TASK_PARTS = {
    "sequence": (Row("sequence.classifier", ("classifier",)),),
    "token": (Row("token.classifier", ("classifier",)),),
    "span": (Row("span.classifier", ("qa_outputs",)),),
    "choice": (Row("choice.classifier", ("classifier",)),),
}

BERT = Family(
    model_type="bert",
    title="a plain BERT",
    sizes=SIZES,
    details=DETAILS | {"classifier_dropout": "classifier_dropout"},
    plain=PLAIN,
    switches={},
    architectures={
        "BertModel": (),
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForMaskedLM": ("masked_lm",),
        "BertForNextSentencePrediction": ("next_sentence",),
        **{f"Bert{name}": heads for name, heads in TASKS.items()},
    },
    embeddings=(
        Row("embeddings.token.weight", ("bert.embeddings.word_embeddings.weight",)),
        Row("embeddings.segment.weight", ("bert.embeddings.token_type_embeddings.weight",)),
        Row("embeddings.position.weight", ("bert.embeddings.position_embeddings.weight",)),
        Row("embeddings.norm", ("bert.embeddings.LayerNorm",)),
    ),
    layer_at="bert.encoder.layer.{}.",
    layer=(
        Row(
            "attention.qkv",
            ("attention.self.query", "attention.self.key", "attention.self.value"),
        ),
        Row("attention.out", ("attention.output.dense",)),
        Row("attention_norm", ("attention.output.LayerNorm",)),
        Row("ffn.up", ("intermediate.dense",)),
        Row("ffn.down", ("output.dense",)),
        Row("ffn_norm", ("output.LayerNorm",)),
    ),
    parts={
        "pooler": (Row("pooler.dense", ("bert.pooler.dense",)),),
        "masked_lm": (
            Row("masked_lm.dense", ("cls.predictions.transform.dense",)),
            Row("masked_lm.norm", ("cls.predictions.transform.LayerNorm",)),
            Row("masked_lm.bias", ("cls.predictions.bias",)),
        ),
        "next_sentence": (Row("next_sentence.classifier", ("cls.seq_relationship",)),),
        **TASK_PARTS,
    },
    pieces="bert.embeddings.word_embeddings.weight",
    output="cls.predictions.decoder.weight",
    output_biases=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
ALBERT = Family(
    model_type="albert",
    title="an ALBERT of one group of layers",
    sizes=SIZES | {"embedding_size": "embedding_size"},
    details=DETAILS | {"classifier_dropout": "classifier_dropout_prob"},
    plain=PLAIN | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    switches={"share_layers": True},
    architectures={
        "AlbertModel": (),
        "AlbertForPreTraining": ("masked_lm", "next_sentence"),
        "AlbertForMaskedLM": ("masked_lm",),
        **{f"Albert{name}": heads for name, heads in TASKS.items()},
    },
    embeddings=(
        Row("embeddings.token.weight", ("albert.embeddings.word_embeddings.weight",)),
        Row("embeddings.segment.weight", ("albert.embeddings.token_type_embeddings.weight",)),
        Row("embeddings.position.weight", ("albert.embeddings.position_embeddings.weight",)),
        Row("embeddings.norm", ("albert.embeddings.LayerNorm",)),
        Row("embeddings.projection", ("albert.encoder.embedding_hidden_mapping_in",)),
    ),
    layer_at="albert.encoder.albert_layer_groups.0.albert_layers.{}.",
    layer=(
        Row("attention.qkv", ("attention.query", "attention.key", "attention.value")),
        Row("attention.out", ("attention.dense",)),
        Row("attention_norm", ("attention.LayerNorm",)),
        Row("ffn.up", ("ffn",)),
        Row("ffn.down", ("ffn_output",)),
        Row("ffn_norm", ("full_layer_layer_norm",)),
    ),
    parts={
        "pooler": (Row("pooler.dense", ("albert.pooler",)),),
        "masked_lm": (
            Row("masked_lm.dense", ("predictions.dense",)),
            Row("masked_lm.norm", ("predictions.LayerNorm",)),
            Row("masked_lm.bias", ("predictions.bias",)),
        ),
        "next_sentence": (Row("next_sentence.classifier", ("sop_classifier.classifier",)),),
        **TASK_PARTS,
    },
    pieces="albert.embeddings.word_embeddings.weight",
    output="predictions.decoder.weight",
    output_biases=("predictions.bias", "predictions.decoder.bias"),
)
FAMILIES = {family.model_type: family for family in (BERT, ALBERT)}


def find_strange(config: ModelConfig) -> str:
    """The switches that make a model neither a BERT nor an ALBERT, in words; or nothing."""
    plain = ModelConfig()
    found = [name for name in SWITCHES if getattr(config, name) != getattr(plain, name)]
    if set(found) == {"embedding_size", "share_layers"}:
        return ""
    return ", ".join(f"{name} = {getattr(config, name)}" for name in found)


def family_of(config: ModelConfig) -> Family | None:
    """Whose names a model has; none: those of nobody else."""
    if find_strange(config):
        return None
    return ALBERT if config.share_layers else BERT


def make_rows(family: Family, num_layers: int, parts: Sequence[str]) -> list[Row]:
    """Every tensor of such a model: our name and theirs; `num_layers` have weights of their own."""
    rows = list(family.embeddings)
    for layer in range(num_layers):
        for ours, theirs in family.layer:
            below = tuple(family.layer_at.format(layer) + name for name in theirs)
            rows.append(Row(f"layers.{layer}.{ours}", below))
    for part in parts:
        rows.extend(family.parts[part])
    return [
        Row(ours + end, tuple(name + end for name in theirs))
        for ours, theirs in rows
        for end in ([""] if ours.endswith((".weight", ".bias")) else [".weight", ".bias"])
    ]
