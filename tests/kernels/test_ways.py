"""Ways of products: what is chosen, for whom it holds, and that it changes no result."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch

from bertie.kernels import ways
from bertie.kernels.cublaslt import (
    ADD_BIAS,
    GELU_BIAS_SAVED,
    GELU_SLOPE,
    NO_ENDING,
    Plan,
    Product,
)
from bertie.kernels.products import back_product, forward_product
from bertie.kernels.ways import Planned, family_of, rank, rank_ways, take_turns
from tests.kernels.conftest import needs_cublaslt

FORWARD = Product(3072, 60_001, 768, True, NO_ENDING, 0)


def test_products_that_differ_by_some_tokens_are_one_family():
    """Tokens are columns of what comes out; all else tells families apart."""
    assert family_of(FORWARD) == family_of(FORWARD._replace(n=60_002))
    assert family_of(FORWARD) == family_of(FORWARD._replace(n=65_536))
    assert family_of(FORWARD) != family_of(FORWARD._replace(n=65_537))
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
    assert rank([[1.0, 1.0, 1.0]]) == [0]
    assert rank([[1.0, 1.0, 1.0], [0.999, 0.999, 0.999], [1.2, 1.2, 1.2]]) == [0, 1, 2]
    assert rank([[1.0, 1.0], [1.2, 1.2], [0.995, 0.995]]) == [0, 2, 1]
    disturbed = [0.97, 0.97, 9.0]
    assert rank([[1.0, 1.0, 1.0], disturbed, [0.98, 0.98, 0.98]]) == [1, 2, 0]


# --- when a family is measured, and who takes its ways; the library's part is played ---


class PlayedPlan:
    """Ways are numbers: 3 is wrong, 4 cannot be launched, 2 cannot be adopted for 60,003 tokens."""

    def __init__(self, product):
        self.product, self.launched = product, []

    def suggest(self, most):
        return [1, 2, 3, 4][:most]

    def adopt(self, way):
        return None if way == 2 and self.product.n == 60_003 else way

    def point(self, bias, wide, scale):
        pass

    def launch(self, way, a, b, out):
        self.launched.append(way)
        out.copy_(a if way < 3 else -a)
        return 1 if way == 4 else 0


@pytest.fixture
def played(monkeypatch):
    """Rounds that were measured; in each, the second way of those that take part is faster."""
    measured = []

    def take_turns(runs):
        measured.append(len(runs))
        return [[1.0 / (1 + number)] for number in range(len(runs))]

    for name, value in {
        "Plan": PlayedPlan,
        "take_turns": take_turns,
        "ASKED_BEFORE": 2,
        "ASKED": Counter(),
        "CHOSEN": {},
    }.items():
        monkeypatch.setattr(ways, name, value)
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    return measured


def run_played(planned, value=1.0):
    a, out = torch.full((2,), value), torch.zeros(2)
    planned.run(a, a, out)
    assert torch.equal(out, a)


def test_a_family_is_measured_once_when_it_was_asked_for_often(played):
    one, other = Planned(FORWARD), Planned(FORWARD._replace(n=50_000))
    for _ in range(2):
        run_played(one)
    assert played == [] and one.way == 1
    run_played(other)
    assert played == [2]  # of four ways, one is wrong and one cannot be launched
    assert other.way == 2 and one.way == 1
    run_played(one)
    assert one.way == 2 and one.is_settled and played == [2]
    refused = Planned(FORWARD._replace(n=60_003))
    run_played(refused)
    assert refused.way == 1 and refused.is_settled  # the next that it can take
    assert played == [2]


def test_small_products_take_the_first_way(played):
    small = Planned(FORWARD._replace(n=8))
    for _ in range(5):
        run_played(small)
    assert small.way == 1 and played == []


def test_what_cannot_be_judged_now_is_measured_later(played, monkeypatch):
    planned, measure = Planned(FORWARD), ways.list_equal
    for _ in range(3):
        run_played(planned, value=0.0)  # zeros are equal whatever the way
    assert played == [] and not planned.is_settled

    def run_out(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(ways, "list_equal", run_out)
    for _ in range(3):
        run_played(planned)
    assert played == [] and not planned.is_settled and ways.CHOSEN == {}
    monkeypatch.setattr(ways, "list_equal", measure)
    for _ in range(3):
        run_played(planned)
    assert played == [2] and planned.way == 2


def test_nothing_is_measured_while_a_graph_is_recorded(played, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    planned = Planned(FORWARD)
    for _ in range(5):
        run_played(planned)
    assert played == [] and planned.way == 1


# --- with the library, on a GPU ---


@pytest.fixture
def measured_at_once(monkeypatch):
    for name, value in {"LEAST_OPERATIONS": 0, "ASKED_BEFORE": 0, "CHOSEN": {}}.items():
        monkeypatch.setattr(ways, name, value)


def draw(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


@needs_cublaslt
def test_everyone_has_a_turn_in_every_round():
    count, x = [0, 0, 0], draw(2048, 2048)

    def run(number):
        count[number] += 1
        return x @ x

    taken = take_turns([lambda n=n: run(n) for n in range(3)])
    assert [len(one) for one in taken] == [ways.ROUNDS] * 3
    assert min(count) == max(count) > ways.ROUNDS
    assert all(milliseconds > 0 for one in taken for milliseconds in one)


@needs_cublaslt
@pytest.mark.parametrize("ending", [NO_ENDING, ADD_BIAS, GELU_BIAS_SAVED, GELU_SLOPE])
def test_a_choice_changes_no_bit(ending):
    """Whatever is measured, what comes out is what the library's first way gives; and so it is for
    other numbers of tokens of the family."""
    weight = draw(2048, 512)
    is_back = ending == GELU_SLOPE
    bias = None if ending in (NO_ENDING, GELU_SLOPE) else draw(2048)

    def make(num_tokens):
        rows = draw(num_tokens, 2048 if is_back else 512)
        product = back_product(rows, weight, ending) if is_back else None
        product = product or forward_product(rows, weight, ending)
        wide = draw(product.n, product.m) if ending in (GELU_BIAS_SAVED, GELU_SLOPE) else None
        plan = Plan(product)
        plan.point(bias, wide, None)
        return plan, rows, rows.new_zeros(product.n, product.m), wide

    plan, rows, out, wide = make(20_000)
    chosen = rank_ways(plan, weight, rows, out, wide)
    assert chosen and not out.any()
    for num_tokens in (20_000, 17_001, 32_768):
        plan, rows, wanted, wide = make(num_tokens)
        assert plan.launch(plan.suggest(1)[0], weight, rows, wanted) == 0
        for way in filter(None, map(plan.adopt, chosen)):
            found = torch.full_like(wanted, torch.nan)
            assert plan.launch(way, weight, rows, found) == 0
            assert torch.equal(found, wanted)


@needs_cublaslt
def test_what_was_chosen_once_is_taken_for_other_numbers_of_tokens(measured_at_once):
    weight = draw(2048, 512)

    def run(num_tokens):
        x = draw(num_tokens, 512)
        planned = Planned(forward_product(x, weight, NO_ENDING))
        out = x.new_full((num_tokens, 2048), torch.nan)
        planned.run(weight, x, out)
        torch.testing.assert_close(out, x @ weight.T)
        return planned.is_settled

    assert run(17_000) and len(ways.CHOSEN) == 1
    assert run(30_000) and len(ways.CHOSEN) == 1  # of the same family
    assert run(40_000) and len(ways.CHOSEN) == 2


@needs_cublaslt
def test_products_added_to_others_are_measured_elsewhere(measured_at_once):
    """The first run measures many times, and adds once."""
    x, weight, total = draw(4096, 512), draw(512, 512), draw(4096, 512)
    wanted = total + x @ weight.T
    Planned(forward_product(x, weight, NO_ENDING)._replace(is_added=True)).run(weight, x, total)
    torch.testing.assert_close(total, wanted, rtol=2e-2, atol=2e-1)
    assert len(ways.CHOSEN) == 1
