"""The model directory: round trips, the quirks of real checkpoints, and what is refused."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.families import ALBERT, BERT, make_rows
from bertie.checkpoint.model_dir import copy_model, open_model, read_config, save_model
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import DIRECTED, ModelConfig
from bertie.model.heads import HEADS
from tests.model import tiny

PLAIN = [head for head in HEADS if head not in DIRECTED]
TINY = ModelConfig(
    vocab_size=37,
    hidden_size=12,
    num_layers=2,
    num_heads=3,
    ffn_size=20,
    max_positions=11,
    num_segments=3,
    dropout=0.25,
    attention_dropout=0.0,
    classifier_dropout=0.5,
    gelu="tanh",
    norm_eps=1e-6,
    init_std=0.05,
)


def make(*heads: str, num_labels: int = 2, has_pooler: bool = True) -> Bert:
    rng = torch.Generator().manual_seed(5)
    model = Bert(TINY, heads, num_labels=num_labels, has_pooler=has_pooler, generator=rng)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=rng)
    return model


def assert_same(one: Bert, other: Bert) -> None:
    assert one.config == other.config
    assert one.heads == other.heads
    mine, yours = one.state_dict(), other.state_dict()
    assert mine.keys() == yours.keys()
    assert all(torch.equal(mine[name], yours[name]) for name in mine)


def change_weights(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file({n: w.contiguous() for n, w in weights.items()}, directory / "model.safetensors")


def change_config(directory: Path, **values: Any) -> None:
    """Sets values of config.json; None takes one away."""
    path = directory / "config.json"
    changed = json.loads(path.read_text(encoding="utf-8")) | values
    kept = {name: value for name, value in changed.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with both heads of pre-training and a vocabulary."""
    (tmp_path / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(37)))
    save_model(make("masked_lm", "next_sentence"), tmp_path / "model", tokenizer_from=tmp_path)
    return tmp_path / "model"


# --- round trips ---


@pytest.mark.parametrize(
    "heads", [(), ("masked_lm", "next_sentence"), *((head,) for head in PLAIN)], ids=str
)
@pytest.mark.parametrize("shard_bytes", [10**9, 1000])
def test_what_is_written_is_opened(
    heads: tuple[str, ...], shard_bytes: int, tmp_path: Path
) -> None:
    model = make(*heads, num_labels=4)
    save_model(model, tmp_path / "model", shard_bytes=shard_bytes)
    opened = open_model(tmp_path / "model")
    assert_same(opened.model, model)
    assert not opened.model.training
    assert opened.notes == opened.fresh == ()
    assert read_config(tmp_path / "model") == TINY


@pytest.mark.parametrize("heads", [(), ("masked_lm",), ("sequence",), ("token",)], ids=str)
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_variant_is_opened_as_it_was_written(
    name: str, heads: tuple[str, ...], tmp_path: Path
) -> None:
    config = replace(tiny.VARIANTS[name], classifier_dropout=0.3)
    heads = tuple(head for head in HEADS if head in (*heads, *tiny.directed(config)))
    model = tiny.make(config, torch.float32, heads=heads, num_labels=4)
    save_model(model, tmp_path / "model")
    opened = open_model(tmp_path / "model")
    assert_same(opened.model, model)
    assert opened.notes == opened.fresh == ()
    assert len(set(opened.model.layers)) == config.num_layer_weights
    values = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert values["model_type"] == ("albert" if name == "albert" else "bertie")
    save_model(opened.model, tmp_path / "model")  # and once more
    assert_same(open_model(tmp_path / "model").model, model)


def test_a_new_lstm_goes_on_top_and_comes_off(tmp_path: Path) -> None:
    save_model(make("masked_lm"), tmp_path / "plain")
    rng = torch.Generator().manual_seed(3)
    tall = open_model(
        tmp_path / "plain", heads=("token",), num_labels=3, bilstm_layers=2, generator=rng
    )
    assert set(tall.fresh) == {"bilstm", "token"}
    save_model(tall.model, tmp_path / "tall")
    again = open_model(tmp_path / "tall", bilstm_layers=2)
    assert_same(again.model, tall.model)
    assert again.fresh == ()
    assert open_model(tmp_path / "tall", bilstm_layers=1).fresh == ("bilstm",)
    low = open_model(tmp_path / "tall", bilstm_layers=0)
    assert low.fresh == ()
    assert low.model.config == TINY


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


@pytest.mark.parametrize("kind", ["spiece.model", "tokenizer.json"])
def test_sentence_pieces_are_refused_with_the_reason(kind: str, saved: Path) -> None:
    (saved / "vocab.txt").unlink(missing_ok=True)
    (saved / kind).write_text('{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}')
    refuses(saved, r"is of SentencePiece, .* take a model with a vocab.txt")


def test_an_encoder_without_pooler_stays_without(tmp_path: Path) -> None:
    save_model(make(has_pooler=False), tmp_path / "model")
    assert open_model(tmp_path / "model").model.pooler is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_precision_is_kept_on_disk_and_chosen_on_opening(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    save_model(make("masked_lm").to(dtype), tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {dtype}
    assert {p.dtype for p in open_model(tmp_path / "model").model.parameters()} == {torch.float32}
    again = open_model(tmp_path / "model", dtype=dtype).model
    assert_same(again, make("masked_lm").to(dtype))


def test_tokenizer_files_come_along_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    texts = {
        "vocab.txt": "".join(f"piece{n}\n" for n in range(36)) + "\u2028\n",  # one line, not two
        "tokenizer_config.json": '{"do_lower_case":   false}',
        "special_tokens_map.json": "{}",
        "README.md": "not a tokenizer",
    }
    for name, text in texts.items():
        (source / name).write_text(text, encoding="utf-8", newline="")
    save_model(make(), tmp_path / "model", tokenizer_from=source)
    del texts["README.md"]
    for name, text in texts.items():
        assert (tmp_path / "model" / name).read_text(encoding="utf-8") == text
    assert not (tmp_path / "model" / "README.md").exists()


def test_the_files_can_be_read_by_others(tmp_path: Path) -> None:
    save_model(make(), tmp_path / "model")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}


# --- tasks and labels ---


@pytest.mark.parametrize(
    "card",
    [
        TaskCard(head="sequence", labels=("no", "yes", "maybe"), thresholds={"yes": 0.25}),
        TaskCard(head="sequence", kind="multi-label", labels=("a", "b", "c")),
        TaskCard(head="token", labels=("O", "B-X", "I-X")),
        TaskCard(head="span", thresholds={"no answer": -1.5}),
        TaskCard(head="choice"),
    ],
    ids=lambda card: f"{card.head} {card.kind}",
)
def test_the_task_is_written_down(card: TaskCard, tmp_path: Path) -> None:
    save_model(make(card.head, num_labels=3), tmp_path / "model", card=card)
    assert open_model(tmp_path / "model").card == card
    if not card.thresholds:  # which config.json has no place for
        (tmp_path / "model" / "task.json").unlink()
        assert open_model(tmp_path / "model").card == card


def test_labels_have_names_even_if_nobody_named_them(tmp_path: Path) -> None:
    save_model(make("token", num_labels=3), tmp_path / "model")
    card = open_model(tmp_path / "model").card
    assert card == TaskCard(head="token", labels=("LABEL_0", "LABEL_1", "LABEL_2"))


def test_a_single_output_without_a_kind_is_a_number(tmp_path: Path) -> None:
    save_model(make("sequence", num_labels=1), tmp_path / "one")
    save_model(make("token", num_labels=1), tmp_path / "two")
    kinds = []
    for name in ("one", "two"):
        card = open_model(tmp_path / name).card
        assert card is not None
        kinds.append(card.kind)
    assert kinds == ["regression", "classes"]


def test_label_counts_that_disagree_are_settled_by_the_weights_and_said(tmp_path: Path) -> None:
    save_model(make("sequence", num_labels=5), tmp_path / "model")
    two = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    change_config(tmp_path / "model", **two, num_labels=5)
    opened = open_model(tmp_path / "model")
    assert opened.model.num_labels == 5
    assert opened.card is not None
    assert opened.card.labels == tuple(f"LABEL_{n}" for n in range(5))
    (note,) = opened.notes
    assert "names 2 labels, the weights have 5: took 5" in note


# --- new heads on an old encoder ---


def test_a_new_head_is_made_and_the_rest_is_kept(saved: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    opened = open_model(saved, heads=("sequence",), num_labels=3, generator=rng)
    assert opened.fresh == ("sequence",)
    assert opened.card is None
    old, new = make("masked_lm", "next_sentence").state_dict(), opened.model.state_dict()
    kept = [name for name in old if name.split(".")[0] in ("embeddings", "layers", "pooler")]
    assert all(torch.equal(old[name], new[name]) for name in kept)
    assert set(new) - set(kept) == {"sequence.classifier.weight", "sequence.classifier.bias"}
    assert new["sequence.classifier.weight"].shape == (3, 12)
    assert 0 < new["sequence.classifier.weight"].abs().max() <= 0.1
    assert all(not parameter.is_meta for parameter in opened.model.parameters())


def test_a_head_with_other_labels_is_new_and_with_the_same_is_kept(tmp_path: Path) -> None:
    model = make("sequence", num_labels=3)
    save_model(model, tmp_path / "model", card=TaskCard(head="sequence", labels=("a", "b", "c")))
    other = open_model(tmp_path / "model", heads=("sequence",), num_labels=2)
    assert other.fresh == ("sequence",)
    assert other.card is None
    same = open_model(tmp_path / "model", heads=("sequence",), num_labels=3)
    assert same.fresh == ()
    assert_same(same.model, model)


def test_a_missing_pooler_is_new_where_a_head_needs_one(tmp_path: Path) -> None:
    save_model(make("masked_lm", has_pooler=False), tmp_path / "model")
    opened = open_model(tmp_path / "model", heads=("choice", "masked_lm"))
    assert opened.fresh == ("pooler", "choice")
    assert opened.model.heads == ("choice", "masked_lm")


def test_a_new_head_needs_its_number_of_labels(saved: Path) -> None:
    with pytest.raises(UserError, match="token would be new; say how many labels it has"):
        open_model(saved, heads=("token",))


# --- quirks ---


def opens_the_same(directory: Path) -> None:
    opened = open_model(directory)
    model = make("masked_lm", "next_sentence")
    assert all(
        torch.equal(weight, model.state_dict()[name])
        for name, weight in opened.model.state_dict().items()
    )


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


def refuses(directory: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_model(directory)


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


def test_truncated_weights_are_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refuses(saved, r"model.safetensors is not a safetensors file, damaged or cut short")


@pytest.mark.parametrize("num_lines", [36, 38])
def test_a_vocabulary_of_another_size_is_refused(num_lines: int, saved: Path) -> None:
    (saved / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(num_lines)))
    refuses(saved, rf"vocab.txt has {num_lines} pieces, the embedding has 37 rows")


def test_a_whole_tokenizer_of_another_size_is_refused(saved: Path) -> None:
    vocab = {f"piece{n}": n for n in range(36)}
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": [{"id": 36}, {"id": 0}]}
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer))
    opens_the_same(saved)
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": []}))
    refuses(saved, r"tokenizer.json has 36 pieces, the embedding has 37 rows")
    (saved / "tokenizer.json").write_text("{}")
    refuses(saved, r"tokenizer.json is not a BERT tokenizer")


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


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"hidden_size": {"9" * 5_000}}}'])
def test_json_beyond_what_python_reads_is_refused(text: str, saved: Path) -> None:
    (saved / "config.json").write_text(text)
    refuses(saved, "config.json is not valid JSON")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"id2label": {"0": "a", "2": "b"}},
            r"the ids of its 2 labels \(id2label\) are not 0 to 1",
        ),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, "and label2id differ"),
        ({"problem_type": "ranking"}, "problem_type is 'ranking'; there are: single_label"),
    ],
)
def test_labels_that_contradict_themselves_are_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_model(make("sequence"), tmp_path / "model")
    change_config(tmp_path / "model", **values)
    refuses(tmp_path / "model", message)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"head": "sequence", "labels": ["a"]}',
            "task.json names 1 labels; the head sequence has 2",
        ),
        ('{"head": "tagger"}', "task.json: no head 'tagger'"),
        ('{"labels": []}', "does not say which head"),
        ('{"head": "sequence", "colour": 1}', "task.json: no setting colour"),
        ("[]", "task.json holds a list"),
        ("{", "task.json is not valid JSON"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(text: str, message: str, tmp_path: Path) -> None:
    save_model(make("sequence"), tmp_path / "model")
    (tmp_path / "model" / "task.json").write_text(text)
    refuses(tmp_path / "model", message)


def test_no_directory_and_no_config_are_told(tmp_path: Path) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "bert_config.json").touch()
    refuses(tmp_path / "google", r"Google's checkpoints; .* bertie import .*google --out NEW")
    refuses(tmp_path / "nowhere", r"no file .*nowhere/config.json; a model directory has")
    save_model(make("sequence"), tmp_path / "run" / "model")
    refuses(tmp_path / "run", r"no file .*run/config.json; the model is in .*run/model$")
    (tmp_path / "config.json").write_text("{")
    refuses(tmp_path, r"config.json is not valid JSON")


# --- writing ---


def test_writing_that_fails_leaves_the_old_model_whole(saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    wrong = saved.parent / "wrong"
    wrong.mkdir()
    (wrong / "vocab.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"wrong/vocab.txt has 1 pieces, the embedding has 37"):
        save_model(make(), saved, tokenizer_from=wrong)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model", "vocab.txt", "wrong"]


def test_a_model_is_replaced_whole(saved: Path) -> None:
    model = open_model(saved).model  # its parameters are mapped from the file that is replaced
    save_model(make("span"), saved, shard_bytes=1000)
    assert not (saved / "model.safetensors").exists()
    assert not (saved / "vocab.txt").exists()
    assert open_model(saved).model.heads == ("span",)
    assert_same(model, make("masked_lm", "next_sentence"))


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
def test_training_changes_the_model_and_not_the_file(form: str, saved: Path) -> None:
    if form != "safetensors":
        weights = load_file(saved / "model.safetensors")
        (saved / "model.safetensors").unlink()
        is_zip = form == "zip"
        torch.save(weights, saved / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    model = open_model(saved).model
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.requires_grad
            parameter.add_(1)
    opens_the_same(saved)


def test_a_folder_with_other_things_is_not_written_over(saved: Path) -> None:
    (saved / "thesis.md").touch()
    with pytest.raises(UserError, match=r"holds thesis.md, which is not part of a model directory"):
        save_model(make(), saved)
    assert (saved / "thesis.md").exists()
    with pytest.raises(UserError, match="is a file"):
        save_model(make(), saved / "thesis.md")


def test_a_copy_replaces_a_model_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for _ in range(2):
        copy_model(saved, copy)
    assert {p.name for p in copy.iterdir()} == {p.name for p in saved.iterdir()}
    (copy / "my_eval").mkdir()
    with pytest.raises(UserError, match="holds my_eval, which is not part of a model directory"):
        copy_model(saved, copy)
    assert (copy / "my_eval").is_dir()


def test_a_copy_replaces_another_of_its_kind(tmp_path: Path) -> None:
    """A head on features has files of other names."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head.json").write_text(name, encoding="utf-8")
    copy_model(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / "head.json").read_text(encoding="utf-8") == "one"


def test_a_card_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="about the head token; the model's heads: sequence"):
        save_model(make("sequence"), tmp_path / "model", card=TaskCard(head="token"))
    with pytest.raises(UserError, match="holds one task; this model has the heads sequence, span"):
        save_model(make("sequence", "span"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_table_of_names_covers_every_weight() -> None:
    for heads in [(), *((head,) for head in PLAIN)]:
        model = make(*heads)
        rows = make_rows(BERT, TINY.num_layers, ["pooler", *heads])
        assert {row.ours for row in rows} == set(model.state_dict())
    assert {"pooler", *PLAIN} == set(BERT.parts) == set(ALBERT.parts)
