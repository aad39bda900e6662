"""Training: exact under accumulation, the same after a stop, refused where it cannot go on."""

import itertools
import math
import pickle
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import find_checkpoint, list_checkpoints
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.held_out import HeldOut
from bertie.train import loop
from bertie.train.loop import FIRST_SCALE, Stopped, Trainer
from bertie.train.optim import OptimConfig, rate
from tests.data.stores import TOKENIZER, write_store
from tests.train.runs import (
    STILL,
    break_norms,
    check_same_weights,
    metrics,
    recipe,
    run,
    run_until,
    write_counting,
    write_text_store,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_text_store(tmp_path_factory.mktemp("train") / "store", num_held_out=0)


def test_a_run_leaves_metrics_checkpoints_and_a_model(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe())
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 21))
    assert metrics(tmp_path)[-1]["mlm_loss"] < metrics(tmp_path)[0]["mlm_loss"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000015", "step-00000020"]
    assert open_model(made.model).model.heads == ("masked_lm", "next_sentence")
    assert made.counters.step == 20


def test_one_batch_is_learned_by_heart(tmp_path: Path) -> None:
    store = write_counting(tmp_path / "store", range(3))  # of 7 instances, masked once and for all
    sets = ("data.masking.static_copies=1", "data.loader.batch_size=7", "optim.decay=0.0")
    model = ("model.hidden_size=24", "model.init_std=0.1", "optim.peak=0.01")
    run(store, tmp_path / "run", recipe(*STILL, *sets, *model, "train.budget=100 steps"))
    last = metrics(tmp_path / "run")[-1]
    assert last["mlm_accuracy"] == last["nsp_accuracy"] == 1
    assert last["mlm_loss"] < 0.1 and last["nsp_loss"] < 0.1


@pytest.mark.parametrize("name", ["bert", "adamw", "lamb", "muon"])
def test_stopped_and_resumed_is_never_stopped(store: Store, tmp_path: Path, name: str) -> None:
    settings = recipe(f"optim.name={name}")  # with dropout
    run(store, tmp_path / "whole", settings)
    run_until(store, tmp_path / "stopped", settings, 13)
    assert find_checkpoint(tmp_path / "stopped").counters.step == 10
    run(store, tmp_path / "stopped", settings)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    check_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_dropout_differs_between_seeds_phases_ranks_and_steps() -> None:
    cases = list(itertools.product(range(3), range(2), range(4), range(50)))
    found = set()
    for seed, phase, rank, step in cases:
        parts = {"config": {"seed": seed}, "counters": {"phase": phase}, "world": {"rank": rank}}
        trainer: Any = SimpleNamespace(**{k: SimpleNamespace(**v) for k, v in parts.items()})
        found.add(Trainer._seed_of(trainer, step))
    assert len(found) == len(cases)


def test_one_batch_of_64_is_four_of_16(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = watch_steps(monkeypatch, lambda step: len(step.micro_batches))
    traces = {}
    for tokens in (64 * 32, 520):
        settings = recipe(*STILL, "data.loader.batch_size=64", f"data.loader.micro_tokens={tokens}")
        run(store, tmp_path / str(tokens), settings)
        traces[tokens] = metrics(tmp_path / str(tokens))
    assert counts == [1] * 20 + [4] * 20
    for one, other in zip(*traces.values(), strict=True):
        for name in ("mlm_loss", "nsp_loss", "norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)
        assert one["mlm_accuracy"] == other["mlm_accuracy"]


def test_trying_threads_out_changes_no_step(store: Store, tmp_path: Path) -> None:
    notes: list[str] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that there is nothing to choose between
    try:
        run(store, tmp_path / "plain", recipe())  # with dropout
        tried = recipe("train.threads=0")
        run(store, tmp_path / "tried", tried, show=lambda line: notes.append(line.get("note", "")))
    finally:
        torch.set_num_threads(before)
    assert any("ms with 1 thread(s)" in note for note in notes)
    check_same_weights(tmp_path / "plain", tmp_path / "tried")


def test_a_run_has_the_threads_it_asks_for_and_gives_them_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch_steps(monkeypatch, lambda step: torch.get_num_threads())
    before = torch.get_num_threads()
    run(store, tmp_path, recipe(f"train.threads={before + 1}", "train.budget=2 steps"))
    assert seen == [before + 1] * 2
    assert torch.get_num_threads() == before


def watch_steps(monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], Any]) -> list[Any]:
    """What `look` says of each step, as it is taken."""
    seen, launch = [], Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        seen.append(look(step))
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    return seen


# The tiny run without dropout, on one thread; any change here changes what everybody learns.
GOLDEN = {
    "mlm_loss": [
        4.59156, 4.59586, 4.59176, 4.53417, 4.50888, 4.45915, 4.36794, 4.29031, 4.24298, 4.16814,
        4.14271, 4.12741, 4.06189, 4.07805, 4.01588, 4.02791, 4.05718, 4.01229, 3.98987, 3.99721,
    ],
    "nsp_loss": [
        0.692966, 0.693237, 0.692221, 0.695097, 0.685352, 0.698426, 0.688148, 0.693958, 0.686640,
        0.694570, 0.675287, 0.683763, 0.725404, 0.655099, 0.697084, 0.712653, 0.712354, 0.725990,
        0.724106, 0.709269,
    ],
}  # fmt: skip


def test_the_golden_trace(store: Store, tmp_path: Path) -> None:
    run(store, tmp_path, recipe(*STILL))
    for name, expected in GOLDEN.items():
        assert [line[name] for line in metrics(tmp_path)] == pytest.approx(expected, rel=1e-4)


# --- when to look, when to stop ---


def script(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    """The scores of the evaluations to come."""
    coming = iter(scores)
    figures = {"mlm_loss": 1.0}
    monkeypatch.setattr(HeldOut, "__call__", lambda self, model: (figures, next(coming, 99.0)))


PHASES = "phases=[{share = 0.2, max_length = 16}, {share = 0.8, max_length = 32}]"


@pytest.mark.parametrize("phases", [(), (PHASES,)])
def test_patience_ends_a_run_that_gets_no_better(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: tuple[str, ...]
) -> None:
    script(monkeypatch, 1.0, 3.0, 2.0, 3.0, 9.0)  # as good as before is not better
    settings = recipe("train.evaluate_every=2", "train.patience=2", *phases)
    made = run(store, tmp_path, settings)
    assert made.counters.step == 8
    assert (made.counters.best_score, made.counters.num_worse) == (3.0, 2)
    taken = watch_steps(monkeypatch, lambda step: step.number)
    assert run(store, tmp_path, settings).counters.step == 8 and taken == []  # nor later


def test_patience_counts_on_after_a_stop(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipe("train.evaluate_every=2", "train.patience=2")
    script(monkeypatch, 3.0, 2.0)
    run_until(store, tmp_path, settings, 5)
    script(monkeypatch, 2.5, 9.0)
    assert run(store, tmp_path, settings).counters.step == 6


def test_a_score_that_is_no_number_is_never_the_best(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, math.nan, 1.0, math.nan, math.nan)
    made = run(store, tmp_path, recipe("train.evaluate_every=2", "train.patience=2"))
    assert made.counters.best_score == 1.0 and made.counters.step == 8


def test_without_a_number_it_looks_and_saves_at_the_end_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 1.0)
    run(store, tmp_path, recipe("train.evaluate_every=0", "train.save_every=0"))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000020"]


# --- what is not finite ---


def test_a_step_that_is_not_finite_is_skipped_and_counted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_norms(monkeypatch, 3, 4, 5, 6, 8)
    before: dict[int, torch.Tensor] = {}
    launch = Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        before[step.number] = self.model.layers[0].attention.qkv.weight.detach().clone()
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    made = run(store, tmp_path, recipe("train.budget=12 steps"))
    assert made.counters.skipped == 5 and made.counters.step == 12
    assert [line["skipped"] for line in metrics(tmp_path)] == [0, 0, 0, 1, 2, 3, 4, 4, 5, 5, 5, 5]
    moved = [not torch.equal(before[n], before[n + 1]) for n in range(11)]
    assert [n for n in range(1, 11) if not moved[n]] == [3, 4, 5, 6, 8]
    assert "norm" not in metrics(tmp_path)[3] and "mlm_loss" not in metrics(tmp_path)[3]


def test_a_step_without_targets_is_no_failure(tmp_path: Path) -> None:
    """Of a text of [UNK] alone no token is predicted, and one sentence has no second of a pair."""
    ids = np.full(90, 20)
    ids[30:60] = TOKENIZER.id("[UNK]")
    store = write_store(tmp_path / "store", [[6]] * 15, ids=ids)
    sets = ("objective=mlm+sop", "data.instances.kind=sop", "data.loader.batch_size=1")
    made = run(store, tmp_path / "run", recipe(*sets, "data.loader.micro_tokens=32"))
    norms = [line["norm"] for line in metrics(tmp_path / "run")]
    assert made.counters.skipped == 0 and 0 in norms and max(norms) > 0


def test_five_in_a_row_end_the_run_with_the_batch_saved(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_norms(monkeypatch, 3, *range(10, 20))
    shown: list[Mapping[str, Any]] = []
    with pytest.raises(UserError, match=r"not finite in 5 steps in a row, the last was 15; .*peak"):
        run(store, tmp_path, recipe(), show=shown.append)
    assert find_checkpoint(tmp_path).counters.step == 10
    assert metrics(tmp_path)[-1]["skipped"] == 6
    assert any("4 of 13 steps were skipped" in line.get("warning", "") for line in shown)
    batch = load_file(tmp_path / "bad-step-15-rank-0.safetensors")
    assert batch["0.ids"].shape == batch["0.segments"].shape and len(batch["0.labels"])


def test_skipped_steps_are_the_same_after_a_stop(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_norms(patch, 7)
        run(store, tmp_path / "whole", recipe())
    with monkeypatch.context() as patch:
        break_norms(patch, 7)
        run_until(store, tmp_path / "stopped", recipe(), 12)
    run(store, tmp_path / "stopped", recipe())  # the optimizer has counted 9 steps of 10
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    check_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_an_overflow_halves_the_scale_and_ends_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_norms(monkeypatch, *range(8))  # more than five
    settings = recipe("train.precision=fp16", "train.budget=12 steps")
    run_until(store, tmp_path, settings, 11)
    counters = find_checkpoint(tmp_path).counters
    assert counters.skipped == 8 and counters.loss_scale == FIRST_SCALE / 2**8
    assert counters.scaled_steps == 2
    made = run(store, tmp_path, settings)
    assert made.counters.loss_scale == FIRST_SCALE / 2**8 and made.counters.scaled_steps == 4


def test_the_scale_grows_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SCALE_GROWS_AFTER", 4)
    made = run(store, tmp_path, recipe("train.precision=fp16", "train.budget=9 steps"))
    assert made.counters.loss_scale == FIRST_SCALE * 4 and made.counters.scaled_steps == 1
    assert made.counters.skipped == 0


def test_without_a_scale_five_in_a_row_end_a_run_in_fp16_too(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FIRST_SCALE", 2.0)
    break_norms(monkeypatch, *range(20))
    with pytest.raises(UserError, match="not finite in 5 steps in a row, the last was 6"):
        run(store, tmp_path, recipe("train.precision=fp16"))


# --- precision, compiling, recomputing ---


def learn(store: Store, out: Path, precision: str) -> list[float]:
    sets = (*STILL, "train.budget=40 steps", "train.log_every=10", "optim.peak=0.02")
    run(store, out, recipe(*sets, f"train.precision={precision}"))
    assert metrics(out)[-1]["skipped"] == 0
    return [line["mlm_loss"] for line in metrics(out)]


def test_every_precision_learns_the_same(store: Store, tmp_path: Path) -> None:
    full = learn(store, tmp_path / "fp32", "fp32")
    assert full[-1] < 0.9 * full[0]
    for precision in ("bf16", "fp16"):
        half = learn(store, tmp_path / precision, precision)
        assert half == pytest.approx(full, rel=0.02) and half != full


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_changes_not_a_bit(store: Store, tmp_path: Path, precision: str) -> None:
    for recompute in ("false", "true"):  # with dropout
        settings = recipe(f"train.recompute={recompute}", f"train.precision={precision}")
        run(store, tmp_path / recompute, settings)
    assert metrics(tmp_path / "true") == metrics(tmp_path / "false")
    check_same_weights(tmp_path / "true", tmp_path / "false")


def test_a_compiled_model_is_compiled_once_and_learns_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append([tuple(tensor.shape) for tensor in inputs])
        return graph.forward

    compile_with = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **more: compile_with(self, backend=count, **more)
    )
    torch._dynamo.reset()
    shapes = watch_steps(
        monkeypatch,
        lambda step: {
            tuple(part.shape for part in batch if isinstance(part, torch.Tensor))
            for batch in step.micro_batches
        },
    )
    run(store, tmp_path / "compiled", recipe(*STILL, "train.compile=true"))
    torch._dynamo.reset()
    assert len(set.union(*shapes)) == 1 and len(graphs) == 1
    run(store, tmp_path / "plain", recipe(*STILL))
    for one, other in zip(metrics(tmp_path / "compiled"), metrics(tmp_path / "plain"), strict=True):
        assert one["mlm_loss"] == pytest.approx(other["mlm_loss"], rel=1e-5)
        assert 0 < one["filled_share"] < 1 and "filled_share" not in other


# --- signals ---


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_it_comes_in(store: Store, tmp_path: Path, kind: int) -> None:
    settings = recipe("train.log_every=7", "train.save_every=1000")
    run(store, tmp_path / "whole", settings)

    def send(line: Mapping[str, Any]) -> None:
        if line.get("step") == 7:
            signal.raise_signal(kind)

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match=f"stopped by {signal.Signals(kind).name}; saved") as stopped:
        run(store, tmp_path / "stopped", settings, show=send)
    assert stopped.value.number == kind
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert find_checkpoint(tmp_path / "stopped").counters.step == 8  # in the middle of a line
    assert len(metrics(tmp_path / "stopped")) == 1
    run(store, tmp_path / "stopped", settings)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    check_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_signal_at_the_end_of_a_phase_is_not_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Trainer.save

    def save_and_send(self: Trainer) -> Path:
        if self.counters.step == 10:
            signal.raise_signal(signal.SIGTERM)
        return save(self)

    monkeypatch.setattr(Trainer, "save", save_and_send)
    phases = "phases=[{share = 0.5, max_length = 16}, {share = 0.5, max_length = 32}]"
    with pytest.raises(Stopped):
        run(store, tmp_path, recipe(phases))
    assert find_checkpoint(tmp_path).counters.step == 11


# --- the learning rate follows the budget ---


def test_in_minutes_the_rate_follows_the_clock(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1.0, 3.0, 6.0, 10.0, 11.0, 29.0, 30.0, 99.0])
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    made = run(store, tmp_path, recipe("train.budget=0.5 minutes"))
    config = OptimConfig(peak=0.002, warmup=0.2)
    passed = [0.0, 1.0, 3.0, 6.0, 10.0, 11.0, 29.0]  # when each step began
    expected = [rate(now / 30, config) for now in passed]
    assert [line["rate"] for line in metrics(tmp_path)] == pytest.approx(expected)
    assert made.counters.step == 7 and made.counters.seconds == 30.0


def test_a_clock_that_was_stopped_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipe("train.budget=1 minutes")
    clock = iter(float(4 * n) for n in range(100))
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    run_until(store, tmp_path, settings, 7)
    assert find_checkpoint(tmp_path).counters.seconds == 20.0
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made = run(store, tmp_path, settings)
    assert made.counters.seconds == 60.0 and made.counters.step == 15


def test_wrong_settings_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sequences of 64 tokens are more than the 40 positions"):
        run(store, tmp_path, recipe("data.instances.max_length=64"))
    with pytest.raises(UserError, match=r"needs train.precision=bf16 and .* found fp32, true"):
        recipe("train.fp8=true")
    with pytest.raises(UserError, match=r"needs train.precision=bf16 and .* found bf16, false"):
        recipe("train.fp8=true", "train.precision=bf16", "train.kernels=false")
    with pytest.raises(UserError, match=r"train.fp8 needs a GPU .*; found cpu: train.fp8=false"):
        run(store, tmp_path, recipe("train.fp8=true", "train.precision=bf16", "train.device=cpu"))
    for threads in (-1, 100_000):
        with pytest.raises(UserError, match=r"train\.threads is 0 to 1024; found"):
            recipe(f"train.threads={threads}")
    for seed in (-1, 2**64):
        with pytest.raises(UserError, match=r"train\.seed is at least 0 and below 2\^64; found"):
            recipe(f"train.seed={seed}")
    with pytest.raises(UserError, match=r"train.keep must be at least 1"):
        recipe("train.keep=0")
    with pytest.raises(UserError, match=r"kind = nsp or sentences; found full"):
        recipe("data.instances.kind=full")


def test_another_process_can_be_told_of_a_stop() -> None:
    told = pickle.loads(pickle.dumps(Stopped(signal.SIGTERM, Path("there"))))
    assert isinstance(told, Stopped)
    assert (told.number, str(told)) == (signal.SIGTERM, "stopped by SIGTERM; saved in there")
