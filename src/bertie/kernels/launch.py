"""How kernels lie over their work: changes how long they take, not what they find.

Each kernel's own choice stands beside it and can be replaced by an argument, which is how
benchmarks/tune_kernels.py looks for a better one.
"""

from typing import NamedTuple


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
