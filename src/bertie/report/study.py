"""What the runs of a study have logged → report.html, report.md and report.json."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bertie.metrics.intervals import mean, spread
from bertie.report.numbers import duration
from bertie.report.page import (
    Markup,
    code,
    figure,
    figures,
    heading,
    page,
    paragraph,
    table,
    write_whole,
)
from bertie.report.plots import Series, bar_chart, line_chart
from bertie.report.pretraining import METRICS, RUN, flat_held_out, number, read_facts, read_lines

PLATEAU = 0.1  # nats below the unigram entropy; a model that stays above has learned no context
REPORT = "report.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Of one fine-tuning: the best evaluation on dev."""

    row: str
    task: str
    seed: int
    point: float  # of the budget of pre-training
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Of one pre-training, on held-out text at its end."""

    row: str
    seed: int
    kind: str  # mask: at [MASK] positions; lm: of next tokens
    value: float
    unigram: float  # what guessing by frequency loses
    tokens: float
    seconds: float

    @property
    def is_plateau(self) -> bool:
        return self.value > self.unigram - PLATEAU


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
    command: str

    def values(self, row: str, task: str, point: float) -> dict[int, float]:
        """Scores by seed."""
        return {
            one.seed: one.value
            for one in self.scores
            if (one.row, one.task, one.point) == (row, task, point)
        }

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
    kind = "mask" if "mask_loss" in last else "lm" if "lm_loss" in last else "mlm"
    return Loss(
        row=row,
        seed=seed,
        kind=kind,
        value=number(last, f"{kind}_loss"),
        unigram=number(facts, "unigram_entropy"),
        tokens=number(last, "tokens"),
        seconds=number(last, "seconds"),
    )


# --- the report ---


def write_study(made: StudyResults, out: Path) -> Path:
    """Writes report.md, report.json and report.html into a folder."""
    columns, rows = ("", "held-out loss", *made.tasks), list(score_rows(made))
    changes = list(difference_rows(made))
    about, notes = describe(made), list(find_notes(made))
    text = [f"# {made.title}", made.asks, markdown(columns, rows), about, *notes]
    text += ["Differences from the first row, seed by seed:", markdown(("", *made.tasks), changes)]
    write_whole(out / "report.md", "\n\n".join(text) + "\n")
    write_whole(out / "report.json", json.dumps(asdict(made), indent=1, sort_keys=True) + "\n")
    runs = ("", "seed", "tokens", "time", "held-out loss", "below unigram")
    blocks = [
        paragraph(made.asks),
        table(columns, rows, numbers=columns[1:]),
        paragraph(about, "soft"),
        *(paragraph(note, "warning") for note in notes),
        heading("Differences from the first row, seed by seed"),
        table(("", *made.tasks), changes, numbers=tuple(made.tasks)),
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
        losses = [loss.value for loss in made.losses if loss.row == row]
        scores = [show(list(made.values(row, task, end).values())) for task in made.tasks]
        yield [title, show(losses, scale=1), *scores]
        if row in made.paper:
            told = made.paper[row]
            cells = [f"({told[task]:.1f})" if task in told else "–" for task in made.tasks]
            yield [f"{title}: the paper, another budget", "–", *cells]


def difference_rows(made: StudyResults) -> Iterator[list[str]]:
    for row, title in list(made.rows.items())[1:]:
        yield [title, *(show(made.differences(row, task), signed=True) for task in made.tasks)]


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


def show(values: Sequence[float], *, scale: float = 100, signed: bool = False) -> str:
    """Mean and spread.

    >>> show([0.9, 0.92]), show([0.01], signed=True), show([])
    ('91.00 ± 1.41', '+1.00', '–')
    """
    if not values:
        return "–"
    text = f"{scale * mean(values):{'+' if signed else ''}.2f}"
    return f"{text} ± {scale * spread(values):.2f}" if len(values) > 1 else text


def describe(made: StudyResults) -> str:
    seeds = f"mean and spread of {made.seeds} seeds" if made.seeds > 1 else "one seed"
    metrics = ", ".join(f"{task} {metric}" for task, metric in made.tasks.items())
    text = (
        f"Every row had {made.budget} of pre-training. Scores in percent on dev, {seeds}, of the "
        f"evaluation that is best: {metrics}. Losses in nats: of masked models at [MASK], of "
        "language models of next tokens; the two do not compare."
    )
    if made.paper:
        text += f" In brackets: {made.about_paper or 'the paper'}; read its order, not its height."
    return text


def find_notes(made: StudyResults) -> Iterator[str]:
    """What takes a row its worth as evidence."""
    for row, title in made.rows.items():
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
            means = {
                row: list(made.values(row, task, made.points[-1]).values()) for row in made.rows
            }
            bars = [(made.rows[row], mean(values)) for row, values in means.items() if values]
            yield bar_chart(bars, title=title)
            continue
        lines = []
        for row, name in made.rows.items():
            found = [(point, list(made.values(row, task, point).values())) for point in made.points]
            there = [(point, mean(values)) for point, values in found if values]
            lines.append(Series(name=name, x=[x for x, _ in there], y=[y for _, y in there]))
        yield line_chart(lines, title=title, x_label=f"share of {made.budget}")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
