"""The index on disk: built once, the same by any number of processes, built again when damaged."""

import hashlib
import json
import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from bertie.data import instances
from bertie.data.chance import stream
from bertie.data.index import (
    FOLDER,
    WALK,
    Header,
    Index,
    IndexSpec,
    build_in_background,
    delete_rows,
    find_index,
    open_index,
    read_counts,
    text_of,
    walk_all,
)
from bertie.data.instances import ROW, InstanceConfig, row_lengths, walk
from bertie.data.store import Store, open_store
from bertie.errors import UserError
from tests.data.stores import awkward, write_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", awkward(huge=300))


def spec_of(store: Store, *, seed: int = 1, epoch: int = 0, **settings: object) -> IndexSpec:
    config = InstanceConfig(**settings)  # type: ignore[arg-type]
    return IndexSpec(store=store, config=config, seed=seed, epoch=epoch)


def files_of(spec: IndexSpec) -> tuple[Path, Path]:
    path = spec.store.folder / FOLDER / f"{spec.find_key()}.bin"
    return path, path.with_suffix(".json")


def is_whole(index: Index) -> bool:
    """Whether the rows are those that were written."""
    return hashlib.sha256(index.rows.tobytes()).hexdigest() == index.header.rows


def test_it_holds_the_walk_and_counts_it(store: Store) -> None:
    spec = spec_of(store, paper_exact=True)
    index = open_index(spec)
    whole = (0, len(store.documents) - 1)
    rows = np.concatenate([*walk(text_of(store), spec.config, stream(1, 0, WALK), whole)])
    assert (index.rows == rows).all() and index.rows.dtype == ROW and ROW.itemsize == 24
    header = index.header
    assert header.num_instances == len(rows)
    assert header.mean_length == pytest.approx(row_lengths(rows).mean())
    assert header.second_share == pytest.approx((rows["label"] == 1).mean())
    many = rows[rows["num_sentences"] > 1]
    assert header.second_share_of_many == pytest.approx((many["label"] == 1).mean())
    assert header.second_share > header.second_share_of_many
    assert is_whole(index)
    assert sorted(p.suffix for p in (store.folder / FOLDER).iterdir()) == [".bin", ".json", ".lock"]


def test_it_is_built_once(store: Store) -> None:
    open_index(spec_of(store))
    path, header = files_of(spec_of(store))
    before = [p.stat().st_mtime_ns for p in (path, header)]
    assert (open_index(spec_of(store)).rows == open_index(spec_of(store)).rows).all()
    assert [p.stat().st_mtime_ns for p in (path, header)] == before


def test_each_epoch_seed_and_setting_has_its_own(store: Store) -> None:
    specs = [
        spec_of(store),
        spec_of(store, epoch=1),
        spec_of(store, seed=2),
        spec_of(store, max_length=64),
        spec_of(store, kind="sop"),
    ]
    assert len({spec.find_key() for spec in specs}) == 5
    assert len({open_index(spec).header.rows for spec in specs}) == 5


def test_another_store_of_the_same_size_has_its_own(tmp_path: Path) -> None:
    """Even where the manifest cannot tell: the offsets are looked at too."""
    one = write_store(tmp_path / "one", [[3, 4], [5, 6]])
    two = write_store(tmp_path / "two", [[4, 3], [5, 6]])
    assert one.manifest.digest == two.manifest.digest
    assert spec_of(one).find_key() != spec_of(two).find_key()


@pytest.mark.parametrize("processes", [2, 3])
def test_the_number_of_processes_changes_nothing(
    store: Store, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process started anew knows only the true RANGE, so ranges are handed to it."""
    monkeypatch.setattr(instances, "RANGE", 200)
    spec = spec_of(store)
    alone = np.concatenate([*walk_all(spec, 1)])
    together = np.concatenate([*walk_all(spec, processes)])
    assert len([*walk_all(spec, 1)]) > 3
    assert (alone == together).all()


def test_a_truncated_or_missing_file_is_built_again(store: Store) -> None:
    spec = spec_of(store)
    whole = open_index(spec).rows.tobytes()
    for damage in (
        lambda rows, _: rows.write_bytes(whole[:-1]),
        lambda rows, _: rows.write_bytes(whole + b"\0" * 24),
        lambda rows, _: rows.unlink(),
        lambda _, header: header.unlink(),
        lambda _, header: header.write_text("{", encoding="utf-8"),
        lambda _, header: header.write_text("[]", encoding="utf-8"),
        lambda _, header: header.write_text('{"version": 1}', encoding="utf-8"),
        lambda _, header: header.write_bytes(
            header.read_bytes().replace(b'"seed": 1', b'"seed": 2')
        ),
    ):
        damage(*files_of(spec))
        assert find_index(files_of(spec)[0], spec.find_key()) is None
        assert open_index(spec).rows.tobytes() == whole


def test_a_foreign_index_is_built_again(store: Store) -> None:
    other, spec = spec_of(store, seed=9), spec_of(store)
    open_index(other)
    for source, target in zip(files_of(other), files_of(spec), strict=True):
        target.write_bytes(source.read_bytes())
    assert open_index(spec).header.settings["seed"] == 1


def test_a_changed_count_is_found_by_its_digest(store: Store) -> None:
    open_index(spec_of(store))
    path, header = files_of(spec_of(store))
    values = json.loads(header.read_text(encoding="utf-8"))
    assert Header(**values).expected_digest() == values["digest"]
    header.write_text(json.dumps(values | {"num_second": 1}), encoding="utf-8")
    assert find_index(path, spec_of(store).find_key()) is None


def test_counts_stay_when_the_rows_go(store: Store) -> None:
    spec = spec_of(store)
    index = open_index(spec)
    delete_rows(spec)
    delete_rows(spec)
    rows, header = files_of(spec)
    assert not rows.exists() and header.exists()
    assert read_counts(spec) == index.header
    assert (index.rows["label"] >= 0).all()  # who has it open keeps it
    assert is_whole(open_index(spec))


def test_counting_alone_writes_no_rows(store: Store) -> None:
    spec = spec_of(store)
    header = read_counts(spec)
    assert sorted(p.suffix for p in (store.folder / FOLDER).iterdir()) == [".json", ".lock"]
    assert open_index(spec).header == header


def test_what_a_dead_process_left_is_cleared(store: Store) -> None:
    spec = spec_of(store)
    rows, _ = files_of(spec)
    rows.parent.mkdir()
    draft = rows.parent / f".{spec.find_key()}.1.draft"
    draft.write_bytes(b"half")
    rows.with_suffix(".lock").touch()
    open_index(spec)
    assert sorted(p.suffix for p in rows.parent.iterdir()) == [".bin", ".json", ".lock"]


def test_where_nothing_can_be_written_the_error_says_so(store: Store) -> None:
    (store.folder / FOLDER).write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write the index"):
        open_index(spec_of(store))


def test_one_document_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[4, 5, 6]])
    with pytest.raises(UserError, match="only one"):
        open_index(spec_of(store))
    assert not [*(store.folder / FOLDER).glob("*.bin")]
    assert len(open_index(spec_of(store, kind="full")).rows) == 1


def test_the_next_index_is_built_in_the_background(store: Store) -> None:
    spec = spec_of(store, epoch=1)
    process = build_in_background(spec)
    process.join()
    assert process.exitcode == 0
    found = find_index(files_of(spec)[0], spec.find_key())
    assert found is not None and is_whole(found)


def ask(folder: Path, delay_s: float) -> None:
    time.sleep(delay_s)
    assert is_whole(open_index(spec_of(open_store(folder))))


def test_many_may_ask_at_once_for_rows_of_which_only_the_counts_are_there(tmp_path: Path) -> None:
    """An epoch may have been counted before it is read; the rows are then built by one of all."""
    store = write_store(tmp_path / "store", awkward() * 20)
    context = get_context("spawn")
    read_counts(spec_of(store))
    asking = [context.Process(target=ask, args=(store.folder, 0.0)) for _ in range(6)]
    for process in asking:
        process.start()
    for process in asking:
        process.join()
    assert [process.exitcode for process in asking] == [0] * 6


def test_many_may_ask_at_once_and_one_may_die(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", awkward() * 20)
    context = get_context("spawn")
    asking = [
        context.Process(target=ask, args=(store.folder, number * 0.02)) for number in range(6)
    ]
    for process in asking:
        process.start()
    time.sleep(0.5)
    os.kill(asking[0].pid or 0, signal.SIGKILL)
    for process in asking:
        process.join()
    assert [process.exitcode for process in asking[1:]] == [0] * 5
    names = sorted(p.name for p in (store.folder / FOLDER).iterdir() if p.suffix != ".lock")
    assert names == sorted(path.name for path in files_of(spec_of(store)))
