"""What an export gives is compared number by number; what cannot be compared is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from bertie.export.check import Run, check, compare
from bertie.export.padded import PaddedBert
from bertie.export.writing import run_module, write_onnx
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


# Eight bits.


@pytest.fixture
def rough(tmp_path: Path) -> Engine:
    made = make_directory(tmp_path, ("masked_lm", "next_sentence"))
    return bertie.load(made, device="cpu", precision="int8")


@pytest.fixture
def run(rough: Engine, tmp_path: Path) -> Run:
    return write_onnx(rough.source, tmp_path, rough, "int8")


def test_one_step_of_rounding_among_many_numbers_is_no_fault(rough: Engine, run: Run) -> None:
    def step(*inputs: np.ndarray) -> list[np.ndarray]:
        logits, *others = (one.copy() for one in run(*inputs))
        logits[0, 1, 7] += 2.0 if inputs[0].shape[1] == rough.max_length else 0.0
        return [logits, *others]

    found = check(step, rough, "int8")
    assert found.share > 0.1  # of the largest; the error of all of them is hardly more
    assert found.rounding is not None and 1.0 < found.rounding.ratio < 1.5
    with pytest.raises(UserError, match="differs from the engine by"):
        check(step, rough, "bf16")


BROKEN: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {  # inputs as a broken graph reads them
    "filler is read": lambda ids, mask, segments: (ids, np.ones_like(mask), segments),
    "segments are not": lambda ids, mask, segments: (ids, mask, 0 * segments),
    "the shortest text is another": lambda ids, mask, segments: (
        np.where((mask.sum(1) == mask.sum(1).min())[:, None], ids[:, ::-1], ids),
        mask,
        segments,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_export_is_refused_in_eight_bits_too(name: str, rough: Engine, run: Run) -> None:
    with pytest.raises(UserError, match=r"differs from fp32 by .*nothing was written"):
        check(lambda *inputs: run(*BROKEN[name](*inputs)), rough, "int8")


def test_a_lost_bias_is_refused_in_eight_bits_too(rough: Engine) -> None:
    other = open_model(rough.source).model
    with torch.no_grad():
        other.get_parameter("layers.1.ffn.down.bias").zero_()
    with pytest.raises(UserError, match="differs from fp32 by"):
        check(run_module(PaddedBert(other, rough.embedding)), rough, "int8")


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
