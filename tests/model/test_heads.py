"""The heads: what each reads, what it gives, and the names of its weights."""

from dataclasses import replace

import pytest
import torch

from bertie.errors import UserError
from bertie.model.bert import Bert, pack
from bertie.model.config import DIRECTED, ModelConfig
from bertie.model.heads import HEADS
from tests.model.tiny import VARIANTS

TINY = ModelConfig(vocab_size=37, hidden_size=24, num_layers=2, num_heads=3, max_positions=19)
BATCH = pack([torch.tensor([2, 7, 9, 3]), torch.tensor([2]), torch.tensor([2, 36, 3])])
NAMES = """
    embeddings.token.weight embeddings.segment.weight embeddings.position.weight
    embeddings.norm.weight embeddings.norm.bias
    layers.0.attention.qkv.weight layers.0.attention.qkv.bias
    layers.0.attention.out.weight layers.0.attention.out.bias
    layers.0.attention_norm.weight layers.0.attention_norm.bias
    layers.0.ffn.up.weight layers.0.ffn.up.bias layers.0.ffn.down.weight layers.0.ffn.down.bias
    layers.0.ffn_norm.weight layers.0.ffn_norm.bias
    pooler.dense.weight pooler.dense.bias
    masked_lm.dense.weight masked_lm.dense.bias masked_lm.norm.weight masked_lm.norm.bias
    masked_lm.bias
    next_sentence.classifier.weight next_sentence.classifier.bias
    sequence.classifier.weight sequence.classifier.bias
    token.classifier.weight token.classifier.bias
    span.classifier.weight span.classifier.bias
    choice.classifier.weight choice.classifier.bias
"""


def test_the_names_of_the_weights_are_these() -> None:
    model = Bert(TINY, tuple(head for head in HEADS if head not in DIRECTED))
    second = [name.replace("layers.0", "layers.1") for name in NAMES.split() if "layers.0" in name]
    assert set(model.state_dict()) == {*NAMES.split(), *second}


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        ("masked_lm", (8, 37)),
        ("next_sentence", (3, 2)),
        ("sequence", (3, 5)),
        ("token", (8, 5)),
        ("span", (8, 2)),
        ("choice", (3, 1)),
    ],
)
def test_each_head_gives_its_logits(head: str, shape: tuple[int, int]) -> None:
    (logits,) = Bert(TINY, (head,), num_labels=5)(*BATCH)
    assert logits.shape == shape


def test_heads_answer_in_the_order_they_were_asked_for() -> None:
    model = Bert(TINY, ("span", "masked_lm", "sequence"), num_labels=1)
    assert [tuple(one.shape) for one in model(*BATCH)] == [(8, 2), (8, 37), (3, 1)]


def test_heads_that_were_not_asked_for_are_not_there() -> None:
    model = Bert(TINY, ("token",))
    assert model.pooler is None
    assert not [name for name in model.state_dict() if name.split(".")[0] in ("pooler", "sequence")]
    assert Bert(TINY)(*BATCH) == ()


def test_the_masked_lm_is_computed_at_the_predicted_rows() -> None:
    model = Bert(TINY, ("masked_lm",)).eval()
    predicted = torch.tensor([7, 1])
    (everywhere,), (there,) = model(*BATCH), model(*BATCH, predicted=predicted)
    torch.testing.assert_close(there, everywhere[predicted])
    (nowhere,) = model(*BATCH, predicted=predicted[:0])
    assert nowhere.shape == (0, 37)


def test_the_masked_lm_is_tied_to_the_embedding() -> None:
    model = Bert(TINY, ("masked_lm",)).eval()
    (before,) = model(*BATCH)
    with torch.no_grad():
        model.embeddings.token.weight[30] = 0.0  # a piece that is not in the batch
    (after,) = model(*BATCH)
    assert (after[:, 30] == 0).all()
    assert (before[:, 30] != 0).all()


@pytest.mark.parametrize("head", ["sequence", "token", "choice", "next_sentence", "span"])
def test_dropout_before_the_output_layer_is_as_in_the_published_code(head: str) -> None:
    config = ModelConfig(
        vocab_size=37,
        hidden_size=24,
        num_layers=1,
        num_heads=3,
        dropout=0.0,
        attention_dropout=0.0,
        classifier_dropout=0.5,
    )
    model = Bert(config, (head,)).train()
    (one,), (two,) = model(*BATCH), model(*BATCH)
    assert torch.equal(one, two) == (head in ("next_sentence", "span"))


def test_a_head_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="no head 'ner'; there are: masked_lm, next_token"):
        Bert(TINY, ("ner",))
    with pytest.raises(UserError, match="can be there once; found span, span"):
        Bert(TINY, ("span", "span"))
    with pytest.raises(UserError, match="sequence needs at least 1 label; found 0"):
        Bert(TINY, ("sequence",), num_labels=0)


def test_a_head_that_would_see_what_it_predicts_is_refused() -> None:
    with pytest.raises(UserError, match=r'goes with model.attention = "left" or model.layer'):
        Bert(TINY, ("next_token",))
    with pytest.raises(UserError, match=r'goes with model.layer = "lstm"'):
        Bert(VARIANTS["left"], ("previous_token",))
    for base, head in (("left", "next_token"), ("lstm", "next_token"), ("lstm", "previous_token")):
        with pytest.raises(UserError, match=f"{head} would see what it predicts: the LSTM on top"):
            Bert(replace(VARIANTS[base], bilstm_layers=1), (head,))


def test_the_heads_of_two_directions_share_nothing_of_a_row() -> None:
    model = Bert(VARIANTS["lstm"], ("next_token", "previous_token")).double()
    hidden = torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    for name, unseen in (("next_token", slice(12, 24)), ("previous_token", slice(12))):
        logits = model.get_submodule(name)(hidden, model.embeddings.token.weight)
        (gradient,) = torch.autograd.grad(logits.square().sum(), hidden)
        assert not gradient[:, unseen].any()
        assert gradient.any()


def test_the_previous_token_is_read_off_the_row_behind() -> None:
    model = Bert(VARIANTS["lstm"], ("next_token", "previous_token")).eval()
    predicted = torch.tensor([0, 2, 7])  # the last: a tail that is ignored
    every, chosen = model(*BATCH), model(*BATCH, predicted=predicted)
    torch.testing.assert_close(chosen[0], every[0][predicted])
    torch.testing.assert_close(chosen[1], every[1][[1, 3, 7]])
