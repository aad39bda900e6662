"""CRC32C against its definition and its published answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.crc32c import CHUNK_BYTES, STEPS, crc32c

POLYNOMIAL = 0x1_1EDC_6F41  # x^32 + x^28 + ... + 1


def plain_crc32c(data: bytes) -> int:
    """The definition, bit by bit."""
    register = 0xFFFF_FFFF
    for octet in data:
        register ^= octet
        for _ in range(8):
            register = register >> 1 ^ (0x82F6_3B78 if register & 1 else 0)
    return register ^ 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("data", "answer"),
    [  # the last four from RFC 3720, B.4
        (b"", 0x0000_0000),
        (b"a", 0xC1D0_4330),
        (b"123456789", 0xE306_9283),
        (bytes(32), 0x8A91_36AA),
        (b"\xff" * 32, 0x62A8_AB43),
        (bytes(range(32)), 0x46DD_794E),
        (bytes(range(31, -1, -1)), 0x113F_DB5C),
    ],
)
def test_published_answers(data: bytes, answer: int) -> None:
    assert crc32c(data) == answer


def test_the_sparse_polynomial_is_a_multiple_of_the_one_of_crc32c() -> None:
    nearest, middle, furthest = STEPS
    polynomial = 1 << furthest | 1 << furthest - nearest | 1 << furthest - middle | 1
    while (excess := polynomial.bit_length() - POLYNOMIAL.bit_length()) >= 0:
        polynomial ^= POLYNOMIAL << excess
    assert polynomial == 0


@given(st.binary(max_size=600))
def test_short_messages_equal_the_definition(data: bytes) -> None:
    assert crc32c(data) == plain_crc32c(data)


@pytest.mark.parametrize(
    "num_bytes",
    [
        *(5685 + extra for extra in (-9, -8, 0, 1, 4323)),  # around the ends of byte folding
        *(8 * 5685 + extra for extra in (-8, 0, 7, 8 * 4323 + 3)),  # and of word folding
    ],
)
def test_folding_equals_the_definition(num_bytes: int) -> None:
    data = np.random.default_rng(num_bytes).bytes(num_bytes)
    assert crc32c(data) == plain_crc32c(data)


def test_neither_chunks_nor_alignment_matter() -> None:
    data = np.frombuffer(np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 21), np.uint8)
    shifted = np.concatenate([data[:3], data])[3:]
    assert crc32c(shifted) == crc32c(data) == crc32c(data.tobytes())
    # A message followed by its own checksum always ends in the same remainder.
    residues = {
        crc32c(part.tobytes() + crc32c(part).to_bytes(4, "little"))
        for part in (data, data[:CHUNK_BYTES], data[: CHUNK_BYTES + 1], data[:5])
    }
    assert residues == {0x48674BC7}


def test_the_argument_is_left_as_it_was() -> None:
    data = np.arange(100_000, dtype=np.int64)
    before = data.copy()
    assert crc32c(data) == crc32c(before.tobytes())
    assert np.array_equal(data, before)
