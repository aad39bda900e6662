"""Logits and labels to losses: a sum and a count per term, never a mean.

Masked LM and next sentence have different denominators; with sums and counts, micro-batches of any
size and any number of processes add up to the exact mean.
"""

# M predicted tokens   V pieces   T tokens   N sequences   C labels

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that counts nowhere: the tail of a batch of fixed shape


class Term(NamedTuple):
    """One part of a loss."""

    total: Tensor  # () summed over the targets
    num_right: Tensor  # () how many were predicted right
    num_targets: Tensor  # () how many there are; a tensor, so that a GPU need not be waited for


# Of the tasks, each target has a weight; sums and counts are weighted by it, so that class weights,
# windows that share an example and examples without a label are exact under accumulation, too.


def weigh(losses: Tensor, is_right: Tensor, weights: Tensor) -> Term:  # (N,), (N,), (N,)
    return Term((losses * weights).sum(), (is_right * weights).sum(), weights.sum())


def weighted_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor
) -> Term:  # (N, C), (N,), (N,)
    """Negative log-likelihood of the labels."""
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    return weigh(losses, logits.detach().argmax(-1) == labels, weights)


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor
) -> Term:  # (N, C), (N, C), (N,)
    """Every label by itself, yes (1.) or no (0.): a sequence's loss is the mean over its labels."""
    losses = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").mean(-1)
    is_right = ((logits.detach() > 0) == (labels > 0.5)).float().mean(-1)
    return weigh(losses, is_right, weights)


def squared_error(values: Tensor, targets: Tensor, weights: Tensor) -> Term:  # (N,), (N,), (N,)
    """Of numbers; right are those that are less than a half off."""
    errors = values.float() - targets
    return weigh(errors.square(), errors.detach().abs() < 0.5, weights)


def segment_cross_entropy(
    scores: Tensor, bounds: Tensor, targets: Tensor, weights: Tensor
) -> Term:  # (T,), (N + 1,), (N,), (N,)
    """Which of a segment's rows is it? Segment n is rows bounds[n] .. bounds[n + 1], none is empty.

    The softmax runs over each segment, of whatever length; `targets` count from its start.
    """
    scores = scores.float()
    num_segments = len(bounds) - 1
    segment = torch.repeat_interleave(bounds.diff(), output_size=len(scores))  # (T,)
    # The largest score of a segment is taken off before exp and put back: it needs no gradient.
    highest = scores.detach().new_full((num_segments,), -torch.inf)  # (N,)
    highest = highest.scatter_reduce(0, segment, scores.detach(), "amax")
    shares = (scores - highest[segment]).exp()  # (T,)
    log_sum = scores.new_zeros(num_segments).index_add(0, segment, shares).log() + highest
    chosen = scores[bounds[:-1] + targets]  # (N,)
    return weigh(log_sum - chosen, chosen.detach() >= highest, weights)


def span_cross_entropy(
    logits: Tensor, bounds: Tensor, targets: Tensor, weights: Tensor
) -> Term:  # (T, 2), (N + 1,), (N, 2), (N,)
    """The mean of start and end, of the losses and of what is right."""
    start, end = (
        segment_cross_entropy(logits[:, side], bounds, targets[:, side], weights) for side in (0, 1)
    )
    return Term((start.total + end.total) / 2, (start.num_right + end.num_right) / 2, weights.sum())


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
