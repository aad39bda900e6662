"""Bytes become whole lines of text wherever they are cut."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.blocks import NOT_UTF8, Problems, Source, cut_at_lines, decode_block, read_blocks

SOURCE = Source(Path("a.txt"))
CHUNKS = st.lists(
    st.one_of(st.binary(min_size=1), st.sampled_from([b"\n", b"a\nb", b"\xe4\xb8", b"\xad"])),
    max_size=20,
)


def read_text(chunks: list[bytes], source: Source = SOURCE) -> tuple[str, Problems]:
    problems = Problems()
    blocks = list(read_blocks(iter(chunks), problems, source))
    return "".join(decode_block(block, problems, source) for block in blocks), problems


@given(CHUNKS)
@settings(max_examples=300, deadline=None, database=None)
def test_blocks_are_whole_lines_and_all_of_them(chunks: list[bytes]) -> None:
    blocks = list(cut_at_lines(chunks))
    whole = b"".join(chunks)
    assert b"".join(blocks) == whole + (b"" if whole.endswith(b"\n") or not whole else b"\n")
    assert all(block.endswith(b"\n") for block in blocks)


@given(CHUNKS, st.integers(0, 9))
@settings(max_examples=300, deadline=None, database=None)
def test_a_long_line_is_cut_where_nothing_is_torn(chunks: list[bytes], longest: int) -> None:
    blocks = list(cut_at_lines(chunks, longest))
    whole = b"".join(chunks)
    assert b"".join(blocks) == whole + (b"" if whole.endswith(b"\n") or not whole else b"\n")
    for block, following in pairwise(blocks):
        assert block
        if not block.endswith(b"\n"):
            assert not following.decode(errors="replace")[0].isspace()
    assert "".join(block.decode(errors="replace") for block in blocks) == b"".join(blocks).decode(
        errors="replace"
    )


@given(CHUNKS)
@settings(max_examples=300, deadline=None, database=None)
def test_text_does_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    text, problems = read_text(chunks)
    expected, expected_problems = read_text([whole] if whole else [])
    assert (text, problems.counts) == (expected, expected_problems.counts)


@given(CHUNKS)
@settings(max_examples=100, deadline=None, database=None)
def test_lines_are_numbered(chunks: list[bytes]) -> None:
    number = 1
    for block in read_blocks(iter(chunks), Problems(), Source(Path("a"), 1)):
        assert block.number == number
        number += block.data.count(b"\n")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_marks_tell_the_encoding(encoding: str) -> None:
    text = "Ünïcödé 中文 👍\nsecond\n"
    data = ("\ufeff" * encoding.endswith("e") + text).encode(encoding)
    for size in (1, 2, 3, 1000):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert read_text(chunks) == (text, Problems())


def test_a_byte_order_mark_inside_a_file_is_text() -> None:
    assert read_text(["\ufeffx".encode()], Source(Path("a"), 5))[0] == "\ufeffx\n"


def test_damaged_utf16_is_counted() -> None:
    text, problems = read_text([b"\xff\xfea\0\0\xd8b\0c"])  # half a pair, half a character
    assert text == "a\ufffdb\ufffd\n"
    assert problems.counts == {NOT_UTF8: 2}
    assert problems.places == {NOT_UTF8: ["a.txt (UTF-16)"] * 2}


def test_bytes_that_are_no_utf8_become_replacement_characters_and_are_counted() -> None:
    text, problems = read_text([b"ok \xef\xbf\xbd\n", b"caf\xe9 \xff\n\nx\xf0\x9f"])
    assert text == "ok \ufffd\ncaf\ufffd \ufffd\n\nx\ufffd\n"
    assert problems.counts == {NOT_UTF8: 3}, "the first was in the file"
    assert problems.places == {NOT_UTF8: ["a.txt, line 2", "a.txt, line 4"]}
    assert problems.num_skipped == 0
