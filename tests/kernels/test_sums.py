"""Parts of a sum come to the sum."""

import torch

from bertie.kernels.sums import add_rows


def test_rows_are_added(device):
    parts = torch.randn(300, 3, 20, device=device)
    torch.testing.assert_close(add_rows(parts), parts.sum(0), rtol=1e-5, atol=1e-4)
