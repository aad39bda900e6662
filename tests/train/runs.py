"""Tiny runs of pre-training, and what they leave behind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertie.config import read_recipe
from bertie.data.store import HELD_OUT, Store
from bertie.pretrain import Pretrained, PretrainRecipe, pretrain
from bertie.train.loop import Trainer
from tests.data.stores import FIRST, write_store

TINY = (
    "model.num_layers=2",
    "model.hidden_size=12",
    "model.num_heads=3",
    "model.max_positions=40",
    "data.instances.max_length=32",
    "data.loader.batch_size=12",
    "data.loader.micro_tokens=400",
    "optim.peak=0.002",
    "optim.warmup=0.2",
    "train.budget=20 steps",
    "train.evaluate_every=1000",
    "train.save_every=5",
    "train.log_every=1",
)
STILL = ("model.dropout=0.0", "model.attention_dropout=0.0")
TIMES = {"seconds", "tokens_per_s"}


def recipe(*sets: str) -> PretrainRecipe:
    return read_recipe(PretrainRecipe, None, [*TINY, *sets])


def run(store: Store, out: Path, settings: PretrainRecipe, **more: Any) -> Pretrained:
    return pretrain(replace(settings, store=store.folder, out=out), **more)


def run_until(store: Store, out: Path, settings: PretrainRecipe, step: int) -> None:
    """Dies right after the line of `step` was written, and before anything is saved there."""

    def stop(line: dict[str, Any]) -> None:
        if line.get("step") == step and "held_out" not in line:
            raise Died

    try:
        run(store, out, settings, show=stop)
    except Died:
        return
    raise AssertionError(f"the run came to its end without a line of step {step}")


class Died(BaseException):
    """What no part of a run may catch."""


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run, without what the clock says."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def check_same_weights(one: Path, two: Path) -> None:
    for name, weight in weights(one).items():
        assert torch.equal(weight, weights(two)[name]), name


def write_text_store(folder: Path, *, num_held_out: int = 8) -> Store:
    """Text with something to learn, without any chance: each document counts on in its own way."""
    store = write_counting(folder, range(40))
    if num_held_out:
        write_counting(folder / HELD_OUT, range(40, 40 + num_held_out))
    return store


def write_counting(folder: Path, numbers: range) -> Store:
    """Sentences of awkward lengths, in which each word follows from the one before."""
    sizes = [[3 + (5 * n + 3 * k) % 11 for k in range(4 + n % 7)] for n in numbers]
    ids = [
        FIRST + 10 * (n % 6) + (n + place) % 7
        for n, document in zip(numbers, sizes, strict=True)
        for place in range(sum(document))
    ]
    return write_store(folder, sizes, ids=np.array(ids, np.int64))


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, before)


def break_norms(monkeypatch: pytest.MonkeyPatch, *bad: int) -> None:
    """The gradients of these steps, counted from 0, are not finite."""
    backward, seen = Trainer.backward, []

    def broken(self: Trainer, step: Any) -> dict[str, Any]:
        sums = backward(self, step)
        seen.append(step.number)
        if len(seen) - 1 in bad:
            next(self.model.parameters()).grad[0] = torch.nan
        return sums

    monkeypatch.setattr(Trainer, "backward", broken)
