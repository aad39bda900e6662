"""What is evaluated is what no training saw: the documents that `bertie prepare` holds out."""

import importlib
import json
import lzma
from pathlib import Path
from types import ModuleType

import pytest

from bertie.data.corpus import CorpusConfig
from bertie.prepare import PrepareRecipe, prepare
from tests.infer.models import SENTENCES, make_directory
from tests.train.runs import recipe, run, write_text_store

SOURCES = ("wiki_en_core", "books_classic", "textbooks_openstax", "wiki_simple")
PERCENT = 30


@pytest.fixture
def held_out(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("held_out")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [
        {"text": "\n".join(f"{s} Number {n}." for s in SENTENCES * 2), "source": SOURCES[n % 4]}
        for n in range(160)
    ]
    half = [f"{json.dumps(row)}\n" for row in rows]
    (folder / "a.jsonl").write_text("".join(half[:80]), encoding="utf-8")
    with lzma.open(folder / "b.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(half[80:])
    return folder


def test_the_documents_are_those_that_prepare_holds_out(
    held_out: ModuleType, corpus: Path, tmp_path: Path
) -> None:
    texts = held_out.gather(corpus, tmp_path / "texts", PERCENT)
    assert list(texts) == ["wiki", "books"]
    found = sum(len(path.read_text("utf-8").splitlines()) for path in texts.values())
    without = {"source": ("textbooks_openstax",)}
    settings = CorpusConfig(without=without, held_out_percent=PERCENT)
    recipe = PrepareRecipe(corpus=settings)
    made = prepare([corpus], make_directory(tmp_path), tmp_path / "store", recipe, workers=1)
    assert made.held_out is not None
    assert 0 < found == made.held_out.num_documents < 120


def test_the_figures_of_each_group_are_the_same_every_time(
    held_out: ModuleType, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "LENGTH", 32)  # the tiny model has 40 positions
    texts, model = held_out.gather(corpus, tmp_path / "texts", PERCENT), make_directory(tmp_path)
    one, two = (held_out.evaluate_groups(model, texts, 64) for _ in range(2))
    assert one == two and list(one) == ["wiki", "books"]
    for figures in one.values():
        assert figures["mlm_loss"] > 0 and 0 <= figures["nsp_accuracy"] <= 1
        characters = figures["mlm_loss"] / figures["nats_per_character"]
        assert characters == pytest.approx(figures["characters_per_token"])


def test_a_second_look_sees_what_the_run_saw_at_its_end(
    held_out: ModuleType, tmp_path: Path
) -> None:
    store = write_text_store(tmp_path / "store")
    phases = "phases=[{share = 0.5, max_length = 16}, {share = 0.5, max_length = 32}]"
    made = run(store, tmp_path / "run", recipe("train.budget=6 steps", phases))
    found = held_out.look_again(made.model, tmp_path / "run", tmp_path / "store")
    assert found["after"] == pytest.approx(found["before"])
    assert found["after"] == pytest.approx(made.held_out)
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text("utf-8").replace(store.manifest.digest, "0" * 64), "utf-8")
    with pytest.raises(SystemExit, match="is not the store of"):
        held_out.look_again(made.model, tmp_path / "run", tmp_path / "store")
