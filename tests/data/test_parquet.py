"""A column of a Parquet file, whatever its type, in whatever row groups."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertie.data.blocks import NOT_UTF8, Problems
from bertie.data.corpus import CorpusConfig, plan_units, read_documents, read_unit
from bertie.data.formats import EMPTY
from bertie.errors import UserError

TEXTS = ["one", "zwei\nLinien", "三", "one", "five"]


def write(path: Path, column: Any, **options: Any) -> Path:
    pq.write_table(pa.table({"n": list(range(len(column))), "text": column}), path, **options)
    return path


KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


@pytest.mark.parametrize(
    "column",
    [*(pa.array(TEXTS).cast(kind) for kind in KINDS), pa.array(TEXTS).dictionary_encode()],
    ids=lambda column: str(column.type)[:10],
)
def test_every_type_of_text(tmp_path: Path, column: Any) -> None:
    assert list(read_documents(write(tmp_path / "a.parquet", column))) == TEXTS


@pytest.mark.parametrize("rows_a_group", [1, 2, 100])
@pytest.mark.parametrize("unit_bytes", [1, 150, 10**9])
def test_units_are_row_groups(tmp_path: Path, rows_a_group: int, unit_bytes: int) -> None:
    path = write(tmp_path / "a.parquet", pa.array(TEXTS * 9), row_group_size=rows_a_group)
    config = CorpusConfig(unit_bytes=unit_bytes)
    units = plan_units([path], config)
    steps: list[int] = []
    found = [d for unit in units for d in read_unit(unit, config, Problems(), steps.append)]
    assert found == TEXTS * 9
    assert sum(steps) == path.stat().st_size
    if unit_bytes == 1:
        assert len(units) == -(-45 // rows_a_group)


def test_no_text_is_counted_and_named(tmp_path: Path) -> None:
    data = pa.array([b"x", None, b" ", b"caf\xe9", b"end"])
    path = write(tmp_path / "a.parquet", data, row_group_size=2)
    problems = Problems()
    assert list(read_documents(path, problems=problems)) == ["x", "caf\ufffd", "end"]
    assert problems.counts == {EMPTY: 2, NOT_UTF8: 1}
    assert problems.places == {
        EMPTY: [f"{path}, row 2", f"{path}, row 3"],
        NOT_UTF8: [f"{path}, row 4"],
    }


def test_a_column_inside_another(tmp_path: Path) -> None:
    inside = [{"b": {"c": "x"}, "d": 1}, None, {"b": None, "d": 2}, {"b": {"c": "y"}, "d": 3}]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": inside, "a.d": ["exact"] * 4}), path)
    assert list(read_documents(path, CorpusConfig(field="a.b.c"))) == ["x", "y"]
    with pytest.raises(UserError, match=r"no column 'a.x'; there are: b, d"):
        list(read_documents(path, CorpusConfig(field="a.x")))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("body", "no column 'body'; there are: n, text.*--set corpus.field=NAME"),
        ("n", "'n' of .* holds int64, not text; there are: n, text"),
    ],
)
def test_another_column(tmp_path: Path, field: str, message: str) -> None:
    path = write(tmp_path / "a.parquet", pa.array(TEXTS))
    with pytest.raises(UserError, match=message):
        list(read_documents(path, CorpusConfig(field=field)))


def test_a_file_without_text_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.array([None, ""], pa.string()), row_group_size=1)
    for unit_bytes in (1, 10**9):
        config = CorpusConfig(unit_bytes=unit_bytes)
        with pytest.raises(UserError, match=r"2 empty text, first: .*row 1"):
            list(read_unit(plan_units([path], config)[0], config, Problems()))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(9999)]}), whole)
    path = tmp_path / "a.parquet"
    data = bytearray(whole.getvalue())
    for start, end in ((0, len(data) // 2), (len(data) // 2, len(data)), (0, 4)):
        path.write_bytes(data[start:end])
        with pytest.raises(UserError, match=r"cannot read .*is it complete"):
            list(read_documents(path))
    data[50:2000] = bytes(1950)  # the index at the end is whole
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"cannot read .*is it complete"):
        list(read_documents(path))


def test_parquet_rows_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    inside = [{"text": t, "lang": "y" if t == "b" else "x", "ok": t != "c"} for t in "abcd"]
    rows = {"source": ["news", "ads", None, "web"], "meta": inside, "deep": [{"a": {"b": 1}}] * 4}
    pq.write_table(pa.table(rows), path)

    def read(**without: tuple[str, ...]) -> tuple[list[str], Problems]:
        problems = Problems()
        names = {name.replace("__", "."): values for name, values in without.items()}
        config = CorpusConfig(field="meta.text", without=names)
        return list(read_documents(path, config, problems)), problems

    found, problems = read(source=("ads",))
    assert found == ["a", "c", "d"]
    assert problems.counts == {"left out as wished: source is 'ads'": 1}
    assert problems.num_skipped == 0
    assert read(meta__lang=("y",))[0] == ["a", "c", "d"]
    assert read(meta__ok=("false",), source=("web",))[0] == ["a", "b"]
    assert read(deep__a__b=("1",))[0] == []
    assert read(deep__a__b=("2",))[1].seen == {"deep.a.b": 4}
    for name in ("nowhere", "meta__x", "source__x", "deep__a__c"):
        with pytest.raises(UserError, match=r"no column .*See corpus.without"):
            read(**{name: ("x",)})
