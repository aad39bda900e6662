"""How kernels lie over their work: changes how long they take, not what they find.

Each kernel's own choice stands beside it and can be replaced by an argument, which is how
benchmarks/tune_kernels.py looks for a better one.
"""

from functools import cache
from typing import NamedTuple

import torch

LARGE_ROOM = 227 * 1024  # bytes, see `find_room`


class RowLaunch(NamedTuple):
    """Of a kernel whose program takes whole rows."""

    rows: int  # of a program at a time
    num_warps: int
    max_programs: int  # where each has sums of its own, and takes rows until none are left


class BlockLaunch(NamedTuple):
    """Of a kernel whose program takes a part of some rows."""

    rows: int  # of a program at a time
    columns: int
    num_warps: int
    max_programs: int


class TileLaunch(NamedTuple):
    """Of a kernel of attention: how many queries meet how many keys at a time."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None  # of a thread; fewer let more programs share a multiprocessor


@cache
def find_room(device: torch.device) -> int:
    """Bytes of shared memory that a program may have: 227 KiB of an H100, 163 of an A100, 99 of an
    A10, L4 or 4090. In Triton's interpreter there is as much as on the largest."""
    if device.type != "cuda":
        return LARGE_ROOM
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))  # AMD's have none
