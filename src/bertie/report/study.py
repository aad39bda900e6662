"""What the runs of a study have logged → report.html, report.md and report.json."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertie.metrics.intervals import mean
from bertie.report.numbers import duration, mean_and_spread
from bertie.report.page import (
    REPORT,
    REPORT_JSON,
    Markup,
    code,
    figure,
    figures,
    heading,
    markdown,
    page,
    paragraph,
    table,
    write_whole,
)
from bertie.report.plots import Series, bar_chart, line_chart
from bertie.report.pretraining import METRICS, RUN, flat_held_out, number, read_facts, read_lines

# The first that a run has logged: at [MASK]; where a random piece was seen, if none is [MASK]; of
# next tokens; of all predicted tokens.
KINDS = ("mask", "random", "lm", "mlm")
MOST_TOLD = 6  # runs that are not there
PLATEAU = 0.5  # nats below the unigram entropy; above, a model has learned next to no context


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Of one fine-tuning: the best evaluation on dev."""

    row: str
    task: str
    seed: int
    point: float  # of the budget of pre-training, as the study asks
    progress: float  # of it, that the model had when it was fine-tuned
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Of one pre-training, on held-out text at its end."""

    row: str
    seed: int
    kind: str  # of KINDS
    value: float
    unigram: float  # what guessing by frequency loses
    tokens: float
    seconds: float

    @property
    def is_plateau(self) -> bool:
        return not self.value < self.unigram - PLATEAU  # nor is a NaN below it


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResults:
    """All that the report is made of."""

    title: str
    asks: str
    rows: Mapping[str, str]  # name -> title; the first is what the others are compared with
    tasks: Mapping[str, str]  # name -> metric
    paper: Mapping[str, Mapping[str, float]]  # row -> task -> score in percent
    about_paper: str
    points: tuple[float, ...]
    budget: str
    seeds: int
    scores: tuple[Score, ...]
    losses: tuple[Loss, ...]
    failed: Mapping[str, str]  # run -> why it is not here
    missing: tuple[str, ...]  # other runs that are not here, as nothing has run them yet
    machine: str
    command: str
    frozen: str = ""  # how long heads on features learned, where there are any

    def values(self, row: str, task: str, point: float) -> dict[int, float]:
        """Scores by seed."""
        return {
            one.seed: one.value
            for one in self.scores
            if (one.row, one.task, one.point) == (row, task, point)
        }

    def show_scores(self, row: str, task: str, point: float) -> str:
        """Mean and spread, and of how many seeds where some are not there."""
        found = list(self.values(row, task, point).values())
        some = "" if len(found) in (0, self.seeds) else f" ({len(found)} of {self.seeds} seeds)"
        return mean_and_spread(found) + some

    def mean_at(self, row: str, task: str, point: float) -> tuple[float, float] | None:
        """Of all seeds: how far the models were trained, and what they scored."""
        found = [one for one in self.scores if (one.row, one.task, one.point) == (row, task, point)]
        if not found:
            return None
        return mean([one.progress for one in found]), mean([one.value for one in found])

    def differences(self, row: str, task: str) -> list[float]:
        """From the first row, seed by seed, at the end of pre-training."""
        base = self.values(next(iter(self.rows)), task, self.points[-1])
        own = self.values(row, task, self.points[-1])
        return [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]


# --- what runs have logged ---


def read_best(folder: Path, metric: str) -> float | None:
    """The best score that a fine-tuning has logged; none if there is none."""
    found = [
        number(flat_held_out(line), metric)
        for path in sorted(folder.glob(f"runs/*/{METRICS}"))
        for line in read_lines(path)
        if isinstance(line.get("held_out"), Mapping)
    ]
    return max((value for value in found if math.isfinite(value)), default=None)


def read_losses(folder: Path, *, row: str, seed: int) -> Loss | None:
    """What a pre-training has logged last; none if it has no held-out figures."""
    if not (folder / METRICS).is_file():
        return None
    lines = [line for line in read_lines(folder / METRICS) if "held_out" in line]
    if not lines:
        return None
    last, facts = flat_held_out(lines[-1]), read_facts(folder / RUN)
    kinds = [kind for kind in KINDS if f"{kind}_loss" in last and is_asked(kind, facts)]
    kind = next(iter(kinds), KINDS[-1])
    return Loss(
        row=row,
        seed=seed,
        kind=kind,
        value=number(last, f"{kind}_loss"),
        unigram=number(facts, "unigram_entropy"),
        tokens=number(last, "tokens"),
        seconds=number(last, "seconds"),
    )


def is_asked(kind: str, facts: Mapping[str, Any]) -> bool:
    """Where no token is to be [MASK], one in thousands is: a random piece may be any."""
    settings: Any = facts.get("settings")
    for name in ("data", "masking"):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    shares = settings if isinstance(settings, Mapping) else {}
    return not (kind in ("mask", "random") and shares.get(f"{kind}_share") == 0)


def read_machine(folder: Path) -> str:
    """What a pre-training ran on; nothing if it does not say."""
    facts = read_facts(folder / RUN)
    versions = facts.get("versions")
    torch = versions.get("torch") if isinstance(versions, Mapping) else None
    known = (facts.get("gpu") or facts.get("machine"), torch and f"torch {torch}")
    return ", ".join(str(one) for one in known if one)


# --- the report ---


def write_study(made: StudyResults, out: Path) -> Path:
    """Writes report.md, report.json and report.html into a folder."""
    columns, rows = ("", "held-out loss", *made.tasks), list(score_rows(made))
    changes = list(difference_rows(made))
    about, notes = describe(made), list(find_notes(made))
    text = [f"# {made.title}", made.asks, markdown(columns, rows), about, *notes]
    text += ["Differences from the first row, seed by seed:", markdown(("", *made.tasks), changes)]
    points = made.points if len(made.points) > 1 else ()
    shares, on_the_way = tuple(f"{point:.0%}" for point in points), list(point_rows(made))
    if points:
        text += ["On the way, by share of the budget:", markdown(("", *shares), on_the_way)]
    write_whole(out / "report.md", "\n\n".join(text) + "\n")
    write_whole(out / REPORT_JSON, json.dumps(asdict(made), indent=1, sort_keys=True) + "\n")
    runs = ("", "seed", "tokens", "time", "held-out loss", "below unigram")
    blocks = [
        paragraph(made.asks),
        table(columns, rows, numbers=columns[1:]),
        paragraph(about, "soft"),
        *(paragraph(note, "warning") for note in notes),
        heading("Differences from the first row, seed by seed"),
        table(("", *made.tasks), changes, numbers=tuple(made.tasks)),
        *([heading("On the way, by share of the budget")] if points else []),
        *([table(("", *shares), on_the_way, numbers=shares)] if points else []),
        heading("Plots"),
        figures(figure(plot) for plot in make_plots(made)),
        heading("Pre-training"),
        table(runs, list(loss_rows(made)), numbers=runs[1:]),
        heading("How to repeat it"),
        code(made.command),
    ]
    return write_whole(out / REPORT, page(made.title, blocks))


def score_rows(made: StudyResults) -> Iterator[list[str]]:
    """Ours, and below it the paper's."""
    end = made.points[-1]
    for row, title in made.rows.items():
        losses = [loss for loss in made.losses if loss.row == row]
        scores = [made.show_scores(row, task, end) for task in made.tasks]
        yield [title, show_losses(losses), *scores]
        if row in made.paper:
            told = made.paper[row]
            cells = [f"({told[task]:.1f})" if task in told else "–" for task in made.tasks]
            yield [f"{title}: the paper, another budget", "–", *cells]


def difference_rows(made: StudyResults) -> Iterator[list[str]]:
    for row, title in list(made.rows.items())[1:]:
        found = [made.differences(row, task) for task in made.tasks]
        yield [title, *(mean_and_spread(one, signed=True) for one in found)]


def point_rows(made: StudyResults) -> Iterator[list[str]]:
    """Of every task, all rows at all points."""
    for task in made.tasks:
        for row, title in made.rows.items():
            scores = [made.show_scores(row, task, point) for point in made.points]
            yield [f"{task}, {title}", *scores]


def loss_rows(made: StudyResults) -> Iterator[list[str]]:
    for loss in made.losses:
        yield [
            made.rows[loss.row],
            str(loss.seed),
            f"{loss.tokens:,.0f}",
            duration(loss.seconds),
            f"{loss.value:.3f}",
            f"{loss.unigram - loss.value:.3f}",
        ]


def show_losses(losses: Sequence[Loss]) -> str:
    """Mean and spread, and of what."""
    kinds = ", ".join(dict.fromkeys(loss.kind for loss in losses))
    values = mean_and_spread([loss.value for loss in losses], scale=1)
    return f"{values} ({kinds})" if losses else values


def describe(made: StudyResults) -> str:
    seeds = "one seed"
    if made.seeds > 1:
        seeds = f"mean and standard deviation (±) of {made.seeds} seeds"
    metrics = ", ".join(f"{task} {metric}" for task, metric in made.tasks.items())
    had = "had" if made.losses else "is to have"
    text = (
        f"Every row {had} {made.budget} of pre-training. Scores in percent on dev, {seeds}, of the "
        f"evaluation that is best: {metrics}. Losses in nats: mask at [MASK], random where a "
        "random piece was seen, lm of next tokens; they compare only between rows of one kind "
        "with equal [data]."
    )
    if made.frozen:
        text += f" Frozen models: a head on their features, {made.frozen}."
    if made.machine:
        text += f" On {made.machine}."
    if made.paper:
        text += f" In brackets: {made.about_paper or 'the paper'}; read its order, not its height."
    return text


def find_notes(made: StudyResults) -> Iterator[str]:
    """What takes a row its worth as evidence, and what is not there."""
    for name, reason in made.failed.items():
        yield f"{name}: failed, so it is not in the table: {reason}"
    if made.missing:
        told = [*made.missing[:MOST_TOLD], *(["..."] if made.missing[MOST_TOLD:] else [])]
        yield f"Not run yet, {len(made.missing)}, so not in the table: {'; '.join(told)}"
    for row, title in made.rows.items():
        if any(one.row == row for one in made.scores) and row not in {o.row for o in made.losses}:
            yield f"{title}: no held-out loss, so nothing says whether it has learned from its text"
        stuck = [loss.seed for loss in made.losses if loss.row == row and loss.is_plateau]
        if stuck:
            seeds = ", ".join(map(str, stuck))
            yield (
                f"{title}, seed {seeds}: never left the unigram plateau, so its scores are no "
                "evidence; take a longer budget or another peak rate"
            )


def make_plots(made: StudyResults) -> Iterator[Markup]:
    for task, metric in made.tasks.items():
        title = f"{task}: {metric}"
        if len(made.points) == 1:
            end = made.points[-1]
            found = {row: list(made.values(row, task, end).values()) for row in made.rows}
            there = {row: values for row, values in found.items() if values}
            bars = [(made.rows[row], mean(values)) for row, values in there.items()]
            marks = [values if len(values) > 1 else [] for values in there.values()]
            yield bar_chart(bars, title=title, marks=marks)
            continue
        lines = []
        for row, name in made.rows.items():
            means = [made.mean_at(row, task, point) for point in made.points]
            places = [place for place in means if place is not None]
            lines.append(Series(name=name, x=[x for x, _ in places], y=[y for _, y in places]))
        yield line_chart(lines, title=title, x_label=f"share of {made.budget}")
