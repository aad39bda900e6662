"""Coverage: counted by hand."""

import pytest

from bertie.text import coverage
from bertie.text.count import WordCounts
from bertie.text.coverage import cover, cover_batches, cover_texts
from bertie.text.files import TokenizerConfig
from tests.text.reference import SPECIALS

CONFIG = TokenizerConfig()


def test_coverage_by_hand() -> None:
    pieces = [*SPECIALS, "the", "c", "##a", "##t"]
    fit = cover({"the": 5, "cat": 2, "dog": 3}, pieces, CONFIG)
    assert (fit.num_words, fit.num_pieces, fit.num_whole, fit.num_unknown) == (10, 14, 5, 3)
    assert fit.pieces_per_word == 1.4
    assert fit.unknown_share == 0.3
    assert fit.most_unknown == (("dog", 3),)
    assert cover({}, pieces, CONFIG).pieces_per_word == 0


def test_coverage_counts_a_word_that_is_too_long_as_unknown() -> None:
    fit = cover_texts(["the " + "the" * 40], [*SPECIALS, "the", "##the"], CONFIG)
    assert (fit.num_words, fit.num_whole, fit.num_unknown) == (2, 1, 1)
    assert fit.most_unknown == (("the" * 40, 1),)


def test_rare_words_count_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unknown word comes once, and half of all words are unknown."""
    monkeypatch.setattr(coverage, "WordCounts", lambda: WordCounts(50))
    batches = [[f"the q{number} the 中{number}x"] for number in range(1000)]
    fit = cover_batches(batches, [([*SPECIALS, "the", "中"], CONFIG)])[0]
    assert (fit.num_words, fit.num_unknown, fit.num_whole) == (5000, 2000, 3000)
    whole = [text for batch in batches for text in batch]
    assert cover_texts(whole, [*SPECIALS, "the", "中"], CONFIG).num_unknown == 2000


def test_many_vocabularies_in_one_pass_are_each_as_alone() -> None:
    texts = ["The cat SAT", "dog the Dog", "ÄPFEL the"]
    cased = TokenizerConfig(lower_case=False)
    vocabularies = [
        ([*SPECIALS, "the", "c", "##a", "##t"], CONFIG),
        ([*SPECIALS, "The", "dog"], cased),
        ([*SPECIALS, "dog", "apfel"], CONFIG),
    ]
    together = cover_batches(([text] for text in texts), vocabularies)
    assert together == [cover_texts(texts, *vocabulary) for vocabulary in vocabularies]
    assert [fit.num_unknown for fit in together] == [4, 6, 5]
