"""A list that comes in parts of any length has the values that it has as a whole."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.infer.json_lists import parse_items

LEAVES = st.none() | st.booleans() | st.text(max_size=5)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=3), LEAVES | st.lists(LEAVES), max_size=4))


@given(values=OBJECTS, size=st.integers(1, 9), indent=st.none() | st.integers(0, 2))
def test_the_values_are_those_of_the_whole(
    values: list[object], size: int, indent: int | None
) -> None:
    text = json.dumps(values, indent=indent)[1:]
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(parse_items(iter(parts), Path("x"))) == values


@pytest.mark.parametrize("text", ["", '{"a": 1}', '{"a": 1}, {"b', "{}, nothing]"])
def test_what_ends_too_early_or_is_none_is_said(text: str) -> None:
    with pytest.raises(UserError, match="x is not JSON, or ends too early; is it complete"):
        list(parse_items(iter(text), Path("x")))
