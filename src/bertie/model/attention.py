"""Self-attention over sequences that lie in a row: the one place that knows where each ends."""

# T tokens of all sequences in a row   N sequences   W the longest, or more   H heads   K head size

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.dropout import drop


def attend(
    qkv: Tensor, bounds: Tensor, longest: int, dropout: float = 0.0, *, is_left: bool = False
) -> Tensor:
    """Each token's mix of the values of its own sequence, which is rows bounds[n] .. bounds[n + 1].

    With `is_left`, of its own value and those before it alone. `longest` is at least the length of
    the longest sequence. Empty sequences are allowed.
    (T, 3, H, K), (N + 1,) -> (T, H, K)
    """
    # Lengths as Python numbers would stop a GPU and break a compiled graph; on a CPU they spare
    # all padding. One core, 12 heads, 32 sequences of 5 .. 128: 14 ms against 39 padded, and with
    # dropout and backward 70 against 192. Sorting the rows into larger groups gained nothing.
    if qkv.is_cuda or torch.compiler.is_compiling():
        return attend_padded(qkv, bounds, longest, dropout, is_left=is_left)
    return attend_runs(qkv, bounds, longest, dropout, is_left=is_left)


def attend_runs(
    qkv: Tensor, bounds: Tensor, longest: int, dropout: float, *, is_left: bool = False
) -> Tensor:
    """Neighbours of equal length are computed together, without padding and without moving a row.

    (T, 3, H, K), (N + 1,) -> (T, H, K)
    """
    runs: list[list[int]] = []  # [length of each sequence, how many]
    for length in bounds.diff().tolist():
        assert length <= longest, f"a sequence of {length} tokens, longest was given as {longest}"
        if runs and runs[-1][0] == length:
            runs[-1][1] += 1
        else:
            runs.append([length, 1])
    mixed = []
    for part, (length, count) in zip(
        qkv.split([length * count for length, count in runs]), runs, strict=True
    ):
        query, key, value = part.unflatten(0, (count, length)).permute(2, 0, 3, 1, 4)
        one = mix(query, key, value, dropout, is_left)  # (count, H, length, K)
        mixed.append(one.transpose(1, 2).flatten(0, 1))  # (count * length, H, K)
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def mix(query: Tensor, key: Tensor, value: Tensor, dropout: float, is_left: bool) -> Tensor:
    """Attention within sequences of one length. 3 (N, H, W, K) -> (N, H, W, K)"""
    is_plain = query.dtype == torch.float32 or not (query.requires_grad and torch.is_grad_enabled())
    if dropout == 0 and is_plain:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_left)
    # With dropout, torch has no fast kernel on a CPU, and its slow one looks for masked rows. The
    # fast one with its gradient takes eight times as long in bf16 as these lines for 32 sequences
    # of 20 tokens, twice for 2 of 512 (docs/log.md).
    if query.dtype in (torch.bfloat16, torch.float16):
        shares: Tensor = Shares.apply(query, key, is_left)  # type: ignore[no-untyped-call]
    else:
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)  # (N, H, W, W)
        if is_left:
            scores = scores.masked_fill(~is_before(query.shape[-2], query.device), -torch.inf)
        shares = scores.softmax(-1)
    return drop(shares, dropout) @ value


class Shares(torch.autograd.Function):
    """What each token has of the others, by scores in fp32: in bf16 one of 16 is off by 0.03."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, is_left: bool) -> Tensor:
        """2 (N, H, W, K) -> (N, H, W, W)"""
        with torch.autocast(query.device.type, enabled=False):
            scores = (query.float() * query.shape[-1] ** -0.5) @ key.float().transpose(-2, -1)
        if is_left:
            scores.masked_fill_(~is_before(query.shape[-2], query.device), -torch.inf)
        shares = torch.softmax(scores, -1, out=scores).to(query.dtype)
        context.save_for_backward(query, key, shares)
        return shares

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key, shares = context.saved_tensors
        errors = torch._softmax_backward_data(gradient, shares, -1, shares.dtype)  # (N, H, W, W)
        scale = query.shape[-1] ** -0.5
        return (errors @ key).mul_(scale), (errors.transpose(-2, -1) @ query).mul_(scale), None


def is_before(length: int, device: torch.device) -> Tensor:
    """Whether a row may see a column: its own, and those before it. -> (W, W)"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def attend_padded(
    qkv: Tensor, bounds: Tensor, longest: int, dropout: float, *, is_left: bool = False
) -> Tensor:
    """Every sequence is filled up to `longest`; all shapes are known without reading `bounds`.

    (T, 3, H, K), (N + 1,) -> (T, H, K)
    """
    num_tokens, num_sequences = qkv.shape[0], bounds.shape[0] - 1
    rows = torch.arange(num_tokens, device=qkv.device)  # (T,)
    columns = torch.arange(longest, device=qkv.device)  # (W,)
    sequence = torch.bucketize(rows, bounds[1:], right=True)  # (T,) which one a row belongs to
    slots = sequence * longest + rows - bounds[sequence]  # (T,) where it goes
    # Column 0 counts always: not every kernel knows an answer where all keys are masked, which is
    # so in an empty sequence, and a NaN there would spread in the backward pass.
    is_key = (columns < bounds.diff().unsqueeze(1)) | (columns == 0)  # (N, W)
    mask = is_key[:, None, None]  # (N, 1, 1, W)
    if is_left:
        mask = mask & is_before(longest, qkv.device)  # (N, 1, W, W)
    padded = qkv.new_zeros(num_sequences * longest, *qkv.shape[1:]).index_copy(0, slots, qkv)
    query, key, value = padded.unflatten(0, (num_sequences, longest)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(  # (N, H, W, K)
        query, key, value, attn_mask=mask, dropout_p=dropout
    )
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, slots)
