"""Files are there whole or not at all; where none can be written, that is known before."""

import hashlib
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.text.disk import check_writable, hash_file, write_text


def test_a_file_is_written_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "é\r\n")
    assert path.read_bytes() == "é\r\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_bytes() == "é\r\n".encode()
    assert hash_file(path) == hashlib.sha256("é\r\n".encode()).hexdigest()


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "newer")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="/file is a file; choose another folder"):
        check_writable(tmp_path / "file" / "new")
