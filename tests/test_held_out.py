"""Held-out text: figures of what there is, and one of them to choose by."""

from dataclasses import replace
from pathlib import Path

import pytest

from bertie.data.store import Store
from bertie.held_out import HeldOut
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.pretrain import data_of
from bertie.train.distributed import World
from tests.data.stores import PIECES
from tests.train.runs import recipe, write_text_store

CONFIG = ModelConfig(vocab_size=len(PIECES), hidden_size=12, num_layers=1, num_heads=3)


def held_out(store: Store, *sets: str) -> HeldOut:
    settings = recipe(*sets)
    return HeldOut(store, data_of(settings), pair=settings.pair, precision="fp32", world=World())


@pytest.mark.parametrize(
    ("heads", "sets", "chosen"),
    [
        (("masked_lm", "next_sentence"), (), "mask_loss"),
        (("masked_lm",), ("data.masking.mask_share=0", "data.masking.keep_share=0.9"), "mlm_loss"),
        (("next_sentence",), ("objective=nsp",), "nsp_loss"),
        (("next_sentence",), ("objective=mlm+sop", "data.instances.kind=sop"), "sop_loss"),
        (("next_token",), ("objective=lm", "model.attention=left"), "lm_loss"),
    ],
)
def test_a_model_is_chosen_by_the_first_loss_there_is(
    store: Store, heads: tuple[str, ...], sets: tuple[str, ...], chosen: str
) -> None:
    config = replace(CONFIG, attention="left" if "lm" in chosen[:2] else "both")
    figures, score = held_out(store, *sets)(Bert(config, heads))
    assert score == -figures[chosen]


def test_without_text_there_is_no_figure(tmp_path: Path) -> None:
    nothing = held_out(write_text_store(tmp_path / "store", num_held_out=0))
    assert nothing(Bert(CONFIG, ("masked_lm",))) == ({}, None)
    assert nothing.guess(write_text_store(tmp_path / "other")) == {}


def test_frequencies_are_compared_where_something_is_masked(store: Store) -> None:
    assert held_out(store).guess(store).keys() == {"mask_loss", "mask_accuracy"}
    assert held_out(store, "objective=nsp").guess(store) == {}
