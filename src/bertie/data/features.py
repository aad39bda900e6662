"""The feature store: what a frozen model's layers make of every token, on disk, memory-mapped.

| file | holds |
|---|---|
| layer-00.npy, ... | (T, D) float16: a row per token, a file per layer; 0 are the embeddings |
| ids.npy | (T,) the tokens' pieces |
| inputs.npy | (N + 1,) input n is rows inputs[n] to inputs[n + 1] |
| examples.npy | (E + 1,) example e is inputs examples[e] to examples[e + 1] |
| words.npy | (T,) of tagging: which word the row is the first piece of, or -1 |
| examples.jsonl | the examples themselves, with their labels |
| manifest.json | which model, layers, task and data; counts, sizes and hashes |

store = open_features(Path("store"))
store.layers[12][store.rows_of(0)]  # the last layer's rows of the first example
"""

# T tokens   D hidden size   N inputs   E examples   K layers   R rows that are asked for

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertie.data.chance import Ints
from bertie.data.store import MANIFEST, digest_of
from bertie.errors import UserError
from bertie.text.disk import hash_file

KIND, VERSION = "bertie features", 1
EXAMPLES = "examples.jsonl"
VECTOR = np.dtype("<f2")
NO_SIGN, INFINITE = 0x7FFF, 0x7C00  # bits of float16: all but the sign; infinite, or no number
AGAIN = "make the store again: bertie features MODEL DATA --out STORE"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureManifest:
    """What a store holds, and of what it was made; `digest` covers all the rest of it."""

    kind: str = KIND
    version: int = VERSION
    model: str  # its directory, to be shown
    model_sha256: str  # of its weights, settings and vocabulary: its identity
    num_layers: int  # of the model
    hidden_size: int
    layers: tuple[int, ...]  # that are here
    data: str  # the file, to be shown
    data_sha256: str
    task: str
    settings: dict[str, Any]  # of the task
    is_labelled: bool
    num_examples: int
    num_inputs: int
    num_tokens: int
    notes: tuple[str, ...] = ()  # what of the data was left out or divided
    file_bytes: dict[str, int] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)  # of all but the layers
    digest: str = ""

    def expected_digest(self) -> str:
        return digest_of(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureIndex:
    """Which rows are whose."""

    ids: Ints  # (T,)
    inputs: Ints  # (N + 1,)
    examples: Ints  # (E + 1,)
    words: Ints | None = None  # (T,) of tagging

    def arrays(self) -> dict[str, Ints]:
        found = {"ids": self.ids, "inputs": self.inputs, "examples": self.examples}
        return found if self.words is None else found | {"words": self.words}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureStore:
    """A store, mapped into memory."""

    folder: Path
    manifest: FeatureManifest
    layers: Mapping[int, np.ndarray]  # number -> (T, D) float16
    index: FeatureIndex

    def rows_of(self, example: int) -> slice:
        first, last = self.index.examples[example], self.index.examples[example + 1]
        return slice(int(self.index.inputs[first]), int(self.index.inputs[last]))

    def read_examples(self) -> Iterator[dict[str, Any]]:
        """The fields of each example, in order."""
        with (self.folder / EXAMPLES).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


class FeatureRows:
    """The rows of several stores, numbered through: those of the second go on after the first."""

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        self.stores = tuple(stores)
        counts = [store.manifest.num_tokens for store in stores]
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def take(self, rows: Ints, layers: Sequence[int]) -> np.ndarray:  # (R,) -> (R, K, D)
        """Some layers of some rows, in float16."""
        size = self.stores[0].manifest.hidden_size
        taken = np.empty((len(rows), len(layers), size), VECTOR)
        owners = np.searchsorted(self.starts, rows, "right") - 1  # (R,)
        for owner in np.unique(owners):
            own = np.flatnonzero(owners == owner)
            for place, layer in enumerate(layers):
                taken[own, place] = self.stores[owner].layers[layer][rows[own] - self.starts[owner]]
        return taken


# Write.


def layer_file(layer: int) -> str:
    return f"layer-{layer:02}.npy"


def create_layers(
    folder: Path, layers: Sequence[int], *, num_tokens: int, hidden_size: int
) -> dict[int, np.memmap]:
    """A file for each layer, still empty, to be written row by row in any order."""
    tables = {
        layer: np.lib.format.open_memmap(
            folder / layer_file(layer), "w+", VECTOR, (num_tokens, hidden_size)
        )
        for layer in layers
    }
    for layer in layers:
        take_room(folder / layer_file(layer))
    return tables


def take_room(path: Path) -> None:
    """Has the disk set the file's bytes aside: now it is known that they fit, and a write that has
    its place takes three quarters of the time.
    """
    num_bytes = path.stat().st_size
    if not hasattr(os, "posix_fallocate"):  # macOS and Windows have none
        return
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return  # a file system that cannot; then a write will say what is wrong
        raise UserError(
            f"no room for the {num_bytes / 1e9:,.1f} GB of {path.name}; make room, choose another "
            "disk, or fewer layers: --layers"
        ) from None


def put(table: np.memmap, rows: Ints, vectors: np.ndarray, layer: int) -> None:
    """Writes vectors (R, D) of float16; what float16 had no number for is refused."""
    if (vectors.view(np.uint16) & NO_SIGN).max(initial=0) >= INFINITE:  # np.isfinite is slow here
        raise UserError(
            f"layer {layer} has values beyond ±65504, which float16 cannot hold; leave this "
            "layer out: --layers"
        )
    write_rows(table, rows, vectors)


def write_rows(table: np.memmap, rows: Ints, vectors: np.ndarray) -> None:
    """As `table[rows] = vectors`, past the mapping: a page fault takes twice as long as a write.

    And a full disk is an error here, where to a mapping it is the end of the process.
    """
    vectors = np.ascontiguousarray(vectors, VECTOR)
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)  # of rows that follow each other
    ends = np.append(starts[1:], len(rows))[: len(starts)]
    places = table.offset + rows[starts] * table.strides[0]
    with Path(str(table.filename)).open("r+b", buffering=0) as file:
        for start, end, place in zip(starts, ends, places.tolist(), strict=True):
            part = vectors[start:end].data.cast("B")
            file.seek(place)
            while part:  # a write may stop early
                part = part[file.write(part) :]


def finish_features(
    folder: Path,
    manifest: FeatureManifest,
    index: FeatureIndex,
    examples: Iterable[Mapping[str, Any]],
) -> FeatureManifest:
    """Writes all but the layers, which are there, and last the manifest with their sizes."""
    for name, array in index.arrays().items():
        np.save(folder / f"{name}.npy", array)
    with (folder / EXAMPLES).open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(example)}\n" for example in examples)
    paths = [*index_paths(folder, index.words is not None)]
    whole = [*paths, *(folder / layer_file(layer) for layer in manifest.layers)]
    values = {
        **asdict(manifest),
        "file_bytes": {path.name: path.stat().st_size for path in whole},
        "hashes": {path.name: hash_file(path) for path in paths},
    }
    made = FeatureManifest(**values)
    made = FeatureManifest(**values | {"digest": made.expected_digest()})
    text = json.dumps(asdict(made), indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    return made


def index_paths(folder: Path, has_words: bool) -> Iterator[Path]:
    names = ("ids", "inputs", "examples", *(["words"] if has_words else []))
    yield from (folder / f"{name}.npy" for name in names)
    yield folder / EXAMPLES


# Read.


def is_features(folder: Path) -> bool:
    """Whether this looks like a feature store, whole or not."""
    path = folder / MANIFEST
    return path.is_file() and KIND.encode() in path.read_bytes()


def open_features(folder: Path) -> FeatureStore:
    """Maps a store into memory; one that is damaged, unfinished or of another kind is refused."""
    manifest = read_feature_manifest(folder)
    for name, expected in manifest.file_bytes.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            state = "is missing" if found is None else f"has {found:,}"
            raise UserError(f"{path} should have {expected:,} bytes, {state}; {AGAIN}")
    for name, expected_hash in manifest.hashes.items():
        if hash_file(folder / name) != expected_hash:
            raise UserError(f"{folder / name} was changed or damaged since it was written; {AGAIN}")
    shape = (manifest.num_tokens, manifest.hidden_size)
    layers = {layer: open_layer(folder / layer_file(layer), shape) for layer in manifest.layers}
    names = [name.removesuffix(".npy") for name in manifest.hashes if name.endswith(".npy")]
    index = FeatureIndex(**{name: np.load(folder / f"{name}.npy") for name in names})
    return FeatureStore(folder=folder, manifest=manifest, layers=layers, index=index)


def open_layer(path: Path, shape: tuple[int, int]) -> np.ndarray:
    try:
        table = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is damaged: {error}; {AGAIN}") from None
    if table.dtype != VECTOR or table.shape != shape:
        raise UserError(
            f"{path} holds {table.dtype} {table.shape}, the manifest says {VECTOR} {shape}; {AGAIN}"
        )
    return np.asarray(table)


def read_feature_manifest(folder: Path) -> FeatureManifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"no feature store at {folder}: it has no {MANIFEST}; {AGAIN}")
    try:
        values = json.loads(path.read_bytes())
        kind, version = values.get("kind"), values.get("version")
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged: no JSON object; {AGAIN}") from None
    if kind != KIND:
        raise UserError(f"{folder} is something else than a feature store; {AGAIN}")
    if version != VERSION:
        raise UserError(f"{path} has version {version!r}, this bertie reads {VERSION}; {AGAIN}")
    try:
        manifest = FeatureManifest(**values | {n: tuple(values[n]) for n in ("layers", "notes")})
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}; {AGAIN}") from None
    if manifest.digest != manifest.expected_digest():
        raise UserError(f"{path} is damaged: its digest is wrong; {AGAIN}")
    return manifest
