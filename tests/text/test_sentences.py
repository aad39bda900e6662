"""Sentences: the hard list, and what holds for any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.sentences import split_sentences
from tests.text.sentence_cases import ENGLISH, ENGLISH_LATER, OTHER, OTHER_LATER, parse


def without_space(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("cases", "share"), [(ENGLISH + ENGLISH_LATER, 0.95), (OTHER + OTHER_LATER, 0.98)]
)
def test_the_hard_list(cases: str, share: float) -> None:
    wrong = [
        (text, found)
        for text, expected in parse(cases)
        if (found := split_sentences(text)) != expected
    ]
    assert len(wrong) <= (1 - share) * len(parse(cases)), wrong


def test_the_hard_list_is_long_and_written_well() -> None:
    assert len(parse(ENGLISH)) >= 80 and len(parse(OTHER)) >= 30
    for cases in (ENGLISH + ENGLISH_LATER, OTHER + OTHER_LATER):
        texts = [text for text, _ in parse(cases)]
        assert len(set(texts)) == len(texts)
        assert all(
            without_space(text) == without_space("".join(parts)) for text, parts in parse(cases)
        )


# Text that meets the rules: marks, closers, abbreviations, scripts, awkward spaces.
MARKS = ". ! ? … ... 。 ！ ？ ； ． । ؟ ) ” \" ' » 」 』 》 ( “ « 「 （ — , ， [1] § 3 3.14 1. IV"
WORDS = "Mr Dr e.g U.S Ph.D p.m No Fig I A b said He the iPhone Ölung и Он 他 说 走 と ア ก"
SPACES = "\n \t \u3000 \u00a0 \r\n \x0b \x1c \x85 \u2028 \0 \ufeff \ud800 😀"
PARTS = st.sampled_from([*MARKS.split(" "), *WORDS.split(" "), *SPACES.split(" "), " ", " "])
TEXTS = st.one_of(st.text(), st.lists(PARTS, max_size=60).map("".join))


@given(TEXTS)
@settings(max_examples=1000, deadline=None, database=None)
def test_nothing_is_lost_but_white_space(text: str) -> None:
    sentences = split_sentences(text)
    assert without_space("".join(sentences)) == without_space(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
    assert all(len(sentence.splitlines()) == 1 for sentence in sentences)
    assert sentences == split_sentences(text)


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=200, deadline=None, database=None)
def test_lines_know_nothing_of_each_other(lines: list[str]) -> None:
    apart = [sentence for line in lines for sentence in split_sentences(line)]
    assert split_sentences("\n".join(lines)) == apart


@pytest.mark.parametrize(
    "unit",
    [
        ".",
        ". ",
        "…",
        "。",
        "A. ",
        "a. ",
        "1. ",
        "哈…",
        "（；",
        "no end ",
        "-",
        '?"',
        "Mr. ",
        " ",
        "'",
    ],
)
def test_long_lines_take_no_more_than_their_length(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))  # quadratic time would run into the timeout
    assert without_space("".join(split_sentences(text))) == without_space(text)


def test_a_long_text_without_marks_stays_whole() -> None:
    text = "word " * 100_000 + "end"
    assert split_sentences(text) == [text]


def test_text_in_small_letters_has_sentences_too() -> None:
    text = "it was late . we met dr. who at st. ives , j. r. smith said . then we left ."
    assert len(split_sentences(text)) == 3
