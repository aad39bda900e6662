"""Many processes learn what one learns; one that dies ends the run, which can go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from bertie.checkpoint.state import find_checkpoint, list_checkpoints
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.train.distributed import open_world
from tests.data.stores import awkward, write_store
from tests.train.runs import STILL, TINY, check_same_weights, metrics, recipe, run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


ALBERT = ("model.share_layers=true", "model.embedding_size=7")
SHORT = "train.budget=6 steps"
ALONE = {  # what one process learns, and two should
    "bert": STILL,
    "lamb": (*STILL, "optim.name=lamb"),
    "muon": (*STILL, SHORT, "optim.name=muon"),
    "albert": (*STILL, SHORT, "objective=mlm+sop", "data.instances.kind=sop", *ALBERT),
    "left": (*STILL, SHORT, "objective=lm", "model.attention=left"),
    "lstm": (*STILL, SHORT, "objective=lm+back", "model.layer=lstm"),
}
LONG = ("train.budget=120 steps",)  # with dropout; long enough to be killed meanwhile
SHARDINGS = ("none", "full")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("many") / "store", awkward() * 2)


def launch(*words: str | Path, processes: int = 2, restarts: int = 0) -> list[str]:
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *many, f"--max-restarts={restarts}", "-m", *map(str, words)]


def pretrain(store: Store, out: Path, *sets: str) -> list[str | Path]:
    recipe = out.with_suffix(".toml")
    recipe.write_text("", encoding="utf-8")
    settings = [part for one in (*TINY, *sets) for part in ("--set", one)]
    return ["bertie", "pretrain", recipe, "--store", store.folder, "--out", out, *settings]


def go(command: list[str]) -> None:
    """Once more where torch itself crashed, as it does over gloo now and then: the run goes on."""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        is_crash = "Signal 11 (SIGSEGV)" in done.stderr or "Signal 6 (SIGABRT)" in done.stderr
        if done.returncode == 0 or not is_crash:
            break
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def together(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders NAME-SHARDING of all runs over two processes, and "whole" of the long ones."""
    folder = tmp_path_factory.mktemp("together")
    runs = {
        f"{name}-{sharding}": [*sets, f"train.sharding={sharding}", "data.loader.micro_tokens=150"]
        for name, sets in ALONE.items()
        for sharding in SHARDINGS
    }
    runs |= {f"whole-{sharding}": [*LONG, f"train.sharding={sharding}"] for sharding in SHARDINGS}
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    go(launch("tests.train.many_runs", store.folder, folder, folder / "runs.json"))
    return folder


@pytest.fixture(scope="module")
def alone(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict]]:
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def learn(name: str) -> list[dict]:
        run(store, folder / name, recipe(*ALONE[name]))
        return metrics(folder / name)

    return learn


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", ALONE)
def test_two_processes_are_one(
    together: Path, alone: Callable[[str], list[dict]], sharding: str, name: str
) -> None:
    found = metrics(together / f"{name}-{sharding}")
    assert len(found) == len(alone(name)) == (20 if name in ("bert", "lamb") else 6)
    for one, two in zip(alone(name), found, strict=True):
        assert one.keys() == two.keys()
        for figure in one:
            if figure.endswith(("_loss", "norm")):
                assert one[figure] == pytest.approx(two[figure], rel=1e-5)
            elif figure == "rate" or figure == "tokens" or figure.endswith("_accuracy"):
                assert one[figure] == pytest.approx(two[figure], abs=1e-9)


@pytest.mark.multi
def test_a_run_goes_on_with_another_number_of_processes(
    store: Store, tmp_path: Path, alone: Callable[[str], list[dict]]
) -> None:
    """One process for 10 of the 20 steps, then two, then one again."""
    out, stops = tmp_path / "run", [(1, 10), (2, 15), (1, 20)]
    for processes, last in stops:
        train_until(store, out, last, processes=processes)
        assert find_checkpoint(out).counters.step == last
    assert len(metrics(out)) == len(alone("bert")) == 20
    for one, other in zip(alone("bert"), metrics(out), strict=True):
        for figure in ("mlm_loss", "nsp_loss", "norm"):
            assert one[figure] == pytest.approx(other[figure], rel=1e-5)


def train_until(store: Store, out: Path, last: int, *, processes: int) -> None:
    """Trains, and then forgets all that came after a step, as if it had been killed there."""
    sets = (*STILL, "train.keep=9", "data.loader.micro_tokens=400")
    go(launch(*pretrain(store, out, *sets), processes=processes))
    for folder in list_checkpoints(out):
        if int(folder.name.removeprefix("step-")) > last:
            shutil.rmtree(folder)


@pytest.mark.parametrize("told", [{}, {"RANK": "0"}, {"RANK": "0", "MASTER_ADDR": "here"}])
def test_who_says_how_many_must_say_who(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "2", **told}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UserError, match=r"WORLD_SIZE is 2, and .*MASTER_PORT not set"),
        open_world(),
    ):
        pass
    monkeypatch.setenv("WORLD_SIZE", "")
    with open_world("cpu") as world:
        assert world.size == 1


def test_a_dead_rank_ends_the_run_and_it_goes_on(
    store: Store, tmp_path: Path, together: Path
) -> None:
    whole, broken = together / "whole-full", tmp_path / "broken"
    command = launch(*pretrain(store, broken, *LONG, "train.sharding=full"))
    many = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    os.kill(wait_for_rank(broken, many.pid), signal.SIGKILL)
    _, errors = many.communicate(timeout=120)
    assert many.returncode != 0
    assert "lost another rank" in errors or "SIGTERM" in errors  # torchrun may end it before
    assert "bertie/train" not in errors  # no traceback of ours
    assert 0 < find_checkpoint(broken).counters.step < 120
    go(command)
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


def test_torchrun_starts_a_run_again_that_lost_a_rank(
    store: Store, tmp_path: Path, together: Path
) -> None:
    whole, out = together / "whole-none", tmp_path / "run"
    command = launch(*pretrain(store, out, *LONG), restarts=1)
    many = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    os.kill(wait_for_rank(out, many.pid), signal.SIGKILL)
    _, errors = many.communicate(timeout=120)
    assert many.returncode == 0, errors
    assert "goes on from" in errors
    assert "bertie/train" not in errors  # no traceback of ours
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 121))
    assert metrics(out) == metrics(whole)
    check_same_weights(out, whole)
