"""Logits and labels to losses: a sum and a count per term, never a mean.

Masked LM and next sentence have different denominators; with sums and counts, micro-batches of any
size and any number of processes add up to the exact mean.
"""

# M predicted tokens   V pieces   N sequences   C labels

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that counts nowhere: the tail of a batch of fixed shape


class Term(NamedTuple):
    """One part of a loss."""

    total: Tensor  # () summed over the targets
    num_right: Tensor  # () how many were predicted right
    num_targets: Tensor  # () how many there are; a tensor, so that a GPU need not be waited for


def cross_entropy(logits: Tensor, labels: Tensor) -> Term:  # (M, C), (M,)
    """Negative log-likelihood of the labels, those that are IGNORED left out.

    With no targets the sum is 0, and its gradient too.
    """
    total = F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED)
    num_right = (logits.detach().argmax(-1) == labels).sum()
    return Term(total, num_right, (labels != IGNORED).sum())


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:  # (M, V), (M,) -> (M,)
    """The same, one per target, for evaluation by kind of target."""
    return F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=IGNORED)
