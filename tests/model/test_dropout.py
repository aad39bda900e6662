"""Dropout drops its share by chance, keeps the mean, and gives the gradient of what it did."""

import pytest
import torch

from bertie.model.dropout import Dropout, add_dropped, drop

SHAPES = [(1,), (3,), (7, 13), (2, 3, 5)]  # sizes that are no multiple of four


@pytest.mark.parametrize("share", [0.0001, 0.1, 0.5, 0.9, 0.9999999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_share_is_dropped_and_the_rest_scaled(share: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(300_001, dtype=dtype)
    dropped = drop(x, share)
    found = (dropped == 0).double().mean().item()
    assert abs(found - share) < 5 * (share * (1 - share) / len(x)) ** 0.5 + 2**-16
    kept = dropped[dropped != 0].double()
    tolerance = 2**-8 if dtype == torch.bfloat16 else 1e-6
    expected = torch.full_like(kept, 1 / (1 - share))
    torch.testing.assert_close(kept, expected, rtol=tolerance, atol=0)


def test_neighbours_are_dropped_independently() -> None:
    """Four numbers share a draw: no distance up to eight is special."""
    torch.manual_seed(1)
    is_dropped = (drop(torch.ones(400_000), 0.3) == 0).double()
    for distance in range(1, 9):
        both = (is_dropped[distance:] * is_dropped[:-distance]).mean().item()
        assert abs(both - 0.09) < 5 * (0.09 * 0.91 / 400_000) ** 0.5, distance
    for place in range(4):
        found = is_dropped[place::4].mean().item()
        assert abs(found - 0.3) < 5 * (0.3 * 0.7 / 100_000) ** 0.5, place


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_is_dropped_where_the_value_was(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    x = torch.rand(shape, dtype=torch.float64).add_(1).requires_grad_()
    dropped = drop(x, 0.4)
    dropped.sum().backward()
    assert x.grad is not None and dropped.shape == x.shape
    torch.testing.assert_close(x.grad * x, dropped)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_adding_what_was_dropped_is_dropping_and_adding(
    shape: tuple[int, ...], share: float
) -> None:
    x, y = torch.rand(shape), torch.rand(shape)
    torch.manual_seed(3)
    together = add_dropped(x, y, share)
    torch.manual_seed(3)
    torch.testing.assert_close(together, x + drop(y, share))


def test_the_seed_decides_and_every_draw_is_new() -> None:
    x = torch.ones(1000)
    torch.manual_seed(4)
    one, two = drop(x, 0.5), drop(x, 0.5)
    torch.manual_seed(4)
    assert torch.equal(drop(x, 0.5), one) and not torch.equal(one, two)


def test_nothing_is_dropped_but_in_training() -> None:
    x = torch.ones(1000)
    module = Dropout(0.5)
    assert (module(x) == 0).any()
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(drop(x, 0.0), x)
