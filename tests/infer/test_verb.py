"""One in, one out; many in, as many out, in order, while they come."""

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.infer import verb
from bertie.infer.verb import Verb, check_text, is_pair, pair_up

SHOUT = Verb(read=check_text, size=len, answer=lambda texts: [text.upper() for text in texts])


def test_one_many_and_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SHOUT.one("a") == "A"
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 2)
    taken = []

    def stream() -> Iterator[str]:
        for text in ("a", "bb", "", "c"):
            taken.append(text)
            yield text

    answers = SHOUT.each(stream())
    assert next(answers) == "A" and taken == ["a", "bb"]
    assert list(answers) == ["BB", "", "C"]
    assert list(SHOUT.chunks(["a", "bb", "", "c"])) == [["a", "bb"], ["", "c"]]
    assert list(SHOUT.each([])) == []


def test_the_first_portion_of_a_stream_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "FIRST_TOKENS", 2)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 8)
    assert [len(chunk) for chunk in SHOUT.chunks("a" * 31)] == [2, 4, 8, 8, 8, 1]


@given(
    lengths=st.lists(st.integers(1, 12), max_size=12), is_alone=st.lists(st.booleans(), max_size=12)
)
def test_documents_are_not_cut_unless_they_are_too_long(
    lengths: list[int], is_alone: list[bool]
) -> None:
    """Items are numbers of documents; -1 has none."""
    of_each = dict(enumerate(is_alone))
    items = [-1 if of_each.get(n) else n for n, length in enumerate(lengths) for _ in range(length)]
    reader: Verb[int, int] = Verb(
        read=lambda item: cast(int, item),
        size=lambda item: 1,
        answer=lambda some: some,
        document=lambda item: item,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "FIRST_TOKENS", 2)
        patch.setattr(verb, "AHEAD_TOKENS", 8)
        portions = list(reader.chunks(items))
    assert [item for portion in portions for item in portion] == items
    assert all(len(portion) <= 16 for portion in portions)
    for one, following in pairwise(portions):
        is_cut = one[-1] == following[0] != -1
        assert not is_cut or items.count(one[-1]) > 8


@pytest.mark.parametrize("items", [None, "text", b"text", 3])
def test_what_is_not_many_is_refused_at_once(items: object) -> None:
    with pytest.raises(UserError, match=f"wanted texts, or one; found {type(items).__name__}"):
        SHOUT.each(items)  # type: ignore[arg-type]


def test_a_single_text_goes_with_each_of_many() -> None:
    def pairs(first: object, second: object) -> list[tuple[object, object]]:
        return list(pair_up(first, second, what="texts"))

    assert pairs("a", iter("xy")) == [("a", "x"), ("a", "y")]
    assert pairs(["a", "b"], "x") == [("a", "x"), ("b", "x")]
    assert pairs(["a", "b"], ("x", "y")) == [("a", "x"), ("b", "y")]
    assert pairs("a", "x") == [("a", "x")]
    for wrong in (None, b"x", 3):
        with pytest.raises(UserError, match="wanted texts, each a text or many; found"):
            pairs("a", wrong)
    with pytest.raises(UserError, match="one side ends after 1"):
        pairs(["a", "b"], ["x"])


def test_a_pair_is_two_texts() -> None:
    assert is_pair(("a", "b")) and is_pair(["a", "b"])
    for many in ([("a", "b")], [("a", "b"), ("c", "d")], "ab", ("a",), ("a", "b", "c"), None):
        assert not is_pair(many)
