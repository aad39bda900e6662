"""Files are found in order, each once; what bertie made is no text unless it is named."""

import os
from pathlib import Path

import pytest

from bertie.data.blocks import OWN_FOLDER, Problems
from bertie.data.files import find_files
from bertie.errors import UserError


def test_files_come_in_order_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", ".hidden", "a/.draft", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert found == ["a/z.txt", "b.txt"]
    assert find_files([tmp_path / ".hidden"]) == [tmp_path / ".hidden"], "if it is named"
    with pytest.raises(UserError, match="no file or folder"):
        find_files([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files in"):
        find_files([tmp_path / "empty"])


def test_patterns_and_no_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1.txt", "2.txt", "2.csv", "in/3.txt", "in/deep/4.txt", ".h.txt", "a[b].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def names(*patterns: str) -> list[str]:
        found = find_files([Path(pattern) for pattern in patterns])
        return [path.name for path in found]

    monkeypatch.chdir(tmp_path)
    assert names("?.txt") == ["1.txt", "2.txt"]
    assert names("**/*.txt") == ["1.txt", "2.txt", "a[b].txt", "3.txt", "4.txt"]
    assert names("a[b].txt") == ["a[b].txt"]
    assert names(str(tmp_path / "[12].*")) == ["1.txt", "2.csv", "2.txt"]
    assert names("in*") == ["3.txt", "4.txt"]
    assert names("2.txt", "*.txt", ".", "2.*")[0] == "2.txt"
    assert len(names("2.txt", "*.txt", ".", str(tmp_path / "2.*"))) == 8, "paths, not places"
    monkeypatch.chdir(tmp_path / "in")
    assert names("../1.*") == ["1.txt"]
    with pytest.raises(UserError, match=r"no file or folder \*\.pdf"):
        names("*.pdf")
    with pytest.raises(UserError, match=r"my\*\*x.txt is not a pattern"):
        names("my**x.txt")
    (tmp_path / ".data").mkdir()
    (tmp_path / ".data" / "5.txt").write_text("x")
    assert names(str(tmp_path / ".data" / "*")) == ["5.txt"], "what is named is not hidden"
    assert "5.txt" not in names(str(tmp_path / "**" / "*"))


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def names_below(folder: Path, problems: Problems | None = None) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in find_files([folder], problems)]


def test_links_to_folders_are_followed_and_none_is_read_twice(tmp_path: Path) -> None:
    text = tmp_path / "text"
    write(tmp_path, "text/b/1.txt", "elsewhere/2.txt", "elsewhere/deep/3.txt", ".hidden/4.txt")
    (text / "a").symlink_to(text / "b")  # comes first, but b is the folder's own name
    (text / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(text)
    (text / ".d").symlink_to(tmp_path / "elsewhere")
    assert names_below(text) == ["b/1.txt", "c/2.txt", "c/deep/3.txt"]
    (tmp_path / "named").symlink_to(text)
    assert len(find_files([tmp_path / "named"])) == 3


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.txt", "b/c.txt")

    scan = os.scandir

    def deny(path: str) -> object:
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(UserError, match=r"cannot read the folder .*/b: Permission denied"):
        find_files([tmp_path])


def test_what_bertie_made_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "store": ("manifest.json", "ids.bin", "held_out/manifest.json"),
        "s.draft": ("plan.json", "tokenizer/vocab.txt", "part-000000.ids"),
        "deep/run": ("run.json", "metrics.jsonl", "model/config.json"),
        "tokenizer": ("tokenizer_config.json", "vocab.txt"),
        "model": ("config.json", "model.safetensors", "vocab.txt"),
    }
    text = ("a.txt", "deep/b.txt", "notes/manifest.json", "notes/config.json", "z/vocab.txt")
    write(tmp_path, *text, *(f"{folder}/{name}" for folder in own for name in own[folder]))
    problems = Problems()
    assert names_below(tmp_path, problems) == sorted(text)
    assert problems.counts == {OWN_FOLDER: 5} and problems.num_skipped == 0
    assert set(problems.places[OWN_FOLDER]) <= {str(tmp_path / folder) for folder in own}
    for pattern in ("**/*", "*", str(tmp_path / "**" / "*")):
        problems = Problems()
        monkeypatch.chdir(tmp_path)
        found = find_files([Path(pattern)], problems)
        assert {path.resolve() for path in found} == {tmp_path / name for name in text}
        assert problems.counts == {OWN_FOLDER: 5}
    assert names_below(tmp_path / "tokenizer") == ["tokenizer_config.json", "vocab.txt"]
    assert find_files([tmp_path / "model" / "vocab.txt"], problems)
    with pytest.raises(UserError, match=r"no files in .* but what bertie made \(.*run\)"):
        (tmp_path / "deep" / "b.txt").unlink()
        find_files([tmp_path / "deep"])


def test_a_pipe_is_told(tmp_path: Path) -> None:

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"is a pipe or a device; write the text to a file"):
        find_files([tmp_path / "pipe"])
