"""Triton kernels, and operations made of them, for GPUs; each has a plain twin in PyTorch.

This file says whether they can be used; the others need Triton and are imported only then.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
HALF = (torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None


class Switch:
    """Whether kernels are used where they can be; off, to compare with the plain way."""

    is_on = True


def can_use(x: Tensor) -> bool:
    """Whether kernels run where x is: on a GPU that Triton knows."""
    return (
        x.is_cuda
        and HAS_TRITON
        and Switch.is_on
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
    )


def can_encode(x: Tensor, num_heads: int) -> bool:
    """Whether rows (T, D) can go through `bertie.kernels.layer`: in half precision."""
    return x.dtype in HALF and x.shape[-1] // num_heads in HEAD_SIZES and can_use(x)


def stream_dtype(x: Tensor) -> torch.dtype:
    """Of the rows that pass from layer to layer: half precision where autocast asks for it."""
    if can_use(x) and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x.dtype
