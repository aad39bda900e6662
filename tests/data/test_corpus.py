"""Any pile of text becomes documents, each once, whatever it is packed in or cut into."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertie.data import blocks, corpus, formats
from bertie.data.blocks import NOT_UTF8, Problems
from bertie.data.corpus import (
    CorpusConfig,
    Unit,
    document_hash,
    is_held_out,
    plan_units,
    read_batches,
    read_documents,
    read_unit,
    source_hash,
)
from bertie.data.files import find_files
from bertie.data.formats import EMPTY, NOT_JSON
from bertie.errors import UserError

TEXTS = ["First line.\nSecond line.", "中文 text", 'emoji 👍, "quotes"', "one", "\ta\tb\0"]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def make_table(texts: list[str], delimiter: str, line_end: str = "\n") -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=line_end)
    writer.writerows([["id", "text", "end"], *([n, text, ""] for n, text in enumerate(texts))])
    return file.getvalue()


def make_parquet(texts: list[str], rows_a_group: int = 2) -> bytes:
    table = pyarrow.table({"n": range(len(texts)), "text": texts})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, row_group_size=rows_a_group)
    return file.getvalue()


def write_all_forms(folder: Path) -> list[Path]:
    plain = "\n \n\n" + "\n\u3000\n\n".join(TEXTS) + "\n"
    lines = "".join(json.dumps({"text": text, "n": 1}) + "\n\n" for text in TEXTS)
    forms: dict[str, str | bytes] = {
        "a.txt": plain,
        "b.jsonl": lines,
        "c": plain,
        "d.ndjson": lines,
        "e.csv": make_table(TEXTS, ","),
        "f.tsv": make_table(TEXTS, "\t"),
        "g.parquet": make_parquet(TEXTS),
        "h.TXT": "\ufeff" + plain.replace("\n", "\r\n"),
        "i.jsonl": "\ufeff" + lines.replace("\n", "\r\n"),
        "j.csv": "\ufeff" + make_table(TEXTS, ",", "\r\n"),
        "k.txt": plain.encode("utf-16"),
        "l.jsonl": lines.encode("utf-16"),
        "m.csv": ("\ufeff" + make_table(TEXTS, ",")).encode("utf-16-be"),
    }
    written = []
    for name, content in forms.items():
        data = content.encode() if isinstance(content, str) else content
        for suffix, pack in PACK.items():
            path = folder / f"{name}{suffix}"
            path.write_bytes(pack(data))
            written.append(path)
    return written


def test_every_form_gives_the_same_documents(tmp_path: Path) -> None:
    problems = Problems()
    for path in write_all_forms(tmp_path):
        assert list(read_documents(path, problems=problems)) == TEXTS, path
    assert problems == Problems()


@pytest.mark.parametrize("num_chars", [1, 30, 10**9])
@pytest.mark.parametrize("unit_bytes", [1, 50, 10**9])
def test_batches_hold_all_documents_and_all_bytes(
    tmp_path: Path, num_chars: int, unit_bytes: int
) -> None:
    files = write_all_forms(tmp_path)
    config = CorpusConfig(unit_bytes=unit_bytes)
    batches = list(read_batches(files, config, num_chars=num_chars))
    assert [text for batch in batches for text in batch.documents] == TEXTS * len(files)
    assert all(batch.num_bytes >= 0 for batch in batches)
    assert sum(batch.num_bytes for batch in batches) == sum(path.stat().st_size for path in files)


def test_plain_text_may_be_one_document_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\nA title\r\n\r\n  First.\n\n\nSecond.\n")
    config = CorpusConfig(document="file", unit_bytes=1)
    assert plan_units([path], config) == [Unit(path, 0, path.stat().st_size)]
    assert list(read_documents(path, config)) == ["A title\n\n  First.\n\n\nSecond."]
    path.write_bytes(b" \n \n")
    assert list(read_documents(path, config)) == []


# Units.

PIECES = st.sampled_from(
    [
        *(
            b"\n",
            b"\n",
            b"\n\n",
            b"\r\n",
            b"\r",
            b" ",
            b"\t",
            b"\x0b",
            b"\0",
            b"a",
            b"bc d",
            b"x\ny",
        ),
        *("中", "é", "\u3000", "\u00a0", "\u2028", "\x85", "\x1c", "😀", "\ufeff", "\ufffd"),
        *(b"\xff", b"\xe4\xb8", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3"),
        *(
            '{"text": "one"}',
            '{"text": "\\ud83d\\ude00 \\ud800"}',
            '{"text": "\xe4\n"}',
            "{",
            "[1]",
        ),
        *('{"text": 5}', '{"text": " "}', '{"no": 1}', '{"text": "a\0\tb"} ', ' {"text": "z"}\n'),
    ]
).map(lambda piece: piece if isinstance(piece, bytes) else piece.encode())
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.lists(PIECES, max_size=40).map(b"".join),
    st.lists(PIECES, max_size=40).map(b"\n".join),
    st.text(max_size=100).map(lambda text: text.encode("utf-16", "surrogatepass")),
)


def read_all(
    units: list[Unit], config: CorpusConfig
) -> tuple[list[str] | str, dict[str, int] | None, int]:
    """Documents or the error, counts of problems, bytes."""
    problems, steps = Problems(), [0]
    try:
        documents = [d for unit in units for d in read_unit(unit, config, problems, steps.append)]
    except UserError as error:
        return str(error).split(":")[0], None, 0
    return documents, problems.counts, sum(steps)


@given(CONTENTS, st.sampled_from([".txt", ".jsonl", ".csv"]), st.integers(1, 60))
@example(b"\n\n{", ".jsonl", 1)  # nothing at all in the first unit, nothing good in the others
@example(b'{\n{\n{"text": "x"}', ".jsonl", 1)  # nothing good in the first unit only
@example(b"a\n \n\nb", ".txt", 2)
@settings(max_examples=1500, deadline=None, database=None)
def test_the_units_give_what_the_file_gives(content: bytes, suffix: str, unit_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content)
        config = CorpusConfig(unit_bytes=unit_bytes)
        with patch.object(corpus, "check_is_text"):  # any bytes
            units = plan_units([path], config)
        bounds = [0, *(unit.end for unit in units)]
        assert [unit.start for unit in units] == bounds[:-1], "they touch"
        assert bounds[-1] == len(content), "and cover the file"
        assert all(unit.start < unit.end for unit in units)
        whole = read_all([Unit(path, 0, len(content))], config)
        assert read_all(units, config) == whole
        if isinstance(whole[0], list):
            assert whole[2] == len(content)
            assert all(d and not d.isspace() and d.encode() for d in whole[0])
            assert whole[0] == list(read_documents(path, config))


@given(CONTENTS.filter(lambda content: content[:2] not in (b"\xff\xfe", b"\xfe\xff")))
@settings(max_examples=500, deadline=None, database=None)
def test_plain_text_is_what_stands_between_blank_lines(content: bytes) -> None:
    text = content.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    expected: list[list[str]] = [[]]
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.strip():
            expected[-1].append(line)
        elif expected[-1]:
            expected.append([])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(content)
        problems = Problems()
        found = list(read_documents(path, problems=problems))
    assert found == ["\n".join(lines) for lines in expected if lines]
    replaced = text.count("\ufffd") - content.count("\ufffd".encode())
    assert problems.counts == ({NOT_UTF8: replaced} if replaced else {})


def test_units_are_about_as_large_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x" * 85}) + "\n" + '{"text": "y"}\n' * 10_000)
    units = plan_units([path], CorpusConfig(unit_bytes=10_000))
    sizes = [unit.end - unit.start for unit in units]
    assert all(10_000 <= size < 10_020 for size in sizes[:-1])
    parquet = tmp_path / "a.parquet"
    parquet.write_bytes(make_parquet([str(n) * 100 for n in range(100)], rows_a_group=10))
    assert len(plan_units([parquet], CorpusConfig(unit_bytes=1))) > 5
    assert len(plan_units([parquet], CorpusConfig())) == 1
    for packed in (".gz", ".csv"):
        other = path.with_suffix(packed)
        other.write_bytes(PACK[packed.removesuffix(".csv")](b"anything\n" * 99))
        assert len(plan_units([other], CorpusConfig(unit_bytes=1))) == 1


def test_an_empty_file_has_no_units(tmp_path: Path) -> None:
    for name in ("a.txt", "a.jsonl", "a.csv"):
        (tmp_path / name).touch()
    assert plan_units(find_files([tmp_path]), CorpusConfig()) == []
    assert list(read_batches(find_files([tmp_path]), CorpusConfig())) == []


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.txt.gz"])
def test_one_very_long_line(tmp_path: Path, name: str) -> None:
    text = "word, " * 9_000_000  # 54 MB
    kinds = {"a.jsonl": json.dumps({"text": text}), "a.csv": f'text\n"{text}"\n'}
    content = kinds.get(name, text).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    config = CorpusConfig(unit_bytes=1_000_000)
    found = [d for batch in read_batches([path], config) for d in batch.documents]
    assert "".join(found) == text
    assert all(d.strip()[-5:] == "word," for d in found), "cut at a space"


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    texts = [f"{n} " * 200 for n in range(20_000)]  # 23 MB
    path = tmp_path / f"a{suffix}"
    content = {
        ".txt": lambda: "\n\n".join(texts).encode(),
        ".jsonl": lambda: "".join(json.dumps({"text": text}) + "\n" for text in texts).encode(),
        ".csv": lambda: make_table(texts, ",").encode(),
        ".parquet": lambda: make_parquet(texts, rows_a_group=1000),
    }[suffix]()
    path.write_bytes(content)
    tracemalloc.start()
    count = sum(1 for _ in read_documents(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 10e6


# What is broken.


def write_lines(path: Path, *lines: str | bytes) -> Path:
    data = [line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"\n".join(data))
    return path


def test_broken_lines_are_counted_and_the_first_named(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        *('{"text": "x"}', '{"txt": "y"}', "{", '{"text": 5}', "", '{"text": null}', "[1]", '"x"'),
        *('{"text": "y"} {"text": "z"}', '{"text": ""}', '{"text": "é"}', b'{"text": "\xe9\xe9"}'),
        *("[" * 100_000, '{"text": ' + "9" * 5000 + "}", '{"text": "end"}'),
    )
    problems = Problems()
    assert list(read_documents(path, problems=problems)) == ["x", "é", "\ufffd\ufffd", "end"]
    assert problems.counts == {
        "no field 'text'": 3,
        NOT_JSON: 4,
        "no text in the field 'text'": 2,
        EMPTY: 1,
        NOT_UTF8: 2,
    }
    assert problems.num_skipped == 10
    assert problems.places["no field 'text'"] == [f"{path}, line {n}" for n in (2, 7, 8)]
    assert problems.places[NOT_JSON][:2] == [f"{path}, line 3", f"{path}, line 9"]
    assert problems.places[NOT_UTF8] == [f"{path}, line 12"]


def test_a_place_in_a_later_unit_is_told_from_its_start(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", '{"text": "x"}', '{"text": "y"}', "{")
    problems = Problems()
    units = plan_units([path], CorpusConfig(unit_bytes=14))
    assert [d for unit in units for d in read_unit(unit, CorpusConfig(), problems)] == ["x", "y"]
    assert problems.places == {NOT_JSON: [f"{path}, line 1 after byte 28"]}


def test_another_field_also_inside_another(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        *('{"body": "x", "a": {"b": {"c": "deep"}}, "a.b": "exact"}', '{"a": {"b": "inside"}}'),
    )
    assert list(read_documents(path, CorpusConfig(field="body"))) == ["x"]
    assert list(read_documents(path, CorpusConfig(field="a.b"))) == ["exact", "inside"]
    assert list(read_documents(path, CorpusConfig(field="a.b.c"))) == ["deep"]


@pytest.mark.parametrize("unit_bytes", [1, 10**9])
@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        (
            "a.jsonl",
            ['{"body": "x", "id": 1}', "", '{"body": "y"}', "{"],
            r"no line .*a.jsonl has text in the field 'text': 2 no field 'text', first: .*line 1, "
            r"1 not JSON.* The fields are: body, id. .*--set corpus.field=NAME",
        ),
        ("a.jsonl", ["", "", "plain"], "1 not JSON, .* fields are: unknown"),
        ("a.jsonl", ['{"text": [5]}'], "1 no text in the field 'text'.*fields are: text"),
        ("a.csv", ["id,body", "1,x"], "no column 'text'; there are: id, body.*corpus.field=NAME"),
        ("a.tsv", ["id\ttext", "1", "2"], "2 not as many columns"),
    ],
)
def test_a_file_of_which_nothing_can_be_read_is_an_error(
    tmp_path: Path, name: str, lines: list[str], message: str, unit_bytes: int
) -> None:
    path = write_lines(tmp_path / name, *lines)
    with pytest.raises(UserError, match=message):
        list(read_batches([path], CorpusConfig(unit_bytes=unit_bytes)))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_truncated_archive_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    whole = PACK[suffix](bytes(range(32, 127)) * 1000)
    for content in (whole[:-20], whole[: len(whole) // 2], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot read .*is it complete"):
            list(read_documents(path))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_archives_may_be_put_together(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(PACK[suffix](part) for part in (b"o", b"ne\n", b"", b"\ntwo")))
    assert list(read_documents(path)) == ["one", "two"]


@pytest.mark.parametrize(("suffix", "module"), [(".txt.zst", "zstandard"), (".parquet", "pyarrow")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[".zst"](b"x") if suffix == ".txt.zst" else make_parquet(TEXTS))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"pip install 'bertie\[(zstd|parquet)\]'"):
        list(read_batches([path], CorpusConfig()))


def test_problems_add_up(tmp_path: Path) -> None:
    one, two = Problems(), Problems()
    for number in range(5):
        one.add("a", str, number)
        two.add("a", str, number + 5)
        two.add(NOT_UTF8, str, number, count=7)
    one.merge(two)
    assert one.counts == {"a": 10, NOT_UTF8: 35}
    assert one.places == {"a": ["0", "1", "2"], NOT_UTF8: ["0", "1", "2"]}
    assert one.num_skipped == 10


# Files.


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*a.txt: No such file"):
        plan_units([tmp_path / "a.txt"], CorpusConfig())


def test_a_hash_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"x" * 3_000_000)
    (tmp_path / "c").write_bytes(b"x" * 2_999_999 + b"y")
    one, two, three = (source_hash(tmp_path / name) for name in "abc")
    assert one == two != three
    assert len(one) == 32


@pytest.mark.parametrize(
    "settings", [{"unit_bytes": 0}, {"held_out_percent": 101}, {"held_out_percent": -1}]
)
def test_settings_are_checked(settings: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        CorpusConfig(**settings)  # type: ignore[arg-type]


def test_the_held_out_share_depends_on_the_text_alone() -> None:
    texts = [f"document {number}" for number in range(5000)]
    held = [text for text in texts if is_held_out(document_hash(text), 10)]
    assert 400 < len(held) < 600
    assert held == [text for text in reversed(texts) if is_held_out(document_hash(text), 10)][::-1]
    assert not any(is_held_out(document_hash(text), 0) for text in texts)
    assert all(is_held_out(document_hash(text), 100) for text in texts)
    assert isinstance(is_held_out(document_hash("lone \ud800"), 1), bool)


@pytest.mark.parametrize(
    "text", ["a b\nc d\n" * 60, "a b " * 120, "x" * 500, "ab\n\n" + "cd\n" * 200]
)
@pytest.mark.parametrize("document", ["block", "file"])
def test_a_very_long_document_is_cut_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, document: Literal["block", "file"]
) -> None:
    for module in (corpus, formats):
        monkeypatch.setattr(module, "MAX_CHARS", 100)
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": text}))
    for name in ("a.txt", "b.jsonl"):
        pieces = list(read_documents(tmp_path / name, CorpusConfig(document=document)))
        assert all(len(piece) <= 100 for piece in pieces)
        assert "".join("".join(pieces).split()) == "".join(text.split())


@given(
    st.lists(
        st.sampled_from(["a", "bc ", "中" * 9, "\n", "\n\n", " ", "d" * 40, "  "]), max_size=60
    ),
    st.sampled_from([".txt", ".jsonl"]),
    st.sampled_from(["block", "file"]),
    st.integers(1, 60),
)
@settings(max_examples=500, deadline=None, database=None)
def test_where_a_long_document_is_cut_depends_on_it_alone(
    parts: list[str], suffix: str, document: Literal["block", "file"], unit_bytes: int
) -> None:
    text = "".join(parts)
    content = json.dumps({"text": f"x{text}"}) + "\n" if suffix == ".jsonl" else text
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(corpus, "MAX_CHARS", 25),
        patch.object(formats, "MAX_CHARS", 25),
    ):
        path, packed = Path(folder) / f"a{suffix}", Path(folder) / f"b{suffix}.gz"
        path.write_text(content * 2, "utf-8")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        config = CorpusConfig(document=document, unit_bytes=unit_bytes)
        expected = list(read_documents(path, config))
        assert all(0 < len(d) <= 25 and not d.isspace() for d in expected)
        for chunk, long in ((1, 10), (7, 1), (30, 20), (1000, 10)):
            with (
                patch.object(blocks, "CHUNK", chunk),
                patch.object(corpus, "CHUNK", chunk),
                patch.object(corpus, "LONG_LINE", long),
            ):
                assert list(read_documents(path, config)) == expected
                assert list(read_documents(packed, config)) == expected
                units = plan_units([path], config)
                found = [d for unit in units for d in read_unit(unit, config, Problems())]
                assert found == expected


@pytest.mark.parametrize("words", ["some words ", "中文。没有空格", "x"])
@pytest.mark.parametrize("document", ["block", "file"])
def test_a_very_long_line_does_not_fill_the_memory(
    tmp_path: Path, words: str, document: Literal["block", "file"]
) -> None:
    path = tmp_path / "a.txt"
    size = 60_000_000
    path.write_text(words * (size // len(words.encode())), "utf-8")
    config = CorpusConfig(document=document)
    tracemalloc.start()
    units = plan_units([path], config)
    num_chars = sum(len(d) for unit in units for d in read_unit(unit, config, Problems()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_chars == len(words) * (size // len(words.encode()))
    assert peak < size


def test_a_long_file_without_blank_lines_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a line of some words that goes on\n" * 400_000)
    lengths = [len(document) for document in read_documents(path)]
    assert max(lengths) <= formats.MAX_CHARS < sum(lengths)
