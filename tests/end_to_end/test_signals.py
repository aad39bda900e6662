"""A real process that is asked to end saves, says so in one line, and goes on as never stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertie.checkpoint.state import find_checkpoint
from bertie.data.store import Store
from tests.train.runs import TINY, check_same_weights, metrics, recipe, run

# Lines of seven steps: a stop lies within one.
SETS = (
    "train.budget=140 steps",
    "train.log_every=7",
    "train.save_every=1000",
    "model.num_layers=1",
    "data.loader.batch_size=3",
)


@pytest.fixture(scope="module")
def whole(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run(store, out, recipe(*SETS))
    return out


def start(store: Store, out: Path, *sets: str) -> subprocess.Popen[str]:
    file = out.with_suffix(".toml")
    file.write_text("", encoding="utf-8")
    command = ["-m", "bertie", "pretrain", str(file), "--store", str(store.folder)]
    settings = [part for one in (*TINY, *SETS, *sets) for part in ("--set", one)]
    return subprocess.Popen(
        [sys.executable, *command, "--out", str(out), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for_lines(out: Path, count: int) -> None:
    for _ in range(6000):
        if (out / "metrics.jsonl").is_file() and len(metrics(out)) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not come so far")


@pytest.mark.parametrize(("kind", "workers"), [(signal.SIGTERM, 1), (signal.SIGINT, 0)])
def test_a_process_asked_to_end_saves_and_goes_on(
    store: Store, tmp_path: Path, whole: Path, kind: signal.Signals, workers: int
) -> None:
    out = tmp_path / "run"
    process = start(store, out, f"data.loader.num_workers={workers}")
    wait_for_lines(out, 2)
    os.killpg(process.pid, kind)  # as a terminal or a cluster does: the loader's worker too
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + kind, said
    last = said.splitlines()[-1]
    assert last == (
        f"bertie: stopped by {kind.name}; saved in {out}; the same command goes on from there"
    )
    assert "Traceback" not in said and "died" not in said
    step = find_checkpoint(out).counters.step
    assert 14 <= step < 140 and metrics(out)[-1]["step"] == step // 7 * 7
    run(store, out, recipe(*SETS))
    assert metrics(out) == metrics(whole)
    check_same_weights(out, whole)
