"""Chinese words: jieba's answers, without its side effects."""

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.text.characters import CJK, within
from bertie.text.chinese import Segmenter

TEXTS = [
    "我们在公园里看见了一只从未见过的小鸟。",
    "研究生命的起源是一个难题，结婚的和尚未结婚的都来了。",
    "乒乓球拍卖完了，南京市长江大桥也修好了。",
    "小明硕士毕业于中国科学院计算所，后在日本京都大学深造。",
    "他来到了网易杭研大厦，杭研是新词。",
    "這是繁體字的句子，電腦與網際網路。",
    "魑魅魍魉的的的了了了龘龘靐齉",
    "公元前221年，秦始皇统一六国。",
]


@pytest.fixture(scope="session")
def segmenter() -> Segmenter:
    return Segmenter.load()


@pytest.fixture(scope="session")
def jieba() -> Iterator[object]:
    """jieba itself, without its cache file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    logging.getLogger("jieba").setLevel(logging.ERROR)
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def starts_of(words: list[str]) -> list[int]:
    lengths = [0, *map(len, words)]
    return [sum(lengths[: n + 1]) for n in range(len(words))]


def test_an_example(segmenter: Segmenter) -> None:
    text = "A我们在公园，\n好。"
    assert [text[a] for a in segmenter.starts(text)] == ["我", "在", "公", "好"]


# Few characters, so that known and new words come up; some that jieba has never seen.
CHARACTERS = (
    "".join(TEXTS) + "一不上个中为主义了京人国在大学家小工年时明是有来民法海生的社科第经老长鿕"
)


@given(st.text(st.sampled_from([c for c in CHARACTERS if "一" <= c <= "\u9fd5"]), min_size=1))
@settings(max_examples=500, deadline=None, database=None)
def test_words_are_those_of_jieba(segmenter: Segmenter, jieba: object, text: str) -> None:
    assert segmenter.starts(text) == starts_of(list(jieba.cut(text)))  # type: ignore[attr-defined]


@given(st.one_of(st.text(), st.text(st.sampled_from(CHARACTERS + "aZ9 ,\n。㐀𠀀豈かア"))))
@settings(max_examples=300, deadline=None, database=None)
def test_only_chinese_characters_begin_words(segmenter: Segmenter, text: str) -> None:
    starts = segmenter.starts(text)
    assert starts == sorted(set(starts)) == segmenter.starts(text)
    assert all(within(ord(text[place]), CJK) for place in starts)
    is_chinese = [within(ord(c), CJK) for c in text]
    firsts = {n for n, now in enumerate(is_chinese) if now and not (n and is_chinese[n - 1])}
    assert firsts <= set(starts), "the first of a run always begins a word"


def test_real_text_gives_the_words_of_jieba(
    segmenter: Segmenter, jieba: object, shared: Path, compared: dict[str, int]
) -> None:
    import re

    from bertie.data.corpus import read_documents

    documents = read_documents(shared / "corpus" / "zh" / "zh-0.jsonl.xz")
    text = "".join(next(documents) for _ in range(20))[:100_000]
    for run in re.findall("[\u4e00-\u9fd5]+", text):
        expected = starts_of(list(jieba.cut(run)))  # type: ignore[attr-defined]
        assert segmenter.starts(run) == expected, run
        compared["Chinese characters"] += len(run)


def test_nothing_is_written_anywhere(tmp_path: Path) -> None:
    code = (
        "from bertie.text.chinese import Segmenter\nprint(Segmenter.load().starts('我们在公园'))\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )
    assert (result.stdout, result.stderr) == ("[0, 2, 3]\n", "")
    assert not list(tmp_path.iterdir())


def test_without_jieba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r"pip install 'bertie\[chinese\]'"):
        Segmenter.load()
