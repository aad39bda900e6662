"""ALBERT: `transformers` opens what we write, we open what it writes, and both compute the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.families import ALBERT, BERT, family_of, find_strange, make_rows
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.errors import UserError
from bertie.infer.engine import Engine
from bertie.model.config import ModelConfig, count_parameters
from tests.checkpoint.directories import PLAIN, TINY, change_config
from tests.checkpoint.directories import make as make_ours
from tests.checkpoint.test_transformers import AWKWARD, random_bert
from tests.checkpoint.theirs import (
    TOLERANCE,
    ask_ours,
    ask_theirs,
    compare,
    make,
    open_theirs,
    texts,
)
from tests.model.tiny import VARIANTS

Record = Callable[[str, object], None]
HEADS_OF = {name: heads for name, heads in ALBERT.architectures.items() if heads}
NAMES = list(ALBERT.architectures)
SMALL = replace(AWKWARD, embedding_size=14, share_layers=True, gelu="tanh")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_we_open_the_albert_that_transformers_writes(
    name: str, dtype: torch.dtype, tmp_path: Path, record_property: Record
) -> None:
    is_binary = name in ("AlbertForQuestionAnswering", "AlbertForPreTraining")
    theirs = make(name, dtype, num_labels=2 if is_binary else 5)
    theirs.save_pretrained(tmp_path)
    opened = open_model(tmp_path, dtype=dtype)
    assert opened.model.heads == HEADS_OF.get(name, ())
    assert opened.fresh == opened.notes == ()
    assert len(set(opened.model.layers)) == 1
    answers = ask_ours(opened.model, texts(83)), ask_theirs(theirs, texts(83))
    compare(*answers, record_property, dtype)
    has_pooler = opened.model.pooler is not None
    config, heads = opened.model.config, opened.model.heads
    counted = count_parameters(config, heads, has_pooler=has_pooler, num_labels=5)
    assert theirs.num_parameters() == counted


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_transformers_opens_the_albert_that_we_write(
    name: str, dtype: torch.dtype, gelu: str, tmp_path: Path, record_property: Record
) -> None:
    config = replace(SMALL, gelu=gelu)  # type: ignore[arg-type]
    model = random_bert(config, HEADS_OF.get(name, ()), num_labels=5).to(dtype)
    save_model(model, tmp_path / "model")
    theirs = open_theirs(name, tmp_path / "model", dtype)
    answers = ask_ours(model, texts(83)), ask_theirs(theirs, texts(83))
    compare(*answers, record_property, dtype)
    again = transformers.AutoModel.from_pretrained(tmp_path / "model")
    assert type(again).__name__ == "AlbertModel"


def test_albert_base_has_the_parameters_of_theirs() -> None:
    config = transformers.AlbertConfig(  # their defaults are the xxlarge
        hidden_size=768, num_attention_heads=12, intermediate_size=3072
    )
    with torch.device("meta"):
        theirs = transformers.AlbertModel(config)
    ours = ModelConfig(vocab_size=30_000, embedding_size=128, share_layers=True)
    assert theirs.num_parameters() == count_parameters(ours) == 11_683_584


def test_settings_and_labels_of_an_albert_travel_both_ways(tmp_path: Path) -> None:
    config = replace(SMALL, dropout=0.0, attention_dropout=0.2, classifier_dropout=0.3)
    card = TaskCard(head="sequence", labels=("joy", "fear", "hope"))
    save_model(random_bert(config, ("sequence",), 3), tmp_path / "ours", card=card)
    theirs = open_theirs("AlbertForSequenceClassification", tmp_path / "ours")
    assert theirs.config.classifier_dropout_prob == 0.3
    theirs.save_pretrained(tmp_path / "theirs")
    opened = open_model(tmp_path / "theirs")
    assert opened.model.config == config
    assert opened.card == card


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_hidden_groups", 2, "num_hidden_groups is 2, which an ALBERT of one group"),
        ("inner_group_num", 3, "inner_group_num is 3"),
        ("embedding_size", None, "has no embedding_size"),
        ("embedding_size", 15, r"has the shape \(83, 14\), config.json asks for \(83, 15\)"),
        ("hidden_act", "relu", "hidden_act is 'relu'"),
    ],
)
def test_other_alberts_are_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    save_model(random_bert(SMALL, ("masked_lm",)), tmp_path / "model")
    change_config(tmp_path / "model", **{field: value})
    with pytest.raises(UserError, match=message):
        open_model(tmp_path / "model")


def test_sentence_order_alone_has_no_class_in_albert(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no class of albert with next_sentence alone"):
        save_model(random_bert(SMALL, ("next_sentence",)), tmp_path / "model")


def test_only_bert_and_albert_are_known_to_others() -> None:
    assert family_of(ModelConfig()) is BERT
    assert family_of(SMALL) is ALBERT
    for name, config in VARIANTS.items():
        assert (family_of(config) is None) == (name != "albert")
    assert find_strange(VARIANTS["left"]) == "attention = left"
    assert find_strange(VARIANTS["shared"]) == "share_layers = True"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_real_albert_computes_the_same(
    dtype: torch.dtype, shared: Path, tmp_path: Path, record_property: Record
) -> None:
    directory = shared / "weights" / "rxnmapper-albert"
    if not directory.is_dir():
        pytest.skip(f"needs {directory}")
    opened = open_model(directory, dtype=dtype)
    assert opened.model.heads == ("masked_lm",)
    theirs = open_theirs("AlbertForMaskedLM", directory, dtype)
    question = texts(591, lengths=(64, 1, 17, 200))
    answer = ask_theirs(theirs, question)
    compare(ask_ours(opened.model, question), answer, record_property, dtype)
    save_model(opened.model, tmp_path / "again", tokenizer_from=directory)
    theirs = open_theirs("AlbertForMaskedLM", tmp_path / "again", dtype)
    compare(ask_ours(opened.model, question), ask_theirs(theirs, question), record_property, dtype)


def test_a_real_albert_fills_masks(shared: Path) -> None:
    """It was trained on reactions: a ring that was opened is closed."""
    directory = shared / "weights" / "rxnmapper-albert"
    if not directory.is_dir():
        pytest.skip(f"needs {directory}")
    engine = Engine.load(directory, device="cpu", show=False)
    (guesses,) = engine.fill("c 1 c c c c c [MASK] >> c 1 c c c c c 1", top=1).masks
    assert guesses[0].piece == "1"
    assert guesses[0].probability > 0.99


def test_the_table_of_names_covers_every_weight() -> None:
    for heads in [(), *((head,) for head in PLAIN)]:
        model = make_ours(*heads)
        rows = make_rows(BERT, TINY.num_layers, ["pooler", *heads])
        assert {row.ours for row in rows} == set(model.state_dict())
    assert {"pooler", *PLAIN} == set(BERT.parts) == set(ALBERT.parts)
