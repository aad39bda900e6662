"""The quickstart runs offline on this machine's own documentation."""

from pathlib import Path

import pytest

from bertie import quickstart
from bertie.errors import UserError
from bertie.text.tokenizer import Tokenizer


def test_the_quickstart_goes_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [(p, path) for p, path in quickstart.find_sources() if p in ("email", "json", "http")]
    monkeypatch.setattr(quickstart, "find_sources", lambda: sources)
    for _ in range(2):  # a second run starts afresh
        lines = list(quickstart.run_quickstart(tmp_path / "quickstart"))
    assert len(Tokenizer.load(tmp_path / "quickstart" / "vocab").pieces) == quickstart.SIZE
    assert any(line.startswith("$ bertie vocab") for line in lines)
    assert any("[CLS] return a new list" in line for line in lines)


def test_a_folder_with_work_of_others_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "vocab" / "model.bin"
    mine.parent.mkdir()
    mine.write_text("x")
    with pytest.raises(UserError, match="holds vocab/model"):
        list(quickstart.run_quickstart(tmp_path))
    assert mine.exists()
