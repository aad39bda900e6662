"""Steps that are not waited for, as on a GPU, change nothing."""

import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertie.checkpoint.state import find_checkpoint
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.train import loop
from bertie.train.loop import Stopped, Trainer
from tests.train.runs import (
    break_norms,
    check_same_weights,
    metrics,
    recipe,
    run,
    write_text_store,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_text_store(tmp_path_factory.mktemp("train") / "store", num_held_out=0)


def let_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Trainer.__init__

    def make_lagging(self: Trainer, *words: Any, **settings: Any) -> None:
        make(self, *words, **settings)
        assert self.lag == 0  # a CPU has done a step when it has been asked for it
        self.lag = 1

    monkeypatch.setattr(Trainer, "__init__", make_lagging)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_not_waiting_for_a_step_changes_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = recipe(f"optim.name={name}")  # with dropout, checkpoints at 10 and 20
    with monkeypatch.context() as patch:
        break_norms(patch, 7, 9, 12)
        run(store, tmp_path / "waiting", settings)
    let_lag(monkeypatch)
    with monkeypatch.context() as patch:
        break_norms(patch, 7, 9, 12)
        made = run(store, tmp_path / "lagging", settings)
    assert (made.counters.step, made.counters.skipped) == (20, 3)
    assert metrics(tmp_path / "lagging") == metrics(tmp_path / "waiting")
    check_same_weights(tmp_path / "lagging", tmp_path / "waiting")


def test_a_run_that_does_not_wait_is_stopped_and_resumed_as_any_other(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipe("train.log_every=7", "train.save_every=1000")
    run(store, tmp_path / "whole", settings)
    let_lag(monkeypatch)

    def send(line: Mapping[str, Any]) -> None:
        if line.get("step") == 7:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        run(store, tmp_path / "stopped", settings, show=send)
    # Step 8 was under way when the line of step 7 came; step 9 took the signal along, and 10 told.
    assert find_checkpoint(tmp_path / "stopped").counters.step == 10
    run(store, tmp_path / "stopped", settings)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    check_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_that_does_not_wait_ends_after_five_steps_that_are_not_finite(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_lag(monkeypatch)
    break_norms(monkeypatch, *range(11, 20))
    with pytest.raises(UserError, match=r"not finite in 5 steps in a row, the last was 16; "):
        run(store, tmp_path, recipe())
    assert load_file(tmp_path / "bad-step-16-rank-0.safetensors")


@pytest.mark.parametrize(("evaluate_every", "last"), [(0, 9), (8, 8)])
def test_by_the_clock_a_run_that_does_not_wait_ends_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate_every: int, last: int
) -> None:
    """Step 8 is the one that ends behind the time; step 9 is under way unless there is a look."""
    let_lag(monkeypatch)
    clock = iter(float(4 * n) for n in range(100))
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    looked: list[int] = []
    monkeypatch.setattr(Trainer, "look", lambda self: looked.append(self.counters.step))
    sets = (f"train.evaluate_every={evaluate_every}", "train.save_every=0", "train.log_every=5")
    made = run(store, tmp_path, recipe("train.budget=0.5 minutes", *sets))
    assert (made.counters.step, made.counters.seconds) == (last, 4.0 * last)
    assert looked == [last]
    assert [line["step"] for line in metrics(tmp_path)] == [5, last]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_gpu_that_is_not_waited_for_learns_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    sets = (
        f"optim.name={optimizer}",
        "train.device=cuda",
        "train.precision=bf16",
        "train.graphs=false",
    )
    traces, make = [], Trainer.__init__
    for name, lag in (("waiting", 0), ("lagging", 1)):
        with monkeypatch.context() as patch:

            def make_with(self: Trainer, *words: Any, lag: int = lag, **settings: Any) -> None:
                make(self, *words, **settings)
                assert self.lag == 1
                self.lag = lag

            patch.setattr(Trainer, "__init__", make_with)
            break_norms(patch, 7, 9)
            made = run(store, tmp_path / name, recipe(*sets))
        assert (made.counters.step, made.counters.skipped) == (20, 2)
        traces.append([line.get("mlm_loss") for line in metrics(tmp_path / name)])
    assert traces[0] == pytest.approx(traces[1], rel=1e-3)  # sums by atomics differ in rounding
