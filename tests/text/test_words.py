"""Chunks to words: the fast way and the way with places agree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.files import TokenizerConfig
from bertie.text.words import FALSE_SPACES, Splitter, mark_false_spaces
from tests.text.reference import AWKWARD

CONFIGS = [TokenizerConfig(), TokenizerConfig(lower_case=False), TokenizerConfig(split_cjk=False)]


@given(st.one_of(st.text(), st.sampled_from(AWKWARD)))
@settings(max_examples=200, deadline=None, database=None)
def test_words_with_places_are_the_words(text: str) -> None:
    for splitter in map(Splitter, CONFIGS):
        for chunk in mark_false_spaces(text).split():
            placed = splitter.placed_words(chunk)
            assert [word for word, _ in placed] == splitter.words(chunk)
            for word, places in placed:
                assert len(places) == len(word)
                assert all(0 <= place < len(chunk) for place in places)
                assert sorted(places) == list(places)


@given(st.text())
def test_special_tokens_are_every_second_part_and_nothing_is_lost(text: str) -> None:
    splitter = Splitter(TokenizerConfig())
    parts = splitter.divide(f"a[MASK]{text}[SEP]")
    assert "".join(parts) == f"a[MASK]{text}[SEP]"
    assert set(parts[1::2]) <= set(TokenizerConfig().special_tokens)
    assert not any("[MASK]" in part for part in parts[::2])


def test_false_spaces_do_not_split() -> None:
    text = "a".join(FALSE_SPACES)
    assert len(text.split()) > 1
    assert len(mark_false_spaces(text).split()) == 1
    assert len(mark_false_spaces(text)) == len(text)
