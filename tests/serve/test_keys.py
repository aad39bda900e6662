"""Keys are read from a file, and compared without giving anything away."""

from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.serve.keys import Keys
from bertie.serve.refusals import Refused

LONG = "0123456789abcdef"


def test_comments_and_blank_lines_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(f"\n# {LONG}0\n  {LONG}1  \n{LONG}中\n", "utf-8")
    keys = Keys.read(path)
    first = keys.check({b"authorization": f"Bearer {LONG}1".encode()})
    second = keys.check({b"x-api-key": f"{LONG}中".encode()})
    assert first != second and len(first) == len(second) == 8
    for wrong in (f"# {LONG}0", f"{LONG}0", "", LONG):
        with pytest.raises(Refused) as refused:
            keys.check({b"authorization": f"Bearer {wrong}".encode()})
        assert refused.value.status == 401


@pytest.mark.parametrize("scheme", ["Basic", "Bearer", ""])
def test_a_header_without_a_key_is_refused(scheme: str) -> None:
    with pytest.raises(Refused, match="Authorization: Bearer KEY"):
        Keys([LONG]).check({b"authorization": scheme.encode()})


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no key"), ("# x", "no key"), (f"{LONG}\nshort", "line 2: a key of")],
)
def test_a_file_that_protects_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        Keys.read(path)
