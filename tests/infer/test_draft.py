"""One run at a time writes an output, and none writes over what is there."""

from errno import ENOSPC
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.infer.draft import finish, locked


def test_an_output_appears_whole(tmp_path: Path) -> None:
    draft, out = tmp_path / "a" / "draft", tmp_path / "a" / "out"
    with locked(draft, out) as file:
        file.write(b"some")
        assert not out.exists()
        finish(file, draft, out)
    assert out.read_bytes() == b"some" and not draft.exists()


def test_a_draft_is_one_runs_at_a_time_and_stays(tmp_path: Path) -> None:
    draft, out = tmp_path / "draft", tmp_path / "out"
    with locked(draft, out) as file:
        file.write(b"some")
        with pytest.raises(UserError, match=r"another run is writing .*out"), locked(draft, out):
            pass
    with locked(draft, out) as file:
        assert file.read() == b"some"


def test_a_full_disk_is_an_error_that_says_where(tmp_path: Path) -> None:
    draft, out = tmp_path / ".a.draft", tmp_path / "a"
    with pytest.raises(OSError, match=r"No space left.*a'"), locked(draft, out):
        raise OSError(ENOSPC, "No space left")


def test_a_draft_that_was_renamed_meanwhile_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ended between our opening and our lock: the file is the output by now."""
    draft, out = tmp_path / "draft", tmp_path / "out"

    def lock(file: object) -> bool:
        draft.replace(out)
        return True

    monkeypatch.setattr("bertie.infer.draft.try_lock", lock)
    with pytest.raises(UserError, match="another run is writing"), locked(draft, out):
        pass


def test_an_output_that_came_meanwhile_stays(tmp_path: Path) -> None:
    draft, out = tmp_path / "draft", tmp_path / "out"
    with locked(draft, out) as file:
        out.write_text("another command's")
        with pytest.raises(UserError, match="out exists"):
            finish(file, draft, out)
    assert out.read_text() == "another command's" and draft.exists()
