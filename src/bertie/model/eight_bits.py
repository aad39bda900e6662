"""Weights of a linear layer in eight bits, for products in whole numbers: a scale for each output.

Rows have a scale each, too: one for a whole batch, which is the usual way, would let a token with
a large number in it change the answers to its neighbours.
"""

# I numbers in   O numbers out

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 127  # of 8 bits with a sign; -128 is left out, so that x and -x are rounded alike
MIDDLE = 128  # rows are 0 .. 255 around this: instructions want one side without a sign
TINY = 1e-30  # what is all zeros has a scale, too


class EightBits(NamedTuple):
    """A matrix as whole numbers."""

    numbers: Tensor  # (O, I) int8
    scales: Tensor  # (O,)


def quantise(weight: Tensor, largest: int = LARGEST) -> EightBits:  # (O, I)
    scales = weight.abs().amax(1).clamp(min=TINY) / largest
    return EightBits((weight / scales.unsqueeze(1)).round().to(torch.int8), scales)
