"""CMRC 2018's scores are those of its scorer."""

import json
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from nltk.tokenize import NLTKWordTokenizer

from bertie.metrics.chinese_answers import chinese_answer_scores, segments
from tests.metrics.plain_answers import (
    IGNORED,
    plain_chinese_exact,
    plain_segment_f1,
    plain_segments,
)

CHARACTERS = "中国国人年一龥龦㐀，。？“”《》…—–-:·'\"()[]<>.,;%$&!?1230 abstd neéÀ"


def treebank(text: str) -> list[str]:
    """Its words, with our marks for its quotes."""
    quotes = {"``": "“", "''": "”"}
    return [quotes.get(word, word) for word in NLTKWordTokenizer().tokenize(text)]


def an_answer(chance: random.Random) -> str:
    text = "".join(chance.choices(CHARACTERS, k=chance.randint(0, 12)))
    # Of commas in a row, theirs cuts off every second; marks between them are ignored.
    return re.sub(f",[{re.escape(IGNORED)},]*,", ",", text)


def test_answers_are_scored_as_the_scorer_does(compared: Counter[str]) -> None:
    chance = random.Random(1)
    for _ in range(5000):
        gold = [an_answer(chance) for _ in range(chance.randint(1, 3))]
        predicted = chance.choice([*gold, gold[0][1:], gold[0] + "，了", an_answer(chance)])
        scores = chinese_answer_scores({"q": gold}, {"q": predicted})
        expected = max(
            plain_segment_f1(plain_segments(g, treebank), plain_segments(predicted, treebank))
            for g in gold
        )
        assert scores["f1"] == pytest.approx(expected, abs=1e-12), (gold, predicted)
        assert scores["exact"] == max(plain_chinese_exact(g, predicted) for g in gold)
        compared["Chinese answers"] += 1


def test_real_answers_are_cut_as_the_scorer_cuts_them(
    shared: Path, tmp_path: Path, compared: Counter[str]
) -> None:
    subprocess.run([shared / "data" / "unpack", tmp_path, "CMRC2018"], check=True)
    path = tmp_path / "CMRC2018" / "squad-style-data" / "cmrc2018_dev.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    for paragraph in (p for article in articles for p in article["paragraphs"]):
        answers = [a["text"] for question in paragraph["qas"] for a in question["answers"]]
        for text in (paragraph["context"], *answers):
            assert segments(text) == plain_segments(text, treebank)
            compared["real Chinese texts"] += 1


def test_examples() -> None:
    assert segments("他用Windows 10,000次。") == ["他", "用", "windows", "10,000", "次"]
    assert segments("Tim's (U.S.) 50%.") == ["tim", "'s", "(", "u.s.", ")", "50", "%", "."]
    scores = chinese_answer_scores({"a": ["北京市"], "b": ["《红楼梦》"]}, {"a": "在北京"})
    assert scores == {"exact": 0.0, "f1": 1 / 3, "average": 1 / 6, "num_questions": 2}
    assert chinese_answer_scores({"b": ["《红楼梦》"]}, {"b": "红楼梦"})["exact"] == 1
    assert chinese_answer_scores({}, {})["f1"] == 0


def test_no_answer_is_right_where_there_is_none_and_counted_apart() -> None:
    gold: dict[str, list[str]] = {"a": ["北京"], "b": [], "c": [], "d": ["。"]}
    scores = chinese_answer_scores(gold, {"a": "北京市", "b": "", "c": "，", "d": ""})
    assert scores == {
        "exact": 0.5,  # of marks nothing is left: "" is as good
        "f1": pytest.approx((0.8 + 1) / 4),
        "average": pytest.approx((0.5 + 0.45) / 2),
        "num_questions": 4,
        "has_answer_exact": 0.5,
        "has_answer_f1": pytest.approx(0.4),
        "num_has_answer_questions": 2,
        "no_answer_exact": 0.5,
        "no_answer_f1": 0.5,
        "num_no_answer_questions": 2,
    }
    assert chinese_answer_scores({"b": []}, {})["exact"] == 0  # one not answered counts as wrong
