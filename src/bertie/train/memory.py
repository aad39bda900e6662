"""How many tokens a micro-batch can have, so that training fits the memory."""

from collections.abc import Callable

import torch

LARGEST = {"cuda": 131_072, "cpu": 8_192}  # tokens; more hardly gain
SAFE_SHARE = {"cuda": 0.85, "cpu": 0.5}  # of the free memory; others use a CPU's, too
SHRINK = 0.7  # what to try next where memory ran out


def find_micro_tokens(
    try_out: Callable[[int], None] | None,
    *,
    free_bytes: int,
    bytes_per_token: float,
    least: int,
    device: torch.device,
) -> int:
    """The most tokens that fit; on a GPU they are tried out, one forward and backward pass."""
    fitting = int(SAFE_SHARE[device.type] * free_bytes / bytes_per_token)
    tokens = max(least, min(LARGEST[device.type], fitting) // least * least)
    if device.type == "cuda" and try_out is not None:
        while tokens > least and not fits(try_out, tokens):
            tokens = max(least, int(SHRINK * tokens) // least * least)
            torch.cuda.empty_cache()
    return tokens


def fits(try_out: Callable[[int], None], tokens: int) -> bool:
    try:
        try_out(tokens)
    except torch.OutOfMemoryError:
        return False
    return True
