"""Other launches find what a kernel's own does: they are about time alone."""

import torch

from bertie.kernels.attention import ask_all, attend_kernel_backward, attend_kernel_forward
from bertie.kernels.launch import BlockLaunch, RowLaunch, TileLaunch
from bertie.kernels.norm import add_norm_backward, add_norm_forward
from bertie.kernels.sums import sum_and_copy
from tests.kernels.closeness import check_close

ROWS = RowLaunch(rows=4, num_warps=2, max_programs=3)
TILES = TileLaunch(queries=32, keys=16, num_warps=4, num_stages=2, max_registers=128)


def test_of_norms(device):
    generator = torch.Generator().manual_seed(0)
    residual, y = torch.randn(2, 37, 96, generator=generator).half().to(device)
    bias, weight, shift = torch.randn(3, 96, generator=generator).to(device)
    seed = torch.tensor([5], device=device)
    answers = []
    for launch in (None, ROWS):
        out, summed, statistics = add_norm_forward(
            residual, y, bias, weight, shift, seed, 0.1, 1e-12, is_saved=True, launch=launch
        )
        back = add_norm_backward(y, summed, statistics, weight, seed, 0.1, launch=launch)
        answers.append([out, back[0], back[1].half, back[2]])
    check_close(*answers, torch.float16)


def test_of_attention(device):
    """With dropout: which shares are dropped does not depend on the tiles."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(200, 3, 1, 32, generator=generator).half().to(device)
    gradient = torch.randn(200, 1, 32, generator=generator).half().to(device)
    bounds, seed = torch.tensor([0, 150, 200], device=device), torch.tensor([9], device=device)
    answers = []
    for launch in (None, TILES):
        asked = ask_all(qkv, bounds, 150)
        out, log_sums = attend_kernel_forward(asked, seed, 0.1, launch=launch)
        back = attend_kernel_backward(
            gradient, qkv, bounds, 150, seed, out, log_sums, 0.1, launch=launch, key_launch=launch
        )
        answers.append([out, log_sums, back])
    check_close(*answers, torch.float16)


def test_of_sums(device):
    rows = torch.randn(300, 3, 2, 32, generator=torch.Generator().manual_seed(0)).to(device)
    launch = BlockLaunch(rows=16, columns=32, num_warps=4, max_programs=2)
    wanted, found = (sum_and_copy(rows, None, launch=one)[1] for one in (None, launch))
    check_close([found[[0, 2]]], [wanted[[0, 2]]], torch.float32)
