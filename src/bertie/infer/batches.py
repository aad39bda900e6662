"""Sequences in batches: no padding, equal lengths side by side, a bounded number of tokens."""

# T tokens of all sequences in a row   N sequences

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bertie.errors import UserError
from bertie.infer.progress import tell_part
from bertie.model.bert import Bert, Packed
from bertie.model.heads import get_head
from bertie.tasks.instances import Input, sums

BATCH_TOKENS = 1_024  # what the model reads at once: what it makes of them stays in a CPU's cache
GPU_BATCH_TOKENS = 65_536  # of base, enough that a GPU works longer on them than Python
CPU = torch.device("cpu")
O = TypeVar("O")  # noqa: E741, what is computed of a sequence


def make_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of sequences, short ones first, that have at most so many tokens together.

    >>> list(make_batches([5, 2, 4, 9], max_tokens=8))
    [[1, 2], [0], [3]]
    """
    batch: list[int] = []
    num_tokens = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and num_tokens + lengths[number] > max_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(number)
        num_tokens += lengths[number]
    if batch:
        yield batch


def in_batches(
    lengths: Sequence[int], compute: Callable[[list[int]], Iterable[O]], device: torch.device = CPU
) -> list[O]:
    """What `compute` makes of each sequence, in order; it is given the numbers of a batch.

    Those who wait are told how far it is: one long text may be thousands of sequences.
    """
    computed: dict[int, O] = {}
    max_tokens = BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS
    num_done, total = 0, sum(lengths)
    for batch in make_batches(lengths, max_tokens):
        computed.update(zip(batch, compute(batch), strict=True))
        num_done += sum(lengths[number] for number in batch)
        tell_part(num_done, total)
    return [computed[number] for number in range(len(lengths))]


class NotFinite(UserError):
    """A model that computes what is no number."""


def fetch(numbers: Tensor) -> np.ndarray:
    """What a model computed, in float32, from whatever device it is on.

    NaN is the largest of all numbers to one function and the smallest to another: an answer that
    was made of it would look like any other.
    """
    found: np.ndarray = numbers.float().cpu().numpy()
    if not np.isfinite(found).all():
        raise NotFinite(
            "the model's numbers are not finite: its weights are damaged, or too large for this "
            "precision; take an earlier checkpoint, or fp32"
        )
    return found


def pack_inputs(inputs: Sequence[Input], device: torch.device) -> Packed:
    """The inputs in a row, as the model reads them."""
    lengths = np.array([len(one.ids) for one in inputs], np.int64)  # (N,)
    bounds = sums(lengths)  # (N + 1,)
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # (T,)
    segments = positions >= np.repeat([one.second for one in inputs], lengths)  # (T,)
    ids = np.concatenate([one.ids for one in inputs]).astype(np.int64)  # (T,)
    return Packed(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(segments.astype(np.int64)).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(bounds).to(device),
        int(lengths.max()),
    )


@torch.inference_mode()
def run_head(model: Bert, name: str, inputs: Sequence[Input]) -> list[np.ndarray]:
    """A head's logits of each input: (C,) where it reads whole sequences, (L, C) where tokens."""
    head, is_pooled = model.get_submodule(name), get_head(name).reads == "pooled"
    device = model.embeddings.token.weight.device

    def compute(batch: list[int]) -> list[np.ndarray]:
        packed = pack_inputs([inputs[number] for number in batch], device)
        pooled = model.pooled_rows(packed.bounds, len(packed.ids)) if is_pooled else None  # (N,)
        rows = model.encode(*packed, kept=pooled)  # (N, D) or (T, D)
        if model.pooler is not None and is_pooled:
            rows = model.pooler(rows)
        logits = fetch(head(rows))  # (N, C) or (T, C)
        return list(logits) if is_pooled else np.split(logits, packed.bounds[1:-1].cpu().numpy())

    return in_batches([len(one.ids) for one in inputs], compute, device)
