"""Logits and labels to losses: a sum and a count per term, never a mean.

Masked LM and next sentence have different denominators; with sums and counts, micro-batches of any
size and any number of processes add up to the exact mean.
"""

# M predicted tokens   V pieces   T tokens   N sequences   C labels   D hidden size
# R rows of a block

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.kernels import can_use

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


BLOCK_BYTES = 2**25  # of logits at a time; with D = 128, half of it took 6% longer, all at once 19%
SCORED_ROWS = 64  # of a block, in the cache at a time
ALIGNED = 16  # numbers; a product whose rows start anywhere takes half as long again


def linear_cross_entropy(rows: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Term:
    """`cross_entropy` of F.linear(rows, weight, bias), without storing all the logits (on a GPU:
    in half precision, and not compiled).

    (M, D), (V, D), (V,), (M,)
    """
    is_compiling = torch.compiler.is_compiling()
    if can_use(rows) and torch.is_autocast_enabled("cuda") and not is_compiling:
        from bertie.kernels.cross_entropy import score_linear

        rows = rows.to(torch.get_autocast_dtype("cuda"))
        total, num_right = score_linear(rows, weight, bias, labels, IGNORED)
        return Term(total, num_right, (labels != IGNORED).sum())
    if rows.device.type != "cpu" or is_compiling:
        return cross_entropy(F.linear(rows, weight, bias), labels)
    is_target = labels != IGNORED
    if not is_target.all():
        rows, labels = rows[is_target], labels[is_target]
    is_autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if is_autocast else weight.dtype
    total, num_right = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, bias, labels, dtype, torch.is_grad_enabled()
    )
    return Term(total, num_right, is_target.sum())


class LinearCrossEntropy(torch.autograd.Function):
    """Makes the gradients together with the loss, while the logits are there."""

    @staticmethod
    def forward(
        context: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        dtype: torch.dtype,
        has_backward: bool,
    ) -> tuple[Tensor, Tensor]:
        inputs, matrix = rows.to(dtype), weight.to(dtype)
        num_pieces, width = len(weight), -(-len(weight) // ALIGNED) * ALIGNED
        size = max(1, min(len(rows), BLOCK_BYTES // (width * dtype.itemsize)))
        block = torch.empty(size, width, dtype=dtype)  # (R, V and a tail)
        total, num_right = bias.new_zeros(()), labels.new_zeros(())
        gradients = torch.empty_like(rows), torch.zeros_like(weight), torch.zeros_like(bias)
        for start in range(0, len(rows), size):
            some = inputs[start : start + size]  # (R, D)
            scores = block[: len(some)]
            torch.mm(some, matrix.T, out=scores[:, :num_pieces])
            wanted = labels[start : start + size].split(SCORED_ROWS)
            for part, part_labels in zip(scores.split(SCORED_ROWS), wanted, strict=True):
                part_total, part_right = score_in_place(part, bias, part_labels)
                total, num_right = total + part_total, num_right + part_right
            if has_backward:
                errors = scores[:, :num_pieces]
                gradients[0][start : start + size] = errors @ matrix
                add_product(gradients[1], errors.T, some)
                gradients[2].add_(errors.sum(0))
        context.gradients = gradients if has_backward else None
        context.mark_non_differentiable(num_right)
        return total, num_right

    @staticmethod
    def backward(context: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients, context.gradients = context.gradients, None
        assert gradients is not None, "this loss is walked back once: its gradients are used up"
        return (*(gradient.mul_(scale) for gradient in gradients), None, None, None)


def score_in_place(scores: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and number of right answers; the scores, without bias, become the loss's gradient.

    (R, V and a tail), (V,), (R,)
    """
    logits = scores.to(torch.promote_types(scores.dtype, torch.float32))  # the same, or larger
    logits[:, : len(bias)] += bias
    logits[:, len(bias) :] = -torch.inf
    highest, guesses = logits.max(-1)  # (R,), (R,)
    places = labels.unsqueeze(1)  # (R, 1)
    wanted = logits.gather(1, places).squeeze(1)
    torch.softmax(logits, -1, out=logits)
    # The probability of the highest is never too small for a logarithm; that of the label may be.
    log_sums = highest - logits.gather(1, guesses.unsqueeze(1)).squeeze(1).log()
    logits.scatter_add_(1, places, logits.new_full(places.shape, -1.0))
    scores.copy_(logits)
    return (log_sums - wanted).sum(), (guesses == labels).sum()


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in the precision of the total."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
