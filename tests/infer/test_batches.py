"""Batches hold everything once, within their budget."""

import numpy as np
import pytest
import torch

from bertie.infer.batches import in_batches, make_batches, run_head
from bertie.model.bert import pack
from bertie.model.config import ModelConfig
from bertie.tasks.instances import Input
from tests.model.tiny import TINY, VARIANTS, make, sequences


def test_batches_hold_all_and_stay_within_their_budget() -> None:
    lengths = [5, 2, 4, 9, 1, 1, 3, 20, 8]
    batches = list(make_batches(lengths, 9))
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch in batches:
        assert sum(lengths[number] for number in batch) <= 9 or len(batch) == 1
    assert list(make_batches([], 9)) == []


def test_what_is_computed_comes_back_in_order() -> None:
    lengths = [5, 2, 4, 9000, 1]
    assert in_batches(lengths, lambda batch: [lengths[n] for n in batch]) == lengths


@pytest.mark.parametrize("config", [TINY, *VARIANTS.values()], ids=["plain", *VARIANTS])
@pytest.mark.parametrize("head", ["sequence", "choice", "token"])
def test_a_head_says_what_the_model_says(config: ModelConfig, head: str) -> None:
    """Of a model that reads from left to right, not the first row but the last is pooled."""
    model = make(config, torch.float32, heads=(head,))
    ids, segments = sequences([5, 12, 1, 12])
    inputs = [
        Input(one.numpy(), int((kinds == 0).sum()))
        for one, kinds in zip(ids, segments, strict=True)
    ]
    found = run_head(model, head, inputs)
    for one, text, kinds in zip(found, ids, segments, strict=True):
        (wanted,) = model(*pack([text], [kinds]))
        np.testing.assert_allclose(np.atleast_2d(one), wanted.detach().numpy(), atol=1e-5)
