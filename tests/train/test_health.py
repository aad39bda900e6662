"""Warnings come when a run looks stuck, and not before one can tell."""

from collections.abc import Mapping
from typing import Any

import pytest

from bertie.train.health import check_pairs, find_warnings, with_warnings

UNIGRAM = 6.0
FINE = {"step": 500, "progress": 0.5, "skipped": 0, "mlm_loss": 4.0, "nsp_accuracy": 0.9}


def warn(**changes: Any) -> dict[str, str]:
    return find_warnings(FINE | changes, UNIGRAM)


def test_a_run_that_learns_is_not_warned_of() -> None:
    assert warn() == {}
    assert find_warnings({k: v for k, v in FINE.items() if k[:3] not in ("mlm", "nsp")}, 6.0) == {}


def test_a_loss_at_the_unigram_entropy_is_stuck_once_the_run_had_its_chance() -> None:
    stuck = warn(mlm_loss=5.95)["stuck"]
    assert "5.95" in stuck and "6.00" in stuck and "optim.peak" in stuck
    assert warn(mlm_loss=5.95, progress=0.2) == {}
    assert warn(mlm_loss=5.95, step=99) == {}
    assert warn(mlm_loss=5.85) == {}
    assert find_warnings(FINE | {"mlm_loss": 9.0}, None) == {}


@pytest.mark.parametrize("term", ["nsp", "sop"])
def test_pairs_told_apart_by_chance_are_warned_of(term: str) -> None:
    assert f"{term} accuracy 52%" in warn(**{f"{term}_accuracy": 0.52})[term]
    assert term not in warn(**{f"{term}_accuracy": 0.6})
    assert term not in warn(**{f"{term}_accuracy": 0.52}, progress=0.1)


def test_skipped_steps_are_warned_of_where_they_are_many() -> None:
    assert warn(skipped=3, step=10) == {}
    assert warn(skipped=5, step=500) == {}  # one in a hundred
    assert "6 of 500 steps were skipped" in warn(skipped=6)["skipped"]
    assert "skipped" in warn(skipped=4, step=5, progress=0.01)  # from the first steps on


def test_long_tails_are_warned_of_from_the_first_line_on() -> None:
    assert "6.1% of the tokens are tails" in warn(filled_share=0.061, progress=0.01)["tails"]
    assert warn(filled_share=0.049) == {}


def test_pairs_should_be_half_and_half() -> None:
    assert check_pairs(50, 100, 100) is None and check_pairs(41, 100, 100) is None
    assert check_pairs(0, 0, 0) is None and check_pairs(9, 10, 10) is None  # too few to tell
    warning = check_pairs(900, 1000, 1000)
    assert warning is not None and "90% of the pairs are NotNext" in warning


def test_instances_should_be_pairs_where_pairs_are_learned() -> None:
    assert check_pairs(30, 60, 100) is None
    for num_pairs in (0, 49):
        warning = check_pairs(num_pairs // 2, num_pairs, 100)
        assert warning is not None and f"{num_pairs} of 100 instances are pairs" in warning


def test_a_warning_comes_once() -> None:
    shown: list[Mapping[str, Any]] = []
    show = with_warnings(shown.append, 2.0)
    line = {"step": 500, "progress": 0.5, "skipped": 0, "mlm_loss": 3.0, "nsp_accuracy": 0.5}
    for step in (500, 600):
        show(line | {"step": step})
    show({"step": 600, "held_out": {"mask_loss": 9.0}})
    assert [next(iter(line)) for line in shown] == ["step", "warning", "warning", "step", "step"]
