"""Axes hold their values, with few, round, distinct marks."""

import doctest
import math

from hypothesis import given
from hypothesis import strategies as st

from bertie.report import numbers
from bertie.report.numbers import duration, fixed, labels, make_axis, percent, short

VALUES = st.floats(-1e12, 1e12) | st.floats(-1, 1) | st.just(math.nan) | st.just(math.inf)


@given(st.lists(VALUES, max_size=8), st.booleans())
def test_an_axis_holds_what_can_be_drawn(values: list[float], is_log: bool) -> None:
    axis = make_axis(values, is_log=is_log)
    assert axis.low < axis.high
    for value in (value for value in values if axis.has(value)):
        assert -1e-6 <= axis.place(value) <= 1 + 1e-6
    assert len(axis.ticks) <= 9
    assert all(-1e-6 <= axis.place(tick) <= 1 + 1e-6 for tick in axis.ticks)


def test_marks_are_round() -> None:
    assert make_axis([0, 6000]).ticks == (0, 1000, 2000, 3000, 4000, 5000, 6000)
    assert make_axis([3.1, 7.3]).ticks == (4, 5, 6, 7)
    nought = make_axis([0, 0])
    assert (nought.low, nought.high) == (0, 1)  # scores are never below
    assert make_axis([1, 1e6], is_log=True).ticks == (1, 10, 100, 1e3, 1e4, 1e5, 1e6)
    assert labels([7.2301, 7.2302]) == ["7.2301", "7.2302"]


def test_numbers_as_people_read_them() -> None:
    assert doctest.testmod(numbers).failed == 0
    assert [short(v) for v in (999.9, -1e6, 3e-5, math.nan)] == ["1k", "-1M", "3e-5", "–"]
    assert percent(0.12345) == "12.3%" and fixed(1234.5) == "1,234.500"
    assert [percent(math.nan), fixed(math.inf), duration(math.nan)] == ["–"] * 3


@given(st.floats() | st.integers(-(10**18), 10**18))
def test_any_number_is_written_shortly(value: float) -> None:
    assert 1 <= len(short(value)) <= 10
