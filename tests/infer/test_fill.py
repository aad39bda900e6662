"""Masks are found wherever they stand, seen by one window each, and filled in place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.infer.fill import Guess, make_filled, put, read_masks
from bertie.text.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##s", "##", "."]
TOKENIZER = Tokenizer(PIECES)
CLS, SEP, MASK = (PIECES.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))


@given(
    words=st.lists(st.sampled_from(["a", "b", "[MASK]"]), min_size=1, max_size=40),
    max_length=st.integers(3, 12),
)
def test_windows_show_each_mask_once_with_all_the_context_there_is(
    words: list[str], max_length: int
) -> None:
    if "[MASK]" not in words:
        with pytest.raises(UserError, match=r"no \[MASK\] in"):
            read_masks(" ".join(words), TOKENIZER, max_length)
        return
    masked = read_masks(" ".join(words), TOKENIZER, max_length)
    ids = TOKENIZER.ids(" ".join(words))
    places = np.flatnonzero(ids == MASK).tolist()
    assert [masked.text[slice(*span)] for span in masked.spans] == ["[MASK]"] * len(places)
    seen: list[int] = []
    for window in masked.windows:
        assert len(window.ids) == min(max_length, len(ids) + 2)
        assert (window.ids[0], window.ids[-1]) == (CLS, SEP)
        assert (window.ids[window.rows] == MASK).all()
        room = len(window.ids) - 2
        for row in window.rows.tolist():
            begin = places[len(seen)] - (row - 1)
            assert ids[begin : begin + room].tolist() == window.ids[1:-1].tolist()
            left, right = row - 1, room - row
            is_middle = abs(left - right) <= 1
            assert is_middle or begin == 0 or begin + room == len(ids)
            seen.append(places[len(seen)])
    assert seen == places


def test_a_text_that_fits_is_read_once() -> None:
    assert len(read_masks("[MASK] a [MASK] b [MASK]", TOKENIZER, 7).windows) == 1
    assert len(read_masks("[MASK] a [MASK] b [MASK]", TOKENIZER, 6).windows) == 2


def test_the_error_shows_a_long_text_by_its_beginning() -> None:
    with pytest.raises(UserError, match=r"no \[MASK\] in 'a{57}\.\.\.'; write \[MASK\] where"):
        read_masks("a" * 1000, TOKENIZER, 9)


@pytest.mark.parametrize(
    ("text", "pieces", "filled"),
    [
        ("The * of it.", ["cat"], "The cat of it."),
        ("play  * !", ["##s"], "plays !"),
        ("*", ["##s"], "s"),
        ("a * * b", ["##x", "##y"], "axy b"),
        ("a*", ["##"], "a##"),
        ("中*国", ["的"], "中的国"),
    ],
)
def test_pieces_are_put_where_the_masks_were(text: str, pieces: list[str], filled: str) -> None:
    spans = [(place, place + 1) for place, mark in enumerate(text) if mark == "*"]
    assert put(text, spans, pieces) == filled


def test_each_mask_is_filled_on_its_own_and_the_best_are_put_together() -> None:
    masked = read_masks("A [MASK] B[MASK].", TOKENIZER, 9)
    made = make_filled(
        masked, [[Guess(6, 0.5), Guess(5, 0.25)], [Guess(7, 0.75), Guess(9, 0.1)]], TOKENIZER
    )
    assert made.best == "A b Bs."
    assert [[fill.text for fill in fills] for fills in made.masks] == [
        ["A b B[MASK].", "A a B[MASK]."],
        ["A [MASK] Bs.", "A [MASK] B.."],
    ]
    assert made.masks[1][0].piece == "##s" and made.masks[1][0].probability == 0.75
