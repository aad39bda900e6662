"""features, finetune on them, evaluate, table7: from the shell, one after the other."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.commands import bertie
from tests.tuned import make_model, write_tags

FAST = ("train.device=cpu", "train.budget=2 epochs", "head.hidden_size=5", "train.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    make_model(folder, num_layers=4)
    write_tags(folder / "a.conll", count=20)
    write_tags(folder / "b.conll", count=6)
    return folder


def settings(*values: str) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def test_from_a_file_to_an_evaluated_head(folder: Path) -> None:
    for name in "ab":
        result = bertie(
            *("features", "model", f"{name}.conll", "--task", "tag"),
            *("--out", f"store-{name}", "--layers", "0,-4,-3,-2,-1"),
            cwd=folder,
        )
        assert result.returncode == 0, result.stderr
    assert "store-b: 6 examples, 42 tokens, 5 layers of 24;" in result.stdout
    assert np.load(folder / "store-b" / "layer-04.npy", mmap_mode="r").shape == (42, 24)
    result = bertie(
        *("finetune", "features", "--train", "store-a", "--dev", "store-b", "--out", "run"),
        *settings(*FAST),
        cwd=folder,
    )
    assert result.returncode == 0 and "run/model; run/report.html" in result.stdout, result.stderr
    result = bertie("evaluate", "run/model", "--data", "store-b", "--out", "answers", cwd=folder)
    assert result.returncode == 0 and "store-b, 6 examples" in result.stdout, result.stderr
    assert len((folder / "answers" / "store-b.jsonl").read_text().splitlines()) == 6


def test_the_table_in_one_command(folder: Path) -> None:
    arguments = ("--train", "a.conll", "--dev", "b.conll", "--test", "b.conll", "--seeds", "1")
    result = bertie(
        *("table7", "model", *arguments, "--out", "t"),
        *settings(*FAST, "task.max_length=40", "head.kind=linear"),
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    assert "Concatenation of last four hidden" in result.stdout and "96.1" in result.stdout
    command = json.loads((folder / "t" / "table.json").read_text())["command"]
    assert command.startswith("bertie table7 model --train a.conll --dev b.conll")
    assert (folder / "t" / "table.html").is_file() and "t/table.html" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "9"), "no layer 9: the model has 0 (embeddings) to 4"),
        (("--set", "optim.peak=1"), "only task.* can be set; found 'optim.peak=1'"),
        (("--set", "task.size=1"), "no setting task.size"),
        (("--task", "choice"), "for the tasks classify and tag"),
    ],
)
def test_errors_are_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    given = ("features", "model", "a.conll", "--task", "tag", "--out", "s", *arguments)
    result = bertie(*given, cwd=folder)
    assert result.returncode == 2 and not (folder / "s").exists()
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and message in lines[0]
