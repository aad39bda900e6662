"""The page of a look into a model: whole, harmless, every head once."""

import numpy as np

from bertie.report.inspection import FAINT, Guessed, find_pattern, make_page, shades, small_map
from tests.report.checker import check_page

PIECES = ["[CLS]", "<script>alert(1)</script>", "cat", "\ud800&\"'", "[SEP]"]


def make_weights(num_layers: int = 2, num_heads: int = 3, size: int = 5) -> np.ndarray:
    weights = np.random.default_rng(1).random((num_layers, num_heads, size, size)) ** 4
    return weights / weights.sum(-1, keepdims=True)


def test_the_page_is_whole_and_harmless() -> None:
    guesses = [Guessed("cat", [("dog", 0.25), ("<b>", 0.5), ("cat", 0.75)])]
    made = make_page("<i>x</i>\0", "a/model", PIECES, make_weights(), guesses)
    check_page(made)
    assert "<script" not in made and "<i>" not in made
    assert made.count("<figure id=") == 6 and 'href="#layer-2-head-3"' in made
    assert "✓ cat 75%" in made and "dog 25%" in made and "layer 2" in made


def test_the_page_says_what_was_masked() -> None:
    layers = [("dog", 0.25), ("cat", 0.5)]
    for piece, told in (("cat", "Each piece is masked in turn"), ("[MASK]", "Each mask of the")):
        made = make_page("x", "m", PIECES, make_weights(), [Guessed(piece, layers)])
        assert told in made
        assert ("masked in turn" in made) is ("✓ is right" in made) is (piece == "cat")


def test_without_guesses_there_is_no_table() -> None:
    assert "Guesses" not in make_page("x", "m", PIECES, make_weights(), [])


def test_a_single_pattern_is_named() -> None:
    pieces = ["[CLS]", "a", "b", "[SEP]"]
    back = np.eye(4, k=-1)
    back[0, 0] = 1
    assert find_pattern(pieces, back)[0] == "previous"
    assert find_pattern(pieces, np.eye(4)) == ("itself", 1.0)
    to_end = np.zeros((4, 4))
    to_end[:, -1] = 1
    assert find_pattern(pieces, to_end) == ("[SEP]", 1.0)


def test_every_weight_that_can_be_seen_is_a_cell() -> None:
    weights = make_weights(1, 1)[0, 0]
    assert shades(weights, 3).count("M") == int((weights >= FAINT).sum())
    assert small_map(np.zeros((2, 2))).count("<path") == 0
