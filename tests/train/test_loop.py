"""Training: exact under accumulation, the same after a stop, refused where it cannot go on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import find_checkpoint, list_checkpoints
from bertie.config import read_recipe
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.pretrain import Pretrained, PretrainRecipe, pretrain
from tests.data.stores import awkward, write_store

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
TIMES = {"seconds", "tokens_per_s"}


def recipe(*sets: str) -> PretrainRecipe:
    return read_recipe(PretrainRecipe, None, [*TINY, *sets])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("train") / "store", awkward() * 2)


def run(store: Store, out: Path, settings: PretrainRecipe, **more) -> Pretrained:  # type: ignore[no-untyped-def]
    return pretrain(replace(settings, store=store.folder, out=out), **more)


def metrics(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def check_same_weights(one: Path, two: Path) -> None:
    for name, weight in weights(one).items():
        assert torch.equal(weight, weights(two)[name]), name


def test_a_run_leaves_metrics_checkpoints_and_a_model(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe())
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 21))
    assert metrics(tmp_path)[-1]["mlm_loss"] < metrics(tmp_path)[0]["mlm_loss"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000015", "step-00000020"]
    assert open_model(made.model).model.heads == ("masked_lm", "next_sentence")
    assert made.counters.step == 20


@pytest.mark.parametrize("name", ["bert", "adamw", "lamb"])
def test_stopped_and_resumed_is_never_stopped(store: Store, tmp_path: Path, name: str) -> None:
    settings = recipe(f"optim.name={name}")  # with dropout
    run(store, tmp_path / "whole", settings)

    def stop(line: dict) -> None:
        if line.get("step") == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(store, tmp_path / "stopped", settings, show=stop)
    assert find_checkpoint(tmp_path / "stopped").counters.step == 10
    run(store, tmp_path / "stopped", settings)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    check_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_micro_batches_change_nothing(store: Store, tmp_path: Path) -> None:
    still = ("model.dropout=0.0", "model.attention_dropout=0.0")
    for tokens in (100, 10_000):
        settings = recipe(*still, f"data.loader.micro_tokens={tokens}")
        run(store, tmp_path / str(tokens), settings)
    small, large = metrics(tmp_path / "100"), metrics(tmp_path / "10000")
    for one, other in zip(small, large, strict=True):
        for name in ("mlm_loss", "nsp_loss", "norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)


def test_only_what_the_objective_trains_is_built(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe("objective=mlm", "data.instances.kind=full"))
    assert open_model(made.model).model.heads == ("masked_lm",)
    assert "nsp_loss" not in metrics(tmp_path)[0]


def test_a_damaged_checkpoint_is_passed_over(store: Store, tmp_path: Path) -> None:
    run(store, tmp_path, recipe())
    newest = list_checkpoints(tmp_path)[-1] / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert find_checkpoint(tmp_path).counters.step == 15
    for path in list_checkpoints(tmp_path):
        (path / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"no checkpoint of .* is whole"):
        find_checkpoint(tmp_path)


def test_other_settings_are_refused_by_name(store: Store, tmp_path: Path) -> None:
    run(store, tmp_path, recipe())
    with pytest.raises(UserError, match=r"trained with optim.peak = 0.002, the recipe says 0.1"):
        run(store, tmp_path, recipe("optim.peak=0.1"))


def test_a_gradient_that_is_not_finite_is_skipped_and_then_ends_the_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertie.train import loop

    clip = torch.nn.utils.clip_grad_norm_
    bad = {3, *range(10, 20)}
    seen: list[int] = []

    def broken(parameters, max_norm):  # type: ignore[no-untyped-def]
        seen.append(len(seen))
        return torch.tensor(float("nan")) if seen[-1] in bad else clip(parameters, max_norm)

    monkeypatch.setattr(loop.nn.utils, "clip_grad_norm_", broken)
    with pytest.raises(
        UserError,
        match="not finite in 5 steps in a row, the last was 14",
    ):
        run(store, tmp_path, recipe())
    assert metrics(tmp_path)[9]["skipped"] == 1
    batch = load_file(tmp_path / "bad-step-14-rank-0.safetensors")
    assert batch["0.ids"].shape == batch["0.segments"].shape and len(batch["0.labels"])


def test_wrong_settings_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sequences of 64 tokens are more than the 40 positions"):
        run(store, tmp_path, recipe("data.instances.max_length=64"))
    with pytest.raises(UserError, match=r"train.keep must be at least 1"):
        recipe("train.keep=0")
    with pytest.raises(UserError, match=r"kind = nsp or sentences; found full"):
        recipe("data.instances.kind=full")
