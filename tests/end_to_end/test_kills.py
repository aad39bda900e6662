"""A run that is killed at any moment, while saving too, ends as one that was never stopped.

BERTIE_KILLS=100 kills that often; the lives are forked from a process that has torch loaded.
"""

import os
import random
import shutil
import signal
from collections import Counter
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.state import find_checkpoint, list_checkpoints, verify
from bertie.data.store import Store, open_store
from bertie.errors import UserError
from tests.train.runs import check_same_weights, metrics, recipe, run, write_text_store

NUM_KILLS = int(os.environ.get("BERTIE_KILLS", "3"))
LONGEST_LIFE_S = 1.0
SETS = (
    "train.budget=30 steps",
    "train.save_every=1",
    "train.evaluate_every=7",
    "train.log_every=3",
    "train.keep=1",
    "data.loader.batch_size=3",
    "phases=[{share = 0.5, max_length = 16}, {share = 0.5, max_length = 32}]",
)


def live(store: Path, out: Path) -> None:
    """One life of a run, to its end if it is let."""
    torch.set_num_threads(1)
    run(open_store(store), out, recipe(*SETS))


@pytest.fixture
def context() -> ForkServerContext:
    context = get_context("forkserver")
    # An optimizer's first step loads dynamo, which takes longer than the lives here.
    context.set_forkserver_preload(["torch._dynamo", "tests.end_to_end.test_kills"])
    return context


def test_killed_at_random_moments_is_never_killed(
    tmp_path: Path, context: ForkServerContext
) -> None:
    check_kills(tmp_path, context, NUM_KILLS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_a_hundred_times_is_never_killed(tmp_path: Path, context: ForkServerContext) -> None:
    found = check_kills(tmp_path, context, 100)
    assert found["kills while saving"] >= 5
    print(dict(found))


def check_kills(tmp_path: Path, context: ForkServerContext, num_kills: int) -> Counter[str]:
    """Kills run after run until there were enough kills; each run must end like the first one."""
    store = write_text_store(tmp_path / "store")
    whole, found = tmp_path / "whole", Counter[str]()
    assert live_once(context, store, whole, None)
    chance = random.Random(0)
    while found["kills"] < num_kills:
        out = tmp_path / f"run-{found['runs']}"
        found["runs"] += 1
        while not is_finished(context, store, out, chance, found, num_kills):
            pass
        assert metrics(out) == metrics(whole)
        check_same_weights(out, whole)
        assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
        shutil.rmtree(out)
    return found


def is_finished(
    context: ForkServerContext,
    store: Store,
    out: Path,
    chance: random.Random,
    found: Counter[str],
    num_kills: int,
) -> bool:
    """Lives once, to a random moment while there are kills left; counts what the kill hit."""
    found["lives"] += 1
    before = find_halves(out)
    life_s = chance.uniform(0, LONGEST_LIFE_S) if found["kills"] < num_kills else None
    if live_once(context, store, out, life_s):
        return True
    found["kills"] += 1
    found[f"kills {what_was_hit(out, before)}"] += 1
    checkpoint = find_checkpoint(out)  # every kill leaves a checkpoint, or none yet
    assert checkpoint is not None or not list_checkpoints(out)
    return False


def live_once(context: ForkServerContext, store: Store, out: Path, life_s: float | None) -> bool:
    """Whether the run came to its end before it was killed."""
    process = context.Process(target=live, args=(store.folder, out))
    process.start()
    process.join(life_s)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def what_was_hit(out: Path, before: set[Path]) -> str:
    """By what the kill left half done that was not so before."""
    new = find_halves(out) - before
    if any(".draft-" in folder.name or ".old-" in folder.name for folder in new):
        return "while saving"
    if new:
        return "while removing an old checkpoint"
    return "at other moments" if list_checkpoints(out) else "before the first checkpoint"


def find_halves(out: Path) -> set[Path]:
    """Drafts, and checkpoints that are not whole."""
    drafts = {*out.glob(".*"), *(out / "checkpoints").glob(".*")}
    return drafts | {folder for folder in list_checkpoints(out) if not is_whole(folder)}


def is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except (UserError, OSError):
        return False
    return True
