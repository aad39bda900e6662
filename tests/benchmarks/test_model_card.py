"""The card of the model that ships is filled with what was measured, and says where nothing was."""

import importlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertie.config import read_recipe
from bertie.data.store import Store
from bertie.pretrain import PretrainRecipe
from tests.train.runs import recipe, run, write_text_store


@pytest.fixture
def model_card(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("model_card")


def scored(mean: float, place: str = "a GPU, bf16") -> dict[str, Any]:
    return {
        "measured_on": place,
        "peak": 5e-05,
        "num_seeds": 5,
        "dev": {"accuracy": {"mean": mean, "spread": 0.004, "scores": [mean]}},
    }


PLAIN = scored(0.902) | {"ours_minus_plain": {"accuracy": {"mean": -0.0008, "spread": 0.0012}}}
RESULT = {
    "protocol": {"rates": [2e-05, 1e-04]},
    "held_out": {
        model: {"wiki": {"mlm_loss": loss, "nsp_accuracy": 0.961, "num_documents": 315}}
        for model, loss in (("ours", 2.5432), ("plain", 2.5401))
    },
    "tasks": {
        "SST-2": {"ours": scored(0.9012), "plain": PLAIN, "minilm": scored(0.9)},
        "RTE": {"ours": scored(0.63, "a CPU, fp32")},
        "CoLA": {"minilm": scored(0.3)},
    },
    "wanted": {"RTE accuracy": {"wanted": 0.64, "found": 0.63, "is_reached": False}},
    "devices": {"look_again": "cpu"},
    "look_again": {"before": {"mlm_loss": 2.4970}, "after": {"mlm_loss": 2.4969}},
    "size": {"model_bytes": 38_900_000, "open_s": 0.41, "threads": 2},
}


def write(
    model_card: ModuleType,
    folder: Path,
    result: dict[str, Any],
    runs: tuple[str, ...] = ("run",),
    after: Path | None = None,
) -> str:
    store: Store = write_text_store(folder / "store")
    path = folder / "store" / "manifest.json"  # written by hand, without what `prepare` counts
    manifest = json.loads(path.read_text("utf-8"))
    manifest["statistics"] = {"characters": 1234, "documents_held_out": 8}
    first = run(store, folder / "run", recipe("train.budget=4 steps"))
    again = recipe("train.budget=3 steps", "train.seed=1", f"start={first.model}")
    run(store, folder / "more", again)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "scores.json").write_text(json.dumps({"result": result}), encoding="utf-8")
    words = {"store": "store", "scores": "scores.json", "out": "."}
    with pytest.MonkeyPatch.context() as patch:
        given = [word for k, v in words.items() for word in (f"--{k}", str(folder / v))]
        given += ["--run", *(str(folder / name) for name in runs)]
        given += [] if after is None else ["--after", str(after)]
        patch.setattr("sys.argv", ["model_card.py", *given])
        model_card.main()
    return (folder / "README.md").read_text(encoding="utf-8")


def test_every_gap_is_filled(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, RESULT)
    assert "$" not in card
    for line in (
        "| SST-2, accuracy | 90.1 ± 0.4 (5e-05) | 90.0 ± 0.4 (5e-05) |",
        "| RTE, accuracy | 63.0 ± 0.4 (5e-05) | – |",
        "| CoLA, accuracy | – | 30.0 ± 0.4 (5e-05) |",
        "| RTE accuracy | 64.0 | 63.0 | not reached |",
        "| MLM loss, Wikipedia | 2.5401 | 2.5432 | +0.0031 |",
        "| MLM loss at the end of the run, after that on cpu | 2.4970 | 2.4969 | -0.0001 |",
        "| SST-2, dev | 90.2 ± 0.4 (5e-05) | 90.1 ± 0.4 (5e-05) | -0.08 ± 0.12 |",
        "| Wikipedia (315) | 2.543 | – | – | 96.1 |",
    ):
        assert line in card.splitlines()
    assert "On disk 38.9 MB, in the wheel – MB; opened in 0.41 s" in card
    assert "with 2 threads on a CPU (–)" in card
    assert "Measured on a GPU, bf16; on a CPU, fp32: RTE of this model." in card.splitlines()


def test_new_scores_leave_what_a_card_says_of_its_runs(
    model_card: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = write(model_card, tmp_path, RESULT)
    shutil.copy(tmp_path / "run" / "model" / "config.json", tmp_path)
    tasks = RESULT["tasks"] | {"SST-2": {"ours": scored(0.912)}}
    (tmp_path / "new.json").write_text(json.dumps({"result": RESULT | {"tasks": tasks}}))
    given = ["--after", str(tmp_path / "README.md"), "--scores", str(tmp_path / "new.json")]
    monkeypatch.setattr("sys.argv", ["model_card.py", *given, "--out", str(tmp_path)])
    model_card.main()
    lines = (tmp_path / "README.md").read_text("utf-8").splitlines()
    changed = [line for line in lines if line not in card.splitlines()]
    assert changed == ["| SST-2, accuracy | 91.2 ± 0.4 (5e-05) | – |"]
    assert lines[: lines.index("## Tasks")] == card.splitlines()[: lines.index("## Tasks")]
    monkeypatch.setattr("sys.argv", ["model_card.py", *given[2:], "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        model_card.main()


def test_one_seed_has_no_spread(model_card: ModuleType) -> None:
    one = scored(0.911) | {"num_seeds": 1}
    assert model_card.show_scores(one, "dev", ["accuracy"]) == "91.1 (5e-05, one seed)"


def test_what_was_nearly_reached_is_not_rounded_to_what_was_wanted(model_card: ModuleType) -> None:
    assert model_card.show_beside("STS-B pearson", 0.8747, 0.875) == "87.47"
    assert model_card.show_beside("books mlm_loss", 2.4004, 2.4) == "2.4004"
    assert model_card.show_beside("SST-2 accuracy", 0.9, 0.9) == "90.0"


def test_what_was_not_measured_is_a_dash(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, {})
    assert "On disk – MB" in card and "$" not in card


def test_it_says_what_was_changed_of_the_recipe(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, {})
    (line,) = (
        line for line in card.splitlines() if line.startswith("- recipe `embedded-en`, with")
    )
    assert "`train.budget = 4 steps`" in line and "`model.hidden_size = 12`" in line
    assert "log_every" not in line and "pytest" not in card
    assert model_card.list_changes(as_shipped()) == []
    older = as_shipped()
    older["data"]["instances"].pop("elsewhere")  # of a run before there was that setting
    assert model_card.list_changes(older) == ["data.instances.elsewhere = document"]


def as_shipped() -> dict[str, Any]:
    settings = asdict(read_recipe(PretrainRecipe, "embedded-en"))
    return settings | {"store": "somewhere", "out": "there", "store_digest": "abc"}


def test_runs_that_went_on_are_summed(model_card: ModuleType, tmp_path: Path) -> None:
    card = write(model_card, tmp_path, {}, ("run", "more"))
    runs = [model_card.read_run(tmp_path / name) for name in ("run", "more")]
    tokens = sum(one.last["tokens"] for one in runs)
    assert f"In all 7 steps, {tokens:,} tokens" in card
    assert sum(line.startswith("- on from the run before") for line in card.splitlines()) == 1
    lines = model_card.join_lines(runs, model_card.NO_CARD.counted)
    steps = [line["step"] for line in lines if "progress" in line]
    assert steps == [1, 2, 3, 4, 5, 6, 7]
    assert lines[-1]["tokens"] == tokens
    with pytest.raises(SystemExit, match="began with random weights"):
        write(model_card, tmp_path / "wrong", {}, ("more", "run"))


def test_a_card_stands_for_runs_that_are_no_more(model_card: ModuleType, tmp_path: Path) -> None:
    """What it says of them is in the next card, word for word; what they cost is summed."""
    both = write(model_card, tmp_path / "both", {}, ("run", "more"))
    first = write(model_card, tmp_path / "one", {}, ("run",))
    old = tmp_path / "old.md"
    old.write_text(first, encoding="utf-8")
    card = write(model_card, tmp_path / "one", {}, ("more",), after=old)
    summed = ("steps", "tokens", "passes over the text")
    for line in first.splitlines():
        assert line in card or any(word in line for word in summed)
    assert [line for line in card.splitlines() if line.startswith("In all 7 steps")]
    count = len([line for line in both.splitlines() if line.startswith("- ")])
    assert len([line for line in card.splitlines() if line.startswith("- ")]) == count
    old.write_text("# no card", encoding="utf-8")
    with pytest.raises(SystemExit, match="does not say what its runs cost"):
        model_card.read_card(old)
