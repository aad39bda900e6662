"""Losses and gradients of a linear layer's logits against torch's."""

import pytest
import torch
import torch.nn.functional as F

from bertie.kernels import cross_entropy
from bertie.kernels.cross_entropy import scale_by, score_linear
from tests.kernels.closeness import check_close

IGNORED = -100


@pytest.mark.parametrize("block_rows", [8192, 7])
@pytest.mark.parametrize("num_pieces", [37, 64, 5000])
def test_loss_and_gradients_are_torchs(num_pieces, block_rows, dtype, device, monkeypatch):
    monkeypatch.setattr(cross_entropy, "BLOCK_ROWS", block_rows)
    generator = torch.Generator().manual_seed(num_pieces)
    rows = torch.randn(20, 16, generator=generator).to(dtype)
    weight = (torch.randn(num_pieces, 16, generator=generator) / 4).to(dtype).float()
    bias = torch.randn(num_pieces, generator=generator)
    labels = torch.randint(num_pieces, (20,), generator=generator)
    labels[[3, 19]] = IGNORED
    inputs = [part.double().requires_grad_() for part in (rows, weight, bias)]
    logits = F.linear(*inputs)
    wanted = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
    (wanted / 2).backward()
    moved = [part.to(device).requires_grad_() for part in (rows, weight, bias)]
    total, num_right = score_linear(*moved, labels.to(device), IGNORED)
    (total / 2).backward()
    check_close(
        [total, *(part.grad for part in moved)], [wanted, *(part.grad for part in inputs)], dtype
    )
    assert int(num_right) == int((logits.argmax(-1) == labels).sum())
    with torch.no_grad():
        assert float(score_linear(*moved, labels.to(device), IGNORED)[0]) == float(total)


def test_of_equal_logits_the_first_is_the_guess(device):
    rows = torch.ones(2, 16, device=device)
    weight = torch.ones(100, 16, device=device)
    labels = torch.tensor([0, 1], device=device)
    assert int(score_linear(rows, weight, torch.zeros(100, device=device), labels, -100)[1]) == 1


def test_without_rows_the_loss_and_its_gradients_are_0(device):
    rows = torch.zeros(0, 16, device=device, requires_grad=True)
    weight = torch.ones(40, 16, device=device, requires_grad=True)
    bias = torch.zeros(40, device=device, requires_grad=True)
    total, num_right = score_linear(rows, weight, bias, torch.zeros(0).long().to(device), IGNORED)
    total.backward()
    assert float(total.detach()) == float(weight.grad.abs().sum()) == int(num_right) == 0
    assert not bias.grad.any()  # but it has one: ranks add them up


def test_a_scale_is_not_rounded_to_the_precision_of_the_rows(dtype, device):
    """1 / 5,003 is 0.3% away in bfloat16, and all of a gradient would be."""
    gradient = torch.full((3, 16), 3.0, dtype=dtype, device=device)
    scale = torch.tensor(1 / 5003, device=device)
    wanted = (gradient.double() / 5003).to(dtype)
    assert torch.equal(scale_by(gradient.clone(), scale), wanted)
