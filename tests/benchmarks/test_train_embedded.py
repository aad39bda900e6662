"""The whole way of the model that ships, without the command line, on a text of a few documents."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from bertie.text.tokenizer import Tokenizer
from bertie.train.loop import Trainer
from tests.infer.models import SENTENCES
from tests.train.runs import check_same_weights

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = (
    "corpus.held_out_percent=20",
    "learn.size=150",
    "learn.num_unused=0",
    "model.num_layers=1",
    "model.hidden_size=12",
    "model.num_heads=3",
    "model.max_positions=40",
    "data.loader.batch_size=6",
    "data.loader.num_workers=0",
    "phases=[{share=0.8,max_length=24},{share=0.2,max_length=32}]",
    "train.budget=10 steps",
    "train.precision=fp32",
    "train.device=cpu",
    "train.log_every=1",
    "train.threads=1",
)


@pytest.fixture
def train_embedded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("train_embedded")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [
        {"text": "\n".join(f"{s} Number {n}." for s in SENTENCES), "source": source}
        for n in range(30)
        for source in ("wiki", "textbooks_openstax")
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def run(module: ModuleType, *words: object) -> int | str | None:
    """What it exits with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train_embedded.py", *map(str, words)])
        try:
            module.main()
        except SystemExit as end:
            return end.code
    return 0


def words_of(corpus: Path, folder: Path, *sets: str) -> list[object]:
    given = [word for one in (*SMALL, *sets) for word in ("--set", one)]
    paths = ["--work", folder / "work", "--out", folder / "parts"]
    return [corpus, *paths, "--workers", 1, "--part-bytes", 3000, *given]


def test_from_text_to_a_model_in_eight_bits_and_not_twice(
    train_embedded: ModuleType,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = words_of(corpus, tmp_path)
    assert run(train_embedded, *words) == 0
    parts = list((tmp_path / "parts").glob("embedded.tar.*"))
    assert len(parts) > 2 and max(part.stat().st_size for part in parts) == 3000
    assert run(train_embedded, "--join", tmp_path / "parts", "--out", tmp_path / "whole") == 0
    assert open_model(tmp_path / "whole" / "model").model.heads == ("masked_lm", "next_sentence")
    manifest = json.loads((tmp_path / "whole" / "store" / "manifest.json").read_text("utf-8"))
    assert manifest["num_documents"] + manifest["statistics"]["documents_held_out"] == 30
    assert (tmp_path / "whole" / "run" / "metrics.jsonl").is_file()
    capsys.readouterr()
    monkeypatch.setattr(Trainer, "run", None)  # nothing is trained
    assert run(train_embedded, *words) == 0
    assert capsys.readouterr().out.count("done before") == 3


def test_a_model_goes_on_with_its_own_vocabulary(
    train_embedded: ModuleType, corpus: Path, tmp_path: Path
) -> None:
    """In another folder, of which nothing but the model is known."""
    assert run(train_embedded, *words_of(corpus, tmp_path / "first")) == 0
    model = tmp_path / "first" / "work" / "run" / "model"
    sets = (f"start={model}", "train.seed=1", "data.loader.seed=1")
    words = [*words_of(corpus, tmp_path / "more", *sets), "--vocab", model]
    assert run(train_embedded, *words) == 0
    learned, taken = (tmp_path / one / "work" / "vocab" for one in ("first", "more"))
    assert Tokenizer.load(taken).pieces == Tokenizer.load(learned).pieces
    assert run(train_embedded, *words) == 0
    assert "vocab = " in str(run(train_embedded, *words[:-1], "embedded"))


def test_other_settings_than_those_of_what_is_there_are_refused(
    train_embedded: ModuleType, corpus: Path, tmp_path: Path
) -> None:
    assert run(train_embedded, *words_of(corpus, tmp_path)) == 0
    for name, value in {"learn.size": 140, "prepare.min_tokens": 7, "optim.peak": 0.1}.items():
        said = run(train_embedded, *words_of(corpus, tmp_path, f"{name}={value}"))
        assert f"{name} = " in str(said) and f"says {value}" in str(said)
    assert run(train_embedded, *words_of(corpus, tmp_path, "train.log_every=3")) == 0


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Trainer.settle

    def settle_and_stop(self: Trainer, lag: int = 0) -> int:  # type: ignore[type-arg]
        settle(self, lag)
        return 15 if self.counters.step == step else 0

    monkeypatch.setattr(Trainer, "settle", settle_and_stop)


def test_one_that_was_stopped_before_its_first_line_leaves_parts_too(
    train_embedded: ModuleType, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(1, monkeypatch)
    assert run(train_embedded, *words_of(corpus, tmp_path, "train.log_every=5")) == 128 + 15
    assert not (tmp_path / "work" / "run" / "metrics.jsonl").exists()
    assert run(train_embedded, "--join", tmp_path / "parts", "--out", tmp_path / "early") == 0
    assert (tmp_path / "early" / "run" / "run.json").is_file()


def test_a_training_that_was_stopped_leaves_parts_and_goes_on(
    train_embedded: ModuleType, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(train_embedded, *words_of(corpus, tmp_path / "whole")) == 0
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        assert run(train_embedded, *words_of(corpus, tmp_path / "stopped")) == 128 + 15
    parts = tmp_path / "stopped" / "parts"
    assert run(train_embedded, "--join", parts, "--out", tmp_path / "early") == 0
    assert open_model(tmp_path / "early" / "model").model.config.num_layers == 1
    assert run(train_embedded, *words_of(corpus, tmp_path / "stopped")) == 0
    check_same_weights(tmp_path / "whole" / "work" / "run", tmp_path / "stopped" / "work" / "run")


def test_a_store_that_was_stopped_is_gone_on_with(
    train_embedded: ModuleType,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare = train_embedded.prepare

    def stop_here(what: str, done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def prepare_and_stop(*given: Any, **more: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            prepare(*given, **more, on_progress=stop_here)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_embedded, "prepare", prepare_and_stop)
        assert run(train_embedded, *words_of(corpus, tmp_path)) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
    assert run(train_embedded, *words_of(corpus, tmp_path)) == 0


def test_parts_that_are_missing_or_of_several_runs_are_refused(
    train_embedded: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "whole").write_bytes(bytes(range(250)))
    train_embedded.split(tmp_path / "whole", tmp_path / "parts", 100)
    (tmp_path / "parts" / "embedded.tar.01").write_bytes(b"another" * 20)
    with pytest.raises(UserError, match="damaged or of several runs"):
        train_embedded.join(tmp_path / "parts", tmp_path / "out")
    (tmp_path / "parts" / "embedded.tar.01").unlink()
    with pytest.raises(UserError, match=r"no file .*embedded\.tar\.01; bring all of"):
        train_embedded.join(tmp_path / "parts", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_needs_no_package_of_the_command_line() -> None:
    blocked = "import sys; sys.modules.update(typer=None, rich=None); import train_embedded"
    subprocess.run([sys.executable, "-c", blocked], cwd=BENCHMARKS, check=True)
