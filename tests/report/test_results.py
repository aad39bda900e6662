"""Means are over seeds of equal settings; a broken run is never the best."""

import math

import pytest

from bertie.errors import UserError
from bertie.report.results import FinetuneResults, FinetuneRun, group_of, groups


def a_run(seed: int, score: float, rate: float = 3e-5) -> FinetuneRun:
    scores = {"accuracy": score, "macro_f1": score / 2}
    return FinetuneRun(
        seed=seed, settings={"rate": rate}, scores=scores, seconds=10.0, curve=(score / 2, score)
    )


def results_of(runs: list[FinetuneRun], **more: object) -> FinetuneResults:
    values = {
        "name": "set",
        "task": "classify",
        "model": "tiny",
        "metric": "accuracy",
        "num_train": 100,
        "num_dev": 50,
        "command": "bertie finetune set.toml",
    }
    return FinetuneResults(runs=tuple(runs), **{**values, **more})


def test_runs_of_equal_settings_stand_together() -> None:
    runs = [a_run(0, 0.7), a_run(0, 0.9, 5e-5), a_run(1, 0.8), a_run(2, 0.9)]
    found = groups(results_of(runs))
    assert [group.settings["rate"] for group in found] == [5e-5, 3e-5]
    assert found[1].mean == pytest.approx(0.8) and found[1].spread == pytest.approx(0.1)
    assert found[1].best == 0.9 and found[0].spread == 0


def test_a_run_that_broke_down_is_never_the_best() -> None:
    results = results_of([a_run(0, math.nan), a_run(1, 0.6), a_run(2, math.inf)], majority=0.6)
    assert results.best().seed == 1
    assert [results.is_stuck(run) for run in results.runs] == [True, True, True]
    assert math.isnan(group_of(results, results.best()).mean)
    without = FinetuneRun(seed=3, settings={}, scores={}, seconds=1.0)  # and without a model
    assert results_of([without, a_run(0, math.nan)]).best().seed == 0
    assert results_of([without, a_run(0, math.nan)]).is_broken(without)
    alone = results_of([a_run(0, math.nan)])
    assert alone.best().seed == 0 and math.isnan(groups(alone)[0].best)


def test_what_is_perfect_is_not_stuck() -> None:
    """Of a dev set of one label, where that label is all there is to say."""
    results = results_of([a_run(0, 1.0), a_run(1, 0.9)], majority=1.0)
    assert [results.is_stuck(run) for run in results.runs] == [False, True]


def test_without_a_baseline_only_broken_runs_are_stuck() -> None:
    results = results_of([a_run(0, 0.0), a_run(1, math.nan)])
    assert [results.is_stuck(run) for run in results.runs] == [False, True]


def test_what_cannot_be_reported_is_named() -> None:
    with pytest.raises(UserError, match="at least one run"):
        results_of([])
    with pytest.raises(UserError, match="seed 4 has no score 'f1'; it has: accuracy, macro_f1"):
        results_of([a_run(4, 0.5)], metric="f1")
    with pytest.raises(UserError, match="2 rows does not fit 1 labels"):
        results_of([a_run(0, 0.5)], confusion=((1, 0), (0, 1)), labels=("a",))
