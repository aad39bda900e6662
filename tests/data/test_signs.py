"""What holds no text is refused by name, before anything is read."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bertie.data.corpus import CorpusConfig, plan_units
from bertie.data.signs import SIGNS
from bertie.errors import UserError


def make_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


def make_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", make_zip(), "a ZIP archive"),
        ("a.docx", make_zip(), "a document of an office program"),
        ("a.tar", make_tar(), "a tar archive; unpack it"),
        ("a.tar.gz", gzip.compress(make_tar(), mtime=0), "a tar archive; unpack it"),
        ("a.txt", gzip.compress(b"text", mtime=0), "packed with gzip; name it .gz"),
        ("a.jsonl", b"%PDF-1.7\n%", "a PDF file"),
        ("a.csv", bytes(range(256)) * 50 + bytes(2000), "bytes are zero"),
        ("a.txt", "Text without a mark.".encode("utf-16-le"), "iconv -f utf-16le"),
        *(("a.txt", sign + b"more", said) for sign, (said, _) in SIGNS.items()),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / "0.txt").write_text("text")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is not text.*{told}"):
        plan_units([tmp_path / "0.txt", tmp_path / name], CorpusConfig())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a few \0\0\0\0 zeros",
        ("text " * 9).encode("utf-16"),
        b"\x00" * 900 + b"long text " * 10_000,
        "PK is no archive, and GIF87 no image. \u4e2d".encode(),
        b"caf\xe9 \xff\xfe",
    ],
)
def test_text_with_oddities_is_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert len(plan_units([tmp_path / "a.txt"], CorpusConfig())) == bool(content)
