"""Rows in a stream are the rows that the whole table has."""

import gzip
import json
import os
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.infer.rows import BEGINNING, STDIN, estimate_rows, open_rows
from bertie.tasks.classify import KNOWN
from bertie.tasks.tables import read_table
from bertie.tasks.task import Rejects

ROWS = [{"text": f'a "quoted", text {n}\tx', "label": f"l{n % 3}"} for n in range(2 * BEGINNING)]
ROWS[7]["text"] = "two\nlines"


def write(path: Path) -> Path:
    """The same rows in each format; tables with tabs have literal quotes and no tabs inside."""
    if path.suffix in (".parquet", ".pq"):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    if path.name.startswith("a.jsonl"):
        text = "\n\n".join(json.dumps(row) for row in ROWS)
    elif path.suffix == ".csv":
        cells = [[str(cell).replace('"', '""') for cell in row.values()] for row in ROWS]
        text = "text,label\n" + "".join(f'"{one}","{two}"\r\n' for one, two in cells)
    else:
        cells = [[str(cell).replace("\t", " ") for cell in row.values()] for row in ROWS]
        text = "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in cells if "\n" not in a)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.pq"])
def test_a_stream_has_the_rows_of_the_table(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    stream = open_rows(path, Rejects(), known=KNOWN)
    wanted = read_table(path, Rejects(), known=KNOWN)
    assert stream.table.names == wanted.names == ("text", "label")
    assert stream.table.rows == wanted.rows[: len(stream.table.rows)]
    rows = list(stream.rows)
    assert rows == wanted.rows and len(rows) >= len(ROWS) - 1
    estimate = estimate_rows(path)
    assert estimate is None if name.endswith(".gz") else estimate == pytest.approx(len(rows), 2)


def test_every_line_of_plain_text_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthr\xff\te\n\xe2\x80\xa8x")
    rejects = Rejects()
    stream = open_rows(tmp_path / "a.txt", rejects, known=KNOWN)
    assert [row.text("text") for row in stream.rows] == ["one", "", "thr\ufffd\te", "\u2028x"]
    assert rejects.problems.places == {"not UTF-8, U+FFFD instead": [f"{tmp_path}/a.txt, line 3"]}
    (tmp_path / "empty").write_bytes(b"")
    assert list(open_rows(tmp_path / "empty", rejects, known=KNOWN).rows) == []


def test_a_stream_is_read_while_it_comes(tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "{n}"}}\n' for n in range(100_000))
    (tmp_path / "a.jsonl").write_text(f"{lines}broken\n")
    rows = open_rows(tmp_path / "a.jsonl", Rejects(), known=KNOWN).rows
    assert next(rows).values == {"text": "0"}
    with pytest.raises(UserError, match="line 100001: not a JSON object"):
        list(rows)
    rejects = Rejects(skip_bad=True)
    assert len(list(open_rows(tmp_path / "a.jsonl", rejects, known=KNOWN).rows)) == 100_000
    assert rejects.problems.counts == {"not a JSON object": 1}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '[{"text": "a"}]', "is one list; make lines of it: jq"),
        ("a.csv", "text,text\na,b\n", "two columns of one name"),
        ("a.csv", "text,label\na\n", r"line 2: not as many columns .*found 1 and 2"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(open_rows(tmp_path / name, Rejects(), known=KNOWN).rows)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("text", "x\n"),
        ("jsonl", '{"text": "x"}\n'),
        ("csv", "text,label\nx,b\n"),
        ("tsv", "\ntext\tlabel\nx\tb\n"),
    ],
)
def test_rows_of_a_pipe_do_not_wait_for_more(
    format: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, into = os.pipe()
    with os.fdopen(out) as stdin, os.fdopen(into, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        pipe.write(text.encode())  # and no end: a read more would wait for ever
        stream = open_rows(STDIN, Rejects(), known=KNOWN, format=format)
        assert next(stream.rows).values["text"] == "x"


def test_a_closed_stdin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="stdin is closed"):
        list(open_rows(STDIN, Rejects(), known=KNOWN).rows)


def test_the_format_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("text,label\na,b\n")
    stream = open_rows(tmp_path / "data", Rejects(), known=KNOWN, format="csv")
    assert [dict(row.values) for row in stream.rows] == [{"text": "a", "label": "b"}]
    write(tmp_path / "a.parquet").rename(tmp_path / "packed")
    assert estimate_rows(tmp_path / "packed", "parquet") == len(ROWS)
    stream = open_rows(tmp_path / "packed", Rejects(), known=KNOWN, format="parquet")
    assert len(list(stream.rows)) == len(ROWS)
    with pytest.raises(UserError, match="packed is not text but a Parquet file"):
        open_rows(tmp_path / "packed", Rejects(), known=KNOWN, format="csv")
    with pytest.raises(UserError, match="no format 'xml'; there are: text, csv"):
        open_rows(tmp_path / "data", Rejects(), known=KNOWN, format="xml")
    with pytest.raises(UserError, match="no file"):
        open_rows(tmp_path / "none", Rejects(), known=KNOWN)
