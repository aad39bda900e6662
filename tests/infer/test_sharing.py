"""Equal encoders are kept once, and nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertie
from bertie.infer.sharing import share_encoders
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from tests.infer.models import SENTENCES, make_tuned

TASK = Classify(kind="classes", labels=("a", "b"), max_length=20)


def copy_encoder(source: Path, target: Path, *, change: float) -> None:
    """With one number changed."""
    theirs, weights = (load_file(one / "model.safetensors") for one in (source, target))
    shared = {name: theirs[name] for name in theirs if "embeddings" in name or "layer" in name}
    name = next(name for name in shared if "intermediate.dense.weight" in name)
    shared[name][7, 3] += change
    save_file(weights | shared, target / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_two_heads_on_one_frozen_encoder_share_it(tmp_path: Path, precision: str) -> None:
    directories = [
        make_tuned(tmp_path / "one", TASK),
        make_tuned(tmp_path / "two", replace(TASK, labels=("a", "b", "c"))),
        make_tuned(tmp_path / "three", Choice(max_length=30)),
    ]
    copy_encoder(directories[0], directories[1], change=0)
    copy_encoder(directories[0], directories[2], change=0.5)
    engines = [bertie.load(one, device="cpu", precision=precision) for one in directories]
    before = [engines[0].classify(SENTENCES), engines[1].classify(SENTENCES)]
    assert share_encoders(engines) == 1
    first, second, third = (engine.model for engine in engines)
    assert first.layers is second.layers and first.embeddings is second.embeddings
    assert third.layers is not first.layers, "one number differs"
    assert first.get_submodule("sequence") is not second.get_submodule("sequence")
    assert [engines[0].classify(SENTENCES), engines[1].classify(SENTENCES)] == before
    assert torch.equal(third.embeddings.token.weight, first.embeddings.token.weight)
