"""Logits and labels to losses: a sum and a count per term, never a mean.

Masked LM and next sentence have different denominators; with sums and counts, micro-batches of any
size and any number of processes add up to the exact mean.
"""

# M predicted tokens   V pieces   D hidden size   N sequences   C labels   R rows of a block

from typing import Any, NamedTuple

import torch
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


ROWS_OF_A_BLOCK = 256  # of logits; 64 took 17% longer, all at once 20%
ALIGNED = 16  # numbers: a row of logits that starts anywhere costs a matrix product half as much more


def linear_cross_entropy(rows: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Term:
    """`cross_entropy` of F.linear(rows, weight, bias), on a CPU without storing all the logits.

    (M, D), (V, D), (V,), (M,)
    """
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return cross_entropy(F.linear(rows, weight, bias), labels)
    is_target = labels != IGNORED
    if not is_target.all():
        rows, labels = rows[is_target], labels[is_target]
    is_autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if is_autocast else rows.dtype
    total, num_right = LinearCrossEntropy.apply(
        rows, weight, bias, labels, dtype, torch.is_grad_enabled()
    )
    return Term(total, num_right, is_target.sum())


class LinearCrossEntropy(torch.autograd.Function):
    """The gradients are made together with the loss, while a block of logits is in the cache."""

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
        size, num_pieces = min(ROWS_OF_A_BLOCK, len(rows)), len(weight)
        products = rows.new_empty(size, -(-num_pieces // ALIGNED) * ALIGNED, dtype=dtype)  # (R, V..)
        logits = products if dtype.itemsize >= 4 else products.float()
        total, num_right = bias.new_zeros(()), labels.new_zeros(())
        gradients = torch.empty_like(rows), torch.zeros_like(weight), torch.zeros_like(bias)
        for start in range(0, len(rows), max(1, size)):
            part = slice(start, start + size)
            some = inputs[part]  # (R, D)
            products, logits = products[: len(some)], logits[: len(some)]
            torch.mm(some, matrix.T, out=products[:, :num_pieces])
            logits.copy_(products)
            logits[:, :num_pieces] += bias
            logits[:, num_pieces:] = -torch.inf
            block_total, block_right = score_in_place(logits, labels[part])
            total, num_right = total + block_total, num_right + block_right
            if has_backward:
                products.copy_(logits)
                add_gradients(gradients, part, some, matrix, products[:, :num_pieces])
        context.gradients = gradients if has_backward else None
        context.mark_non_differentiable(num_right)
        return total, num_right

    @staticmethod
    def backward(context: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients, context.gradients = context.gradients, None
        assert gradients is not None, "the graph of a loss can be walked back once"
        return (*(gradient.mul_(scale) for gradient in gradients), None, None, None)


def score_in_place(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # (R, V), (R,)
    """The loss and the right answers of a block, whose logits become the gradient of the loss."""
    highest, guesses = logits.max(-1)  # (R,), (R,)
    places = labels.unsqueeze(1)  # (R, 1)
    wanted = logits.gather(1, places).squeeze(1)
    torch.softmax(logits, -1, out=logits)
    # The probability of the highest is never too small for a logarithm, that of the label may be.
    log_sums = highest - logits.gather(1, guesses.unsqueeze(1)).squeeze(1).log()
    logits.scatter_add_(1, places, logits.new_full(places.shape, -1.0))
    return (log_sums - wanted).sum(), (guesses == labels).sum()


def add_gradients(
    gradients: tuple[Tensor, Tensor, Tensor],
    part: slice,
    inputs: Tensor,
    matrix: Tensor,
    errors: Tensor,
) -> None:
    """Of a block: (R, D), (V, D), (R, V)."""
    of_rows, of_weight, of_bias = gradients
    of_rows[part] = errors @ matrix
    if errors.dtype == of_weight.dtype:
        of_weight.addmm_(errors.T, inputs)
    else:  # summed in full precision
        of_weight += errors.T @ inputs
    of_bias += errors.sum(0)
