"""What an export gives is compared number by number; what cannot be compared is named."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie.errors import UserError
from bertie.export.check import Run, check, compare
from bertie.export.padded import PaddedBert
from bertie.export.writing import run_module
from bertie.infer.engine import Engine
from tests.infer.models import make_directory


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return bertie.load(make_directory(tmp_path, ("sequence",), num_labels=3), device="cpu")


def changed(engine: Engine, value: float) -> Run:
    """The model's own outputs, but for one number."""
    run = run_module(PaddedBert(engine.model, engine.embedding))

    def change(*inputs: np.ndarray) -> list[np.ndarray]:
        (logits,) = run(*inputs)
        logits = logits.copy()
        logits[-1, 1] = value
        return [logits]

    return change


def test_the_largest_difference_is_found(engine: Engine) -> None:
    run = run_module(PaddedBert(engine.model, engine.embedding))
    assert compare(run, engine).share < 1e-5
    assert compare(changed(engine, 1000), engine).largest == pytest.approx(1000, abs=50)
    with pytest.raises(UserError, match=r"differs from the engine by .*; nothing was written"):
        check(changed(engine, 1000), engine, "fp32")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_said_to_be_none(engine: Engine, value: float) -> None:
    with pytest.raises(UserError, match=r"^logits came out with NaN or infinity in it"):
        compare(changed(engine, value), engine)


def test_damaged_weights_are_told_from_a_bad_export(engine: Engine) -> None:
    run = changed(engine, 0)
    with torch.no_grad():
        engine.model.embeddings.token.weight.fill_(torch.nan)
    with pytest.raises(
        UserError, match=r"^logits is not finite in the engine; the model's weights"
    ):
        compare(run, engine)


def test_another_shape_is_named(engine: Engine) -> None:
    run = changed(engine, 0)
    with pytest.raises(UserError, match=r"^logits came out as \(2,\), wanted \(3,\)"):
        compare(lambda *inputs: [run(*inputs)[0][:, :2]], engine)
