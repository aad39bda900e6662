"""The table says mean and spread, as text, as data and as a page."""

import json
from dataclasses import replace
from pathlib import Path

from bertie.report.table7 import NAMES, PAPER, CombinationScores, Table7, write_table7


def make_table(num_seeds: int, metric: str = "f1", notes: tuple[str, ...] = ()) -> Table7:
    rows = [
        CombinationScores(
            combination=name,
            dev=tuple(0.9 + 0.01 * n for n in range(num_seeds)),
            tests={"x/eng.testb": tuple(0.8 + 0.01 * n for n in range(num_seeds)), "bare": ()},
            seconds=61.0,
        )
        for name in NAMES
    ]
    return Table7(
        model="<b>",
        data="eng.train",
        metric=metric,
        rows=tuple(rows),
        command="bertie table7 ...",
        notes=notes,
    )


def test_mean_and_spread_of_seeds(tmp_path: Path) -> None:
    page = write_table7(make_table(3), tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| features | dev | test eng.testb | test bare | time | the paper, dev |"
    assert lines[2].startswith("| Embeddings | 91.00 ± 1.00 | 81.00 ± 1.00 | – |")
    assert lines[2].endswith("| 91.0 |") and len(lines) == 2 + 6 + 2
    assert "mean and spread of 3 seeds" in lines[-1]
    values = json.loads((tmp_path / "table.json").read_text())
    assert len(values["rows"]) == 6 and abs(values["means"]["last"] - 0.91) < 1e-9
    text = page.read_text()
    assert "&lt;b&gt;" in text and "<b>" not in text and "Weighted sum of all layers" in text


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    write_table7(make_table(1), tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "±" not in text and "one seed" in text


def test_the_papers_rows() -> None:
    assert PAPER.keys() == NAMES.keys() and max(PAPER, key=PAPER.__getitem__) == "concat-last-4"


def test_scores_that_are_not_the_papers_stand_alone(tmp_path: Path) -> None:
    page = write_table7(make_table(1, metric="accuracy"), tmp_path).read_text()
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("| features | dev | test eng.testb | test bare | time |\n")
    assert "paper" not in text and "the paper, dev" not in page


def test_the_text_has_the_notes_and_no_cell_is_two(tmp_path: Path) -> None:
    made = make_table(1, notes=("left out: last; few | layers",))
    rows = tuple(replace(row, tests={"a|b.conll": (0.5,)}) for row in made.rows)
    write_table7(replace(made, rows=rows), tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| features | dev | test a\\|b.conll | time | the paper, dev |"
    assert lines[-1] == "left out: last; few | layers"
