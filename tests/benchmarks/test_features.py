"""The benchmark of the feature store runs, and has the engine's rate beside that of writing."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.tuned import make_model, write_tags


def test_it_measures_the_engine_beside_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    # `features` of the path, which a part of bertie is called, too
    benchmark, machine = map(importlib.import_module, ("features", "machine"))
    model, data = make_model(tmp_path / "model", num_layers=4), write_tags(tmp_path / "a.conll")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(benchmark, "HIDDEN_SIZES", (8,))
    arguments = ["--model", str(model), "--data", str(data), "--threads", "1", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["features.py", *arguments])
    benchmark.main()
    (made,) = tmp_path.glob("features-*.json")
    rates = json.loads(made.read_text())["result"]["tokens_per_s"]
    wanted = {"embedded", "read", "read and written", "read, written and flushed to disk"}
    assert wanted <= rates.keys() and all(rate > 0 for rate in rates.values())
