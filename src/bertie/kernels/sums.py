"""Sums over many rows: of tokens, or of the parts that programs have made, in a fixed order."""

# P programs, or tokens

import torch
from torch import Tensor


def add_rows(rows: Tensor) -> Tensor:  # (P, ...) -> (...)
    """In float32; as a product it takes a fifth of the time of torch's own sum of many rows."""
    if len(rows) < 256:
        return rows.sum(0, dtype=torch.float32)
    ones, flat = rows.new_ones(1, len(rows)), rows.flatten(1)
    if rows.dtype == torch.float32:
        return (ones @ flat).view(rows.shape[1:])
    if rows.is_cuda:
        return torch.mm(ones, flat, out_dtype=torch.float32).view(rows.shape[1:])
    return rows.sum(0, dtype=torch.float32)
