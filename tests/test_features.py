"""A feature store is written once, whole or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie import features as wiring
from bertie.data.features import open_features
from bertie.errors import UserError
from bertie.features import make_features, open_frozen
from bertie.info import describe
from bertie.model.bert import Bert
from bertie.model.cpu_linear import PackedLinear, can_pack
from tests.tuned import make_model, write_classes, write_questions, write_tags


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


class Died(Exception):
    pass


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_again_leaves_it_alone(source: Path, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "a.conll")
    make_features(source, data, tmp_path / "s", task={"name": "tag"})
    before = (tmp_path / "s" / "manifest.json").stat().st_mtime_ns

    def never(what: str, done: int, total: int) -> None:
        raise AssertionError

    make_features(source, data, tmp_path / "s", task={"name": "tag"}, on_progress=never)
    assert (tmp_path / "s" / "manifest.json").stat().st_mtime_ns == before


def test_what_was_made_of_something_else_is_kept(source: Path, tmp_path: Path) -> None:
    data, out = write_tags(tmp_path / "a.conll"), tmp_path / "s"
    make_features(source, data, out, task={"name": "tag"})
    before = files_of(out)
    other = make_model(tmp_path / "other", num_layers=3)
    more = write_tags(tmp_path / "b.conll", count=5)
    with pytest.raises(UserError, match="made with another layers"):
        make_features(source, data, out, task={"name": "tag"}, layers="-1")
    with pytest.raises(UserError, match="made with another data"):
        make_features(source, more, out, task={"name": "tag"})
    with pytest.raises(UserError, match="made with another settings"):
        make_features(source, data, out, task={"name": "tag", "context": "document"})
    with pytest.raises(UserError, match="made with another model"):
        make_features(other, data, out, task={"name": "tag"})
    assert files_of(out) == before


CHANGED = {
    "tokenizer_config.json": {"do_lower_case": False},
    "config.json": {"hidden_act": "gelu_new"},
    "special_tokens_map.json": {"mask_token": "[MASK]"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_settings_make_another_model(source: Path, tmp_path: Path, name: str) -> None:
    """A store of an uncased model must not be taken for that of a cased one."""
    data, model = write_tags(tmp_path / "a.conll"), shutil.copytree(source, tmp_path / "model")
    make_features(model, data, tmp_path / "s", task={"name": "tag"})
    (model / "README.txt").write_text("what is no part of a model changes nothing")
    make_features(model, data, tmp_path / "s", task={"name": "tag"})
    path = model / name
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(values | CHANGED[name]))
    with pytest.raises(UserError, match="made with another model"):
        make_features(model, data, tmp_path / "s", task={"name": "tag"})


def test_the_device_that_is_asked_for_is_taken(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    monkeypatch.setattr(Bert, "to", lambda model, device: moved.append(device) or model)
    for is_there in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=is_there: there)
        for device in ("auto", "cpu", "cuda"):
            moved.clear()
            open_frozen(source, device)  # type: ignore[arg-type]
            is_on_gpu = device == "cuda" or (device == "auto" and is_there)
            assert ("cuda" in moved) == is_on_gpu


@pytest.mark.skipif(
    torch.cuda.is_available() or not can_pack(), reason="needs oneDNN, and no GPU to go before it"
)
def test_the_model_is_laid_out_for_the_processor(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, seen = Bert.states, set()

    def watch(model: Bert, *packed: torch.Tensor, num_layers: int, kept: torch.Tensor) -> list:
        seen.update(type(model.get_submodule(f"layers.{n}.ffn.up")) for n in range(2))
        return states(model, *packed, num_layers=num_layers, kept=kept)

    monkeypatch.setattr(Bert, "states", watch)
    data = write_tags(tmp_path / "a.conll")
    make_features(source, data, tmp_path / "s", task={"name": "tag"})
    assert seen == {PackedLinear}


def test_a_folder_of_somebody_is_not_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work").write_text("x")
    data = write_tags(tmp_path / "a.conll")
    with pytest.raises(UserError, match="mine is there, and no feature store"):
        make_features(source, data, tmp_path / "mine", task={"name": "tag"})
    assert files_of(tmp_path / "mine") == {"work": b"x"}


def test_an_error_in_the_middle_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tags(tmp_path / "a.conll")

    def die(what: str, done: int, total: int) -> None:
        raise Died

    with pytest.raises(Died):
        make_features(source, data, tmp_path / "s", task={"name": "tag"}, on_progress=die)
    assert [path.name for path in tmp_path.iterdir()] == ["a.conll"]
    with monkeypatch.context() as patch:
        patch.setattr(wiring, "finish_features", lambda *a: die("", 0, 0))
        with pytest.raises(Died):
            make_features(source, data, tmp_path / "s", task={"name": "tag"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.conll"]


KILLED = """
import sys, time
from pathlib import Path
from bertie.features import make_features
from bertie.info import describe
from bertie.model.bert import Bert

def wait(what, done, total):
    print(done, flush=True)
    time.sleep(60)

model, data, out = map(Path, sys.argv[1:])
make_features(model, data, out, task={"name": "tag"}, on_progress=wait)
"""


def test_killed_and_begun_again_is_the_same_store(source: Path, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "a.conll")
    whole = make_features(source, data, tmp_path / "whole", task={"name": "tag"})
    command = [sys.executable, "-c", KILLED, *map(str, (source, data, tmp_path / "s"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "s").exists() and list(tmp_path.glob(".s.draft-*"))
    made = make_features(source, data, tmp_path / "s", task={"name": "tag"})
    assert not list(tmp_path.glob(".s.draft-*"))
    for layer, table in whole.layers.items():
        np.testing.assert_array_equal(table, made.layers[layer])


def test_progress_ends_with_all_tokens(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    data = write_classes(tmp_path / "a.csv")
    store = make_features(
        source,
        data,
        tmp_path / "s",
        task={"name": "classify"},
        on_progress=lambda what, done, total: seen.append((done, total)),
    )
    assert seen[-1] == (store.manifest.num_tokens, store.manifest.num_tokens)


def test_data_need_no_labels(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nthe cat\na dog .\n")
    store = make_features(source, tmp_path / "a.csv", tmp_path / "s", task={"name": "classify"})
    assert not store.manifest.is_labelled and store.manifest.num_examples == 2
    assert open_features(tmp_path / "s").manifest == store.manifest


def test_other_tasks_and_missing_files_are_named(source: Path, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "a.json")
    with pytest.raises(
        UserError, match="features are for the tasks classify and tag; found 'span'"
    ):
        make_features(source, data, tmp_path / "s", task={"name": "span", "max_question": 8})
    with pytest.raises(UserError, match=r"gone\.csv"):
        make_features(source, tmp_path / "gone.csv", tmp_path / "s", task={"name": "classify"})
    with pytest.raises(UserError, match=r"more than the 48 positions"):
        make_features(source, data, tmp_path / "s", task={"name": "tag", "max_length": 64})
    assert not (tmp_path / "s").exists()


def test_info_says_what_a_store_holds(source: Path, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "a.conll")
    make_features(source, data, tmp_path / "s", task={"name": "tag"}, layers="0,-1")
    (table,) = describe(str(tmp_path / "s"))
    counts = {row[0]: row[1:] for row in table.rows}
    assert counts["tokens"] == ("84", "7.0 an input")
    assert counts["layers"] == ("2", "0, 2 of 0 (embeddings) to 2")


def test_values_beyond_float16_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = Bert.states
    monkeypatch.setattr(
        Bert, "states", lambda *a, num_layers, kept: [1e5 * rows for rows in states(*a, kept=kept)]
    )
    data = write_tags(tmp_path / "a.conll")
    with pytest.raises(UserError, match="layer 0 has values beyond ±65504"):
        make_features(source, data, tmp_path / "s", task={"name": "tag"})
    assert not (tmp_path / "s").exists()
