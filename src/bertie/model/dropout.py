"""Dropout; on a CPU with random numbers that are four to a draw."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16  # a share is rounded to one in so many


def drop(x: Tensor, share: float) -> Tensor:
    """Zeroes a share of the numbers and scales up the rest, so that the mean stays."""
    if share == 0:
        return x
    if not draws_cheaply(x):
        return F.dropout(x, share)
    return x * draw_mask(x, share)


def add_dropped(x: Tensor, y: Tensor, share: float) -> Tensor:
    """x + drop(y): what ends each half of a layer, in one pass."""
    if share == 0 or not draws_cheaply(y):
        return x + drop(y, share)
    return torch.addcmul(x, y, draw_mask(y, share))


def draws_cheaply(x: Tensor) -> bool:
    """A GPU draws in parallel, and a compiler fuses torch's own."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def draw_mask(like: Tensor, share: float) -> Tensor:
    """0 where a number is dropped, what to scale it by elsewhere.

    torch draws for one element at a time, on one core, whatever the number of threads: 8% of a step
    of 2/128/2. Here a 64-bit draw serves four: about 1.1 ms for a million elements, against 6.5.
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    # Of the values -LEVELS / 2 .. LEVELS / 2 - 1, the lowest are dropped.
    num_dropped = min(round(share * LEVELS), LEVELS - 1)
    mask = torch.empty(like.shape, dtype=like.dtype)
    values = draws.view(torch.int16)[: like.numel()].view(like.shape)
    torch.ge(values, num_dropped - LEVELS // 2, out=mask)
    return mask.div_(1 - share)


class Dropout(nn.Module):
    """`drop` while training, nothing otherwise."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.share) if self.training else x
