"""How long a run is: read or refused, and a share that only grows."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.state import Counters
from bertie.errors import UserError
from bertie.train.budget import Budget, Phase, find_ends

UNITS = ("steps", "tokens", "epochs", "minutes")


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("1000 steps", 1000, "steps"),
        ("1 step", 1, "steps"),
        ("1.5k steps", 1500, "steps"),
        ("1_000_000steps", 1e6, "steps"),
        ("  2e3   steps ", 2000, "steps"),
        ("2.5B tokens", 2.5e9, "tokens"),
        ("500 M tokens", 5e8, "tokens"),
        ("0.5 epochs", 0.5, "epochs"),
        ("1 epoch", 1, "epochs"),
        ("30 minutes", 30, "minutes"),
    ],
)
def test_a_number_and_a_unit_are_read(text: str, amount: float, unit: str) -> None:
    assert Budget.parse(text) == Budget(amount, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "steps",
        "1000",
        "0 steps",
        "0.0 minutes",
        "-5 steps",
        "2.5 steps",
        "0.0001k steps",
        "1e400 steps",
        "1e400 tokens",
        "10 hours",
        "10 s",
        "ten steps",
        "10 steps and more",
        "10 K steps",
        "1.2.3 steps",
        "nan steps",
        "inf minutes",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="budget"):
        Budget.parse(text)


@given(
    st.text(st.characters(max_codepoint=255))
    | st.from_regex(r"[0-9_.e]{1,9} ?[kMB]? ?(steps|tokens|minutes)", fullmatch=True)
)
def test_no_text_gives_anything_but_a_budget_or_a_refusal(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except UserError:
        return
    assert budget.unit in UNITS and 0 < budget.amount < math.inf


@given(st.floats(1e-3, 1e12), st.sampled_from(UNITS[1:]))
def test_what_is_written_is_read(amount: float, unit: str) -> None:
    assert Budget.parse(f"{amount:f} {unit}").amount == pytest.approx(amount, abs=1e-6)


def test_progress_is_the_share_of_what_was_asked_for() -> None:
    counters = Counters(step=30, tokens=6_000, seconds=90.0)
    assert Budget(120, "steps").progress(counters) == 0.25
    assert Budget(8_000, "tokens").progress(counters) == 0.75
    assert Budget(1, "minutes").progress(counters) == 1.5
    for unit in ("steps", "tokens", "minutes"):
        assert Budget(7, unit).progress(Counters()) == 0  # type: ignore[arg-type]
    assert Budget(3, "steps").progress(replace(counters, step=3)) == 1  # not 0.999...
    with pytest.raises(AssertionError):
        Budget(3, "epochs").progress(counters)


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=5),
    st.integers(1, 10**7),
    st.sampled_from(["steps", "tokens"]),
)
def test_phases_end_in_order_and_the_last_with_the_run(
    sizes: list[int], amount: int, unit: str
) -> None:
    shares = [size / sum(sizes) for size in sizes]
    ends = find_ends(shares, Budget(amount, unit))  # type: ignore[arg-type]
    assert ends == sorted(ends) and ends[-1] == 1 and len(ends) == len(shares)
    if unit == "steps":  # a step's progress is then exactly the end
        assert all(round(end * amount) / amount == end for end in ends)


@pytest.mark.parametrize("shares", [[0.5], [0.9, 0.2], [0.3, 0.3, 0.3]])
def test_shares_that_are_not_the_whole_are_refused(shares: list[float]) -> None:
    with pytest.raises(UserError, match="sum to 1"):
        find_ends(shares, Budget(10, "steps"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"share": 0.0}, "above 0"),
        ({"share": 1.5}, "at most 1"),
        ({"max_length": 0}, "max_length of a phase is at least 1"),
        ({"batch_size": 0}, "batch_size of a phase is at least 1"),
    ],
)
def test_a_phase_that_cannot_be_is_refused(wrong: dict[str, float], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Phase(**({"share": 0.5, "max_length": 8} | wrong))  # type: ignore[arg-type]
