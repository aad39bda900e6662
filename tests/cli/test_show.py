"""What is printed can be read again."""

import json
import sys
from io import BytesIO, TextIOWrapper

import pytest

from bertie.cli.show import print_json


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
