"""What is given to `bertie serve`."""

from pathlib import Path

import pytest

from bertie.cli.serving import find_place
from bertie.embedded import FOLDER, VARIABLE
from bertie.serve.models import name_directories


def test_embedded_is_the_model_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    places = [find_place(one) for one in ("embedded", "x=embedded", "y=runs/embedded")]
    named = name_directories(places)
    assert named == {FOLDER.name: FOLDER, "x": FOLDER, "y": Path("runs/embedded")}


def test_a_directory_of_that_name_is_what_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("embedded", "x=embedded"):
        Path(name).mkdir()
        assert find_place(name) == name


def test_the_variable_names_another_that_ships(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert find_place("embedded") == str(tmp_path)
    assert find_place("x=embedded") == f"x={tmp_path}"
