"""Steps as tensors: any number of workers, any start, the same bits; a dead worker is an error."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.data.index import FOLDER, IndexSpec, open_index
from bertie.data.instances import ROW, InstanceConfig
from bertie.data.loader import IGNORED, Batch, Loader, Step
from bertie.data.masking import MaskConfig
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import Store
from bertie.errors import UserError
from tests.data.stores import TOKENIZER, awkward, write_store

CLS, SEP, PAD = (TOKENIZER.id(token) for token in ("[CLS]", "[SEP]", "[PAD]"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("store"), awkward(huge=100))


def config_of(kind: Any = "nsp", **loader: Any) -> DataConfig:
    return DataConfig(
        instances=InstanceConfig(kind=kind, max_length=64),
        masking=MaskConfig(unit="word"),
        loader=LoaderConfig(**{"batch_size": 24, "micro_tokens": 500, "seed": 5} | loader),
    )


def assert_equal(some: Iterable[Step], others: Iterable[Step]) -> None:
    for one, two in zip(some, others, strict=True):
        assert (one.number, one.epoch, one.num_targets) == (two.number, two.epoch, two.num_targets)
        for left, right in zip(one.micro_batches, two.micro_batches, strict=True):
            for name in Batch._fields:
                a, b = getattr(left, name), getattr(right, name)
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name


@pytest.mark.parametrize("kind", ["nsp", "sop", "full"])
def test_a_batch_is_sequences_in_a_row(store: Store, kind: Any) -> None:
    step = Loader(store, config_of(kind)).step(2)
    for batch in step.micro_batches:
        tensors = [part for part in batch if isinstance(part, torch.Tensor)]
        assert {t.dtype for t in tensors} == {torch.int64}
        assert batch.longest == 64 and batch.bounds[0] == 0 and batch.bounds[-1] == len(batch.ids)
        assert len(batch.pair_labels) == len(batch.bounds) - 1
        assert len(batch.predicted) == len(batch.labels)
        for low, high, label in zip(
            batch.bounds[:-1], batch.bounds[1:], batch.pair_labels, strict=True
        ):
            ids, segments = batch.ids[low:high].tolist(), batch.segments[low:high].tolist()
            assert ids[0] == CLS and ids[-1] == SEP
            assert batch.positions[low:high].tolist() == list(range(high - low))
            assert segments == sorted(segments)
            assert (label in (0, 1)) == (1 in segments)
            if 1 in segments:
                assert ids[segments.index(1) - 1] == SEP
            else:
                assert label == IGNORED
    assert step.num_targets["mlm"] == sum(len(b.labels) for b in step.micro_batches)
    assert step.num_filled == 0 and step.filled_share == 0
    assert set(step.num_targets) == {"mlm"} | {kind} - {"full"}


def test_labels_restore_the_text_of_the_store(store: Store) -> None:
    text = " ".join(map(str, store.ids.tolist()))
    for batch in Loader(store, config_of("full")).step(1).micro_batches:
        ids = batch.ids.clone()
        ids[batch.predicted] = batch.labels
        for low, high in zip(batch.bounds[:-1], batch.bounds[1:], strict=True):
            assert f" {' '.join(map(str, ids[low + 1 : high - 1].tolist()))} " in f" {text} "


@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_change_nothing(store: Store, num_workers: int) -> None:
    alone = list(islice(Loader(store, config_of()), 60))  # over the end of the first epoch
    assert alone[-1].epoch > 0
    with Loader(store, config_of(num_workers=num_workers), end_step=60) as loader:
        assert_equal(loader, alone)


def test_resuming_is_never_having_stopped(store: Store) -> None:
    whole = list(Loader(store, config_of(), end_step=15))
    assert [step.number for step in whole] == list(range(15))
    for start in (1, 9, 14):
        assert_equal(Loader(store, config_of(), start_step=start, end_step=15), whole[start:])
    with Loader(store, config_of(num_workers=2), start_step=9, end_step=15) as loader:
        assert_equal(loader, whole[9:])
        assert_equal(loader, whole[9:])  # once more, with new workers


def test_each_rank_has_its_own_part_under_workers(store: Store) -> None:
    config = config_of(num_workers=1)
    whole = Loader(store, config_of()).step(4)
    parts = []
    for rank in range(2):
        with Loader(store, config, rank=rank, world_size=2, start_step=4, end_step=5) as loader:
            parts += list(loader)
    assert [part.num_targets for part in parts] == [whole.num_targets] * 2
    assert len(parts[0].micro_batches) == len(parts[1].micro_batches)
    num_tokens = sum(len(batch.ids) for part in parts for batch in part.micro_batches)
    assert num_tokens == whole.num_tokens == parts[0].num_tokens


def test_two_lengths_from_one_store(store: Store) -> None:
    """A phase is a loader of its own; the store stays as it is."""
    for max_length in (64, 256):
        config = DataConfig(
            instances=InstanceConfig(max_length=max_length), loader=LoaderConfig(batch_size=8)
        )
        longest = max(
            int(batch.bounds.diff().max())
            for step in Loader(store, config, end_step=6)
            for batch in step.micro_batches
        )
        assert longest == max_length


def test_a_tail_fills_fixed_shapes_and_nothing_counts_in_it(store: Store) -> None:
    plain = Loader(store, config_of())
    filled = Loader(store, config_of(fill=True, max_sequences=20))
    shapes = set()
    for number in range(6):
        one, two = plain.step(number), filled.step(number)
        assert one.num_targets == two.num_targets and one.num_tokens == two.num_tokens
        assert two.num_filled == sum(len(b.ids) for b in two.micro_batches) - two.num_tokens
        assert 0 < two.filled_share < 0.5
        for a, b in zip(one.micro_batches, two.micro_batches, strict=True):
            t, n, m = len(a.ids), len(a.pair_labels), len(a.labels)
            for name in ("ids", "segments", "positions"):
                assert torch.equal(getattr(b, name)[:t], getattr(a, name))
            assert torch.equal(b.bounds[: n + 1], a.bounds)
            assert torch.equal(b.predicted[:m], a.predicted)
            assert torch.equal(b.labels[:m], a.labels)
            assert torch.equal(b.pair_labels[:n], a.pair_labels)
            assert (b.ids[t:] == PAD).all() and (b.segments[t:] == 0).all()
            assert (b.labels[m:] == IGNORED).all() and (b.pair_labels[n:] == IGNORED).all()
            assert (b.predicted < len(b.ids)).all() and (b.predicted >= 0).all()
            lengths = b.bounds.diff()
            assert b.bounds[-1] == len(b.ids) and lengths.min() >= 0 and lengths.max() <= 64
            assert (b.positions < 64).all() and (b.positions >= 0).all()
            shapes.add((len(b.ids), len(b.bounds), len(b.labels)))
    assert shapes == {(500, 21, len(b.labels))}


def test_the_header_tells_the_shares(store: Store) -> None:
    header = Loader(store, config_of()).header()
    assert 0.4 < header.second_share < 0.75
    assert abs(header.second_share_of_many - 0.5) < 0.1
    assert 5 < header.mean_length <= 64


def test_a_batch_moves_whole(store: Store) -> None:
    batch = Loader(store, config_of()).step(0).micro_batches[0]
    moved = batch.to(torch.device("meta"))
    assert moved.longest == batch.longest
    for name in Batch._fields:
        part = getattr(moved, name)
        assert name == "longest" or (part.is_meta and part.shape == getattr(batch, name).shape)


def test_leaving_early_ends_the_workers(store: Store) -> None:
    loader = Loader(store, config_of(num_workers=2))
    for step in loader:
        assert loader._ahead is not None
        processes = loader._ahead._workers._processes
        if step.number == 3:
            break
    assert not any(process.is_alive() for process in processes)
    assert loader._ahead is None


def test_a_dead_worker_is_an_error_that_says_so(store: Store) -> None:
    loader = Loader(store, config_of(num_workers=2))
    with pytest.raises(UserError, match=r"a worker of the loader died \(exit code -9\)"):
        for step in loader:
            if step.number == 2:
                assert loader._ahead is not None
                os.kill(loader._ahead._workers._processes[1].pid, signal.SIGKILL)
            assert step.number < 100


def test_workers_leave_it_to_their_parent_when_to_end(store: Store) -> None:
    """A terminal or a cluster sends its signals to all processes of a run; the parent saves."""
    with Loader(store, config_of(num_workers=2)) as loader:
        for step in loader:
            if step.number == 2:
                assert loader._ahead is not None
                for process in loader._ahead._workers._processes:
                    os.kill(process.pid, signal.SIGTERM)
                    os.kill(process.pid, signal.SIGINT)
            if step.number == 12:
                break
    assert step.number == 12


def test_an_error_of_a_worker_reaches_the_parent(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[5, 9, 3]] * 40)
    config = config_of(num_workers=1)
    spec = IndexSpec(store=store, config=config.instances, seed=5, epoch=0)
    rows = np.array(open_index(spec).rows)
    rows["a"] = 10**9
    (tmp_path / FOLDER / f"{spec.find_key()}.bin").write_bytes(rows.astype(ROW).tobytes())
    with Loader(store, config) as loader, pytest.raises(UserError, match="is damaged"):
        next(iter(loader))


ORPHANS = """
import os, signal, sys
from pathlib import Path

def main():
    from bertie.data.loader import Loader
    from bertie.data.steps import DataConfig, LoaderConfig
    from bertie.data.store import open_store
    config = DataConfig(loader=LoaderConfig(batch_size=4, num_workers=2))
    loader = Loader(open_store(Path(sys.argv[1])), config)
    steps = iter(loader)
    next(steps)
    print(*(p.pid for p in loader._ahead._workers._processes), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""


def test_workers_end_when_their_parent_dies(tmp_path: Path, store: Store) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS, "utf-8")
    done = subprocess.run([sys.executable, str(script), str(store.folder)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has fetched."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_do_not_load_torch() -> None:
    """It would cost each of them seconds and hundreds of megabytes."""
    code = "import sys, bertie.data.workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "wrong", [{"rank": 1}, {"rank": -1}, {"start_step": -1}, {"world_size": 30}], ids=str
)
def test_wrong_places_are_refused(store: Store, wrong: dict[str, int]) -> None:
    with pytest.raises(UserError):
        Loader(store, config_of(), **wrong)
