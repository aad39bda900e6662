"""Which scores of the model that ships count: those of these weights, at the chosen rate."""

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.infer.models import make_directory

HASHES = {"ours": "aaa", "plain": "bbb", "minilm": "ccc", "random": "ddd"}


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("embedded")


@pytest.fixture
def place(embedded: ModuleType, tmp_path: Path) -> Any:
    work = tmp_path / "jobs"
    return embedded.Place(data=tmp_path, models=tmp_path, work=work, device="cpu", precision="fp32")


def leave(place: Any, trial: Any, seed: int, score: float | None, metric: str = "accuracy") -> None:
    """What a job leaves; without a score, that of one that failed."""
    folder = place.work / trial.job(seed).name
    folder.mkdir(parents=True)
    outcome = {"metric": metric, "scores": {metric: score}, "seconds": 2.5, "seed": seed}
    text = json.dumps({"error": "it broke"} if score is None else outcome)
    (folder / "outcome.json").write_text(text, encoding="utf-8")


# --- choosing and summarising ---


def test_all_models_but_plain_are_tried_at_all_rates(embedded: ModuleType) -> None:
    trials = embedded.list_trials(HASHES, ["SST-2", "SQuAD-1.1"], [1e-4, 3e-5], {})
    tried = [(trial.set, trial.model, trial.peak) for trial in trials]
    models = {"SST-2": ("ours", "minilm", "random"), "SQuAD-1.1": ("ours", "minilm")}
    assert tried == [(s, m, peak) for s in models for m in models[s] for peak in (1e-4, 3e-5)]
    assert len({trial.job(0).name for trial in trials}) == len(trials)


def test_the_rate_that_is_best_with_the_first_seed_is_chosen(
    embedded: ModuleType, place: Any
) -> None:
    trials = embedded.list_trials({"ours": "aaa"}, ["RTE"], [2e-5, 3e-5, 1e-4], {})
    for trial, score in zip(trials, (0.61, 0.64, None), strict=True):
        leave(place, trial, 0, score)
    leave(place, trials[0], 1, 0.99)  # of a later seed: it counts for nothing
    assert embedded.choose(trials, place) == [trials[1]]


def test_eight_bits_are_compared_at_one_rate_seed_by_seed(embedded: ModuleType, place: Any) -> None:
    trials = embedded.list_trials(
        {"ours": "aaa", "plain": "bbb"}, ["SST-2", "RTE"], [2e-5, 1e-4], {}
    )
    (low, high) = (trial for trial in trials if trial.set == "SST-2")
    leave(place, low, 0, 0.91)
    leave(place, high, 0, 0.90)
    (plain,) = embedded.pair_up(embedded.choose(trials, place), "bbb")
    assert (plain.model, plain.weights, plain.peak) == ("plain", "bbb", low.peak)
    assert embedded.pair_up([low], None) == []
    ours, theirs = (0.91, 0.89, None, 0.90), (0.90, 0.90, 0.95, None)
    for seed in range(4):
        leave(place, plain, seed, theirs[seed])
        if seed:
            leave(place, low, seed, ours[seed])
    table = embedded.summarise(trials, "bbb", place, 4)
    assert table.keys() == {"SST-2"}  # of RTE nothing has ended: no row
    row = table["SST-2"]["plain"]
    difference = row["ours_minus_plain"]["accuracy"]
    assert difference["scores"] == pytest.approx([0.01, -0.01])  # the seeds that both have
    assert difference["mean"] == pytest.approx(0)
    assert table["SST-2"]["ours"]["num_seeds"] == row["num_seeds"] == 3
    assert table["SST-2"]["ours"]["by_rate"] == {"2e-05": 0.91, "0.0001": 0.90}


# --- resuming ---


def test_a_job_of_other_weights_has_not_ended(embedded: ModuleType, place: Any) -> None:
    (old,) = embedded.list_trials({"ours": "aaa"}, ["RTE"], [1e-4], {})
    (new,) = embedded.list_trials({"ours": "eee"}, ["RTE"], [1e-4], {})
    leave(place, old, 0, 0.6)
    assert embedded.has_ended(old.job(0), place) and not embedded.has_ended(new.job(0), place)


def test_a_changed_protocol_has_jobs_and_results_of_its_own(embedded: ModuleType) -> None:
    changes = embedded.read_changes(["RTE.epochs=10", "RTE.batch_size=16"])
    (plain,) = embedded.list_trials({"ours": "aaa"}, ["RTE"], [1e-4], {})
    (changed,) = embedded.list_trials({"ours": "aaa"}, ["RTE"], [1e-4], changes)
    assert plain.job(0).name != changed.job(0).name
    assert (changed.job(0).run.epochs, changed.job(0).run.batch_size) == (10, 16)
    before = found_before()
    assert "RTE" not in embedded.keep_valid(before, HASHES, 0, changes)["tasks"]
    before["tasks"]["RTE"]["ours"]["changes"] = changes["RTE"]
    kept = embedded.keep_valid(before, HASHES, 0, changes)["tasks"]
    assert list(kept["RTE"]) == ["ours"] and "SST-2" in kept
    for wrong in ("RTE.epochs", "RTE.peak=3", "RTF.epochs=3", "RTE.epochs=-3"):
        with pytest.raises(ValueError, match=r"SET\.NAME=NUMBER"):
            embedded.read_changes([wrong])


def test_a_hash_changes_with_the_weights_and_not_with_the_card(
    embedded: ModuleType, tmp_path: Path
) -> None:
    one = make_directory(tmp_path / "one")
    two = tmp_path / "two"
    shutil.copytree(one, two)
    (two / "README.md").write_text("a card", encoding="utf-8")
    first = embedded.hash_models({"ours": one})
    assert first == embedded.hash_models({"ours": two})
    weights = bytearray((two / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (two / "model.safetensors").write_bytes(weights)
    second = embedded.hash_models({"ours": two})
    assert second["ours"] != first["ours"] and second["random"] == first["random"]


def test_links_follow_the_models(embedded: ModuleType, tmp_path: Path) -> None:
    one, folder = make_directory(tmp_path / "one"), tmp_path / "models"
    hashes = embedded.hash_models({"ours": one})
    embedded.put_models({"ours": one}, hashes, folder)
    moved = one.rename(tmp_path / "moved")
    embedded.put_models({"ours": moved}, hashes, folder)
    assert (folder / f"ours-{hashes['ours']}").resolve() == moved.resolve()
    assert (folder / f"random-{hashes['random']}" / "model.safetensors").is_file()


def found_before() -> dict[str, Any]:
    return {
        "models": dict(HASHES),
        "limit": 0,
        "held_out": {"ours": {"wiki": {}}, "plain": {"wiki": {}}},
        "tasks": {"RTE": {"ours": {"peak": 1}, "minilm": {"peak": 2}}, "SST-2": {"plain": {}}},
        "size": {"wheel_bytes": 5},
        "wanted": {"RTE accuracy": {}},
    }


def test_what_is_of_the_same_models_is_kept(embedded: ModuleType) -> None:
    before = found_before()
    kept = embedded.keep_valid(before, {"ours": "aaa", "random": "ddd"}, 0, {})
    assert kept == {name: part for name, part in before.items() if name not in ("limit", "wanted")}


def test_what_is_of_another_model_or_limit_is_dropped(embedded: ModuleType) -> None:
    assert embedded.keep_valid(found_before(), HASHES, 32, {}) == {}
    assert embedded.keep_valid({"tasks": {"RTE": {}}}, HASHES, 0, {}) == {}  # nobody knows of what
    kept = embedded.keep_valid(found_before(), {"ours": "eee", "random": "ddd"}, 0, {})
    assert kept["tasks"] == {"RTE": {"minilm": {"peak": 2}}}
    assert kept["held_out"] == {} and "size" not in kept


def test_a_part_that_comes_later_leaves_the_others(embedded: ModuleType) -> None:
    result = found_before()
    embedded.merge(result, {"tasks": {"RTE": {"ours": {"peak": 3}}}, "size": {"open_s": 1}})
    assert result["tasks"]["RTE"] == {"ours": {"peak": 3}, "minilm": {"peak": 2}}
    assert result["size"] == {"wheel_bytes": 5, "open_s": 1}


def test_jobs_of_a_try_are_kept_apart_and_size_is_measured_if_asked_for(
    embedded: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_directory(tmp_path / "model")
    words = ["--model", model, "--work", tmp_path / "work", "--out", tmp_path / "out.json"]
    measured = iter([{"wheel_bytes": 5, "open_s": 1.0}, {"open_s": 2.0}])
    monkeypatch.setattr(embedded, "measure_size", lambda model: next(measured))
    sizes = []
    for more in (["--size"], [], ["--size"], ["--limit", "7"]):
        monkeypatch.setattr("sys.argv", ["embedded.py", *map(str, words), *more])
        embedded.main()
        result = json.loads((tmp_path / "out.json").read_text("utf-8"))["result"]
        sizes.append(result.get("size"))
    first = {"wheel_bytes": 5, "open_s": 1.0}
    assert sizes == [first, first, {"wheel_bytes": 5, "open_s": 2.0}, None]
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"models", "jobs", "jobs-7"}
