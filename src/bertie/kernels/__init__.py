"""Triton kernels, and operations made of them, for GPUs; each has a plain twin in PyTorch.

This file says whether they can be used; the others need Triton and are imported only then.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
LSTM_SIZES = (16, 32, 64, 128)
HALF = (torch.bfloat16, torch.float16)
LEAST_FLOAT8 = 48  # columns of rows that are copied to eight bits
HAS_TRITON = find_spec("triton") is not None


class Switch:
    """Whether kernels are used where they can be; off, to compare with the plain way."""

    is_on = True
    is_float8 = False  # products of eight bits in the layers, but for gradients of matrices


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


def can_read(x: Tensor, size: int) -> bool:
    """Whether an LSTM of this hidden size can read x by `bertie.kernels.lstm`: half precision."""
    is_half = can_use(x) and torch.is_autocast_enabled("cuda")
    return is_half and size in LSTM_SIZES and not torch.compiler.is_compiling()


def has_float8(device: torch.device) -> bool:
    """Whether products of eight bits can be done there: on a GPU since Ada, with cuBLASLt."""
    if device.type != "cuda" or not HAS_TRITON or torch.version.cuda is None:
        return False
    from bertie.kernels.cublaslt import library

    return library() is not None and torch.cuda.get_device_capability(device) >= (8, 9)


def can_use_float8(x: Tensor, width: int) -> bool:
    """Whether they are asked for, and for rows (T, D) with so many columns in between.

    Sizes must be multiples of 16, as cuBLASLt wants them, and of rows of fewer than 48 columns
    numbers of eight bits would change threads, which Triton 3.6 gets wrong. That the device can do
    it was asked before (`has_float8`), or the switch would not be on.
    """
    size = x.shape[-1]
    is_aligned = size % 16 == 0 and size >= LEAST_FLOAT8 and width % 16 == 0
    return Switch.is_float8 and x.dtype == torch.bfloat16 and is_aligned


def stream_dtype(x: Tensor) -> torch.dtype:
    """Of the rows that pass from layer to layer: half precision where autocast asks for it."""
    if can_use(x) and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x.dtype
