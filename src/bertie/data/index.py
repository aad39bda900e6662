"""The instances of one epoch on disk, beside the store: built once, in several processes, cached.

STORE/index/<key>.bin holds the rows, STORE/index/<key>.json counts them (docs/formats.md). The key
is a hash of the store, the settings, the seed and the epoch. It is a cache: what is missing or
damaged is built again, and whoever comes second waits for the first.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.data.chance import stream
from bertie.data.instances import (
    ROW,
    InstanceConfig,
    Text,
    check_text,
    find_ranges,
    row_lengths,
    walk,
)
from bertie.data.locks import take_lock
from bertie.data.store import Store, digest_of, open_store
from bertie.errors import UserError
from bertie.text.count import available_cores
from bertie.text.processes import in_order, watch
from bertie.text.processes import processes as start_processes

VERSION = 1
FOLDER = "index"
WALK = 1  # the stream of chance
NUM_SAMPLES = 64  # of the offsets that identify a store beside its manifest
MANY_RANGES = 16  # fewer are walked before other processes have started


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What is known of an epoch without its rows; `digest` covers all the rest of it."""

    version: int
    key: str
    settings: dict[str, Any]  # of the instances, with seed and epoch
    num_instances: int
    num_tokens: int  # with [CLS] and [SEP]
    num_pairs: int  # instances with a label
    num_second: int  # of those, label 1: NotNext, or swapped
    num_pairs_of_many: int  # made of a chunk of at least two sentences
    num_second_of_many: int
    rows: str  # hash of the rows
    digest: str = ""

    @property
    def mean_length(self) -> float:
        return self.num_tokens / max(1, self.num_instances)

    @property
    def second_share(self) -> float:
        return self.num_second / max(1, self.num_pairs)

    @property
    def second_share_of_many(self) -> float:
        """Half, but for chance; what lies above it in the whole share, lone sentences cause."""
        return self.num_second_of_many / max(1, self.num_pairs_of_many)

    def expected_digest(self) -> str:
        return digest_of(asdict(self))


class Index(NamedTuple):
    """An epoch's instances, memory-mapped."""

    header: Header
    rows: np.ndarray  # (r,) ROW


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpec:
    """Which index: everything that its rows follow from."""

    store: Store
    config: InstanceConfig
    seed: int
    epoch: int

    @property
    def settings(self) -> dict[str, Any]:
        return {**asdict(self.config), "seed": self.seed, "epoch": self.epoch}

    @property
    def parts(self) -> tuple[Path, InstanceConfig, int, int]:
        """For another process, which opens the store itself."""
        return self.store.folder, self.config, self.seed, self.epoch

    def find_key(self) -> str:
        """A name for the file: a hash of all that matters."""
        offsets = hashlib.sha256()
        for array in (self.store.sentences, self.store.documents):
            places = np.linspace(0, len(array) - 1, min(len(array), NUM_SAMPLES)).astype(np.int64)
            offsets.update(array[places].tobytes())
        parts = [VERSION, self.store.manifest.digest, offsets.hexdigest(), self.settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def open_index(spec: IndexSpec, *, processes: int | None = None) -> Index:
    """The index of an epoch; built if it is not there, by `processes` or as many as are useful."""
    key = spec.find_key()
    path = spec.store.folder / FOLDER / f"{key}.bin"
    found = find_index(path, key)
    if found is None:
        with locked(path):
            found = find_index(path, key) or build(spec, key, path, processes, keep_rows=True)
    assert found is not None
    return found


def read_counts(spec: IndexSpec, *, processes: int | None = None) -> Header:
    """The counts of an epoch, whose rows may have been deleted or never written."""
    key = spec.find_key()
    path = spec.store.folder / FOLDER / f"{key}.bin"
    header = find_header(path, key)
    if header is None:
        with locked(path):
            header = find_header(path, key)
            if header is None:
                header = build(spec, key, path, processes, keep_rows=False).header
    return header


def delete_rows(spec: IndexSpec) -> None:
    """Frees the disk; the counts stay. Who has the rows open keeps them."""
    (spec.store.folder / FOLDER / f"{spec.find_key()}.bin").unlink(missing_ok=True)


def find_header(path: Path, key: str) -> Header | None:
    """The counts, if they are there and whole."""
    try:
        header = Header(**json.loads(path.with_suffix(".json").read_bytes()))
        is_whole = header.digest == header.expected_digest()
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return header if is_whole and header.key == key else None


def find_index(path: Path, key: str) -> Index | None:
    """The index, if both files are there and fit; the rows themselves are not read."""
    header = find_header(path, key)
    if header is None or not path.is_file():
        return None
    if path.stat().st_size != header.num_instances * ROW.itemsize or not header.num_instances:
        return None
    return Index(header, np.memmap(path, ROW, "r"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time builds an index; a dead one's lock is free."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(exist_ok=True)
        with lock.open("w") as file:
            take_lock(file)
            yield  # the file stays: one that waits for it and one that comes must see the same
    except OSError as error:
        raise UserError(
            f"cannot write the index of instances in {path.parent}: {error.strerror}; it lies "
            "beside the store, which must be writable and have room (see docs/formats.md)"
        ) from error


def build(
    spec: IndexSpec, key: str, path: Path, processes: int | None, *, keep_rows: bool
) -> Index:
    """Walks all documents; the files appear, whole, at the end."""
    for old in path.parent.glob(f".{key}.*"):  # of a process that died
        old.unlink(missing_ok=True)
    draft = path.parent / f".{key}.{os.getpid()}.draft"
    counts: Counter[str] = Counter()
    digest = hashlib.sha256()
    with draft.open("wb") as file:
        for rows in walk_all(spec, processes):
            counts.update(count_rows(rows, framed=spec.config.framed))
            digest.update(rows.tobytes())
            if keep_rows:
                file.write(rows.tobytes())
        file.flush()
        os.fsync(file.fileno())
    if not counts["num_instances"]:
        draft.unlink()
        raise UserError(f"{spec.store.folder}: no instance can be made of this text")
    if keep_rows:
        draft.replace(path)
    else:
        draft.unlink()
    header = write_header(spec, key, path, counts, digest.hexdigest())
    return Index(header, np.memmap(path, ROW, "r") if keep_rows else np.zeros(0, ROW))


def count_rows(rows: np.ndarray, *, framed: bool) -> dict[str, int]:
    label, is_many = rows["label"], rows["num_sentences"] > 1
    return {
        "num_instances": len(rows),
        "num_tokens": int(row_lengths(rows, framed=framed).sum()),
        "num_pairs": int((label >= 0).sum()),
        "num_second": int((label == 1).sum()),
        "num_pairs_of_many": int(((label >= 0) & is_many).sum()),
        "num_second_of_many": int(((label == 1) & is_many).sum()),
    }


def write_header(
    spec: IndexSpec, key: str, path: Path, counts: Mapping[str, int], rows: str
) -> Header:
    values: dict[str, Any] = {
        "version": VERSION,
        "key": key,
        "settings": spec.settings,
        **counts,
        "rows": rows,
    }
    header = Header(**values, digest=Header(**values).expected_digest())
    draft = path.parent / f".{key}.{os.getpid()}.json"
    draft.write_text(json.dumps(asdict(header), indent=1) + "\n", "utf-8")
    draft.replace(path.with_suffix(".json"))
    return header


def text_of(store: Store) -> Text:
    return Text(np.asarray(store.sentences), np.asarray(store.documents))


def walk_all(spec: IndexSpec, processes: int | None) -> Iterator[np.ndarray]:
    """The rows of all documents in order, whoever walks them."""
    text = text_of(spec.store)
    check_text(spec.config, text)
    ranges = find_ranges(text)
    if processes is None:
        processes = available_cores() if len(ranges) >= MANY_RANGES else 1
    if processes == 1:
        for documents in ranges:
            yield walk_range(spec, documents)
        return
    with start_processes(processes) as pool:
        walk_one = partial(walk_in_process, *spec.parts)
        yield from in_order(pool, walk_one, ranges, ahead=2 * processes)


def walk_range(spec: IndexSpec, documents: tuple[int, int]) -> np.ndarray:
    key = stream(spec.seed, spec.epoch, WALK)
    blocks = walk(text_of(spec.store), spec.config, key, documents)
    return np.concatenate([np.zeros(0, ROW), *blocks])


def walk_in_process(
    folder: Path, config: InstanceConfig, seed: int, epoch: int, documents: tuple[int, int]
) -> np.ndarray:
    spec = IndexSpec(store=open_store(folder), config=config, seed=seed, epoch=epoch)
    return walk_range(spec, documents)


def build_in_background(spec: IndexSpec) -> BaseProcess:
    """Starts a process that builds the index, and lets others go first."""
    process = get_context("spawn").Process(target=_build_alone, args=spec.parts, daemon=True)
    process.start()
    return process


def _build_alone(folder: Path, config: InstanceConfig, seed: int, epoch: int) -> None:
    if (parent := parent_process()) is not None:
        watch(parent.pid or 0)
    os.nice(10)
    open_index(
        IndexSpec(store=open_store(folder), config=config, seed=seed, epoch=epoch), processes=1
    )
