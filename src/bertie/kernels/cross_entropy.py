"""The masked LM's loss from its rows, a block of logits at a time, with the gradients at once.

A kernel turns a block of logits into the gradient of its loss, in place: read once, written once.
"""

# M predicted tokens   R rows of a block   D hidden size   V pieces
# W the width of a block: V and a tail that counts nowhere

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.launch import BlockLaunch
from bertie.kernels.products import matrix_gradient
from bertie.kernels.sums import add_rows

LAUNCH = BlockLaunch(rows=1, columns=2048, num_warps=4, max_programs=0)  # a program for each row


@triton.jit
def score_rows(
    logits,
    bias,
    labels,
    losses,
    is_right,
    ignored,
    PIECES: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row goes by twice, block by block; the second time it is still in the cache."""
    row = tl.program_id(0)
    label = tl.load(labels + row)
    is_target = label != ignored
    base = logits + row.to(tl.int64) * STRIDE
    wanted = tl.load(base + label, mask=is_target, other=0.0).to(tl.float32)
    wanted += tl.load(bias + label, mask=is_target, other=0.0).to(tl.float32)
    local = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    best = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, PIECES, BLOCK):
        columns = first + local
        values = tl.load(base + columns, mask=columns < PIECES, other=float("-inf")).to(tl.float32)
        values += tl.load(bias + columns, mask=columns < PIECES, other=0.0).to(tl.float32)
        best = tl.where(values > highest, columns, best)
        new_highest = tl.maximum(highest, values)
        # Both are -inf until a column has met a piece, and their difference is no number.
        fading = tl.where(highest == new_highest, 1.0, tl.exp(highest - new_highest))
        total = total * fading + tl.where(columns < PIECES, tl.exp(values - new_highest), 0.0)
        highest = new_highest
    top = tl.max(highest, 0)
    whole = tl.sum(tl.where(total > 0, total * tl.exp(highest - top), 0.0), 0)
    guess = tl.min(tl.where(highest == top, best, PIECES), 0)  # of equals the first, as in argmax
    tl.store(losses + row, tl.where(is_target, top + tl.log(whole) - wanted, 0.0))
    tl.store(is_right + row, (guess == label).to(tl.int32))
    scale = tl.where(is_target, 1.0, 0.0)
    for first in range(0, STRIDE, BLOCK):
        columns = first + local
        values = tl.load(base + columns, mask=columns < PIECES, other=float("-inf")).to(tl.float32)
        values += tl.load(bias + columns, mask=columns < PIECES, other=0.0).to(tl.float32)
        errors = tl.exp(values - top) / whole - tl.where(columns == label, 1.0, 0.0)
        tl.store(
            base + columns, (errors * scale).to(logits.dtype.element_ty), mask=columns < STRIDE
        )


def score_block(
    logits: Tensor, bias: Tensor, labels: Tensor, ignored: int, *, launch: BlockLaunch = LAUNCH
) -> tuple[Tensor, Tensor]:  # (R, W), (V,), (R,) -> (R,), (R,)
    """Losses and right guesses; the logits, without bias, become the gradients of the losses."""
    num_rows, stride = logits.shape
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    is_right = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    score_rows[(num_rows,)](
        logits,
        bias,
        labels,
        losses,
        is_right,
        ignored,
        PIECES=len(bias),
        STRIDE=stride,
        BLOCK=min(launch.columns, triton.next_power_of_2(stride)),
        num_warps=launch.num_warps,
    )
    return losses, is_right


BLOCK_ROWS = 8192  # half a gigabyte of logits with 30,522 pieces
ALIGNED = 64  # pieces; products whose rows start anywhere are slow


class LinearCrossEntropy(torch.autograd.Function):
    """Makes the gradients together with the loss, while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        ignored: int,
        has_backward: bool,
    ) -> tuple[Tensor, Tensor]:
        num_pieces, size = weight.shape
        width = -(-num_pieces // ALIGNED) * ALIGNED
        matrix = rows.new_zeros(width, size)
        matrix[:num_pieces] = weight
        losses, rights, d_rows = [], [], torch.empty_like(rows)
        d_weight, d_bias = None, None
        num_blocks = -(-len(rows) // BLOCK_ROWS)
        for some, d_some, wanted in zip(
            rows.chunk(num_blocks),
            d_rows.chunk(num_blocks),
            labels.chunk(num_blocks),
            strict=True,
        ):
            logits = some @ matrix.T  # (R, W)
            block_losses, is_right = score_block(logits, bias, wanted, ignored)
            losses.append(block_losses.sum())
            rights.append(is_right.sum())
            if has_backward:
                torch.mm(logits, matrix, out=d_some)
                part, sums = matrix_gradient(logits, some), add_rows(logits)
                d_weight = part if d_weight is None else d_weight.add_(part)
                d_bias = sums if d_bias is None else d_bias.add_(sums)
        if d_weight is not None and d_bias is not None:
            ctx.gradients = (d_rows, d_weight[:num_pieces], d_bias[:num_pieces])
        num_right = torch.stack(rights).sum()
        ctx.mark_non_differentiable(num_right)
        return torch.stack(losses).sum(), num_right

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "this loss is walked back once: its gradients are used up"
        return (*(scale_by(gradient, scale) for gradient in gradients), None, None, None)


def scale_by(gradient: Tensor, scale: Tensor) -> Tensor:
    """On a GPU torch would round a scale that is a tensor to the precision of the gradient."""
    if gradient.dtype == scale.dtype:
        return gradient.mul_(scale)
    return (gradient.float() * scale).to(gradient.dtype)


def score_linear(
    rows: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, ignored: int
) -> tuple[Tensor, Tensor]:  # (M, D), (V, D), (V,), (M,)
    """The sum of the losses of F.linear(rows, weight, bias), and how many are right."""
    if len(rows) == 0:  # a kernel without programs cannot be launched
        logits = F.linear(rows, weight.to(rows.dtype), bias.to(rows.dtype))
        return logits.float().sum(), labels.new_zeros(())
    total, num_right = LinearCrossEntropy.apply(
        rows, weight, bias, labels, ignored, torch.is_grad_enabled()
    )
    return total, num_right
