"""Logits and labels to losses: a sum and a count per term, never a mean.

Masked LM and next sentence have different denominators; with sums and counts, micro-batches of any
size and any number of processes add up to the exact mean.
"""

# M predicted tokens   V pieces   N sequences   C labels

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Term(NamedTuple):
    """One part of a loss."""

    total: Tensor  # () summed over the targets
    num_right: Tensor  # () how many were predicted right
    num_targets: int


def cross_entropy(logits: Tensor, labels: Tensor) -> Term:  # (M, C), (M,)
    """Negative log-likelihood of the labels; with no targets the sum is 0, and its gradient too."""
    total = F.cross_entropy(logits.float(), labels, reduction="sum")
    return Term(total, (logits.detach().argmax(-1) == labels).sum(), len(labels))


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:  # (M, V), (M,) -> (M,)
    """The same, one per target, for evaluation by kind of target."""
    return F.cross_entropy(logits.float(), labels, reduction="none")
