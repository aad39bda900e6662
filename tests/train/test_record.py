"""What a folder remembers of its run, and which settings may change when the run goes on."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.train.distributed import World
from bertie.train.record import begin_record, check_same, find_commit, flatten, is_one_of

BEFORE = {"train": {"seed": 3, "keep": 1}, "test": ["a", "b"], "name": "x"}


def test_a_record_says_what_is_run_and_on_what(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.draft-7").write_text("{", encoding="utf-8")  # left by a kill
    begin_record(tmp_path / "run", BEFORE, World(), command=("bertie", "x y"), note="more")
    values = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert values["settings"] == BEFORE and values["note"] == "more" and values["gpu"] is None
    assert values["command"] == ["bertie", "x y"]
    assert {"started", "processes", "threads", "machine", "versions"} <= values.keys()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_says_its_commit_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package = tmp_path / "src" / "bertie"
    package.mkdir(parents=True)
    assert find_commit(tmp_path) is None  # no checkout
    (package / "code.py").write_text("1", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    git("tag", "v1")
    assert find_commit(tmp_path) == git("rev-parse", "HEAD")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(tmp_path / "another"))
        assert find_commit(tmp_path) is not None
    (package / "code.py").write_text("2", encoding="utf-8")
    assert find_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    inside = tmp_path / "vendor"  # of a package that lies in somebody's checkout
    (inside / "src" / "bertie").mkdir(parents=True)
    assert find_commit(inside) is None


def test_git_that_fails_names_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src" / "bertie").mkdir(parents=True)
    (tmp_path / ".git").write_text("gitdir: nowhere", encoding="utf-8")
    assert find_commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no git
    assert find_commit(tmp_path) is None


def test_the_same_settings_go_on_and_others_are_named() -> None:
    check_same(Path("run"), BEFORE, BEFORE, harmless=())
    changed = BEFORE | {"train": {"seed": 4, "keep": 2}, "test": ["c"]}
    with pytest.raises(UserError, match=r"run was trained with test.0 = a, the recipe says c"):
        check_same(Path("run"), BEFORE, changed, harmless=("train",))
    with pytest.raises(UserError, match=r"train.seed = 3, the recipe says 4; take the same"):
        check_same(Path("run"), BEFORE, changed, harmless=("test", "train.keep"))
    check_same(Path("run"), BEFORE, changed, harmless=("test", "train.keep", "train.seed"))


def test_a_setting_that_is_gone_or_new_is_a_change() -> None:
    for before, now in (({}, {"a": 1}), ({"a": 1}, {})):
        with pytest.raises(UserError, match="trained with a ="):
            check_same(Path("run"), before, now, harmless=())


@given(
    st.recursive(
        st.integers() | st.text(),
        lambda inner: st.dictionaries(st.text("ab"), inner) | st.lists(inner),
        max_leaves=8,
    )
)
def test_every_leaf_has_a_name(values: object) -> None:
    assert all(not isinstance(leaf, dict | list) for leaf in flatten({"top": values}).values())


def test_a_name_stands_for_all_below_it() -> None:
    assert is_one_of("data.test.0", ("data.test",)) and is_one_of("data.test", ("data.test",))
    assert not is_one_of("data.tests", ("data.test",)) and not is_one_of("data", ("data.test",))
