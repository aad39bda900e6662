"""Epoch after epoch every row once; any instance is found at once, whoever asked before."""

from pathlib import Path

import numpy as np
import pytest

from bertie.data import epochs as module
from bertie.data.epochs import Epochs
from bertie.data.index import FOLDER, find_index, read_counts
from bertie.data.instances import InstanceConfig
from bertie.data.store import Store
from tests.data.stores import write_store

CONFIG = InstanceConfig(max_length=32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 20, rng.integers(1, 15)).tolist() for _ in range(30)]
    return write_store(tmp_path_factory.mktemp("store"), documents)


def epochs_of(store: Store, **settings: int) -> Epochs:
    return Epochs(store, CONFIG, seed=3, **settings)


def test_every_row_comes_once_an_epoch_in_another_order(store: Store) -> None:
    epochs = epochs_of(store)
    orders = []
    for epoch in range(4):
        first, last = epochs.find_end(epoch - 1) if epoch else 0, epochs.find_end(epoch)
        rows = epochs.draw(first, last).rows
        expected = np.asarray(epochs.index(epoch).rows)
        assert (np.sort(rows, order=["a", "b"]) == np.sort(expected, order=["a", "b"])).all()
        assert not (rows == expected).all()
        orders.append(rows["a"].tolist())
    assert orders[0] != orders[1] != orders[2]


def test_keys_are_all_different(store: Store) -> None:
    epochs = epochs_of(store)
    keys = epochs.draw(0, epochs.find_end(4)).keys
    assert len(np.unique(keys)) == len(keys)


def test_pieces_of_any_size_are_the_whole(store: Store) -> None:
    whole = epochs_of(store).draw(0, 700)
    for size in (1, 7, 699):
        epochs = epochs_of(store)
        parts = [epochs.draw(i, min(i + size, 700)) for i in range(0, 700, size)]
        assert (np.concatenate([part.rows for part in parts]) == whole.rows).all()
        assert (np.concatenate([part.keys for part in parts]) == whole.keys).all()


def test_one_may_begin_anywhere(store: Store) -> None:
    whole = epochs_of(store).draw(0, 900)
    for first in (899, 450, 0):
        part = epochs_of(store).draw(first, 900)
        assert (part.rows == whole.rows[first:]).all() and (part.keys == whole.keys[first:]).all()


def test_an_epoch_ends_where_its_instances_do(store: Store) -> None:
    epochs = epochs_of(store)
    counts = [read_counts(epochs.spec(epoch)).num_instances for epoch in range(3)]
    assert len(set(counts)) > 1  # the walks differ in length
    assert [epochs.find_end(epoch) for epoch in range(3)] == np.cumsum(counts).tolist()
    for epoch in range(3):
        end = epochs.find_end(epoch)
        assert epochs.find_epoch(end - 1) == epoch and epochs.find_epoch(end) == epoch + 1
        assert epochs.draw(end - 1, end + 1).epoch == epoch


def test_static_copies_come_again_in_another_order(store: Store) -> None:
    epochs = epochs_of(store, static_copies=2)
    sizes = np.diff([0, *(epochs.find_end(epoch) for epoch in range(6))])
    assert (sizes[:2] == sizes[2:4]).all() and (sizes[:2] == sizes[4:]).all()
    drawn = [
        epochs.draw(epochs.find_end(epoch) - sizes[epoch], epochs.find_end(epoch))
        for epoch in range(4)
    ]
    assert sorted(drawn[0].keys.tolist()) == sorted(drawn[2].keys.tolist())
    assert drawn[0].keys.tolist() != drawn[2].keys.tolist()
    assert not set(drawn[0].keys.tolist()) & set(drawn[1].keys.tolist())
    pairs = [dict(zip(d.keys.tolist(), d.rows.tolist(), strict=True)) for d in drawn]
    assert pairs[0] == pairs[2] and pairs[1] == pairs[3]


def test_going_on_builds_ahead_and_frees_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path, [[5, 9, 3]] * 40)
    monkeypatch.setattr(module, "MANY_SENTENCES", 1)
    epochs = epochs_of(store)
    for epoch in range(3):
        epochs.draw(epochs.find_end(epoch) - 1, epochs.find_end(epoch))
        epochs.advance(epoch)
        assert epochs._background is not None
        epochs._background.join()
    paths = [tmp_path / FOLDER / f"{epochs.spec(e).find_key()}.bin" for e in range(5)]
    assert [path.exists() for path in paths] == [False, True, True, True, False]
    assert find_index(paths[3], paths[3].stem) is not None
    again = epochs_of(store).draw(0, 30)  # behind us, and built again
    assert len(again.rows) == 30 and paths[0].exists()


def test_a_step_of_many_epochs_leaves_the_rows_of_few(tmp_path: Path) -> None:
    """Two documents, and steps of 16 instances: each takes many epochs."""
    store = write_store(tmp_path, [[5, 9, 3]] * 2)
    epochs = epochs_of(store)
    most = 0
    for first in range(0, 160, 16):
        drawn = epochs.draw(first, first + 16)
        epochs.advance(drawn.epoch)
        most = max(most, epochs.find_epoch(first + 15) - drawn.epoch + 1)
    assert epochs.find_epoch(160) > 4 * most
    assert len([*(tmp_path / FOLDER).glob("*.bin")]) <= 2 * most + 1


def test_static_copies_stay(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[5, 9, 3]] * 40)
    epochs = epochs_of(store, static_copies=2)
    for epoch in range(5):
        epochs.draw(epochs.find_end(epoch) - 1, epochs.find_end(epoch))
        epochs.advance(epoch)
    assert len([*(tmp_path / FOLDER).glob("*.bin")]) == 2
