"""A small awkward model, its directory, and what is done to that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import DIRECTED, ModelConfig
from bertie.model.heads import HEADS

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


def opens_the_same(directory: Path) -> None:
    opened = open_model(directory)
    model = make("masked_lm", "next_sentence")
    assert all(
        torch.equal(weight, model.state_dict()[name])
        for name, weight in opened.model.state_dict().items()
    )


def refuses(directory: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_model(directory)
