"""The paper's Table 7 of one's own model and data: what each way to read its layers is worth."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bertie.metrics.intervals import mean
from bertie.report.numbers import duration, mean_and_spread
from bertie.report.page import (
    Markup,
    code,
    figure,
    heading,
    markdown,
    page,
    paragraph,
    table,
    write_whole,
)
from bertie.report.plots import bar_chart

NAMES = {
    "embeddings": "Embeddings",
    "second-to-last": "Second-to-last hidden",
    "last": "Last hidden",
    "weighted-last-4": "Weighted sum of last four hidden",
    "concat-last-4": "Concatenation of last four hidden",
    "weighted-all": "Weighted sum of all layers",
}
# F1 on dev of CoNLL-2003, BERT BASE, cased, with the context of the document.
PAPER = {
    "embeddings": 91.0,
    "second-to-last": 95.6,
    "last": 94.9,
    "weighted-last-4": 95.9,
    "concat-last-4": 96.1,
    "weighted-all": 95.5,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CombinationScores:
    """A row of the table: the scores of all seeds."""

    combination: str
    dev: tuple[float, ...]
    tests: Mapping[str, tuple[float, ...]]  # by file
    seconds: float  # of all its runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Table7:
    """The table, and what it was made of."""

    model: str
    data: str
    metric: str
    rows: tuple[CombinationScores, ...]
    command: str
    notes: tuple[str, ...]

    @property
    def num_seeds(self) -> int:
        return max(len(row.dev) for row in self.rows)  # a run that broke down has no score


def write_table7(made: Table7, out: Path) -> Path:
    """Writes table.md, table.json and table.html into a folder."""
    columns, rows = columns_of(made), [cells_of(made, row) for row in made.rows]
    about = describe(made)
    write_whole(out / "table.md", "\n\n".join([markdown(columns, rows), about, *made.notes]) + "\n")
    values = asdict(made) | {"means": {row.combination: mean(row.dev) for row in made.rows}}
    write_whole(out / "table.json", f"{json.dumps(values, indent=2)}\n")
    bars = [(row.combination, mean(row.dev)) for row in made.rows]  # short enough for a plot
    blocks: list[Markup] = [
        paragraph(about),
        *(paragraph(note, "warning") for note in made.notes),
        table(columns, rows, numbers=columns[1:]),
        figure(bar_chart(bars, title=f"{made.metric} on dev")),
        heading("How to repeat it"),
        code(made.command),
    ]
    return write_whole(out / "table.html", page("Table 7: frozen features", blocks))


def is_comparable(made: Table7) -> bool:
    """The paper's numbers are F1 of names."""
    return made.metric == "f1"


def columns_of(made: Table7) -> list[str]:
    tests = [f"test {Path(path).name}" for path in made.rows[0].tests]
    return ["features", "dev", *tests, "time", *["the paper, dev"] * is_comparable(made)]


def cells_of(made: Table7, row: CombinationScores) -> list[str]:
    scores = [mean_and_spread(values) for values in (row.dev, *row.tests.values())]
    paper = [f"{PAPER[row.combination]:.1f}"] * is_comparable(made)
    return [NAMES[row.combination], *scores, duration(row.seconds), *paper]


def describe(made: Table7) -> str:
    seeds = f"mean and spread of {made.num_seeds} seeds" if made.num_seeds > 1 else "one seed"
    text = (
        f"{made.metric} of a head on frozen features of {made.model}, trained on {made.data}; "
        f"{seeds}, the epoch that is best on dev."
    )
    paper = " The paper's are of BERT BASE, cased, on CoNLL-2003."
    return text + paper * is_comparable(made)
