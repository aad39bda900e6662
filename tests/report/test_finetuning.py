"""The report says how good, how sure and where wrong; texts of any kind stay texts."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertie.metrics.classes import calibration, class_table, confusion
from bertie.report.finetuning import show, warnings, write_finetuning_report
from bertie.report.results import FinetuneResults, FinetuneRun, WrongExample
from tests.report.checker import HOSTILE, Checker, check_page
from tests.report.test_results import a_run, results_of


def check_report(results: FinetuneResults, out: Path) -> tuple[Checker, dict[str, object]]:
    path = write_finetuning_report(results, out)
    assert path == out / "report.html"
    assert {p.name for p in out.iterdir()} == {"report.html", "report.json"}
    values = json.loads((out / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    return check_page(path.read_text(encoding="utf-8")), values


def of_classes(names: tuple[str, ...], texts: list[str]) -> FinetuneResults:
    chance = np.random.default_rng(1)
    gold = chance.integers(len(names), size=200)
    values = chance.dirichlet(np.ones(len(names)), 200)
    counts = confusion(gold, values.argmax(1), len(names))
    return results_of(
        [a_run(0, 0.91), a_run(1, 0.5), a_run(2, 0.93)],
        majority=0.5,
        interval=(0.9, 0.95),
        class_scores=dict(zip(names, class_table(counts), strict=True)),
        labels=names,
        confusion=tuple(map(tuple, counts.tolist())),
        calibration=calibration(values, gold),
        errors=tuple(
            WrongExample(text=t, gold=t, predicted=t, confidence=0.875, place=t) for t in texts
        ),
        cost={"device": texts[0]},
        settings={"warmup": 0.1, "note": texts[0]},
        notes=tuple(texts),
    )


def test_the_numbers_that_count_are_there(tmp_path: Path) -> None:
    checker, values = check_report(of_classes(("no", "yes"), ["a bad film"]), tmp_path)
    text = " ".join(checker.texts)
    for shown in (
        "Accuracy on dev: 93.0%, the best of 3 runs; 78.0% ± 24.3% over the 3 seeds",
        "95% bootstrap interval on dev: 90.0% to 95.0%",
        "always the same answer, the best one: 50.0%",
        "1 of 3 runs did no better than always the same answer (seed 1)",
        "as always the same answer",
        "a bad film",
        "87.5%",
        "Expected calibration error",
        "bertie finetune set.toml",
    ):
        assert shown in text
    assert values["summary"]["best"] == 0.93 and values["summary"]["num_stuck"] == 1
    assert values["summary"]["mean"] == pytest.approx(0.78)
    assert values["runs"][0]["curve"] == [0.455, 0.91]
    assert len(values["calibration"]["bins"]) == 10 and len(values["confusion"]) == 2


def test_class_weights_are_proposed_where_there_are_none() -> None:
    for weights, is_told in (("none", True), ("balanced", False)):
        made = of_classes(("no", "yes"), ["a"])
        found = warnings(replace(made, settings={"task.class_weights": weights}))
        (line,) = (line for line in found if "more epochs" in line)
        assert ("task.class_weights=balanced" in line) is is_told


@pytest.mark.parametrize("num_labels", [1, 2, 13, 45, 100])
def test_any_number_of_labels(tmp_path: Path, num_labels: int) -> None:
    check_report(of_classes(tuple(f"label {n}" for n in range(num_labels)), ["x"]), tmp_path)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    bad, values = check_report(of_classes(tuple(HOSTILE), HOSTILE), tmp_path / "bad")
    harmless = [f"x{n}" for n in range(len(HOSTILE))]
    good, _ = check_report(of_classes(tuple(harmless), harmless), tmp_path / "good")
    assert bad.num_tags == good.num_tags
    assert HOSTILE[0] in bad.texts and HOSTILE[1] in bad.texts
    assert [error["text"] for error in values["errors"]] == HOSTILE


def test_a_grid_has_a_mean_for_each_of_its_settings(tmp_path: Path) -> None:
    runs = [a_run(s, 0.8 + s / 100, rate) for rate in (5e-5, 3e-5, 2e-5) for s in range(8)]
    checker, values = check_report(results_of(runs), tmp_path)
    assert checker.texts.count("83.5%") == 3 and values["summary"]["num_seeds"] == 8


def test_regression_shows_gold_against_predicted(tmp_path: Path) -> None:
    scores = {"pearson": 0.88, "spearman": math.nan}
    run = FinetuneRun(seed=0, settings={}, scores=scores, seconds=3.0)
    pairs = ((1.0, 1.5), (5.0, 4.0), (2.0, math.nan))
    results = results_of([run], metric="pearson", gold_and_predicted=pairs)
    checker, values = check_report(results, tmp_path)
    assert "Pearson on dev: 0.880." in checker.texts
    assert values["gold_and_predicted"][2] == [2.0, None]
    assert values["runs"][0]["scores"]["spearman"] is None


def test_answers_show_their_threshold(tmp_path: Path) -> None:
    scores = {"f1": 0.8125, "exact": 0.75, "num_questions": 1200.0, "best_f1_threshold": -2.5}
    run = FinetuneRun(seed=3, settings={"rate": 5e-5}, scores=scores, seconds=90.0)
    results = results_of([run], metric="f1", task="span", thresholds={"no answer": -1.75})
    checker, _ = check_report(results, tmp_path)
    for shown in ("81.2%", "75.0%", "1,200", "-2.500", "-1.750", "1 min 30 s"):
        assert shown in checker.texts


def test_runs_that_all_broke_down_still_give_a_report(tmp_path: Path) -> None:
    checker, values = check_report(
        results_of([a_run(0, math.nan), a_run(1, math.nan)], majority=0.5), tmp_path
    )
    assert values["summary"]["best"] is None
    assert any("2 of 2 runs broke down" in text for text in checker.texts)
    assert checker.texts.count("broke down") == 2  # in the table of runs
    assert not any("did no better" in text for text in checker.texts)


def test_a_mean_near_the_baseline_is_told(tmp_path: Path) -> None:
    results = results_of([a_run(0, 0.51), a_run(1, 0.55)], majority=0.505)
    checker, _ = check_report(results, tmp_path)
    assert any("this may be chance" in text for text in checker.texts)


def test_a_perfect_run_on_one_label_is_no_failure(tmp_path: Path) -> None:
    checker, _ = check_report(results_of([a_run(0, 1.0)], majority=1.0), tmp_path)
    assert not any("did no better" in text for text in checker.texts)


def test_scores_are_written_as_what_they_are() -> None:
    assert show("accuracy", 0.5) == "50.0%" and show("matthews", 0.5) == "0.500"
    assert show("num_questions", 1000) == "1,000" and show("dev_loss", 1.5) == "1.500"
