"""Weights in eight bits: a quarter of the space of fp32, which they are opened to.

Each row of a matrix is whole numbers from -127 to 127 times a scale of its own, the row's largest
number / 127. The numbers lie deflated in model.int8.safetensors (the bytes of a trained matrix are
not all as frequent: a tenth less), beside the scales and all that is no matrix, in fp32.
"""

# R rows   C columns

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertie.errors import UserError

PACKED = "model.int8.safetensors"  # no name that transformers looks for: it would read nonsense
STORAGE = {"storage": "bertie int8 1"}  # in the header of the file: what is in it, and how
NUMBERS, SCALES = ".numbers", ".scales"  # behind the name of a matrix
LARGEST = 127
# A scale has 17 binary digits, so that its products with up to 127 (7 digits) are exact in fp32:
# what was opened and is packed again gives the same bytes.
DROPPED_BITS = 24 - 17
SMALLEST = torch.finfo(torch.float32).tiny  # the scale of a row of zeros


class Packed(NamedTuple):
    """A matrix in eight bits."""

    numbers: Tensor  # (R, C) int8
    scales: Tensor  # (R,) fp32


def pack(weight: Tensor) -> Packed:  # (R, C)
    """The nearest numbers: none is further from its weight than half the scale of its row."""
    weight = weight.double()
    scales = _round_up(weight.abs().amax(-1).div(LARGEST).float().clamp(min=SMALLEST))  # (R,)
    numbers = weight.div(scales.double().unsqueeze(-1)).round()
    return Packed(numbers.to(torch.int8), scales)


def unpack(packed: Packed) -> Tensor:  # (R, C) fp32
    return packed.numbers.float().mul_(packed.scales.unsqueeze(-1))


def _round_up(scales: Tensor) -> Tensor:  # (R,) positive -> (R,)
    """To few enough digits; up, so that no number becomes larger than 127."""
    below = (1 << DROPPED_BITS) - 1
    return scales.view(torch.int32).add(below).bitwise_and(~below).view(torch.float32)


def write_packed(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Every matrix in eight bits, all else in fp32."""
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        _check_finite(name, weight)
        if weight.ndim != 2:
            stored[name] = weight.float().contiguous()
            continue
        packed = pack(weight)
        stored[name + NUMBERS] = deflate(packed.numbers)
        stored[name + SCALES] = packed.scales
    save_file(stored, directory / PACKED, STORAGE)


def _check_finite(name: str, weight: Tensor) -> None:
    # A scale is rounded up, and times 127 it must still be a number.
    limit = torch.finfo(torch.float32).max * (1 - 2.0 ** -(22 - DROPPED_BITS))
    if not (weight.double().abs() <= limit).all():
        raise UserError(
            f"{name} has numbers that are not finite, or too large for fp32: such a model is "
            "broken, and is not stored in eight bits; take an earlier checkpoint"
        )


def read_packed(path: Path) -> dict[str, Tensor]:
    """All weights of a file in eight bits, in fp32, by their names."""
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("storage")
            if found != STORAGE["storage"]:
                raise UserError(
                    f"{path} is not stored as this bertie does it: wanted {STORAGE['storage']!r} "
                    f"in its header, found {found!r}; a newer bertie may read it"
                )
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file, damaged or cut short ({error}); fetch it again"
        ) from None
    names = dict.fromkeys(name.removesuffix(NUMBERS).removesuffix(SCALES) for name in stored)
    with ThreadPoolExecutor() as threads:  # zlib lets others run meanwhile
        opened = threads.map(lambda name: open_weight(name, stored, path), names)
        return dict(zip(names, opened, strict=True))


def open_weight(name: str, stored: Mapping[str, Tensor], path: Path) -> Tensor:
    if name in stored:
        return stored[name]
    numbers, scales = stored.get(name + NUMBERS), stored.get(name + SCALES)
    if numbers is None or scales is None:
        missing = name + (NUMBERS if numbers is None else SCALES)
        raise UserError(f"{path} has no {missing}; it is not whole, fetch it again")
    if scales.ndim != 1 or scales.dtype != torch.float32 or not torch.isfinite(scales).all():
        raise UserError(f"{path}: {name}{SCALES} are not one number for each row; fetch it again")
    try:
        return unpack(Packed(inflate(numbers, len(scales)), scales))
    except (zlib.error, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: {name} is damaged ({error}); fetch it again") from None


def deflate(numbers: Tensor) -> Tensor:  # (R, C) int8 -> (num_bytes,) uint8
    """Huffman codes alone: there is nothing in trained weights that repeats."""
    compressor = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    content = compressor.compress(numbers.numpy().tobytes()) + compressor.flush()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def inflate(content: Tensor, num_rows: int) -> Tensor:  # (num_bytes,) uint8 -> (R, C) int8
    """Checked by the sum that zlib keeps at the end; no longer than what `deflate` gave can be."""
    unpacker = zlib.decompressobj()
    most = 8 * len(content) + 1  # a number has a bit at least
    octets = bytearray(unpacker.decompress(content.numpy().tobytes(), most))
    if not unpacker.eof:
        raise ValueError("it is cut short, or far longer than bertie packs it")
    return torch.frombuffer(octets, dtype=torch.int8).view(num_rows, -1)
