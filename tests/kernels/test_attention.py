"""Attention over sequences of every length against the twin in float64."""

import math

import pytest
import torch

from bertie.kernels import attention
from bertie.kernels.attention import (
    Inquiry,
    ask_all,
    attend_apart_backward,
    attend_kernel_backward,
    attend_kernel_forward,
    attend_plain,
)
from bertie.kernels.sums import sum_and_copy
from bertie.model.attention import attend_runs
from tests.kernels.closeness import BOUNDS, check_close, error_of

LENGTHS = [
    [1],
    [17, 1, 0, 5],
    [128],
    [127, 64, 2],
    [129, 3, 0],
    [300, 17],
]
LONG = [[511, 512, 1], [2] * 3000]


def make(lengths, heads, size, dtype):
    generator = torch.Generator().manual_seed(len(lengths))
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    qkv = torch.randn(sum(lengths), 3, heads, size, generator=generator).to(dtype)
    gradient = torch.randn(sum(lengths), heads, size, generator=generator).to(dtype)
    return qkv, bounds, gradient


def compare(lengths, heads, size, dropout, dtype, device, is_left=False):
    compare_rows(*make(lengths, heads, size, dtype), dropout, device, is_left)


def compare_rows(qkv, bounds, gradient, dropout, device, is_left=False):
    dtype, lengths = qkv.dtype, bounds.diff().tolist()
    qkv, bounds, gradient = (part.to(device) for part in (qkv, bounds, gradient))
    seed, longest = torch.tensor([12345], device=device), max(lengths)
    inputs = qkv.double().requires_grad_()
    wanted = attend_plain(ask_all(inputs, bounds, longest, is_left=is_left), seed, dropout)
    wanted.backward(gradient.double())
    asked = ask_all(qkv, bounds, longest, is_left=is_left)
    out, log_sums = attend_kernel_forward(asked, seed, dropout)
    d_qkv = attend_kernel_backward(
        gradient, qkv, bounds, longest, seed, out, log_sums, dropout, is_left=is_left
    )
    _, sums = sum_and_copy(d_qkv, None)
    added = inputs.grad.sum(0)
    check_close([out, d_qkv, sums[[0, 2]]], [wanted, inputs.grad, added[[0, 2]]], dtype)
    # That of the keys is 0 but for rounding.
    assert float(sums[1].abs().max()) == 0
    assert float(added[1].abs().max()) < 1e-9


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_every_length_is_the_twins(lengths, dropout, dtype, device):
    compare(lengths, 2, 32, dropout, dtype, device)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_to_the_left_every_length_is_the_twins(lengths, dropout, dtype, device):
    compare(lengths, 2, 32, dropout, dtype, device, is_left=True)


@pytest.mark.parametrize("size", [16, 64, 128])
def test_every_head_size_is_the_twins(size, device):
    for lengths in ([30, 128], [140]):
        compare(lengths, 1, size, 0.1, torch.float16, device)


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("size", [16, 64])
def test_blocks_for_little_shared_memory_find_the_same(size, is_left, device, monkeypatch):
    monkeypatch.setattr(attention, "find_room", lambda device: 99 * 1024)
    assert attention.find_block(device) == 64
    for lengths in ([30, 64], [65, 3], [140]):
        compare(lengths, 1, size, 0.1, torch.float16, device, is_left)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_queries_that_lie_apart_are_the_twins(dropout, dtype, device):
    """None of a sequence, one, all, and more of them than it has rows; an empty sequence."""
    counts, lengths = [3, 0, 1, 70, 0], [17, 5, 40, 9, 0]
    generator = torch.Generator().manual_seed(1)
    q, gradient = torch.randn(2, sum(counts), 2, 32, generator=generator).to(dtype)
    kv = torch.randn(sum(lengths), 2, 2, 32, generator=generator).to(dtype)
    asking, bounds = (torch.tensor([0, *numbers]).cumsum(0) for numbers in (counts, lengths))
    seed = torch.tensor([12345])
    exact = [part.double().requires_grad_() for part in (q, kv)]
    wanted = attend_plain(Inquiry(*exact, asking, bounds, 40, is_apart=True), seed, dropout)
    wanted.backward(gradient.double())
    given = (part.to(device) for part in (q, kv, asking, bounds))
    asked = Inquiry(*given, 40, is_apart=True)
    moved_seed = seed.to(device)
    out, log_sums = attend_kernel_forward(asked, moved_seed, dropout)
    d_q, d_kv, sums = attend_apart_backward(
        gradient.to(device), asked, moved_seed, out, log_sums, dropout
    )
    slopes = [part.grad for part in exact]
    check_close([out, d_q, d_kv], [wanted, *slopes], dtype)
    # Sums are of what was found: few rows, some of which cancel each other.
    check_close([sums[0], sums[2]], [d_q.double().sum(0), d_kv.double().sum(0)[1]], dtype)
    assert float(sums[1].abs().max()) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: takes minutes on a CPU")
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("lengths", LONG, ids=lambda lengths: str(lengths[:3]))
@pytest.mark.parametrize("is_left", [False, True])
def test_long_and_many_are_the_twins(lengths, size, is_left, device):
    compare(lengths, 3, size, 0.1, torch.bfloat16, device, is_left)


@pytest.mark.parametrize("lengths", [[511, 512], [1, 2] * 128], ids=["long", "many"])
def test_long_and_many_are_the_twins_on_a_cpu_too(lengths, device):
    compare(lengths, 1, 16, 0.1, torch.float16, device)


@pytest.mark.parametrize("is_left", [False, True])
def test_the_twin_is_what_a_cpu_computes(is_left):
    qkv, bounds, _ = make([5, 17, 30], 2, 16, torch.float64)
    plain = attend_plain(ask_all(qkv, bounds, 30, is_left=is_left), torch.tensor([0]), 0.0)
    torch.testing.assert_close(plain, attend_runs(qkv, bounds, 30, 0.0, is_left=is_left))


def test_neighbours_order_and_the_given_longest_change_nothing(device):
    qkv, bounds, _ = make([17, 40, 9], 2, 32, torch.float16)
    seed = torch.tensor([1], device=device)
    asked = ask_all(qkv.to(device), bounds.to(device), 128)
    whole, _ = attend_kernel_forward(asked, seed, 0.0)
    for start, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        own = torch.tensor([0, end - start], device=device)
        asked = ask_all(qkv[start:end].to(device), own, end - start)
        alone, _ = attend_kernel_forward(asked, seed, 0.0)
        assert error_of(whole[start:end], alone) < 1e-3


def with_scores(qkv, scores):
    """All queries have these scores (T,), in nats, with the keys."""
    made, size = qkv.clone(), qkv.shape[-1]
    made[:, 0], made[:, 1] = 0, 0
    made[:, 0, :, 0] = 8
    made[:, 1, :, 0] = (scores * size**0.5 / 8)[:, None].to(qkv.dtype)
    return made


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("length", [40, 200])
def test_keys_behind_the_end_do_not_count_where_all_scores_are_far_below_0(
    length, is_left, dtype, device
):
    """A key that is not there has a score of 0, and would have a share of e to the 12."""
    qkv, bounds, gradient = make([length], 2, 64, dtype)
    qkv = with_scores(qkv, torch.full((length,), -12.0))
    compare_rows(qkv, bounds, 300 * gradient, 0.1, device, is_left)


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("step", [1.0, 9.0, 40.0])
def test_later_scores_may_lie_far_above_those_of_the_first_block(step, is_left, dtype, device):
    """Both where sums hold that, and where all is made once more; what is kept of it, too."""
    qkv, bounds, _ = make([200], 1, 64, dtype)
    steps = step * (torch.arange(200) // 60 - 1.5)
    qkv = with_scores(qkv, steps + torch.randn(200, generator=torch.Generator().manual_seed(1)))
    exact = qkv.double()
    seed = torch.tensor([7])
    wanted = attend_plain(ask_all(exact, bounds, 200, is_left=is_left), seed, 0.1)
    scores = (exact[:, 0] * 64**-0.5).transpose(0, 1) @ exact[:, 1].permute(1, 2, 0)
    if is_left:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    asked = ask_all(qkv.to(device), bounds.to(device), 200, is_left=is_left)
    out, log_sums = attend_kernel_forward(asked, seed.to(device), 0.1)
    assert error_of(out, wanted) < max(BOUNDS[dtype], 1e-5)  # scores of 60 have 6 digits left
    assert error_of(log_sums * math.log(2), scores.logsumexp(-1)) < BOUNDS[torch.float32]


def test_dropout_keeps_the_mean(device):
    """With all scores equal and all values 1, a token's mix is the share of what it kept."""
    length = 128
    qkv = torch.zeros(length, 3, 2, 32, dtype=torch.float16, device=device)
    qkv[:, 2] = 1
    bounds = torch.tensor([0, length], device=device)
    seed = torch.tensor([3], device=device)
    out, _ = attend_kernel_forward(ask_all(qkv, bounds, length), seed, 0.1)
    shares = out[:, :, 0].float()
    assert abs(float(shares.mean()) - 1) < 0.01
    assert 0.01 < float(shares.std()) < 0.06
