"""Reads the sorted tables of LevelDB, the form of a TensorFlow checkpoint's index.

file     blocks, then a footer of 48 bytes: where the metaindex block and the index block are
         (an offset and a size each, as varints), zeros, and the magic number
block    entries, the offsets of those with a whole key (uint32 each) and how many these are;
         behind it a byte for the compression and the masked CRC32C of all that
entry    varints: bytes of the key shared with the last one, bytes that are new, bytes of the
         value; then the new part of the key and the value
index    last key of a block -> its offset and size
"""

from collections.abc import Iterator

from bertie.checkpoint.crc32c import crc32c

FOOTER_BYTES = 48
MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
TRAILER_BYTES = 5
CRC_MASK = 0xA282EAD8
DAMAGED = "the file is damaged or another one, fetch it again"


class Refused(ValueError):
    """Why a table cannot be read and what to do; its reader adds the name of the file."""


def parse_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every entry in the data blocks."""
    footer = data[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or footer[-8:] != MAGIC:
        raise Refused(f"it ends in {footer[-8:].hex()}, an index in {MAGIC.hex()}; {DAMAGED}")
    _, _, at = _parse_handle(footer, 0)  # of the metaindex, which is empty in a checkpoint
    offset, size, _ = _parse_handle(footer, at)
    for _, handle in _parse_block(data, offset, size):
        offset, size, _ = _parse_handle(handle, 0)
        yield from _parse_block(data, offset, size)


def _parse_handle(data: bytes, at: int) -> tuple[int, int, int]:
    """(offset of a block, its size, where reading ended)"""
    offset, at = parse_varint(data, at)
    size, at = parse_varint(data, at)
    return offset, size, at


def _parse_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    entries = _check_block(data, offset, size)
    at, key = 0, b""
    while at < len(entries):
        num_shared, at = parse_varint(entries, at)
        num_new, at = parse_varint(entries, at)
        num_value, at = parse_varint(entries, at)
        value_at, end = at + num_new, at + num_new + num_value
        if num_shared > len(key) or end > len(entries):
            raise Refused(f"an entry of the block at byte {offset} is too long; {DAMAGED}")
        key = key[:num_shared] + entries[at:value_at]
        yield key, entries[value_at:end]
        at = end


def _check_block(data: bytes, offset: int, size: int) -> bytes:
    """The entries of the block at `offset`, once its checksum has been found right."""
    end = offset + size
    if end + TRAILER_BYTES > len(data):
        raise Refused(f"a block should end at byte {end}, the file at {len(data)}; {DAMAGED}")
    crc = int.from_bytes(data[end + 1 : end + TRAILER_BYTES], "little")
    if mask(crc32c(data[offset : end + 1])) != crc:
        raise Refused(f"the block at byte {offset} has a wrong checksum; {DAMAGED}")
    if data[end] != 0:
        kind = "Snappy" if data[end] == 1 else f"an unknown method ({data[end]})"
        raise Refused(
            f"it is compressed with {kind}, and only plain blocks can be read; "
            "save the checkpoint anew with TensorFlow's Saver, which does not compress"
        )
    num_restarts = int.from_bytes(data[end - 4 : end], "little")
    num_entry_bytes = size - 4 - 4 * num_restarts
    if num_entry_bytes < 0:
        raise Refused(f"the block at byte {offset} is too short; {DAMAGED}")
    return data[offset : offset + num_entry_bytes]


def parse_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ended): seven bits a byte, lowest first, the eighth says "more"."""
    number = 0
    for shift, octet in zip(range(0, 70, 7), data[at : at + 10], strict=False):
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7 + 1
    raise Refused(f"a number in it has no end; {DAMAGED}")


def mask(crc: int) -> int:
    """The checksum as it is stored, so that one over bytes with a checksum in them stays sound."""
    return ((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFF_FFFF
