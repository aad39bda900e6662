"""What was written is what is read; what is damaged or foreign is refused, and by name."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.features import (
    FeatureIndex,
    FeatureManifest,
    FeatureRows,
    FeatureStore,
    create_layers,
    finish_features,
    is_features,
    open_features,
    put,
)
from bertie.errors import UserError

LAYERS = (0, 3)
EXAMPLES = [{"text": "a 猫 \ud800", "label": None}, {"text": "", "label": ["x"]}, {"text": "c"}]


def write_store(folder: Path, *, num_tokens: int = 11, seed: int = 0) -> dict[int, np.ndarray]:
    """Three examples, the second of two inputs, the last of one token; rows in odd order."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(seed)
    vectors = {n: chance.normal(size=(num_tokens, 5)).astype(np.float32) for n in LAYERS}
    tables = create_layers(folder, LAYERS, num_tokens=num_tokens, hidden_size=5)
    order = chance.permutation(num_tokens)
    for layer, table in tables.items():
        for part in (order[:4], order[4:]):
            put(table, part, vectors[layer][part].astype(np.float16), layer)
        table.flush()
    index = FeatureIndex(
        ids=np.arange(num_tokens) * 7,
        inputs=np.array([0, 3, 6, num_tokens - 1, num_tokens]),
        examples=np.array([0, 1, 3, 4]),
        words=np.arange(num_tokens) % 3 - 1,
    )
    manifest = FeatureManifest(
        model="models/a",
        model_sha256="0" * 64,
        num_layers=3,
        hidden_size=5,
        layers=LAYERS,
        data="a.csv",
        data_sha256="1" * 64,
        task="classify",
        settings={"labels": ("x", "y"), "stride": None},
        is_labelled=True,
        num_examples=3,
        num_inputs=4,
        num_tokens=num_tokens,
        notes=("one note",),
    )
    finish_features(folder, manifest, index, EXAMPLES)
    return vectors


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    write_store(tmp_path / "store")
    return open_features(tmp_path / "store")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    vectors = write_store(tmp_path / "store")
    store = open_features(tmp_path / "store")
    for layer in LAYERS:
        assert store.layers[layer].dtype == np.float16
        np.testing.assert_array_equal(store.layers[layer], vectors[layer].astype(np.float16))
    assert list(store.read_examples()) == EXAMPLES
    assert store.index.ids.tolist() == [7 * n for n in range(11)]
    assert store.index.words is not None and store.index.words[:3].tolist() == [-1, 0, 1]
    assert [store.rows_of(n) for n in range(3)] == [slice(0, 3), slice(3, 10), slice(10, 11)]
    assert store.manifest.notes == ("one note",) and is_features(tmp_path / "store")


def test_a_row_takes_two_bytes_a_number_and_layer(store: FeatureStore) -> None:
    sizes = [n for name, n in store.manifest.file_bytes.items() if name.startswith("layer-")]
    assert len(sizes) == 2 and set(sizes) == {128 + 11 * 5 * 2}  # 128: the header of .npy


def test_rows_of_several_stores_are_numbered_through(tmp_path: Path) -> None:
    first = write_store(tmp_path / "a")
    second = write_store(tmp_path / "b", num_tokens=9, seed=5)
    rows = FeatureRows([open_features(tmp_path / name) for name in "ab"])
    numbers = np.array([19, 0, 11, 10, 10])
    taken = rows.take(numbers, (3, 0))
    assert taken.shape == (5, 2, 5)
    for place, layer in enumerate((3, 0)):
        both = np.concatenate([first[layer], second[layer]]).astype(np.float16)
        np.testing.assert_array_equal(taken[:, place], both[numbers])
    assert rows.take(np.zeros(0, np.int64), (0,)).shape == (0, 1, 5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_what_float16_cannot_hold_is_refused(value: float, tmp_path: Path) -> None:
    table = create_layers(tmp_path, [7], num_tokens=2, hidden_size=3)[7]
    with pytest.raises(UserError, match=r"layer 7 has values beyond .*--layers"):
        put(table, np.array([1]), np.array([[0.0, value, 1.0]], np.float16), 7)
    put(table, np.array([1]), np.array([[-65_504, 65_504, -0.0]], np.float16), 7)
    assert table.tolist() == [[0, 0, 0], [-65_504, 65_504, 0]]


def test_a_full_disk_is_said_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(UserError, match=r"no room for the 0\.0 GB of layer-07\.npy; make room"):
        create_layers(tmp_path, [7], num_tokens=2, hidden_size=3)


@given(rows=st.lists(st.integers(0, 11), unique=True), seed=st.integers(0, 9))
def test_rows_are_written_as_an_assignment_writes_them(
    rows: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    table = create_layers(folder, [0], num_tokens=12, hidden_size=3)[0]
    wanted = np.zeros((12, 3), np.float16)
    vectors = np.random.default_rng(seed).random((len(rows), 6)).astype(np.float16)[:, ::2]
    wanted[rows] = vectors
    put(table, np.array(rows, np.int64), vectors, 0)
    np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize(
    "name", ["layer-00.npy", "layer-03.npy", "ids.npy", "words.npy", "examples.jsonl"]
)
def test_a_file_that_is_cut_or_gone_is_named(store: FeatureStore, name: str) -> None:
    path = store.folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"{name} should have [\d,]+ bytes, has"):
        open_features(store.folder)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} .* is missing; make the store again"):
        open_features(store.folder)


@pytest.mark.parametrize("name", ["ids.npy", "inputs.npy", "examples.npy", "examples.jsonl"])
def test_a_changed_index_is_refused(store: FeatureStore, name: str) -> None:
    path = store.folder / name
    damaged = bytearray(path.read_bytes())
    damaged[-2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=f"{name} was changed or damaged"):
        open_features(store.folder)


def test_a_layer_with_another_header_is_refused(store: FeatureStore) -> None:
    path = store.folder / "layer-00.npy"
    np.save(path, np.zeros((5, 11), np.float16))  # as many bytes
    with pytest.raises(UserError, match=r"layer-00.npy holds float16 \(5, 11\), the manifest says"):
        open_features(store.folder)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(UserError, match=r"layer-00.npy is damaged"):
        open_features(store.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 12}, "its digest is wrong"),
        ({"version": 2}, "has version 2, this bertie reads 1"),
        ({"kind": "token store"}, "something else than a feature store"),
        ({"layers": 3}, "is damaged"),
        ({"surplus": 1}, "is damaged"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    store: FeatureStore, change: dict[str, object], message: str
) -> None:
    path = store.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        open_features(store.folder)


@given(text=st.binary(max_size=40))
@settings(max_examples=50)
def test_no_manifest_breaks_the_reader(
    text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(UserError, match=r"feature store|damaged|make the store again"):
        open_features(folder)


def test_a_folder_without_manifest_is_no_store(store: FeatureStore) -> None:
    (store.folder / "manifest.json").unlink()
    assert not is_features(store.folder)
    with pytest.raises(UserError, match=r"no feature store at .*; make the store again"):
        open_features(store.folder)


def test_the_digest_covers_every_field(store: FeatureStore) -> None:
    changed = replace(store.manifest, is_labelled=False)
    assert changed.expected_digest() != store.manifest.digest
