"""Plots as SVG: lines, bars, points, a heat map, a reliability diagram.

A plot is WIDTH units wide and is scaled to its place; 480 keeps its letters readable on a phone.
Colours are those of the page (page.py); values that are no numbers leave gaps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertie.metrics.classes import Calibration
from bertie.report.numbers import Axis, labels, make_axis, percent, short
from bertie.report.page import STYLE, Markup, escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 54, 44  # around the field of a plot
LETTER = 6.6  # mean width of a letter at FONT
CAPITAL = 7.4  # mean width where some are capitals
FONT = 12.5
NUM_COLOURS = 6
MOST_LETTERS = 34  # of the name of a bar: half the plot
MOST_POINTS = 500  # of a line; more would not be seen
MOST_DOTS = 24  # a line of fewer points shows them
MOST_NUMBERS = 12  # labels of a heat map that has numbers in its cells
MOST_NAMES = 40  # labels of a heat map that has names along its sides

LIGHT_AND_DARK = STYLE[: STYLE.index("* {")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A value to compare with: a dashed line from side to side."""

    name: str
    y: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """The part of a plot between its axes."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        across, up = self.x.place(x), self.y.place(y)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    levels: Sequence[Level] = (),
    is_log_y: bool = False,
    y_range: tuple[float, float] | None = None,
) -> Markup:
    """Lines over a common axis; `y_range` widens what the values need."""
    lines = [thin(one) for one in series if any(map(math.isfinite, one.y))]
    heights = [value for line in lines for value in line.y] + [level.y for level in levels]
    axes = Field(
        x=whole_ticks([value for line in lines for value in line.x]),
        y=padded(heights + list(y_range or ()), is_log=is_log_y),
    )
    parts = [frame(title, axes, x_label)]
    if not lines:
        parts.append(note("no values yet"))
    parts += [draw_level(level, axes) for level in levels if axes.y.has(level.y)]
    for number, line in enumerate(lines):
        parts.append(draw_line(line, axes, colour(number)))
    if len(series) > 1:
        parts.append(legend([line.name for line in lines]))
    return drawing(title, parts)


def bar_chart(
    bars: Sequence[tuple[str, float]],
    *,
    title: str,
    marks: Sequence[Sequence[float]] = (),
) -> Markup:
    """A row per name, from 0 to 100% or the largest value, as percentages.

    `marks` are values that a bar is the mean of, as strokes across it.
    """
    limit = max([1.0, *(value for _, value in bars if math.isfinite(value))])
    names = [cut(name, MOST_LETTERS) for name, _ in bars]
    left = max([30.0, *(len(name) * CAPITAL + 12 for name in names)])
    scale = (WIDTH - left - 64) / limit
    parts = [text(0, 16, title, kind="title")]
    for number, (name, (_, value)) in enumerate(zip(names, bars, strict=True)):
        y = 34 + 24 * number
        size = max(0.0, value) * scale if math.isfinite(value) else 0.0
        parts.append(text(left - 8, y + 13, name, anchor="end"))
        parts.append(
            Markup(f'<rect class="c0" x="{left}" y="{y}" width="{size:.1f}" height="17"/>')
        )
        own = [max(0.0, one) * scale for one in (marks[number] if marks else ())]
        parts += [path([(left + x, y + 2), (left + x, y + 15)], "mark") for x in own]
        parts.append(text(left + max([size, *own]) + 6, y + 13, percent(value)))
    return drawing(title, parts, height=34 + 24 * max(1, len(bars)) + 8)


def scatter_plot(
    points: Sequence[tuple[float, float]], *, title: str, x_label: str, y_label: str
) -> Markup:
    """A dot per pair, and the diagonal on which both are equal."""
    shown = [p for p in points if all(map(math.isfinite, p))][: 4 * MOST_POINTS]
    values = [value for point in shown for value in point]
    axes = Field(x=padded(values, is_log=False), y=padded(values, is_log=False))
    parts = [frame(f"{title}: {y_label}", axes, x_label)]
    low, high = axes.x.low, axes.x.high
    parts.append(path([axes.at(low, low), axes.at(high, high)], "level"))
    parts += [dot(*axes.at(*point), "c0 faint") for point in shown]
    if not shown:
        parts.append(note("no values"))
    return drawing(title, parts)


def reliability_diagram(calibration: Calibration) -> Markup:
    """Accuracy by confidence: bars on the diagonal are honest, below it too sure."""
    axes = Field(x=make_axis([0.0, 1.0]), y=make_axis([0.0, 1.0]))
    parts = [frame("Calibration: accuracy", axes, "confidence")]
    for one in calibration.bins:
        if not one.num_examples:
            continue
        left, top = axes.at(one.low, one.accuracy)
        right, bottom = axes.at(one.high, 0)
        hint = f"{short(one.num_examples)} examples, confidence {percent(one.confidence)}"
        parts.append(
            Markup(
                f'<rect class="c0 faint" x="{left + 1:.1f}" y="{top:.1f}" '
                f'width="{right - left - 2:.1f}" height="{bottom - top:.1f}">'
                f"<title>{hint}, accuracy {percent(one.accuracy)}</title></rect>"
            )
        )
        parts.append(dot(*axes.at(one.confidence, one.accuracy), "c0", radius=4))
    parts.append(path([axes.at(0, 0), axes.at(1, 1)], "level"))
    return drawing("Calibration", parts)


def heat_map(counts: Sequence[Sequence[int]], names: Sequence[str], *, title: str) -> Markup:
    """A confusion: rows are gold, columns predicted, shades the share of the row."""
    size = len(names)
    has_names, has_numbers = size <= MOST_NAMES, size <= MOST_NUMBERS
    longest = max((len(cut(name)) for name in names), default=0) * LETTER if has_names else 0.0
    left = longest + 14
    cell = min(64.0, (WIDTH - left - 4) / max(1, size))
    top = 44.0
    parts = [text(0, 16, title, kind="title"), text(left, 36, "predicted →", kind="soft")]
    for row, line in enumerate(counts):
        total = max(1, sum(line))
        y = top + row * cell
        if has_names:
            parts.append(text(left - 6, y + cell / 2 + 4, cut(names[row]), anchor="end"))
        for column, count in enumerate(line):
            if count:
                hint = f"{names[row]} taken for {names[column]}: {count}"
                x, share = left + column * cell, count / total
                parts.append(square(x, y, cell, share, hint))
                if has_numbers:
                    kind = "on" if share > 0.5 else ""
                    middle = (x + cell / 2, y + cell / 2 + 4)
                    parts.append(text(*middle, short(count), anchor="middle", kind=kind))
    bottom = top + size * cell
    parts.append(outline(left, top, size * cell))
    if has_names:
        for column, name in enumerate(names):
            x = left + (column + 0.5) * cell + 4
            parts.append(text(x, bottom + 8, cut(name), anchor="end", turn=-60))
    return drawing(title, parts, height=bottom + longest + 16)


def stacked(plots: Sequence[Markup]) -> str:
    """One SVG file with plots of the usual height below each other, colours included."""
    style = LIGHT_AND_DARK + "svg { background: var(--paper); }"
    inside = "\n".join(
        f'<g transform="translate(10 {10 + number * (HEIGHT + 16)})">{plot}</g>'
        for number, plot in enumerate(plots)
    )
    width, height = WIDTH + 20, len(plots) * (HEIGHT + 16) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{style}</style>\n'
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>\n{inside}\n</svg>\n'
    )


PLOT_STYLE = (
    f"text {{ font: {FONT}px system-ui, sans-serif; fill: var(--ink); }} "
    "text.soft { fill: var(--soft); } text.title { font-weight: 600; } "
    "text.on { fill: var(--paper); } .grid { stroke: var(--line); } "
    ".level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; } "
    ".line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; } "
    ".faint { fill-opacity: .45; } .mark { stroke: var(--ink); stroke-width: 1.5; } "
    + " ".join(
        f".c{n} {{ fill: var(--c{n}); }} .s{n} {{ stroke: var(--c{n}); }}"
        for n in range(NUM_COLOURS)
    )
)


def drawing(title: str, parts: Sequence[Markup], *, height: float = HEIGHT) -> Markup:
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}">'
        f"<style>{PLOT_STYLE}</style>{''.join(parts)}</svg>"
    )


def frame(title: str, axes: Field, x_label: str) -> Markup:
    """Title, grid lines with their numbers, the name of the x axis."""
    parts = [text(0, 16, title, kind="title")]
    for value, label in zip(axes.y.ticks, labels(axes.y.ticks), strict=True):
        x, y = axes.at(axes.x.low, value)
        parts.append(path([(x, y), (WIDTH - RIGHT, y)], "grid"))
        parts.append(text(x - 6, y + 4, label, anchor="end", kind="soft"))
    for value, label in zip(axes.x.ticks, labels(axes.x.ticks), strict=True):
        x, y = axes.at(value, axes.y.low)
        parts.append(path([(x, y), (x, y + 4)], "grid"))
        parts.append(text(x, y + 18, label, anchor="middle", kind="soft"))
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(text(middle, HEIGHT - 6, x_label, anchor="middle", kind="soft"))
    return Markup("".join(parts))


def legend(names: Sequence[str]) -> Markup:
    """A stroke and a name per line, in a row under the title."""
    parts, x = [], 0.0
    for number, name in enumerate(names):
        parts.append(path([(x, 33), (x + 16, 33)], f"line s{number % NUM_COLOURS}"))
        parts.append(text(x + 21, 37, cut(name, 28)))
        x += 21 + len(cut(name, 28)) * CAPITAL + 12
    return Markup("".join(parts))


def draw_line(line: Series, axes: Field, number: int) -> Markup:
    """The line in pieces: what cannot be drawn interrupts it."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if axes.x.has(x) and axes.y.has(y):
            pieces[-1].append(axes.at(x, y))
        elif pieces[-1]:
            pieces.append([])
    parts = [path(piece, f"line s{number}") for piece in pieces if len(piece) > 1]
    dots = [p for piece in pieces for p in piece if len(line.x) <= MOST_DOTS or len(piece) == 1]
    parts += [
        Markup(f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>') for x, y in dots
    ]
    return Markup("".join(parts))


def draw_level(level: Level, axes: Field) -> Markup:
    _, y = axes.at(axes.x.low, level.y)
    label = f"{level.name} {short(level.y)}"
    return Markup(
        path([(LEFT, y), (WIDTH - RIGHT, y)], "level")
        + text(WIDTH - RIGHT - 2, y - 5, label, anchor="end", kind="soft")
    )


def thin(line: Series) -> Series:
    """At most MOST_POINTS: of each stretch of points the lowest and the highest."""
    if len(line.y) <= MOST_POINTS:
        return line
    size = math.ceil(len(line.y) / (MOST_POINTS // 2))
    kept = {0, len(line.y) - 1}
    for start in range(0, len(line.y), size):
        values = line.y[start : start + size]
        found = [(value, start + n) for n, value in enumerate(values) if math.isfinite(value)]
        kept |= {min(found)[1], max(found)[1]} if found else {start}
    order = sorted(kept)
    return Series(name=line.name, x=[line.x[p] for p in order], y=[line.y[p] for p in order])


def whole_ticks(values: Sequence[float]) -> Axis:
    """An axis; between whole numbers, such as steps and epochs, there is nothing to mark."""
    axis = make_axis(values)
    if not values or not all(float(value).is_integer() for value in values):
        return axis
    return replace(axis, ticks=tuple(tick for tick in axis.ticks if float(tick).is_integer()))


def padded(values: Sequence[float], *, is_log: bool) -> Axis:
    """An axis with some room above and below the values."""
    axis = make_axis(values, is_log=is_log)
    if is_log:
        return make_axis([axis.low / 1.15, axis.high * 1.15], is_log=True)
    room = (axis.high - axis.low) * 0.05
    low = axis.low - room if axis.low != 0 else 0.0
    return make_axis([low, axis.high + room])


def text(
    x: float, y: float, words: str, *, anchor: str = "start", kind: str = "", turn: int = 0
) -> Markup:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    named = f' class="{kind}"' if kind else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return Markup(f"<text {place}{named}{turned}>{escape(words)}</text>")


def dot(x: float, y: float, kind: str, radius: int = 3) -> Markup:
    return Markup(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup(f'<polyline class="{kind}" points="{steps}"/>')


def square(x: float, y: float, size: float, share: float, hint: str) -> Markup:
    return Markup(
        f'<rect class="c0" x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}" '
        f'fill-opacity="{0.06 + 0.9 * share:.2f}"><title>{escape(hint)}</title></rect>'
    )


def outline(x: float, y: float, size: float) -> Markup:
    corners = [(x, y), (x + size, y), (x + size, y + size), (x, y + size), (x, y)]
    return Markup(path(corners, "grid").replace("<polyline", '<polyline fill="none"'))


def note(words: str) -> Markup:
    return text(WIDTH / 2, HEIGHT / 2, words, anchor="middle", kind="soft")


def colour(number: int) -> int:
    return number % NUM_COLOURS


def cut(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
