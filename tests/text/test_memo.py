"""A memo is the function, remembered in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from bertie.text.memo import Memo


@given(st.lists(st.text("ab", max_size=6), max_size=60), st.integers(2, 8))
def test_a_memo_answers_as_the_function_and_stays_small(texts: list[str], capacity: int) -> None:
    memo = Memo(len, capacity=capacity, longest=4)
    for text in texts:
        assert memo[text] == len(text)
        assert len(memo) <= capacity
    assert all(len(text) <= 4 for text in memo)


def test_a_full_memo_keeps_its_older_half_and_asks_again_for_the_rest() -> None:
    asked: list[str] = []
    memo = Memo(lambda text: asked.append(text), capacity=4, longest=9)
    for text in ["a", "b", "c", "d", "e", "a", "d"]:
        assert memo[text] is None
    assert asked == ["a", "b", "c", "d", "e", "d"]
