"""A folder appears whole or not at all."""

from errno import ENOSPC
from pathlib import Path

import pytest
from safetensors import SafetensorError

from bertie.checkpoint.draft import draft_of


def fill(folder: Path, text: str) -> None:
    with draft_of(folder) as draft:
        (draft / text).write_text(text)


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with draft_of(target) as draft:
        (draft / "a").write_text("a")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    fill(tmp_path / "model", "old")
    fill(tmp_path / "model", "new")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    fill(tmp_path / "model", "old")
    with pytest.raises(RuntimeError, match="power"), draft_of(tmp_path / "model") as draft:
        (draft / "new").write_text("new")
        raise RuntimeError("power")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_an_error_that_says_where(tmp_path: Path) -> None:
    for said in (SafetensorError("I/O error: No space left"), OSError(ENOSPC, "No space left")):
        with pytest.raises(OSError, match=r"No space left") as error, draft_of(tmp_path / "model"):
            raise said
        assert str(tmp_path / "model") in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_take_its_place_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "model", "old")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".draft-" in self.name:
            raise OSError("disk")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk"):
        fill(tmp_path / "model", "new")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "real", "old")
    (tmp_path / "model").symlink_to(tmp_path / "real")
    fill(tmp_path / "model", "new")
    assert (tmp_path / "model").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]
