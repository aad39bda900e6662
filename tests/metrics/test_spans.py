"""Spans are those of conlleval and seqeval, also of broken tags; tags and spans go both ways."""

import random
import warnings
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics as theirs
from seqeval.metrics.sequence_labeling import get_entities

from bertie.errors import UserError
from bertie.metrics.classes import ClassScore
from bertie.metrics.spans import (
    SCHEMES,
    Span,
    convert,
    guess_scheme,
    span_scores,
    spans_of,
    tags_of,
)

LABELS = ("PER", "LOC", "B-cell", "")


def broken_tags(chance: random.Random, letters: str) -> list[str]:
    """Any letter after any other."""
    pick = (chance.choice(letters) + "-" + chance.choice(LABELS[:3]) for _ in range(20))
    return [tag if chance.random() < 0.8 else "O" for tag in pick][: chance.randint(0, 20)]


def conlleval_spans(tags: list[str]) -> list[Span]:
    """conlleval's way: does a span end between two neighbours, does one start?"""
    spans, start = [], 0
    pairs = [("O", "")] + [(tag[0], tag[2:]) for tag in tags] + [("O", "")]
    for place, ((last, last_label), (letter, label)) in enumerate(pairwise(pairs)):
        ends = last in "ES" or (last in "BI" and letter in "BSO")
        ends = ends or (last != "O" and last_label != label)
        starts = letter in "BS" or (last in "ESO" and letter in "EI")
        starts = starts or (letter != "O" and last_label != label)
        if ends and last != "O":
            spans.append(Span(last_label, start, place))
        if starts:
            start = place
    return spans


@pytest.mark.parametrize(("scheme", "letters"), [("IOB1", "BI"), ("IOB2", "BI"), ("BIOES", "BIES")])
def test_broken_tags_are_read_as_others_read_them(
    scheme: str, letters: str, compared: Counter[str]
) -> None:
    chance = random.Random(scheme)
    for _ in range(3000):
        tags = broken_tags(chance, letters)
        ours = spans_of(tags, scheme)
        assert ours == conlleval_spans(tags)
        assert ours == [Span(label, start, end + 1) for label, start, end in get_entities(tags)]
        compared["tag sequences"] += 1


def test_scores_equal_seqevals(compared: Counter[str]) -> None:
    chance = random.Random(4)
    for _ in range(500):
        gold = [broken_tags(chance, "BIES") for _ in range(chance.randint(1, 5))]
        guess = [[t if chance.random() < 0.7 else "O" for t in tags] for tags in gold]
        ours = span_scores(
            [spans_of(tags, "BIOES") for tags in gold], [spans_of(tags, "BIOES") for tags in guess]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zero = {"zero_division": 0}
            assert ours.precision == pytest.approx(theirs.precision_score(gold, guess, **zero))
            assert ours.recall == pytest.approx(theirs.recall_score(gold, guess, **zero))
            assert ours.f1 == pytest.approx(theirs.f1_score(gold, guess, **zero))
            if not any(ours.by_label):
                continue
            report = theirs.classification_report(gold, guess, output_dict=True, **zero)
        for label, score in ours.by_label.items():
            row = report[label]
            assert (score.precision, score.recall, score.f1, score.support) == pytest.approx(
                (row["precision"], row["recall"], row["f1-score"], row["support"])
            )
        compared["span scores"] += 1


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans with and without gaps, up to the last word."""
    spans, place = [], 0
    for gap, length, label in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(LABELS)))
    ):
        spans.append(Span(label, place + gap, place + gap + length))
        place += gap + length
    return spans, place + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentence=sentences())
def test_spans_come_back_from_their_tags(scheme: str, sentence: tuple[list[Span], int]) -> None:
    spans, num_words = sentence
    assert spans_of(tags_of(reversed(spans), num_words, scheme), scheme) == spans


@pytest.mark.parametrize("other", SCHEMES)
@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentence=sentences())
def test_tags_come_back_from_another_scheme(
    scheme: str, other: str, sentence: tuple[list[Span], int]
) -> None:
    tags = tags_of(*sentence, scheme)
    assert convert(convert(tags, scheme, other), other, scheme) == tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_is_guessed(scheme: str) -> None:
    long, touching = [Span("PER", 0, 3), Span("LOC", 4, 5)], [Span("A", 1, 2), Span("A", 2, 5)]
    sequences = [tags_of(long, 6, scheme), tags_of(touching, 5, scheme), [], ["O"]]
    assert guess_scheme(sequences) == ("BIOES" if scheme == "IOBES" else scheme)


def test_guesses_where_little_tells() -> None:
    assert guess_scheme([["O"], []]) == "IOB2"
    assert guess_scheme([["O", "I-PER"]]) == "IOB1"
    assert guess_scheme([["B-PER", "I-PER", "O", "I-LOC"]]) == "IOB2"  # with a fault


def test_the_schemes_by_example() -> None:
    spans = [Span("ORG", 0, 1), Span("PER", 1, 4), Span("PER", 4, 6)]
    assert [" ".join(tags_of(spans, 7, scheme)) for scheme in SCHEMES] == [
        "I-ORG I-PER I-PER I-PER B-PER I-PER O",
        "B-ORG B-PER I-PER I-PER B-PER I-PER O",
        "S-ORG B-PER I-PER E-PER B-PER E-PER O",
        "S-ORG B-PER I-PER E-PER B-PER E-PER O",
        "S-ORG B-PER M-PER E-PER B-PER E-PER O",
        "U-ORG B-PER I-PER L-PER B-PER L-PER O",
    ]


@pytest.mark.parametrize(
    "spans",
    [[Span("A", 0, 2), Span("A", 1, 3)], [Span("A", 2, 2)], [Span("A", 3, 6)], [Span("A", -1, 1)]],
)
def test_impossible_spans_are_refused(spans: list[Span]) -> None:
    with pytest.raises(UserError, match="one after another"):
        tags_of(spans, 5, "IOB2")


def test_strange_tags_and_schemes_are_named() -> None:
    with pytest.raises(UserError, match="'NOUN' is not of IOB2"):
        spans_of(["O", "NOUN"], "IOB2")
    with pytest.raises(UserError, match="'E-PER' is not of IOB1"):
        spans_of(["E-PER"], "IOB1")
    with pytest.raises(UserError, match="no tag scheme 'IOB3'; there are: IOB1"):
        tags_of([], 3, "IOB3")
    with pytest.raises(UserError, match="1 sentences and 2 predictions"):
        span_scores([[]], [[], []])


def test_a_label_never_predicted_and_one_never_gold() -> None:
    scores = span_scores([[Span("A", 0, 1)]], [[Span("B", 0, 1)]])
    assert scores.by_label == {"A": ClassScore(0, 0, 0, 1), "B": ClassScore(0, 0, 0, 0)}
    assert span_scores([], []).f1 == 0
