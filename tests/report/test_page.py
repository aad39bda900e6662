"""A page is well formed whatever the texts on it; a file is there whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.report.page import code, figure, heading, page, paragraph, table, write_whole
from bertie.report.plots import bar_chart, heat_map
from tests.report.checker import FORBIDDEN_SHOWN, HOSTILE, check_page


@given(st.text() | st.sampled_from(HOSTILE))
def test_a_text_is_only_ever_a_text(text: str) -> None:
    def blocks(words: str) -> str:
        cells = table(["a", words], [[words, "1"]], numbers=["a"], texts=[words])
        plots = [bar_chart([(words, 0.5)], title=words), heat_map([[3]], [words], title=words)]
        texts = [heading(words), paragraph(words), code(words)]
        return page(words, [*texts, cells, *map(figure, plots)])

    checker = check_page(blocks(text))
    assert checker.num_tags == check_page(blocks("x")).num_tags
    shown = FORBIDDEN_SHOWN.sub("\ufffd", text)
    assert "".join(checker.texts).count(shown) >= 5


def test_numbers_stand_to_the_right() -> None:
    made = table(["name", "score"], [["a", "1"], ["b", "2"]], numbers=["score"])
    assert made.count('<td class="number">') == 2 and made.count("<td>") == 2


def test_a_folder_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(UserError, match="is a folder; name a file to write"):
            write_whole(folder, "page")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "new" / "report.html", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
