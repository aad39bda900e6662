"""WordPiece: the pieces spell the word, or it is unknown."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.wordpiece import WordPiece
from tests.text.reference import SPECIALS


def test_the_mark_of_a_continuation_alone_is_no_empty_piece() -> None:
    """ "##" in a vocabulary is the word ##; as an empty continuation it would never end a word."""
    wordpiece = WordPiece(["[UNK]", "##", "a", "##b"], unk_token="[UNK]", max_word_chars=100)
    assert "" not in wordpiece.others
    assert [np.frombuffer(wordpiece.split(w), np.int32).tolist() for w in ("ab", "ac", "##")] == [
        [2, 3],
        [0],
        [1],
    ]


@given(st.text("abcdefgh", min_size=1, max_size=12))
@settings(max_examples=100, deadline=None, database=None)
def test_pieces_spell_the_word(word: str) -> None:
    pieces = [*SPECIALS, *"abcd", *(f"##{c}" for c in "abcdefg"), "abc", "##de", "##fg", "##cdefg"]
    ids, ends = WordPiece(pieces, unk_token="[UNK]", max_word_chars=100).cut(word)
    names = [pieces[int(np.frombuffer(id, np.int32)[0])].removeprefix("##") for id in ids]
    spellable = word[0] in "abcd" and "h" not in word
    assert "".join(names) == word if spellable else names == ["[UNK]"]
    assert ends[-1] == len(word)
