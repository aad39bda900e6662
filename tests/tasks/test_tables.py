"""Tables: every row knows its place, quotes are read as they were written."""

import csv
import gzip
import io
import json
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tables import read_table
from bertie.tasks.tag import Tag
from bertie.tasks.task import AnyTask, Rejects

CELLS = st.text(st.sampled_from("ab\"',;\t\n 中🙂\u2028\x85"), max_size=6).map(lambda x: f"x{x}x")
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5)


def read(path: Path) -> list[tuple[str, ...]]:
    table = read_table(path, Rejects(), known={"text"})
    assert table.names == ("text", "other") and table.has_header
    return [tuple(map(row.text, table.names)) for row in table.rows]


@given(rows=ROWS)
@settings(max_examples=60)
def test_what_csv_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "a.csv"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("text", "other"), *rows])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    assert read(path) == rows


@given(rows=ROWS)
@settings(max_examples=60)
def test_literal_tables_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    plain = [tuple(c.replace("\t", " ").replace("\n", " ") for c in row) for row in rows]
    path = tmp_path_factory.mktemp("t") / "a.tsv.gz"
    lines = ["text\tother", *("\t".join(row) for row in plain)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read(path) == plain


def test_lines_are_counted_from_one_over_quoted_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,other\n"a\nb",c\n\nd,e\n', encoding="utf-8")
    table = read_table(path, Rejects(), known=())
    assert [row.place.rpartition(" ")[2] for row in table.rows] == ["2", "5"]


def test_a_stray_quote_swallows_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,other\n"a,b\nc,d\ne,f\n', encoding="utf-8")
    assert read(path) == [('"a', "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"text\n\xff\n", r"a\.csv, line 2: not UTF-8"),
        ("a.xlsx", b"", "of an unknown kind"),
        ("a.json", b"[{", "is not JSON"),
        ("a.jsonl", b'{"text": 1}\n[3]\n', "line 2: not a JSON object"),
        ("none.csv", None, "no file"),
        ("", None, "is a folder; name a file in it"),
        ("none.conll", None, "no file"),
        ("none.parquet", None, "no file"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, data: bytes | None, message: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / name, Rejects(), known=())


HALF = "a\\ud83d"  # as JSON escapes half of a character


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Classify(), f'{{"text": "{HALF}", "label": ["{HALF}"]}}'),
        (Tag(), f'{{"tokens": ["{HALF}"], "tags": ["{HALF}"]}}'),
        (Tag(), f'[{{"text": "{HALF}", "entities": []}}]'),
        (Choice(), f'{{"context": "{HALF}", "options": ["{HALF}", "b"], "label": 0}}'),
        (Span(), f'{{"question": "{HALF}", "context": "{HALF}", "answers": "{HALF}"}}'),
        (
            Span(),
            f'{{"data": [{{"paragraphs": [{{"context": "{HALF}", "qas": [{{"id": "{HALF}",'
            f'"question": "{HALF}", "answers": [{{"text": "{HALF}"}}]}}]}}]}}]}}',
        ),
        (
            Span(),
            f'[{{"context_text": "{HALF}", "qas": [{{"query_id": "{HALF}", "query_text": "q",'
            f'"answers": ["{HALF}"]}}]}}]',
        ),
    ],
)
def test_half_a_character_becomes_a_mark_in_all_files(
    task: AnyTask, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    (example,) = task.read(path).examples
    shown = repr(example)
    assert "a\ufffd" in shown and "\\ud83d" not in shown
    json.dumps(asdict(example), ensure_ascii=False).encode()  # as the page and the answers want it


def test_parquet_may_hold_dates_decimals_and_bytes(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "text": pa.array(["né".encode(), b"\xff"]),
        "label": pa.array([Decimal("1.50"), Decimal("2.00")]),
        "id": pa.array([date(2020, 1, 2), date(2020, 1, 3)]),
        "days": pa.array([[date(2020, 1, 2)], [None]]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = read_table(tmp_path / "a.parquet", Rejects(), known=()).rows
    found = [[row.text(name) for name in columns] for row in rows]
    assert found == [
        ["né", "1.50", "2020-01-02", '["2020-01-02"]'],
        ["\ufffd", "2.00", "2020-01-03", "[null]"],
    ]


def test_a_damaged_parquet_file_is_named_in_one_line(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"a{n}" for n in range(999)]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 400 + whole[404:])
    with pytest.raises(UserError, match=r"cannot read .*a\.parquet: .*is it complete\?") as caught:
        read_table(path, Rejects(), known=())
    assert "\n" not in str(caught.value)
