"""Files of named tensors: whole, in shards, mapped; and those that are refused."""

import contextlib
import functools
import json
import os
import pickle
import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertie.checkpoint.weights import read_weights, write_weights
from bertie.errors import UserError


def sample() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {f"part.{n}.weight": torch.rand(n + 1, 5, generator=rng) for n in range(6)}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("shard_bytes", "num_files"), [(10**9, 1), (200, 3), (1, 6)])
def test_what_is_written_is_read(shard_bytes: int, num_files: int, tmp_path: Path) -> None:
    write_weights(tmp_path, sample(), shard_bytes)
    assert len(list(tmp_path.glob("*.safetensors"))) == num_files
    assert (tmp_path / "model.safetensors.index.json").exists() == (num_files > 1)
    assert_equal(read_weights(tmp_path), sample())


def test_shards_are_no_larger_than_asked(tmp_path: Path) -> None:
    write_weights(tmp_path, sample(), 200)
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert sum(file.get_tensor(name).nbytes for name in file.keys()) <= 200  # noqa: SIM118


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickles_of_both_forms_are_read(is_zip: bool, tmp_path: Path) -> None:
    state = OrderedDict(sample())
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    assert_equal(read_weights(tmp_path), sample())


def test_pickles_in_shards_are_read(tmp_path: Path) -> None:
    file_of = {}
    for number, (name, weight) in enumerate(sample().items()):
        file = f"pytorch_model-{number}.bin"
        torch.save({name: weight}, tmp_path / file, _use_new_zipfile_serialization=number % 2 == 0)
        file_of[name] = file
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": file_of}))
    assert_equal(read_weights(tmp_path), sample())


def test_safetensors_are_preferred_to_pickles(tmp_path: Path) -> None:
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    write_weights(tmp_path, sample(), 10**9)
    assert_equal(read_weights(tmp_path), sample())


def test_reading_maps_the_file_and_copies_nothing(tmp_path: Path) -> None:
    save_file({"large": torch.zeros(50_000_000)}, tmp_path / "model.safetensors")

    def private_bytes() -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    if not Path("/proc/self/status").exists():
        pytest.skip("counts memory by /proc/self/status, which this system lacks")
    before = private_bytes()
    weights = read_weights(tmp_path)
    assert weights["large"].sum() == 0
    assert private_bytes() - before < 20_000_000  # of 200 million


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_that_would_run_code_is_refused(
    is_zip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Bomb()}, "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UserError, match=r"is not opened: it would run posix.system"):
        read_weights(tmp_path)
    assert not Path("exploded").exists()


def test_a_bare_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pytorch_model.bin").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(UserError, match=r"is not opened|is not a weights file"):
        read_weights(tmp_path)
    assert not Path("exploded").exists()


FORMS = {
    "safetensors": ("model.safetensors", save_file),
    "zip": ("pytorch_model.bin", torch.save),
    "legacy": (
        "pytorch_model.bin",
        functools.partial(torch.save, _use_new_zipfile_serialization=False),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_files_that_were_cut_short_are_refused(form: str, share: float) -> None:
    name, save = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save(sample(), path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        # Cut inside the name of an allowed function, it reads as one that is not allowed.
        message = r"damaged or cut short \(.*\); fetch it again|is not opened: it would run \w+\.\w"
        with pytest.raises(UserError, match=message):
            read_weights(Path(folder))


@pytest.mark.parametrize("form", FORMS)
@given(share=st.floats(0, 1, exclude_max=True), octet=st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_files_with_a_wrong_byte_break_nothing_else(form: str, share: float, octet: int) -> None:
    name, save = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save(sample(), path)
        octets = bytearray(path.read_bytes())
        octets[int(len(octets) * share)] = octet
        path.write_bytes(octets)
        with contextlib.suppress(UserError):
            read_weights(Path(folder))


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path, sample(), 200)
    index = tmp_path / "model.safetensors.index.json"
    written = json.loads(index.read_text())
    file = written["weight_map"]["part.0.weight"]

    def refused(weight_map: object, message: str) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(UserError, match=message):
            read_weights(tmp_path)

    refused(written["weight_map"] | {"part.9.weight": file}, "the index lists part.9.weight")
    fewer = {name: f for name, f in written["weight_map"].items() if name != "part.0.weight"}
    refused(fewer, "the index does not list part.0.weight")
    refused(written["weight_map"] | {"x": "../x.safetensors"}, "a file outside its folder")
    refused(
        written["weight_map"] | {"x": "gone.safetensors"}, "no file .*gone.safetensors, one of 4"
    )
    refused(["part.0.weight"], "not an index of weights")
    refused({"part.0.weight": 1}, "not an index of weights")
    index.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not valid JSON"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "weights",
    [
        {1: torch.ones(2)},
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": torch.ones(2, device="meta")},
    ],
    ids=["a number as name", "sparse", "meta"],
)
def test_what_is_no_plain_tensor_is_refused(weights: dict, tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"is not a plain tensor with a name|damaged or cut short"):
        read_weights(tmp_path)


def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"model": sample(), "step": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than a table of names and tensors"):
        read_weights(tmp_path)


def test_a_directory_without_weights_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no weights in .*; expected model.safetensors"):
        read_weights(tmp_path)
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(UserError, match=r"it has tf_model.h5, which bertie does not read"):
        read_weights(tmp_path)
