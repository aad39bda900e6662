"""Ways of products: what is chosen, for whom it holds, and that it changes no result."""

import pytest
import torch

from bertie.kernels import ways
from bertie.kernels.cublaslt import ADD_BIAS, NO_ENDING, Plan, Product, library
from bertie.kernels.products import back_product, forward_product
from bertie.kernels.ways import Planned, choose_way, family_of, list_equal, pick, take_turns

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or library() is None, reason="needs a GPU and cuBLASLt"
)
FORWARD = Product(3072, 60_001, 768, True, NO_ENDING, 0)


def test_products_that_differ_by_some_tokens_are_one_family():
    """Tokens are columns of what comes out; all else tells families apart."""
    assert family_of(FORWARD) == family_of(FORWARD._replace(n=60_002))
    others = [
        FORWARD._replace(n=3_000),
        FORWARD._replace(m=768),
        FORWARD._replace(k=3072),
        FORWARD._replace(ending=ADD_BIAS),
        FORWARD._replace(is_float8=True),
        FORWARD._replace(is_added=True),
        FORWARD._replace(device=1),
    ]
    assert len({family_of(product) for product in (FORWARD, *others)}) == 1 + len(others)


def test_the_first_way_stays_unless_another_is_clearly_faster():
    assert pick([[1.0, 1.0, 1.0]]) == 0
    assert pick([[1.0, 1.0, 1.0], [0.999, 0.999, 0.999], [1.2, 1.2, 1.2]]) == 0
    assert pick([[1.0, 1.0, 1.0], [0.97, 0.97, 9.0], [0.98, 0.98, 0.98]]) == 1  # one was disturbed


def draw(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


@needs_gpu
def test_everyone_has_a_turn_in_every_round():
    count, x = [0, 0, 0], draw(2048, 2048)

    def run(number):
        count[number] += 1
        return x @ x

    taken = take_turns([lambda n=n: run(n) for n in range(3)])
    assert [len(one) for one in taken] == [ways.ROUNDS] * 3
    assert min(count) == max(count) > ways.ROUNDS
    assert all(milliseconds > 0 for one in taken for milliseconds in one)


@needs_gpu
@pytest.mark.parametrize("is_back", [False, True])
def test_a_choice_changes_no_bit(is_back):
    """Whatever is measured, what comes out is what the library's first way gives."""
    weight = draw(2048, 512)
    rows = draw(20_000, 2048 if is_back else 512)
    product = back_product(rows, weight) if is_back else forward_product(rows, weight, NO_ENDING)
    plan = Plan(product)
    wanted, found = (rows.new_zeros(product.n, product.m) for _ in "ab")
    assert plan.launch(plan.suggest(1)[0], weight, rows, wanted) == 0
    for way in list_equal(plan, weight, rows, wanted):
        assert plan.launch(way, weight, rows, found.zero_()) == 0
        assert torch.equal(found, wanted)
    chosen = choose_way(plan, weight, rows, wanted) or plan.suggest(1)[0]
    assert plan.launch(chosen, weight, rows, found.zero_()) == 0
    assert torch.equal(found, wanted)


@needs_gpu
def test_what_was_chosen_once_is_taken_for_other_numbers_of_tokens(monkeypatch):
    monkeypatch.setattr(ways, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(ways, "CHOSEN", {})
    weight = draw(2048, 512)

    def run(num_tokens):
        x = draw(num_tokens, 512)
        planned = Planned(forward_product(x, weight, NO_ENDING))
        was_settled = planned.is_settled
        out = x.new_full((num_tokens, 2048), torch.nan)
        planned.run(weight, x, out)
        torch.testing.assert_close(out, x @ weight.T)
        return was_settled

    assert not run(17_000)
    assert run(30_000)  # of the same family
    assert not run(40_000)
    assert len(ways.CHOSEN) == 2


@needs_gpu
def test_products_added_to_others_are_measured_elsewhere(monkeypatch):
    """The first run measures many times, and adds once."""
    monkeypatch.setattr(ways, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(ways, "CHOSEN", {})
    x, weight, total = draw(4096, 512), draw(512, 512), draw(4096, 512)
    wanted = total + x @ weight.T
    Planned(forward_product(x, weight, NO_ENDING)._replace(is_added=True)).run(weight, x, total)
    torch.testing.assert_close(total, wanted, rtol=2e-2, atol=2e-1)
