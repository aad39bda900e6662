"""Parts of a sum come to the sum, and what is copied on the way is what was added."""

import pytest
import torch

from bertie.kernels.float8 import LARGEST_SLOPE, Scale, find_scale, quantise_slope_plain
from bertie.kernels.sums import add_rows, sum_and_copy
from tests.kernels.closeness import check_close


def test_rows_are_added(device):
    parts = torch.randn(300, 3, 20, device=device)
    torch.testing.assert_close(add_rows(parts), parts.sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("num_tokens, heads", [(1, 1), (37, 3), (300, 5)])
def test_a_copy_in_eight_bits_is_of_all_rows(num_tokens, heads, dtype, device):
    """That of the keys too, whose sum is 0."""
    generator = torch.Generator().manual_seed(heads)
    d_qkv = torch.randn(num_tokens, 3, heads, 32, generator=generator).to(device, dtype)
    scale = find_scale(d_qkv)
    slope, sums = sum_and_copy(d_qkv, scale)
    alone, wanted = sum_and_copy(d_qkv, None)
    assert alone.eight is None and torch.equal(slope.half, d_qkv.flatten(1))
    assert torch.equal(slope.eight.float(), quantise_slope_plain(slope.half, scale).float())
    check_close([sums], [wanted], torch.float32)
    assert not sums[1].any()


def test_what_is_too_large_becomes_the_largest_and_what_is_no_number_stays_so(device):
    """A step whose gradients are not finite is left out: they must not look as if they were."""
    d_qkv = torch.zeros(2, 3, 1, 32, device=device)
    d_qkv[0, :, 0, :4] = torch.tensor([1e9, -torch.inf, torch.nan, 3.0])
    scale = Scale(torch.full((1,), 2.0, device=device), torch.full((1,), 0.5, device=device))
    slope, sums = sum_and_copy(d_qkv, scale)
    for third in slope.eight.float()[0].view(3, 32).tolist():
        assert third[:2] == [LARGEST_SLOPE, -LARGEST_SLOPE]
        assert third[2] != third[2] and third[3:5] == [6, 0]
    assert not sums[[0, 2]].isfinite().all()
