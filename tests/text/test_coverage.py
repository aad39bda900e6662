"""Coverage: counted by hand."""

from bertie.text.coverage import cover, cover_texts
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
