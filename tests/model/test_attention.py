"""Attention over sequences in a row equals attention over each sequence alone."""

# T tokens   H heads   K head size

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.model.attention import attend, attend_padded, attend_runs

WAYS = [attend_runs, attend_padded]
Way = Callable[[Tensor, Tensor, int, float], Tensor]


def one_by_one(qkv: Tensor, bounds: Tensor) -> Tensor:
    """Softmax of scaled products, written out, for each sequence."""
    mixed = []
    for start, end in pairwise(bounds.tolist()):
        query, key, value = qkv[start:end].unbind(1)  # (t, H, K)
        scores = torch.einsum("qhk,shk->hqs", query, key) / query.shape[-1] ** 0.5
        mixed.append(torch.einsum("hqs,shk->qhk", scores.softmax(-1), value))
    return torch.cat(mixed)


def make(lengths: list[int], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    qkv = torch.randn(
        sum(lengths), 3, 2, 5, dtype=dtype, generator=torch.Generator().manual_seed(1)
    )
    return qkv.requires_grad_(), torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("way", WAYS)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    spare=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_sequences_in_a_row_are_as_if_alone(way: Way, lengths: list[int], spare: int) -> None:
    qkv, bounds = make(lengths)
    mixed, expected = way(qkv, bounds, max(lengths) + spare, 0.0), one_by_one(qkv, bounds)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-10)
    weights = torch.linspace(-1, 1, mixed.numel(), dtype=torch.float64).view_as(mixed)
    gradient, expected_gradient = (
        torch.autograd.grad((result * weights).sum(), qkv)[0] for result in (mixed, expected)
    )
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "lengths", [[3, 1, 7, 7, 2], [128], [4, 4, 4], [0, 5, 0, 0, 2, 0]], ids=str
)
def test_sequences_in_a_row_are_as_if_alone_in_fp32(way: Way, lengths: list[int]) -> None:
    qkv, bounds = make(lengths, torch.float32)
    torch.testing.assert_close(
        way(qkv, bounds, max(lengths), 0.0), one_by_one(qkv, bounds), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("lengths", [[3, 1, 7, 7, 2], [128], [0, 5, 40, 40, 2, 0]], ids=str)
def test_in_bf16_it_is_as_near_as_rounding_allows(lengths: list[int], is_left: bool) -> None:
    exact, bounds = make(lengths)
    rounded = exact.detach().bfloat16().requires_grad_()
    found = attend_runs(rounded, bounds, max(lengths), 0.0, is_left=is_left)
    wanted = attend_runs(exact, bounds, max(lengths), 0.0, is_left=is_left)
    with torch.no_grad():  # by torch's own kernel
        alike = attend_runs(rounded, bounds, max(lengths), 0.0, is_left=is_left)
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    pairs = [(found, wanted), (alike, wanted)]
    gradients = (
        torch.autograd.grad((y.double() * weights).sum(), x)[0]
        for x, y in ((rounded, found), (exact, wanted))
    )
    for near, true in (*pairs, tuple(gradients)):
        assert (near.double() - true).norm() < 1e-2 * true.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_left", [False, True])
def test_large_scores_are_not_rounded_to_half_precision(dtype: torch.dtype, is_left: bool) -> None:
    """Rounded, scores of a deviation of 9 gave outputs that were off by 1.1%, gradients by 2%."""
    generator = torch.Generator().manual_seed(1)
    rounded = torch.randn(96, 3, 4, 32, generator=generator)
    rounded[:, :2] *= 3.0
    rounded = rounded.to(dtype).requires_grad_()
    exact, bounds = rounded.detach().double().requires_grad_(), torch.tensor([0, 48, 96])
    weights = torch.randn(96, 4, 32, generator=generator)
    gradients = []
    for x in (exact, rounded):
        with torch.autocast("cpu", dtype, enabled=x is rounded):
            mixed = attend_runs(x, bounds, 48, 0.0, is_left=is_left)
        (gradient,) = torch.autograd.grad((mixed.double() * weights).sum(), x)
        gradients.append((mixed.detach(), *gradient.double().unbind(1)))
    for true, near in zip(*gradients, strict=True):
        assert (near - true).norm() < 6e-3 * true.norm()


@pytest.mark.parametrize("way", WAYS)
def test_empty_sequences_spoil_no_gradient(way: Way) -> None:
    qkv, bounds = make([0, 4, 0])
    way(qkv, bounds, 6, 0.1).sum().backward()
    assert qkv.grad is not None
    assert qkv.grad.isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_dropout_drops_its_share_of_attention_and_keeps_the_mean(way: Way) -> None:
    length, heads = 32, 200
    qkv = torch.zeros(2 * length, 3, heads, length)  # equal weights 1/32 for every key
    qkv[:, 2] = torch.eye(length).repeat(2, 1).unsqueeze(1)  # value = which key it is
    bounds = torch.tensor([0, length, 2 * length])
    torch.manual_seed(0)
    weights = way(qkv, bounds, length, 0.1)  # (T, H, K): the dropped attention weights themselves
    share = (weights == 0).double().mean().item()
    deviation = (0.1 * 0.9 / weights.numel()) ** 0.5
    assert abs(share - 0.1) < 5 * deviation
    assert weights.max().item() == pytest.approx(1 / length / 0.9)
    assert weights.mean().item() == pytest.approx(1 / length, rel=5 * deviation / 0.9)
    assert not torch.equal(weights[:length], weights[length:]), "each sequence has its own chance"


def test_no_dropout_is_no_chance() -> None:
    qkv, bounds = make([3, 5])
    assert torch.equal(attend(qkv, bounds, 5, 0.0), attend(qkv, bounds, 5, 0.0))


def test_a_longest_that_is_too_small_is_noticed() -> None:
    qkv, bounds = make([3, 5])
    with pytest.raises(AssertionError, match="5 tokens, longest was given as 4"):
        attend(qkv, bounds, 4)
