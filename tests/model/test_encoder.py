"""The parts of the encoder: where dropout is, what the pooler reads, which GELU."""

from dataclasses import replace

import pytest
import torch

from bertie.errors import UserError
from bertie.model.bert import pack
from tests.model.tiny import TINY, make, sequences


def test_the_pooler_reads_the_first_token_of_each_sequence() -> None:
    model, batch = make(has_pooler=True), pack(*sequences([3, 1, 5]))
    hidden = model.encode(*batch)
    assert model.pooler is not None
    expected = model.pooler.dense(hidden[[0, 3, 4]]).tanh()
    torch.testing.assert_close(model.pool(hidden, batch.bounds), expected)
    with pytest.raises(UserError, match="has no pooler"):
        make().pool(hidden, batch.bounds)


def test_the_two_gelus_differ_a_little() -> None:
    batch = pack(*sequences([8]))
    erf, tanh = (make(replace(TINY, gelu=gelu)).encode(*batch) for gelu in ("erf", "tanh"))
    assert 1e-6 < (erf - tanh).abs().max().item() < 1e-2


def test_neighbours_get_no_gradient() -> None:
    model, batch = make(), pack(*sequences([5, 4]))
    embedded = (
        model.embeddings(batch.ids, batch.segments, batch.positions).detach().requires_grad_()
    )
    hidden = embedded
    for layer in model.layers:
        hidden = layer(hidden, batch.bounds, batch.longest)
    hidden[:5].sum().backward()
    assert embedded.grad is not None
    assert (embedded.grad[:5] != 0).any()
    assert (embedded.grad[5:] == 0).all()


def test_dropout_is_there_in_training_only() -> None:
    model, batch = make(), pack(*sequences([19, 10]))
    assert torch.equal(model.encode(*batch), model.encode(*batch))
    model.train()
    assert not torch.equal(model.encode(*batch), model.encode(*batch))
    still = make(replace(TINY, dropout=0.0, attention_dropout=0.0)).train()
    assert torch.equal(still.encode(*batch), make().encode(*batch))


def test_a_tenth_of_the_embeddings_is_dropped_and_the_rest_scaled() -> None:
    model = make(replace(TINY, hidden_size=240, max_positions=500)).train()
    batch = pack(*sequences([500]))
    torch.manual_seed(0)
    dropped = model.embeddings(batch.ids, batch.segments, batch.positions)
    kept = model.eval().embeddings(batch.ids, batch.segments, batch.positions)
    share = (dropped == 0).double().mean().item()
    assert abs(share - 0.1) < 5 * (0.1 * 0.9 / dropped.numel()) ** 0.5
    where = dropped != 0
    torch.testing.assert_close(dropped[where], kept[where] / 0.9)
