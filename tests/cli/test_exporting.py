"""The verbs export and inspect, as they are typed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertie.cli import app
from bertie.errors import UserError
from tests.infer.models import make_directory
from tests.report.checker import check_page


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_export_says_how_near_it_is(tmp_path: Path) -> None:
    made = make_directory(tmp_path, ("token",))
    told = run("export", made, "--to", "onnx", "--dtype", "int8", "--out", tmp_path / "out")
    assert "largest difference from the engine in int8 on 30 random texts" in told
    assert "the engine's int8" in told and "2 times that is allowed" in told
    assert (tmp_path / "out" / "model.onnx").is_file()
    with pytest.raises(UserError, match="is there already"):
        run("export", made, "--to", "hf", "--out", tmp_path / "out")


@pytest.mark.parametrize("heads", [(), ("masked_lm",)])
def test_inspect_writes_a_page(heads: tuple[str, ...], tmp_path: Path) -> None:
    made, out = make_directory(tmp_path, heads), tmp_path / "new" / "page.html"
    assert "2 layers of 3 heads" in run("inspect", made, "Paris is the capital.", "--out", out)
    page = out.read_text(encoding="utf-8")
    check_page(page)
    assert ("Guesses after each layer" in page) is bool(heads)
