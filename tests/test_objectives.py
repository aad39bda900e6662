"""Losses are sums and counts: parts add up to the whole, and nothing is no NaN."""

import pytest
import torch
import torch.nn.functional as F

from bertie import objectives
from bertie.data import loader
from bertie.objectives import (
    Term,
    binary_cross_entropy,
    cross_entropy,
    linear_cross_entropy,
    segment_cross_entropy,
    span_cross_entropy,
    squared_error,
    token_losses,
    weighted_cross_entropy,
)


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


def test_the_loader_fills_with_what_no_loss_counts() -> None:
    """Written twice, as data must not know loss."""
    assert loader.IGNORED == objectives.IGNORED


def test_ignored_labels_count_nowhere(logits: torch.Tensor) -> None:
    labels = LABELS.clone()
    labels[8:] = -100
    filled, plain = cross_entropy(logits, labels), cross_entropy(logits[:8], LABELS[:8])
    torch.testing.assert_close(filled.total, plain.total)
    assert filled.num_right == plain.num_right
    assert filled.num_targets == plain.num_targets == 8


# Losses of the tasks.


def test_a_segments_softmax_is_torchs_on_each_segment(logits: torch.Tensor) -> None:
    scores = (100 * logits[:, 0]).requires_grad_()  # large, so that exp would overflow
    bounds, targets = torch.tensor([0, 1, 4, 11]), torch.tensor([0, 2, 3])
    weights = torch.tensor([1.0, 0.0, 2.5])
    term = segment_cross_entropy(scores, bounds, targets, weights)
    losses = torch.stack(
        [
            F.cross_entropy(scores[a:b].float(), target)
            for a, b, target in ((0, 1, targets[0]), (1, 4, targets[1]), (4, 11, targets[2]))
        ]
    )
    torch.testing.assert_close(term.total, (losses * weights).sum())
    (one,) = torch.autograd.grad(term.total, scores, retain_graph=True)
    (two,) = torch.autograd.grad((losses * weights).sum(), scores)
    torch.testing.assert_close(one, two)
    assert float(term.num_targets) == 3.5


def test_spans_are_the_mean_of_start_and_end(logits: torch.Tensor) -> None:
    bounds, targets = torch.tensor([0, 4, 11]), torch.tensor([[0, 3], [6, 6]])
    term = span_cross_entropy(logits[:, :2], bounds, targets, torch.ones(2))
    start = F.cross_entropy(logits[:4, 0].float(), torch.tensor(0))
    start += F.cross_entropy(logits[4:, 0].float(), torch.tensor(6))
    end = F.cross_entropy(logits[:4, 1].float(), torch.tensor(3))
    end += F.cross_entropy(logits[4:, 1].float(), torch.tensor(6))
    torch.testing.assert_close(term.total, (start + end) / 2)


def test_what_is_right_is_counted() -> None:
    """Of a span start and end are half of it each; a number is right if less than a half off."""
    rows = torch.zeros(5, 2)
    rows[1, 0] = rows[2, 1] = rows[4, 0] = rows[3, 1] = 1.0
    bounds, weights = torch.tensor([0, 3, 5]), torch.tensor([1.0, 4.0])
    for targets, right in (([[1, 2], [1, 0]], 5), ([[0, 2], [1, 0]], 4.5), ([[1, 2], [0, 0]], 3)):
        term = span_cross_entropy(rows, bounds, torch.tensor(targets), weights)
        assert float(term.num_right) == right and float(term.num_targets) == 5
    errors = torch.tensor([0.4, -0.6])
    assert float(squared_error(errors, torch.zeros(2), weights).num_right) == 1
    two = torch.tensor([[0.5, -0.5], [0.5, 0.5]])
    given = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(binary_cross_entropy(two, given, weights).num_right) == 1 + 4 / 2


def test_weights_add_up_over_parts(logits: torch.Tensor) -> None:
    weights = torch.linspace(0, 2, 11)
    many = torch.arange(77).reshape(11, 7).remainder(3).eq(0).float()
    for loss, labels in (
        (weighted_cross_entropy, LABELS),
        (binary_cross_entropy, many),
        (lambda x, y, w: squared_error(x[:, 0], y, w), torch.linspace(-1, 1, 11)),
    ):
        whole = loss(logits, labels, weights)
        parts = [loss(logits[a:b], labels[a:b], weights[a:b]) for a, b in ((0, 5), (5, 5), (5, 11))]
        torch.testing.assert_close(sum(part.total for part in parts), whole.total)
        torch.testing.assert_close(sum(part.num_targets for part in parts), weights.sum())
    mean = F.binary_cross_entropy_with_logits(logits.float(), many)
    term = binary_cross_entropy(logits, many, torch.ones(11))
    torch.testing.assert_close(term.total / term.num_targets, mean)


class Layer:
    """An output layer whose width is no round number, and rows for it; the labels are LABELS."""

    def __init__(self, dtype: torch.dtype) -> None:
        rng = torch.Generator().manual_seed(5)
        shapes = (len(LABELS), 3), (37, 3), (37,)
        self.leaves = [
            torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes
        ]

    def plain(self, labels: torch.Tensor = LABELS) -> Term:
        return cross_entropy(F.linear(*self.leaves), labels)

    def fused(self, labels: torch.Tensor = LABELS) -> Term:
        return linear_cross_entropy(*self.leaves, labels)

    def gradients(self, term: Term) -> list[torch.Tensor]:
        return list(torch.autograd.grad(term.total / 11, self.leaves))


@pytest.fixture(params=[1, 3, 5, 100], ids=lambda rows: f"{rows} rows a block")
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "BLOCK_BYTES", request.param * 48 * 4)
    monkeypatch.setattr(objectives, "SCORED_ROWS", 2)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("ignored", [[], [0], [3, 4, 10], range(11)], ids=str)
def test_without_storing_logits_the_loss_is_the_same(ignored: list[int]) -> None:
    labels = LABELS.clone()
    labels[list(ignored)] = -100
    layer = Layer(torch.float32)
    plain, fused = layer.plain(labels), layer.fused(labels)
    torch.testing.assert_close(fused.total, plain.total)
    assert fused.num_right == plain.num_right and fused.num_targets == plain.num_targets
    expected = layer.gradients(plain)
    for found, wanted in zip(layer.gradients(fused), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("_blocks")
def test_in_half_precision_it_is_as_near_to_the_truth_as_torchs() -> None:
    layer = Layer(torch.float32)
    truth = layer.plain()
    with torch.autocast("cpu", torch.bfloat16):
        plain, fused = layer.plain(), layer.fused()
    assert fused.total.dtype == torch.float32
    torch.testing.assert_close(fused.total, truth.total, rtol=0.01, atol=0)
    for found, usual, wanted in zip(
        *(layer.gradients(term) for term in (fused, plain, truth)), strict=True
    ):
        assert found.dtype == torch.float32
        assert (found - wanted).norm() < 1.5 * (usual - wanted).norm() + 1e-3 * wanted.norm()


def test_no_logit_is_too_large_for_the_fused_loss() -> None:
    rows = torch.tensor([[1.0], [-1.0]])
    weight, bias = torch.tensor([[1e4], [-1e4], [0.0]]), torch.zeros(3)
    term = linear_cross_entropy(rows, weight, bias, torch.tensor([1, 1]))
    assert term.total == 2e4 and term.num_right == 1


def test_the_fused_loss_refuses_to_be_walked_back_twice() -> None:
    layer = Layer(torch.float32)
    term = layer.fused()
    torch.autograd.grad(term.total, layer.leaves, retain_graph=True)
    with pytest.raises(AssertionError, match="walked back once"):
        layer.gradients(term)


def test_without_gradients_there_is_a_loss_all_the_same() -> None:
    layer = Layer(torch.float32)
    with torch.no_grad():
        fused = layer.fused()
    assert not fused.total.requires_grad
    torch.testing.assert_close(fused.total, layer.plain().total.detach())
