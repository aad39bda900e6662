"""Files become documents, whatever they are packed in; what cannot be read is named."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from bertie.data.corpus import (
    CorpusConfig,
    find_files,
    is_held_out,
    read_batches,
    read_documents,
)
from bertie.errors import UserError

TEXTS = ["First line.\nSecond line.", "中文 text", "emoji 👍", "one"]


def write_all_forms(folder: Path) -> list[Path]:
    plain = "\n \n\n" + "\n\n".join(TEXTS) + "\n"
    lines = "".join(json.dumps({"text": text, "n": 1}) + "\n\n" for text in TEXTS)
    forms = {"a.txt": plain, "b.jsonl": lines, "c": plain, "d.ndjson": lines}
    written = []
    for name, text in forms.items():
        data = text.encode()
        packed = {"": data, ".gz": gzip.compress(data), ".xz": lzma.compress(data)}
        for suffix, content in packed.items():
            path = folder / f"{name}{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written


def test_every_form_gives_the_same_documents(tmp_path: Path) -> None:
    for path in write_all_forms(tmp_path):
        assert [text.rstrip("\n") for text in read_documents(path)] == TEXTS, path


@pytest.mark.parametrize("num_chars", [1, 30, 10**9])
def test_batches_hold_all_documents_and_all_bytes(tmp_path: Path, num_chars: int) -> None:
    files = write_all_forms(tmp_path)
    batches = list(read_batches(files, CorpusConfig(), num_chars=num_chars))
    documents = [text.rstrip("\n") for batch in batches for text in batch.documents]
    assert documents == TEXTS * len(files)
    assert sum(batch.num_bytes for batch in batches) == sum(path.stat().st_size for path in files)


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    assert list(read_documents(path, CorpusConfig(field="body"))) == ["x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"text": "x"}\n{"txt": "y"}',
            "line 2: no JSON object with the field 'text'.*corpus.field",
        ),
        ('{"text": "x"', "line 1: no JSON object"),
        ("[1]", "line 1"),
        ('{"text": 5}', "'text' is no text but 5"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=message):
        list(read_documents(path))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz"])
def test_a_truncated_archive_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    compress = gzip.compress if name.endswith("gz") else lzma.compress
    path.write_bytes(compress(b"text " * 10_000)[:-20])
    with pytest.raises(UserError, match=r"cannot read .*is it complete"):
        list(read_documents(path))
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot read"):
        list(read_documents(path))


def test_bytes_that_are_no_utf8_become_replacement_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9 x")
    assert list(read_documents(path)) == ["caf\ufffd x"]


def test_files_come_in_order_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", ".hidden", "a/.draft"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert found == ["a/z.txt", "b.txt"]
    with pytest.raises(UserError, match="no file or folder"):
        find_files([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files in"):
        find_files([tmp_path / "empty"])


def test_the_held_out_share_depends_on_the_text_alone() -> None:
    texts = [f"document {number}" for number in range(5000)]
    held = [text for text in texts if is_held_out(text, 10)]
    assert 400 < len(held) < 600
    assert held == [text for text in reversed(texts) if is_held_out(text, 10)][::-1]
    assert not any(is_held_out(text, 0) for text in texts)
    assert all(is_held_out(text, 100) for text in texts)
    assert isinstance(is_held_out("lone \ud800", 1), bool)
