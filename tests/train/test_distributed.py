"""Many processes learn what one learns; one that dies ends the run, which can go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertie.checkpoint.state import find_checkpoint, list_checkpoints
from bertie.data.store import Store
from tests.data.stores import awkward, write_store
from tests.train.runs import STILL, TINY, check_same_weights, metrics


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("many") / "store", awkward() * 2)


def command(store: Store, out: Path, *sets: str, processes: int, restarts: int = 0) -> list[str]:
    recipe = out.with_suffix(".toml")
    recipe.write_text("", encoding="utf-8")
    settings = [part for one in (*TINY, *sets) for part in ("--set", one)]
    run = ["-m", "bertie", "pretrain", str(recipe), "--store", str(store.folder)]
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    many += [f"--max-restarts={restarts}"]
    prefix = [sys.executable, *many] if processes > 1 else [sys.executable]
    return [*prefix, *run, "--out", str(out), *settings]


def train(store: Store, out: Path, *sets: str, processes: int) -> None:
    """Once more where torch itself crashed, as it does over gloo now and then: the run goes on."""
    for _ in range(3):
        done = subprocess.run(
            command(store, out, *sets, processes=processes),
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        is_crash = "Signal 11 (SIGSEGV)" in done.stderr or "Signal 6 (SIGABRT)" in done.stderr
        if done.returncode == 0 or not is_crash:
            break
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def alone(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("alone") / "run"
    train(store, out, *STILL, processes=1)
    return metrics(out)


@pytest.mark.parametrize("sharding", ["none", "full"])
@pytest.mark.parametrize("name", ["bert", pytest.param("lamb", marks=pytest.mark.multi)])
def test_two_processes_are_one(
    store: Store, tmp_path: Path, alone: list[dict], sharding: str, name: str
) -> None:
    out = tmp_path / "two"
    if name == "lamb":
        train(store, tmp_path / "one", *STILL, "optim.name=lamb", processes=1)
        alone = metrics(tmp_path / "one")
    sets = (*STILL, f"optim.name={name}", f"train.sharding={sharding}")
    train(store, out, *sets, "data.loader.micro_tokens=150", processes=2)
    assert len(metrics(out)) == len(alone) == 20
    for one, two in zip(alone, metrics(out), strict=True):
        for figure in ("mlm_loss", "nsp_loss", "norm"):
            assert one[figure] == pytest.approx(two[figure], rel=1e-5)
        for figure in ("tokens", "rate", "mlm_accuracy", "nsp_accuracy"):
            assert one[figure] == pytest.approx(two[figure], abs=1e-9)


ALBERT = ("model.share_layers=true", "model.embedding_size=7")
RELATIVES = {
    "albert": ("objective=mlm+sop", "data.instances.kind=sop", *ALBERT),
    "left": ("objective=lm", "model.attention=left"),
    "lstm": ("objective=lm+back", "model.layer=lstm"),
}


@pytest.mark.multi
@pytest.mark.parametrize("sharding", ["none", "full"])
@pytest.mark.parametrize("name", RELATIVES)
def test_two_processes_of_a_relative_are_one(
    store: Store, tmp_path: Path, name: str, sharding: str
) -> None:
    sets = (*STILL, *RELATIVES[name], "train.budget=6 steps")
    train(store, tmp_path / "one", *sets, processes=1)
    more = (f"train.sharding={sharding}", "data.loader.micro_tokens=150")
    train(store, tmp_path / "two", *sets, *more, processes=2)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two)
    for line, other in zip(one, two, strict=True):
        for figure in (name for name in line if name.endswith(("_loss", "norm"))):
            assert line[figure] == pytest.approx(other[figure], rel=1e-5)


@pytest.mark.multi
def test_a_run_goes_on_with_another_number_of_processes(
    store: Store, tmp_path: Path, alone: list[dict]
) -> None:
    """One process for 10 of the 20 steps, then two, then one again."""
    out, stops = tmp_path / "run", [(1, 10), (2, 15), (1, 20)]
    for processes, last in stops:
        train_until(store, out, last, processes=processes)
        assert find_checkpoint(out).counters.step == last
    assert len(metrics(out)) == len(alone) == 20
    for one, other in zip(alone, metrics(out), strict=True):
        for figure in ("mlm_loss", "nsp_loss", "norm"):
            assert one[figure] == pytest.approx(other[figure], rel=1e-5)


def train_until(store: Store, out: Path, last: int, *, processes: int) -> None:
    """Trains, and then forgets all that came after a step, as if it had been killed there."""
    sets = (*STILL, "train.keep=9", "data.loader.micro_tokens=400")
    train(store, out, *sets, processes=processes)
    for folder in list_checkpoints(out):
        if int(folder.name.removeprefix("step-")) > last:
            shutil.rmtree(folder)


@pytest.mark.parametrize("sharding", ["none", pytest.param("full", marks=pytest.mark.multi)])
def test_a_dead_rank_ends_the_run_and_it_goes_on(
    store: Store, tmp_path: Path, sharding: str
) -> None:
    sets = (f"train.sharding={sharding}", "train.budget=120 steps")  # with dropout
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(store, whole, *sets, processes=2)
    many = subprocess.Popen(
        command(store, broken, *sets, processes=2),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.kill(wait_for_rank(broken, many.pid), signal.SIGKILL)
    _, errors = many.communicate(timeout=120)
    assert many.returncode != 0
    assert "lost another rank" in errors or "SIGTERM" in errors  # torchrun may end it before
    assert "bertie/train" not in errors  # no traceback of ours
    assert 0 < find_checkpoint(broken).counters.step < 120
    train(store, broken, *sets, processes=2)
    assert metrics(broken) == metrics(whole)
    check_same_weights(broken, whole)


def wait_for_rank(out: Path, pid: int) -> int:
    """The process of the second rank, once a checkpoint is there."""
    for _ in range(600):
        if (out / "metrics.jsonl").is_file() and len(metrics(out)) >= 7:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
            ranks = [int(child) for child in children if is_rank(int(child), 1)]
            return ranks[0]
        time.sleep(0.1)
    raise AssertionError("the run did not come so far")


def is_rank(pid: int, rank: int) -> bool:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return f"RANK={rank}".encode() in variables


def test_torchrun_starts_a_run_again_that_lost_a_rank(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "run"
    many = subprocess.Popen(
        command(store, out, "train.budget=120 steps", processes=2, restarts=1),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.kill(wait_for_rank(out, many.pid), signal.SIGKILL)
    _, errors = many.communicate(timeout=120)
    assert many.returncode == 0, errors
    assert "goes on from" in errors
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 121))
