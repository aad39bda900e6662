"""CRC32C, the checksum of TensorFlow's checkpoints, in NumPy at gigabytes a second."""

import numpy as np

REVERSED_POLYNOMIAL = 0x82F63B78
# The register starts full of ones, which is as if these bytes had gone into an empty one.
START = bytes.fromhex("00000000 54641f64")
# A message is a polynomial over GF(2), its first bit the highest power, and the checksum is its
# remainder modulo the CRC's polynomial. 1 + x^426 + x^1362 + x^5685 is a multiple of that one
# (the tests prove it), so a bit may be added to those 5685 - 1362, 5685 - 426 and 5685 places
# behind it and dropped. Squaring over GF(2) doubles every exponent and nothing else, so the same
# is true counted in bytes and in 64-bit words: whole stretches fold forward with three XORs.
# Of all such four-term multiples up to degree 6000 this one moves bits furthest at the least.
STEPS = (4323, 5259, 5685)
CHUNK_BYTES = 1 << 19  # what is folded at a time stays in the second-level cache


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC32C of the bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    octets = np.frombuffer(data, np.uint8)  # (B,)
    num_whole = len(octets) // 8 * 8
    rest = np.frombuffer(START, np.uint64)
    for start in range(0, num_whole, CHUNK_BYTES):
        words = octets[start : min(start + CHUNK_BYTES, num_whole)].view(np.uint64)
        rest = _fold(np.concatenate([rest, words]))  # (at most 5685,)
    last = _fold(np.concatenate([rest.view(np.uint8), octets[num_whole:]]))  # (at most 5685,)
    register = 0
    for octet in last.tobytes():
        register = TABLE[(register ^ octet) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def _fold(units: np.ndarray) -> np.ndarray:  # (N,) -> (min(N, 5685),), overwrites its argument
    nearest, furthest = STEPS[0], STEPS[-1]
    num_folded = max(0, len(units) - furthest)
    for start in range(0, num_folded, nearest):  # no stretch reaches where it is added
        stop = min(start + nearest, num_folded)
        for step in STEPS:
            units[start + step : stop + step] ^= units[start:stop]
    return units[num_folded:]


def _divide(octet: int) -> int:
    for _ in range(8):
        octet = octet >> 1 ^ (REVERSED_POLYNOMIAL if octet & 1 else 0)
    return octet


TABLE = tuple(_divide(octet) for octet in range(256))
