"""What is printed can be read again."""

import codecs
import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from bertie.cli.show import bar, plainly, print_json, read_lines
from bertie.errors import UserError


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "latin-1", "ascii", "gb18030", "cp1252"])
def test_json_is_json_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"text": "é 中 😀 \\ \udcff"}
    written = BytesIO()
    monkeypatch.setattr(
        sys, "stdout", TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    )
    print_json(value)
    line = written.getvalue().decode(encoding)
    assert json.loads(line) == value
    assert ("中" in line) is encoding.casefold().startswith("utf")


def test_bars_are_of_number_signs_where_the_terminal_has_no_blocks() -> None:
    codecs.register_error("plainly", plainly)
    assert f"{bar(0.5)}|{bar(0.22)}|".encode("ascii", "plainly") == b"##########|#### |"
    assert "4H² é\udcff".encode("ascii", "plainly") == b"4H\\xb2 \\xe9\\udcff"  # text is escaped
    assert "4H² █".encode("latin-1", "plainly") == b"4H\xb2 #"


def test_a_closed_stdin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="stdin is closed"):
        list(read_lines(Path("-")))
