"""Sorted tables: what was written is read, and damage is always noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.table import Refused, parse_table, parse_varint
from tests.checkpoint import tf_writer

ENTRIES = {b"": b"\x08\x01", b"a": b"", b"a/b": b"xyz", b"a/bc": b"\0" * 200, b"\xff": b"\x80"}


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_read_as_written(number: int) -> None:
    written = tf_writer.varint(number)
    assert parse_varint(b"\x80" + written + b"\x80", 1) == (number, 1 + len(written))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\x80" * 11])
def test_a_varint_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="no end"):
        parse_varint(data, 0)


@given(st.dictionaries(st.binary(max_size=9), st.binary(max_size=40)), st.integers(1, 7))
def test_entries_are_read_as_written_and_in_order(
    entries: dict[bytes, bytes], per_block: int
) -> None:
    written = tf_writer.table(entries, per_block=per_block)
    assert list(parse_table(written)) == sorted(entries.items())


@given(st.data())
def test_a_changed_byte_is_noticed_or_harmless(data: st.DataObject) -> None:
    written = bytearray(tf_writer.table(ENTRIES, per_block=2))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))
    try:
        read = dict(parse_table(bytes(written)))
    except Refused:
        return
    # Nothing lies in the metaindex and the zeros of the footer. A wrong way to the index can only
    # lead to the empty metaindex, and a checkpoint without its header is refused.
    assert read in (ENTRIES, {})


def test_a_table_cut_anywhere_is_refused() -> None:
    written = tf_writer.table(ENTRIES)
    for length in range(len(written)):
        with pytest.raises(Refused):
            dict(parse_table(written[:length]))


@pytest.mark.parametrize(("compression", "word"), [(1, "Snappy"), (4, r"unknown method \(4\)")])
def test_compressed_blocks_are_refused(compression: int, word: str) -> None:
    with pytest.raises(Refused, match=word):
        dict(parse_table(tf_writer.table(ENTRIES, compression=compression)))


def test_another_file_is_refused() -> None:
    with pytest.raises(Refused, match="it ends in 6b65726e656c2021, an index in 57fb808b247547db"):
        dict(parse_table(b"no" * 30 + b"kernel !"))


@given(st.binary(max_size=60))
def test_nonsense_with_a_right_checksum_is_refused_or_read(body: bytes) -> None:
    good = tf_writer.block({})
    body += b"\0"  # not compressed
    crc = tf_writer.mask(tf_writer.crc32c(body)).to_bytes(4, "little")
    handles = bytes([0, len(good) - 5]) + tf_writer.varint(len(good)) + bytes([len(body) - 1])
    written = good + body + crc + handles.ljust(40, b"\0") + tf_writer.MAGIC
    try:
        dict(parse_table(written))
    except Refused:
        return
