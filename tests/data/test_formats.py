"""Tables with every kind of quote, tidy or not; JSON that is nearly JSON."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.blocks import Block, Problems, Source, read_blocks
from bertie.data.formats import EMPTY, MAX_ROW_LINES, RAGGED, Wanted, read_json_lines, read_table
from bertie.errors import UserError

SOURCE = Source(Path("a.csv"))


def read(table: str, delimiter: str = ",", field: str = "text") -> tuple[list[str], Problems]:
    problems = Problems()
    blocks = read_blocks(iter([table.encode()]) if table else iter(()), problems, SOURCE)
    return list(read_table(blocks, delimiter, Wanted(field), problems, SOURCE)), problems


CELLS = st.text(st.sampled_from("ab ,;\t\"\n'中\0"), max_size=8)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=8)


def write(rows: list[tuple[str, str, str]], delimiter: str) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerows([("id", "text", "end"), *rows])
    return file.getvalue()


@given(ROWS, st.booleans())
@settings(max_examples=500, deadline=None, database=None)
def test_what_csv_writes_comes_back(rows: list[tuple[str, str, str]], is_crlf: bool) -> None:
    table = write(rows, ",")
    texts, problems = read(table.replace("\n", "\r\n") if is_crlf else table)
    assert texts == [row[1] for row in rows if row[1].strip()]
    assert problems.num_skipped == problems.counts.get(EMPTY, 0) == len(rows) - len(texts)


# Quotes may mean themselves here, and a line with all columns is a row: no tabs in the cells.
@given(ROWS)
@settings(max_examples=300, deadline=None, database=None)
def test_tables_with_tabs_may_be_quoted(rows: list[tuple[str, str, str]]) -> None:
    rows = [(a.replace("\t", " "), b.replace("\t", " "), c.replace("\t", " ")) for a, b, c in rows]
    texts, _ = read(write(rows, "\t"), "\t")
    assert texts == [row[1] for row in rows if row[1].strip()]


@pytest.mark.parametrize(
    ("lines", "texts", "counts"),
    [
        (["id\ttext", '1\t"Stop', '2\tGo"', "3\tAway"], ['"Stop', 'Go"', "Away"], {}),
        (
            ["id\ttext", '1\t"Stop," he said', '2\t"a" and "b"'],
            ['"Stop," he said', '"a" and "b"'],
            {},
        ),
        (["id\ttext", '1\t"two', 'lines"', "2\tone"], ["two\nlines", "one"], {}),
        (["id\ttext", '1\t"a tab\there"', '2\t"a ""word"""'], ["a tab\there", 'a "word"'], {}),
        (["id\ttext", "1\ta\tb", "2", "3\tc"], ["c"], {RAGGED: 2}),
        (['text\t"id"', "", " ", "a\t1"], ["a"], {}),
    ],
)
def test_tabs(lines: list[str], texts: list[str], counts: dict[str, int]) -> None:
    found, problems = read("\n".join(lines), "\t")
    assert (found, problems.counts) == (texts, counts)


@pytest.mark.parametrize(
    ("lines", "texts", "counts"),
    [
        (["id,text", '1,a 5" nail', '2,"x, y"'], ['a 5" nail', "x, y"], {}),
        (["id,text", '1,"never closed', "2,b", "3,c"], ['"never closed', "b", "c"], {}),
        (["id,text", '1,"never, closed', "2,b"], ["b"], {RAGGED: 1}),
        (["id,text", '1,"a', "", 'b"', "2,c"], ["a\n\nb", "c"], {}),
        (["id,text", "1", "2,b,", "3,c", "4,"], ["c"], {RAGGED: 2, EMPTY: 1}),
        ([' "id" , text ', "1,a"], ["a"], {}),
        (["text", "one", '"two', 'three"'], ["one", "two\nthree"], {}),
    ],
)
def test_commas(lines: list[str], texts: list[str], counts: dict[str, int]) -> None:
    for line_end in ("\n", "\r\n", "\r"):
        found, problems = read(line_end.join(lines))
        assert (found, problems.counts) == (texts, counts)


def test_ragged_rows_are_named() -> None:
    _, problems = read('id,text\n1,"two\nlines"\n2\n3,x\n4,5,6\n')
    assert problems.places == {RAGGED: ["a.csv, line 4", "a.csv, line 6"]}


def test_a_stray_quote_spoils_no_more_than_its_line() -> None:
    num_rows = 3 * MAX_ROW_LINES
    rows = [f"{n},{chr(34) if n == 5 else ''}text {n}" for n in range(num_rows)]
    texts, problems = read("\n".join(["id,text", *rows]))
    assert len(texts) == num_rows
    assert problems == Problems()


def test_an_empty_table_has_nothing() -> None:
    assert read("") == ([], Problems())
    assert read("\n \n") == ([], Problems())
    assert read("id,text\n") == ([], Problems())


def read_json(data: bytes) -> tuple[list[str], Problems]:
    problems = Problems()
    blocks = read_blocks(iter([data]), problems, SOURCE)
    return list(read_json_lines(blocks, Wanted("text"), problems, SOURCE)), problems


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (rb'{"text": "\u4e2d\uD83D\ude00"}', "中😀"),
        (rb'{"text": "half \uD83d, \ude00"}', "half \ufffd, \ufffd"),
        (b'{"text": "a raw \t tab and \0"}', "a raw \t tab and \0"),
        (b'\t {"text": "spaces"} \r', "spaces"),
        (b'{"x": NaN, "y": 1e999, "text": "numbers"}', "numbers"),
        (b'{"text": "first", "text": "last"}', "last"),
        ('{"text": "\u2028 is no line end"}'.encode(), "\u2028 is no line end"),
    ],
)
def test_json_in_all_its_forms(line: bytes, text: str) -> None:
    assert read_json(line) == ([text], Problems())


def test_rows_can_be_left_out_by_other_fields() -> None:
    wanted = Wanted("text", {"source": {"ads", "7"}, "tags": {"bad"}})
    rows = [
        {"text": "a", "source": "news"},
        {"text": "b", "source": "ads"},
        {"text": "c", "source": 7},
        {"text": "d", "tags": ["good", "bad"]},
        {"text": "e", "meta": {"source": "ads"}},
        {"text": " ", "source": "ads"},
    ]
    problems = Problems()
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    found = list(read_json_lines([Block(1, data)], wanted, problems, SOURCE))
    assert found == ["a", "e"]
    assert problems.counts == {
        "left out as wished: source is 'ads'": 1,
        "left out as wished: source is '7'": 1,
        "left out as wished: tags is 'bad'": 1,
        EMPTY: 1,
    }
    assert problems.num_skipped == 1  # what is not wanted is not missed
    inner = Wanted("text", {"meta.source": {"ads"}})
    assert "e" not in list(read_json_lines([Block(1, data)], inner, Problems(), SOURCE))


def test_rows_of_tables_can_be_left_out() -> None:
    problems = Problems()
    data = b"source,text\nnews,a\nads,b\n"
    wanted = Wanted("text", {"source": {"ads"}})
    assert list(read_table([Block(1, data)], ",", wanted, problems, SOURCE)) == ["a"]
    assert problems.counts == {"left out as wished: source is 'ads'": 1}
    for names in ({"sourc": {"ads"}}, {"source": {"ads"}, "nowhere": {"x"}}):
        with pytest.raises(
            UserError, match=r"no column '(sourc|nowhere)'; there are: source, text"
        ):
            list(read_table([Block(1, data)], ",", Wanted("text", names), problems, SOURCE))


def test_values_are_spelled_as_json_does_and_fields_that_came_are_noted() -> None:
    rows = [
        {"text": "a", "bad": True},
        {"text": "b", "bad": False, "n": 1.5},
        {"text": "c", "bad": None, "n": 3},
        {"text": "d", "bad": [False, True]},
        {"text": "e", "bad": "True"},
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for value, left in {"true": "bce", "null": "abde", "True": "abcd", "false": "ace"}.items():
        problems = Problems()
        wanted = Wanted("text", {"bad": {value}, "n": {"7"}, "nowhere": {"x"}})
        found = list(read_json_lines([Block(1, data)], wanted, problems, SOURCE))
        assert "".join(found) == left
        assert problems.seen == {"bad": 5, "n": 2}


def test_a_table_with_semicolons_is_told() -> None:
    with pytest.raises(UserError, match=r"parted by semicolons: a .csv has commas"):
        read("id;text\n1;x\n")
