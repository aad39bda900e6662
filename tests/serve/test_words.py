"""The words of the page: the same in each language, and none that nobody reads."""

import re
from importlib.resources import files
from pathlib import Path

from bertie.serve.refusals import KINDS

PAGE = Path(str(files("bertie.serve") / "page"))
VERBS = {"fill", "classify", "tag", "answer", "choose", "similarity", "attention"}


def words_of(language: str) -> list[str]:
    written = (PAGE / "words.js").read_text("utf-8").partition("export const EXAMPLES")[0]
    block = re.search(rf"{language}: \{{(.*?)\n  \}},", written, re.DOTALL)
    assert block is not None
    return re.findall(r"(\w+): \"", block[1])


def test_each_language_has_the_same_words() -> None:
    assert words_of("en") == words_of("zh") and len(words_of("en")) > 40


def test_no_word_is_dead() -> None:
    names = ("page.js", "panels.js", "draw.js", "index.html")
    code = "".join((PAGE / name).read_text("utf-8") for name in names)
    statuses = {f"s{status}" for status in (0, *KINDS)}
    read = set(re.findall(r"(?<![./])\bwords(?:\(\))?\.(\w+)", code))
    read |= set(re.findall(r'data-word="(\w+)"', code))
    for chosen in re.findall(r"word: ([^,]+)", code):
        read |= set(re.findall(r'"(\w+)"', chosen))
    assert set(words_of("en")) - read - VERBS - statuses == set()
    assert read <= set(words_of("en")), "a word that nobody wrote"
