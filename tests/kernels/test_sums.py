"""Parts of a sum come to the sum, and what is copied on the way is what was added."""

import pytest
import torch

from bertie.kernels.float8 import find_scale, quantise_slope_plain
from bertie.kernels.sums import add_rows, sum_tokens
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
    slope, sums = sum_tokens(d_qkv, scale=scale)
    alone, wanted = sum_tokens(d_qkv)
    assert alone.eight is None and torch.equal(slope.half, d_qkv.flatten(1))
    assert torch.equal(slope.eight.float(), quantise_slope_plain(slope.half, scale).float())
    check_close([sums], [wanted], torch.float32)
    assert not sums[1].any()
