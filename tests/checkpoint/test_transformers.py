"""`transformers` opens what we write, we open what it writes, and both compute the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.model.bert import Bert
from bertie.model.config import SIZES, ModelConfig, count_parameters, named_size
from tests.checkpoint.theirs import (
    HEADS_OF,
    TOLERANCE,
    ask_ours,
    ask_theirs,
    compare,
    make,
    open_theirs,
    texts,
)

Record = Callable[[str, object], None]
NAMES = ["BertModel", *HEADS_OF]
AWKWARD = ModelConfig(
    vocab_size=83,
    hidden_size=36,
    num_layers=3,
    num_heads=3,
    ffn_size=50,
    max_positions=23,
    init_std=0.15,
)


def random_bert(config: ModelConfig, heads: tuple[str, ...], num_labels: int = 2) -> Bert:
    rng = torch.Generator().manual_seed(7)
    model = Bert(config, heads, num_labels=num_labels, has_pooler=not heads, generator=rng)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.rand(parameter.shape, generator=rng)
    return model.eval()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_we_open_what_transformers_writes(
    name: str, dtype: torch.dtype, tmp_path: Path, record_property: Record
) -> None:
    theirs = make(name, dtype, num_labels=2 if name == "BertForQuestionAnswering" else 5)
    theirs.save_pretrained(tmp_path)
    opened = open_model(tmp_path, dtype=dtype)
    assert opened.model.heads == HEADS_OF.get(name, ())
    assert opened.fresh == opened.notes == ()
    compare(
        ask_ours(opened.model, texts(83)), ask_theirs(theirs, texts(83)), record_property, dtype
    )


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_transformers_opens_what_we_write(
    name: str, dtype: torch.dtype, gelu: str, tmp_path: Path, record_property: Record
) -> None:
    config = replace(AWKWARD, gelu=gelu)  # type: ignore[arg-type]
    model = random_bert(config, HEADS_OF.get(name, ()), num_labels=5).to(dtype)
    save_model(model, tmp_path / "model")
    theirs = open_theirs(name, tmp_path / "model", dtype)
    compare(ask_ours(model, texts(83)), ask_theirs(theirs, texts(83)), record_property, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_their_automatic_classes_find_out_what_it_is(dtype: torch.dtype, tmp_path: Path) -> None:
    save_model(random_bert(AWKWARD, ("span",)).to(dtype), tmp_path / "model")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model")
    assert type(theirs).__name__ == "BertForQuestionAnswering"
    assert theirs.dtype == dtype


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_every_gelu_of_theirs_is_understood(
    hidden_act: str, tmp_path: Path, record_property: Record
) -> None:
    theirs = make("BertForMaskedLM", torch.float64, hidden_act=hidden_act)
    theirs.save_pretrained(tmp_path)
    model = open_model(tmp_path, dtype=torch.float64).model
    answers = ask_ours(model, texts(83)), ask_theirs(theirs, texts(83))
    compare(*answers, record_property, torch.float64)


@pytest.mark.parametrize(
    ("kind", "problem_type", "num_labels"),
    [
        ("classes", "single_label_classification", 3),
        ("multi-label", "multi_label_classification", 4),
        ("regression", "regression", 1),
    ],
)
def test_the_kind_of_a_classifier_travels_both_ways(
    kind: str, problem_type: str, num_labels: int, tmp_path: Path, record_property: Record
) -> None:
    labels = tuple("anger joy fear hope".split()[:num_labels])  # noqa: SIM905
    card = TaskCard(head="sequence", kind=kind, labels=labels)  # type: ignore[arg-type]
    model = random_bert(AWKWARD, ("sequence",), num_labels)
    save_model(model, tmp_path / "ours", card=card)
    theirs = open_theirs("BertForSequenceClassification", tmp_path / "ours")
    assert theirs.config.problem_type == problem_type
    assert theirs.config.id2label == dict(enumerate(labels))
    compare(ask_ours(model, texts(83)), ask_theirs(theirs, texts(83)), record_property)
    theirs.save_pretrained(tmp_path / "theirs")
    assert open_model(tmp_path / "theirs").card == card


@pytest.mark.parametrize(
    ("size", "name"),
    [
        pytest.param(
            size,
            name,
            marks=[pytest.mark.slow] if size == "large" or name != "BertForPreTraining" else [],
        )
        for size in SIZES
        for name in NAMES
    ],
)
def test_all_named_sizes_travel_both_ways(
    size: str, name: str, tmp_path: Path, record_property: Record
) -> None:
    layers, hidden, heads = SIZES[size]
    theirs = make(
        name,
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=512,
        initializer_range=0.02,
    )
    theirs.save_pretrained(tmp_path / "theirs")
    model = open_model(tmp_path / "theirs").model
    assert model.config == named_size(size)
    has_pooler = model.pooler is not None
    counted = count_parameters(model.config, model.heads, has_pooler=has_pooler)
    assert theirs.num_parameters() == counted
    question = texts(30522, lengths=(128, 1, 37))
    answer = ask_theirs(theirs, question)
    compare(ask_ours(model, question), answer, record_property)
    del theirs
    save_model(model, tmp_path / "ours")
    compare(
        ask_ours(model, question),
        ask_theirs(open_theirs(name, tmp_path / "ours"), question),
        record_property,
    )


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("minilm", "BertModel"),
        ("minilm-bin", "BertModel"),
        ("m3e-small", "BertModel"),
        ("rxnfp-bert_ft", "BertModel"),
        ("rxnfp-bert_pretrained", "BertForPreTraining"),
        ("rxnfp-bert_ft_10k_25s", "BertForSequenceClassification"),
    ],
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_checkpoints_compute_the_same(
    checkpoint: str,
    name: str,
    dtype: torch.dtype,
    weights: Callable[[str], Path],
    tmp_path: Path,
    record_property: Record,
) -> None:
    directory = weights(checkpoint)
    opened = open_model(directory, dtype=dtype)
    assert opened.model.heads == HEADS_OF.get(name, ())
    theirs = open_as_theirs(name, directory, opened.model, dtype)
    question = texts(opened.model.config.vocab_size, lengths=(64, 1, 17, 200))
    answer = ask_theirs(theirs, question)
    compare(ask_ours(opened.model, question), answer, record_property, dtype)
    if dtype == torch.float64:
        return
    save_model(opened.model, tmp_path / "again", card=opened.card, tokenizer_from=directory)
    again = open_model(tmp_path / "again", dtype=dtype).model
    for parameter, other in zip(opened.model.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other)
    theirs = open_theirs(name, tmp_path / "again", dtype)
    compare(ask_ours(again, question), ask_theirs(theirs, question), record_property, dtype)


def open_as_theirs(
    name: str, directory: Path, ours: Bert, dtype: torch.dtype
) -> transformers.PreTrainedModel:
    """transformers' own reading of the directory, helped over what it stumbles at."""
    if ours.heads == ("sequence",):  # its config names two labels, the weights have fifty
        config = transformers.BertConfig.from_pretrained(directory, num_labels=ours.num_labels)
        model = getattr(transformers, name).from_pretrained(directory, config=config, dtype=dtype)
        return model.eval()
    return open_theirs(name, directory, dtype)
