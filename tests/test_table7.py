"""One command makes the whole table; it goes on where it was stopped."""

import json
from pathlib import Path

import pytest

from bertie.config import read_recipe
from bertie.errors import UserError
from bertie.table7 import make_stores, make_table7
from bertie.tuning import FinetuneRecipe
from tests.tuned import make_model, write_tags

COMMAND = ["bertie", "table7", "model", "--out", "a folder"]
FAST = (
    "train.device=cpu",
    "train.threads=1",
    "train.budget=2 epochs",
    "head.hidden_size=5",
    "tune.seeds=2",
    "task.max_length=48",
)


def make_recipe(out: Path, *sets: str, **data: str | list[str]) -> FinetuneRecipe:
    named = [f"data.{name}={json.dumps(value)}" for name, value in data.items()]
    return read_recipe(FinetuneRecipe, "table-7", [*FAST, f"out='{out}'", *named, *sets])


def test_the_whole_table(tmp_path: Path) -> None:
    model = make_model(tmp_path, num_layers=4)
    files = [str(write_tags(tmp_path / f"{n}.conll", count=c)) for n, c in (("a", 12), ("b", 5))]
    recipe = make_recipe(tmp_path / "out", train=files[0], dev=files[1], test=[files[1]])
    seen: list[str] = []
    stores = make_stores(model, recipe, on_progress=lambda what, *_: seen.append(what))
    assert seen == [f"{name}: reading tokens" for name in ("train", "dev", "test-1")]
    made = make_table7(model, recipe, stores, command=COMMAND)
    assert len(made.table.rows) == 6 and not made.table.notes
    shown = json.loads((tmp_path / "out" / "table.json").read_text())["command"]
    assert shown == "bertie table7 model --out 'a folder'"
    for row in made.table.rows:  # the test is the dev
        (scores,) = row.tests.values()
        assert len(row.dev) == 2 and scores == pytest.approx(row.dev)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("features", "heads", "table.md", "table.json", "table.html")
    }
    again = make_table7(model, recipe, make_stores(model, recipe), command=COMMAND)
    assert again.table.rows == made.table.rows


def test_combinations_of_more_layers_are_left_out_and_said(tmp_path: Path) -> None:
    model = make_model(tmp_path, num_layers=2)
    data = write_tags(tmp_path / "a.conll", count=20)
    recipe = make_recipe(tmp_path / "out", "tune.seeds=1", train=str(data))
    made = make_table7(model, recipe, make_stores(model, recipe), command=COMMAND)
    found = [row.combination for row in made.table.rows]
    assert found == ["embeddings", "second-to-last", "last", "weighted-all"]
    assert len(made.table.notes) == 2 and "weighted-last-4" in made.table.notes[0]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path, num_layers=2)
    with pytest.raises(UserError, match="--train FILE --out FOLDER"):
        make_stores(model, make_recipe(tmp_path / "out"))
    few = make_recipe(
        tmp_path / "out", 'head.combinations=["concat-last-4"]', train=str(tmp_path / "a.conll")
    )
    with pytest.raises(UserError, match="has 2 layers; no combination reads so few"):
        make_stores(model, few)
