"""Losses are sums and counts: parts add up to the whole, and nothing is no NaN."""

import pytest
import torch
import torch.nn.functional as F

from bertie.objectives import cross_entropy, token_losses


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(11, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


LABELS = torch.tensor([0, 6, 3, 3, 1, 2, 5, 4, 0, 6, 6])


def test_a_batch_in_parts_is_the_whole_batch(logits: torch.Tensor) -> None:
    whole = cross_entropy(logits, LABELS)
    parts = [cross_entropy(logits[a:b], LABELS[a:b]) for a, b in ((0, 1), (1, 1), (1, 8), (8, 11))]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    assert sum(int(part.num_targets) for part in parts) == int(whole.num_targets) == 11
    assert sum(int(part.num_right) for part in parts) == int(whole.num_right)
    assert int(whole.num_right) == int((logits.argmax(1) == LABELS).sum())


def test_the_mean_is_torchs(logits: torch.Tensor) -> None:
    term = cross_entropy(logits, LABELS)
    mean = F.cross_entropy(logits.float(), LABELS)
    torch.testing.assert_close(term.total / term.num_targets, mean)
    torch.testing.assert_close(token_losses(logits, LABELS).sum(), term.total)


def test_no_targets_give_no_loss_and_no_gradient(logits: torch.Tensor) -> None:
    logits.requires_grad_()
    term = cross_entropy(logits[:0], LABELS[:0])
    assert term.total == 0 and term.num_targets == 0 and term.num_right == 0
    term.total.backward()
    assert logits.grad is not None and not logits.grad.any()


def test_ignored_labels_count_nowhere(logits: torch.Tensor) -> None:
    labels = LABELS.clone()
    labels[8:] = -100
    filled, plain = cross_entropy(logits, labels), cross_entropy(logits[:8], LABELS[:8])
    torch.testing.assert_close(filled.total, plain.total)
    assert filled.num_right == plain.num_right
    assert filled.num_targets == plain.num_targets == 8
