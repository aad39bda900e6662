"""A draft is ours by the names in it; what is somebody else's is never removed."""

import json
from pathlib import Path

import pytest

from bertie.data.draft import FOLDERS, NAMES, check_ours, clear, take_up
from bertie.errors import UserError

PLAN = {"units": [["a.txt", 0, 5]], "settings": {"without": {"a": ("b",)}}}
PARTS = ["part-000000.ids", "part-000012.documents", ".part-000003.json.draft", "part-1000000.json"]


def fill(draft: Path, *names: str) -> None:
    for name in names:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text("x")


def test_all_that_is_ours_is_removed_and_the_folder_with_it(tmp_path: Path) -> None:
    draft = tmp_path / "s.draft"
    fill(draft, *NAMES, *PARTS, ".plan.json.draft", "store/held_out/.manifest.json.draft")
    check_ours(draft)
    clear(draft, "store")
    assert not (draft / "store").exists() and (draft / "tokenizer" / "vocab.txt").exists()
    clear(draft)
    assert not draft.exists()
    clear(draft)  # nothing is there


@pytest.mark.parametrize(
    "name",
    [
        "chapter1.txt",
        "part-000000.txt",
        "store/mine",
        "part-000000.ids/x",
        "a/plan.json",
        "ids.bin",
    ],
)
def test_anything_else_is_refused_and_stays(tmp_path: Path, name: str) -> None:
    draft = tmp_path / "s.draft"
    fill(draft, name, "part-000000.words")
    with pytest.raises(UserError, match=f"holds something else: {name}; move that away"):
        check_ours(draft)
    clear(draft)
    assert [path.name for path in draft.rglob("*") if path.is_file()] == [Path(name).name]


def test_what_a_link_points_at_stays(tmp_path: Path) -> None:
    fill(tmp_path / "mine", "vocab.txt")
    draft = tmp_path / "s.draft"
    draft.mkdir()
    (draft / "tokenizer").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="holds something else: tokenizer"):
        check_ours(draft)
    clear(draft)
    assert (tmp_path / "mine" / "vocab.txt").exists()


def test_a_file_in_the_place_of_the_draft_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.draft").write_text("x")
    with pytest.raises(UserError, match="is not a folder"):
        check_ours(tmp_path / "s.draft")


def test_a_draft_is_taken_up_by_the_same_plan_alone(tmp_path: Path) -> None:
    draft = tmp_path / "s.draft"
    fill(draft, "part-000000.ids")
    take_up(draft, PLAN)  # there was no plan: nothing says what the part is of
    assert [path.name for path in draft.iterdir()] == ["plan.json"]
    fill(draft, "part-000000.ids")
    take_up(draft, PLAN)
    assert (draft / "part-000000.ids").exists()
    with pytest.raises(UserError, match="its units differ; remove it"):
        take_up(draft, PLAN | {"units": []})


@pytest.mark.parametrize("content", ["", "{", "[]", "7", json.dumps(PLAN)[:-9]])
def test_a_damaged_plan_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UserError, match=r"plan.json is damaged; remove .* to begin anew|differ"):
        take_up(tmp_path, PLAN)


def test_folders_inside_others_come_first() -> None:
    for number, folder in enumerate(FOLDERS):
        assert not any(Path(folder) in Path(later).parents for later in FOLDERS[number + 1 :])
