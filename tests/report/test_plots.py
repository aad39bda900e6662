"""Plots are well formed and hold their values, whatever these are."""

import math
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.metrics.classes import calibration
from bertie.report.plots import (
    MOST_POINTS,
    Level,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    reliability_diagram,
    scatter_plot,
    stacked,
    thin,
)
from tests.report.checker import check_svg

FLOATS = st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-9])


@given(st.lists(st.lists(FLOATS, max_size=5), max_size=3), FLOATS, st.booleans())
def test_lines_of_any_numbers(ys: list[list[float]], level: float, is_log_y: bool) -> None:
    series = [Series(name=f"n{n}", x=list(range(len(y))), y=y) for n, y in enumerate(ys)]
    levels = [Level(name="<level>", y=level)]
    check_svg(line_chart(series, title="t", x_label="x", levels=levels, is_log_y=is_log_y))


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=6))
def test_points_and_bars_of_any_numbers(pairs: list[tuple[float, float]]) -> None:
    check_svg(scatter_plot(pairs, title="t", x_label="gold", y_label="predicted"))
    check_svg(bar_chart([(str(name), value) for name, value in pairs], title="t"))


def test_what_is_no_number_leaves_a_gap() -> None:
    line = Series(name="a", x=[0, 1, 2, 3, 4], y=[1, 2, math.nan, 3, 4])
    plot = line_chart([line], title="t", x_label="x")
    assert plot.count('class="line s0"') == 2
    assert "no values yet" in line_chart([], title="t", x_label="x")


def test_one_point_is_a_dot() -> None:
    plot = line_chart([Series(name="a", x=[5], y=[2])], title="t", x_label="x")
    assert plot.count("<circle") == 1 and 'class="line' not in plot


def test_long_lines_are_thinned_but_keep_their_extremes() -> None:
    y = np.random.default_rng(1).normal(size=100_000)
    y[777], y[50_001], y[99_999] = 50, -50, math.nan
    line = thin(Series(name="a", x=list(range(100_000)), y=y.tolist()))
    assert len(line.y) <= MOST_POINTS + 2
    assert max(line.y[:-1]) == 50 and min(line.y[:-1]) == -50
    assert line.x[0] == 0 and line.x[-1] == 99_999 and sorted(line.x) == line.x


def test_a_legend_only_where_there_is_a_choice() -> None:
    one, two = (Series(name=name, x=[1, 2], y=[1, 2]) for name in ("first", "second"))
    assert "first" not in line_chart([one], title="t", x_label="x")
    both = line_chart([one, two], title="t", x_label="x")
    assert "first" in both and "second" in both


def test_a_confusion_shows_its_counts() -> None:
    plot = heat_map([[5, 1], [0, 123]], ["cat", "dog"], title="t")
    texts = [element.text for element in check_svg(plot).iter() if element.tag.endswith("text")]
    assert {"5", "1", "123", "cat", "dog"} <= set(texts) and "0" not in texts
    many = heat_map(np.eye(100, dtype=int).tolist(), [f"l{n}" for n in range(100)], title="t")
    assert many.count("<rect") == 100 and len(many) < 30_000
    check_svg(many)
    check_svg(heat_map([], [], title="nothing"))


def test_calibration_bars_stand_where_examples_are() -> None:
    found = calibration(np.array([[0.95, 0.05], [0.3, 0.7], [0.35, 0.65]]), [0, 1, 0])
    plot = reliability_diagram(found)
    check_svg(plot)
    assert plot.count("<rect") == 2 and "1 examples" in plot
    check_svg(reliability_diagram(calibration(np.zeros((0, 2)), [])))


def test_a_file_of_plots_brings_its_colours() -> None:
    plot = line_chart([Series(name="a", x=[1, 2], y=[1, 2])], title="t", x_label="x")
    svg = stacked([plot, plot])
    check_svg(svg)
    used = set(re.findall(r"var\((--\w+)\)", svg))
    assert used <= set(re.findall(r"(--\w+):", svg))
    assert "prefers-color-scheme: dark" in svg


def test_bars_have_the_values_they_are_the_mean_of() -> None:
    drawn = bar_chart([("a", 0.5), ("b", 0.25)], title="t", marks=[[0.25, 0.75], []])
    check_svg(drawn)
    assert drawn.count('class="mark"') == 2
    assert "50.0%" in drawn
