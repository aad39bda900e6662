"""The quirks of real checkpoints, and weights and configs that are refused."""

import contextlib
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from bertie.checkpoint.model_dir import open_model, save_model
from bertie.errors import UserError
from tests.checkpoint.directories import (
    TINY,
    assert_same,
    change_config,
    change_weights,
    make,
    opens_the_same,
    refuses,
)
from tests.model import tiny


def test_names_without_prefix_are_understood(saved: Path) -> None:
    def strip(weights: dict[str, Tensor]) -> None:
        for name in list(weights):
            weights[name.removeprefix("bert.")] = weights.pop(name)

    change_weights(saved, strip)
    opens_the_same(saved)


def test_stored_positions_are_left_out(saved: Path) -> None:
    positions = "bert.embeddings.position_ids"
    change_weights(saved, lambda w: w.update({positions: torch.arange(11).unsqueeze(0)}))
    opens_the_same(saved)
    change_weights(saved, lambda w: w.update({positions: torch.arange(11).flip(0)}))
    with pytest.raises(UserError, match="position_ids does not count from 0"):
        open_model(saved)


def test_the_output_matrix_stored_twice_is_left_out(saved: Path) -> None:
    def double(weights: dict[str, Tensor]) -> None:
        weights["cls.predictions.decoder.weight"] = weights[
            "bert.embeddings.word_embeddings.weight"
        ].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()

    change_weights(saved, double)
    opens_the_same(saved)
    change_weights(saved, lambda w: w.pop("cls.predictions.bias"))
    opens_the_same(saved)
    change_weights(saved, lambda w: w["cls.predictions.decoder.weight"].add_(1))
    with pytest.raises(UserError, match=r"decoder.weight differs from bert.*word_embeddings"):
        open_model(saved)


def test_two_biases_that_differ_are_refused(saved: Path) -> None:
    change_weights(saved, lambda w: w.update({"cls.predictions.decoder.bias": torch.ones(37)}))
    with pytest.raises(UserError, match=r"decoder.bias differs from cls.predictions.bias"):
        open_model(saved)


def test_old_names_of_norms_are_understood(saved: Path) -> None:
    def age(weights: dict[str, Tensor]) -> None:
        for name in [name for name in weights if "LayerNorm" in name]:
            old = name.replace(".weight", ".gamma").replace(".bias", ".beta")
            weights[old] = weights.pop(name)

    change_weights(saved, age)
    opens_the_same(saved)
    change_weights(saved, lambda w: w.update({"bert.embeddings.LayerNorm.weight": torch.ones(12)}))
    with pytest.raises(UserError, match=r"both bert.embeddings.LayerNorm.gamma and bert"):
        open_model(saved)


def test_a_config_may_leave_out_what_old_ones_leave_out(saved: Path) -> None:
    change_config(
        saved,
        model_type=None,
        architectures=None,
        classifier_dropout=None,
        layer_norm_eps=None,
        position_embedding_type=None,
    )
    opened = open_model(saved)
    assert opened.model.heads == ("masked_lm", "next_sentence")
    assert opened.model.config == replace(TINY, classifier_dropout=None, norm_eps=1e-12)


def test_a_head_that_the_config_does_not_name_is_found(saved: Path) -> None:
    change_config(saved, architectures=["BertForMaskedLM"])  # as in the most used checkpoint of all
    assert open_model(saved).model.heads == ("masked_lm", "next_sentence")


def test_weights_that_lie_transposed_are_straightened(tmp_path: Path) -> None:
    save_model(make(), tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    turned = {n: w.T.contiguous().T if w.dim() == 2 else w for n, w in weights.items()}
    torch.save(turned, tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    opened = open_model(tmp_path / "model").model
    assert all(parameter.is_contiguous() for parameter in opened.parameters())
    assert_same(opened, make())


# --- what is refused ---


@pytest.mark.parametrize("name", ["left", "lstm"])
def test_a_variant_that_is_not_whole_is_refused(name: str, tmp_path: Path) -> None:
    save_model(tiny.make(tiny.VARIANTS[name], torch.float32), tmp_path / "model")
    change_config(tmp_path / "model", model={"num_layer": 3})
    refuses(
        tmp_path / "model",
        r"config.json: no setting model.num_layer \(did you mean model.num_layers",
    )
    save_model(tiny.make(tiny.VARIANTS[name], torch.float32), tmp_path / "model")
    change_weights(tmp_path / "model", lambda w: w.pop("embeddings.norm.bias"))
    refuses(tmp_path / "model", r"lacks 1 of the weights .* first embeddings.norm.bias")
    change_weights(tmp_path / "model", lambda w: w.update(one=torch.ones(1)))
    refuses(tmp_path / "model", r"first embeddings.norm.bias \(it has one\)")


def test_missing_weights_are_refused(saved: Path) -> None:
    change_weights(saved, lambda w: w.pop("bert.encoder.layer.1.output.dense.bias"))
    refuses(
        saved,
        r"lacks 1 of the weights .*\(2 layers, pooler, masked_lm, next_sentence\), "
        r"first bert.encoder.layer.1.output.dense.bias",
    )


def test_a_missing_pooler_is_refused_where_the_weights_need_one(saved: Path) -> None:
    change_weights(saved, lambda w: [w.pop(n) for n in list(w) if "pooler" in n])
    refuses(saved, "lacks 2 of the weights .*first bert.pooler.dense.weight")


def test_a_missing_head_is_refused(saved: Path) -> None:
    change_config(saved, architectures=["BertForQuestionAnswering"])
    refuses(saved, "lacks 2 of the weights .*first qa_outputs.weight")


def test_weights_of_another_kind_of_model_are_told(saved: Path) -> None:
    def rename(weights: dict[str, Tensor]) -> None:
        for name in [name for name in weights if name.startswith("bert.")]:
            weights[name.replace("bert.", "roberta.", 1)] = weights.pop(name)

    change_weights(saved, rename)
    refuses(saved, r"lacks 39 of .*first bert.embeddings.* \(it has roberta.embeddings.LayerNorm")


def test_surplus_weights_are_refused(saved: Path) -> None:
    change_weights(saved, lambda w: w.update({"bert.encoder.adapter.weight": torch.ones(2)}))
    refuses(saved, "has 1 weights that a model of 2 layers, .* has not, first bert.encoder.adapter")


@pytest.mark.parametrize(("num_layers", "problem"), [(1, "has 16 weights"), (3, "lacks 16 of")])
def test_another_number_of_layers_is_refused(num_layers: int, problem: str, saved: Path) -> None:
    change_config(saved, num_hidden_layers=num_layers)
    refuses(saved, problem)


@pytest.mark.parametrize(
    ("values", "name", "found", "asked"),
    [
        ({"intermediate_size": 40}, r"layer.0.intermediate.dense.weight", (20, 12), (40, 12)),
        ({"max_position_embeddings": 7}, "position_embeddings.weight", (11, 12), (7, 12)),
        ({"type_vocab_size": 2}, "token_type_embeddings.weight", (3, 12), (2, 12)),
        ({"hidden_size": 15}, "word_embeddings.weight", (37, 12), (37, 15)),
    ],
)
def test_misshaped_weights_are_refused(
    values: dict[str, int], name: str, found: tuple[int], asked: tuple[int], saved: Path
) -> None:
    change_config(saved, **values)
    with pytest.raises(UserError, match=f"{name} has the shape") as caught:
        open_model(saved)
    assert f"has the shape {found}, config.json asks for {asked}" in str(caught.value)


def test_queries_of_another_shape_than_keys_are_refused(saved: Path) -> None:
    change_weights(
        saved, lambda w: w.update({"bert.encoder.layer.0.attention.self.key.bias": torch.ones(9)})
    )
    refuses(saved, r"self.key.bias has the shape \(9,\), config.json asks for \(12,\)")


def test_quantised_weights_are_refused(saved: Path) -> None:
    name = "bert.pooler.dense.weight"
    change_weights(saved, lambda w: w.update({name: w[name].to(torch.int8)}))
    refuses(saved, r"pooler.dense.weight holds torch.int8 numbers")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "albert", "architectures": ["BertForMaskedLM"]},
            "model_type albert, BertForMaskedLM",
        ),
        ({"model_type": "roberta"}, r"another kind of model \(model_type roberta"),
        ({"model_type": "distilbert"}, r"another kind of model \(model_type distilbert"),
        ({"model_type": None, "architectures": ["XLNetModel"]}, "model_type bert, XLNetModel"),
        ({"embedding_size": 128}, "embedding_size 128 differs from hidden_size 12: factorised"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True, which a plain BERT has not"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; a BERT has one of gelu, gelu_pytorch_tanh"),
        ({"num_attention_heads": 5}, "contradicts itself: hidden_size 12 is not a multiple of"),
        ({"vocab_size": 0}, "contradicts itself: vocab_size must be at least 1"),
        ({"vocab_size": "37"}, "vocab_size takes a whole number; found '37'"),
        ({"num_attention_heads": None}, "has no num_attention_heads; add what"),
        ({"num_hidden_layers": 10**30}, r"num_layers is 1e\+30, which no model has"),
        ({"num_hidden_layers": 10**6}, "tells of 1,000,000 layers, and the file has .. weights"),
        ({"intermediate_size": 10**30}, r"ffn_size is 1e\+30, which no model has"),
        ({"max_position_embeddings": 10**30}, r"max_positions is 1e\+30, which no model has"),
        ({"hidden_size": float("nan")}, "hidden_size takes a whole number; found nan"),
        ({"model_type": "bertie", "model": 5}, "model is a table of settings, heads a list"),
        ({"model_type": "bertie", "heads": 5}, "model is a table of settings, heads a list"),
    ],
    ids=str,
)
def test_a_config_that_is_no_berts_is_refused(
    values: dict[str, Any], message: str, saved: Path
) -> None:
    change_config(saved, **values)
    refuses(saved, message)


@pytest.mark.parametrize("name", ["num_layers", "bilstm_layers"])
@pytest.mark.parametrize("variant", ["left", "shared", "lstm on top"])
def test_layers_without_end_are_not_made(name: str, variant: str, tmp_path: Path) -> None:
    saved = tmp_path / "model"
    save_model(tiny.make(tiny.VARIANTS[variant], torch.float32), saved)
    path = saved / "config.json"
    values = json.loads(path.read_text())
    values |= {"model_type": "bertie", "heads": [], "model": asdict(tiny.VARIANTS[variant])}
    values["model"][name] = 10**6
    path.write_text(json.dumps(values))
    refuses(saved, r"tells of 1,000,00\d layers, and the file has")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 50) | st.floats() | st.sampled_from(["bert", "0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("01x"), inner),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_no_config_breaks_more_than_its_own_opening(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "model"
        save_model(make("sequence"), saved)
        names = sorted(json.loads((saved / "config.json").read_text()))
        chosen = data.draw(st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=3))
        change_config(saved, **chosen)
        with contextlib.suppress(UserError):
            open_model(saved)


def test_a_classifier_of_what_is_not_guessed(tmp_path: Path) -> None:
    save_model(make("token"), tmp_path / "model")
    (tmp_path / "model" / "task.json").write_text('{"head": "sequence"}')
    refuses(tmp_path / "model", "has a classifier, and config.json does not say of what; put")
    (tmp_path / "model" / "task.json").unlink()
    change_config(tmp_path / "model", architectures=None)
    refuses(tmp_path / "model", "has a classifier, and config.json does not say of what; put")
    (tmp_path / "model" / "task.json").write_text('{"head": "token"}')
    assert open_model(tmp_path / "model").model.heads == ("token",)
