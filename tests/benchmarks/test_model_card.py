"""The card of the model that ships is filled with what was measured, and says where nothing was."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertie.data.store import Store
from tests.train.runs import recipe, run, write_text_store


@pytest.fixture
def model_card(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("model_card")


def scored(mean: float) -> dict[str, Any]:
    return {
        "peak": 5e-05,
        "num_seeds": 5,
        "dev": {"accuracy": {"mean": mean, "spread": 0.004, "scores": [mean]}},
    }


RESULT = {
    "protocol": {"rates": [2e-05, 1e-04]},
    "held_out": {
        model: {"wiki": {"mlm_loss": loss, "nsp_accuracy": 0.961, "num_documents": 315}}
        for model, loss in (("ours", 2.5432), ("plain", 2.5401))
    },
    "tasks": {
        "SST-2": {"ours": scored(0.9012), "plain": scored(0.902), "minilm": scored(0.9)},
        "RTE": {"ours": scored(0.63)},
    },
    "wanted": {"RTE accuracy": {"wanted": 0.64, "found": 0.63, "is_reached": False}},
    "size": {"model_bytes": 38_900_000, "wheel_bytes": None, "open_s": 0.41},
}


def write(model_card: ModuleType, folder: Path, result: dict[str, Any]) -> str:
    store: Store = write_text_store(folder / "store")
    path = folder / "store" / "manifest.json"  # written by hand, without what `prepare` counts
    manifest = json.loads(path.read_text("utf-8"))
    manifest["statistics"] = {"characters": 1234, "documents_held_out": 8}
    run(store, folder / "run", recipe("train.budget=4 steps"))
    path.write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "scores.json").write_text(json.dumps({"result": result}), encoding="utf-8")
    words = {"run": "run", "store": "store", "scores": "scores.json", "out": "."}
    with pytest.MonkeyPatch.context() as patch:
        given = [word for k, v in words.items() for word in (f"--{k}", str(folder / v))]
        patch.setattr("sys.argv", ["model_card.py", *given])
        model_card.main()
    return (folder / "README.md").read_text(encoding="utf-8")


def test_every_gap_is_filled(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, RESULT)
    assert "$" not in card
    for line in (
        "| SST-2, accuracy | 90.1 ± 0.4 (5e-05) | 90.0 ± 0.4 (5e-05) |",
        "| RTE, accuracy | 63.0 ± 0.4 (5e-05) | – |",
        "| RTE accuracy | 64.0 | 63.0 | not reached |",
        "| MLM loss, Wikipedia | 2.5401 | 2.5432 |",
        "| Wikipedia (315) | 2.543 | – | – | 96.1 |",
    ):
        assert line in card.splitlines()
    assert "On disk 38.9 MB, in the wheel – MB; opened in 0.41 s" in card


def test_what_was_not_measured_is_a_dash(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, {})
    assert "On disk – MB" in card and "$" not in card
