"""Sums over all tokens, in parts: every program has one of its own, so their order is fixed."""

# P programs

from torch import Tensor


def add_rows(sums: Tensor) -> Tensor:  # (P, ...) -> (...)
    """Of many parts of a sum; as a product it takes a fifth of the time of torch's own sum."""
    if len(sums) < 256:
        return sums.sum(0)
    return (sums.new_ones(1, len(sums)) @ sums.flatten(1)).view(sums.shape[1:])
