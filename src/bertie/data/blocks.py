"""Bytes of a file, packed or not, to blocks of whole lines of text; what is broken is counted.

A line is decoded alike wherever the blocks are cut, so a file may be read from any of its lines on.
"""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bertie.errors import UserError

CHUNK = 1 << 20
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MARKS = (codecs.BOM_UTF8, *UTF16)
LONG_LINE = 1 << 22  # bytes; a longer line of plain text is read in parts
NEAR_END = 256  # bytes
# First bytes in UTF-8 of which no white space has one; what follows them decodes as it did.
CHARACTER = re.compile(rb"[!-~\xc3-\xe0\xe4-\xf4]")
MAX_PLACES = 3  # remembered of each kind of problem

NOT_UTF8 = "not UTF-8, U+FFFD instead"
LEFT_OUT = "left out as wished"  # and then why
OWN_FOLDER = "folder that bertie made, left out; name it to read it"
UNSEEN = "field of corpus.without that no line or row has"


class Source(NamedTuple):
    """What is being read, for messages; lines are counted from `start`."""

    path: Path
    start: int = 0  # in bytes

    def place(self, number: int) -> str:
        after = f" after byte {self.start}" if self.start else ""
        return f"{self.path}, line {number}{after}"


@dataclass(slots=True)
class Problems:
    """What could not be read: how much of each kind, and the first few places."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # lines with a field of corpus.without

    @property
    def num_skipped(self) -> int:
        """Lines and rows that gave no document, though one was wanted."""
        told = (NOT_UTF8, LEFT_OUT, OWN_FOLDER, UNSEEN)
        wanted = (what for what in self.counts if not what.startswith(told))
        return sum(self.counts[what] for what in wanted)

    def add(self, what: str, place: Callable[[int], str], number: int, *, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count
        places = self.places.setdefault(what, [])
        if len(places) < MAX_PLACES:
            places.append(place(number))

    def merge(self, other: "Problems") -> None:
        """Adds what came after."""
        for what, count in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + count
            places = self.places.setdefault(what, [])
            places += other.places[what][: MAX_PLACES - len(places)]
        for name, count in other.seen.items():
            self.seen[name] = self.seen.get(name, 0) + count


# A file -> chunks: some bytes, at least one.


def unpack_gzip(raw: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=raw) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def unpack_bz2(raw: BinaryIO) -> Iterator[bytes]:
    with bz2.BZ2File(raw) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def unpack_xz(raw: BinaryIO) -> Iterator[bytes]:
    with lzma.LZMAFile(raw) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def unpack_zstd(raw: BinaryIO) -> Iterator[bytes]:
    """Any number of frames, one after the other."""
    try:
        import zstandard
    except ImportError:
        raise UserError(".zst files need a package: pip install 'bertie[zstd]'") from None
    # `zstd --long=31`, as large corpora are packed, needs the largest window.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    try:
        while data := raw.read(CHUNK >> 4):
            while data:
                frame = frame or decompressor.decompressobj()
                if unpacked := frame.decompress(data):
                    yield unpacked
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from None
    if frame is not None:
        raise EOFError("it ends inside a frame")


PACKED: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    ".gz": unpack_gzip,
    ".bz2": unpack_bz2,
    ".xz": unpack_xz,
    ".zst": unpack_zstd,
}


def read_chunks(
    path: Path, start: int, end: int, on_bytes: Callable[[int], object]
) -> Iterator[bytes]:
    """The bytes from `start` to `end` of a plain file, or all that a packed one unpacks to.

    Calls `on_bytes` with the number of bytes taken from the file since the last call.
    """
    try:
        with path.open("rb") as raw:
            raw.seek(start)
            unpack = PACKED.get(path.suffix.lower())
            chunks = unpack(raw) if unpack else read_range(raw, end)
            told = start
            for chunk in chunks:
                now = min(raw.tell(), end)
                on_bytes(now - told)
                told = now
                yield chunk
            on_bytes(end - told)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}; is it complete?") from None


def read_range(raw: BinaryIO, end: int) -> Iterator[bytes]:
    while chunk := raw.read(min(CHUNK, end - raw.tell())):
        yield chunk


# Chunks -> blocks of whole lines -> text.


def to_utf8(chunks: Iterator[bytes], problems: Problems, source: Source) -> Iterator[bytes]:
    """Drops the byte order mark of a file's beginning, and turns UTF-16 into UTF-8."""
    head = next(chunks, b"")
    # No longer than a mark may still come: of a pipe, the next bytes may be far away.
    while any(len(head) < len(mark) and mark.startswith(head) for mark in MARKS):
        if not (more := next(chunks, b"")):
            break
        head += more
    if not head.startswith(UTF16):
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for chunk in chain([head], chunks, [b""]):
        text = decoder.decode(chunk, not chunk)
        if count := text.count("\ufffd"):
            problems.add(NOT_UTF8, lambda _: f"{source.path} (UTF-16)", 0, count=count)
        yield text.encode()


def cut_at_lines(chunks: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """Blocks that end with the end of a line; the last line gets one if it has none.

    A line may come in several blocks where it has more than `longest` bytes.
    """
    rest: list[bytes] = []
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, chunk[:end]])
            rest = []
        rest.append(chunk[end:])
        if longest is not None and sum(map(len, rest)) > longest:
            line = b"".join(rest)
            place = find_safe_cut(line)
            if place:
                yield line[:place]
            rest = [line[place:]]
    if last := b"".join(rest):
        yield last + b"\n"


def find_safe_cut(line: bytes) -> int:
    """A place near the end at which a character begins that is no white space; 0: there is none."""
    start = max(1, len(line) - NEAR_END)
    return max((match.start() for match in CHARACTER.finditer(line, start)), default=0)


def decode(data: bytes, problems: Problems, place: Callable[[int], str], number: int) -> str:
    """UTF-8 to text; `number` is that of the first line."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        count = text.count("\ufffd") - data.count("\ufffd".encode())
        problems.add(NOT_UTF8, place, number + data.count(b"\n", 0, error.start), count=count)
        return text


class Block(NamedTuple):
    """Whole lines in UTF-8, or some of a very long one, and the number of the first."""

    number: int
    data: bytes


def read_blocks(
    chunks: Iterator[bytes], problems: Problems, source: Source, longest: int | None = None
) -> Iterator[Block]:
    number = 1
    utf8 = to_utf8(chunks, problems, source) if source.start == 0 else chunks
    for data in cut_at_lines(utf8, longest):
        yield Block(number, data)
        number += data.count(b"\n")


def decode_block(block: Block, problems: Problems, source: Source) -> str:
    """The text of a block; every line ends with a single \\n."""
    text = decode(block.data, problems, source.place, block.number)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
