"""Each optimizer takes the step that is written out here by hand."""

import math

import pytest
import torch
from torch import nn

from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.train.optim import BertOptimizer, OptimConfig, parameter_groups, rate


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double()


def gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = noise * 10.0 ** (step % 3 - 3)


def by_hand(
    config: OptimConfig, w: torch.Tensor, g: torch.Tensor, state: dict, lr: float, t: int
) -> None:
    """One step on one tensor, as the papers write it."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    m, v = state["m"], state["v"]
    if config.name != "bert":
        m, v = m / (1 - 0.9**t), v / (1 - 0.999**t)
    decay = config.decay if w.ndim > 1 else 0.0
    update = m / (v.sqrt() + 1e-6) + decay * w
    if config.name == "lamb" and w.ndim > 1:
        update = update * (w.norm() / update.norm())
    w -= lr * update


@pytest.mark.parametrize("decay", [0.01, 0.0])
@pytest.mark.parametrize("name", ["bert", "adamw", "lamb"])
def test_ten_steps_are_those_written_out_by_hand(name: str, decay: float) -> None:
    model, config = make_model(), OptimConfig(name=name, decay=decay)
    optimizer = BertOptimizer(model, config)
    want = [parameter.detach().clone() for parameter in model.parameters()]
    states: list[dict] = [{} for _ in want]
    for step in range(10):
        gradients(model, step)
        lr = 1e-3 * (step + 1)
        for weight, parameter, state in zip(want, model.parameters(), states, strict=True):
            by_hand(config, weight, parameter.grad.clone(), state, lr, step + 1)
        optimizer.step(lr)
        optimizer.zero_grad()
        for weight, parameter in zip(want, model.parameters(), strict=True):
            torch.testing.assert_close(parameter.detach(), weight, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["bert", "adamw", "lamb", "muon"])
def test_a_step_whose_norm_is_not_finite_is_none(name: str) -> None:
    """The steps after it are those of an optimizer that never saw it."""
    weights = []
    for has_bad in (False, True):
        model = make_bert()
        optimizer = BertOptimizer(model, OptimConfig(name=name))  # type: ignore[arg-type]
        for step in range(4):
            if has_bad and step == 2:
                gradients(model, 99)
                before = [p.detach().clone() for p in model.parameters()]
                optimizer.step(1e-3, torch.tensor(torch.inf))
                optimizer.forget_step()
                assert all(map(torch.equal, before, model.parameters()))
            gradients(model, step)
            optimizer.step(1e-3, torch.tensor(1.0))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_biases_and_norms_do_not_decay() -> None:
    decayed, plain = parameter_groups(make_model(), OptimConfig(decay=0.01))
    assert [tuple(p.shape) for p in decayed["params"]] == [(7, 5), (3, 7)]
    assert all(p.ndim == 1 for p in plain["params"]) and len(plain["params"]) == 4
    assert (decayed["decay"], plain["decay"]) == (0.01, 0.0)


def make_bert() -> Bert:
    config = ModelConfig(
        vocab_size=7, hidden_size=6, num_layers=3, num_heads=2, ffn_size=5, max_positions=4
    )
    return Bert(config, ("sequence",), generator=torch.Generator().manual_seed(1))


def shares_of(model: Bert, layer_decay: float) -> dict[str, float]:
    """Parameter -> its share of the rate."""
    groups = parameter_groups(model, OptimConfig(layer_decay=layer_decay))
    of_tensor = {id(p): group["share"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(of_tensor)
    return {n: of_tensor[id(p)] for n, p in model.named_parameters() if p.requires_grad}


def test_each_layer_has_a_share_of_the_rate_of_the_layer_above() -> None:
    shares = shares_of(make_bert(), 0.5)
    assert len(shares) == len(list(make_bert().parameters()))
    want = {"embeddings": 0.0625, "layers.0": 0.125, "layers.1": 0.25, "layers.2": 0.5}
    for name, share in shares.items():
        part = ".".join(name.split(".")[: 2 if name.startswith("layers") else 1])
        assert share == want.get(part, 1.0), name  # pooler and head: the whole rate
    assert set(shares_of(make_bert(), 1.0).values()) == {1.0}


def test_frozen_layers_do_not_move_the_shares_of_the_others() -> None:
    model = make_bert()
    model.embeddings.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    whole = shares_of(make_bert(), 0.5)
    assert shares_of(model, 0.5).items() <= whole.items()


def test_a_step_is_as_large_as_the_share_says() -> None:
    model = make_bert()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = BertOptimizer(model, OptimConfig(name="adamw", decay=0.0, layer_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(1e-2)
    for name, share in shares_of(model, 0.5).items():
        moved = before[name] - model.get_parameter(name)
        torch.testing.assert_close(moved, torch.full_like(moved, 1e-2 * share), rtol=1e-3, atol=0)


def test_googles_schedule_counts_from_the_start_and_jumps_after_the_warm_up() -> None:
    config = OptimConfig(peak=1.0, warmup=0.1)
    assert rate(0.0, config) == 0
    assert rate(0.05, config) == pytest.approx(0.5)
    assert rate(0.1, config) == pytest.approx(0.9)
    assert rate(0.55, config) == pytest.approx(0.45)
    assert rate(1.0, config) == 0


@pytest.mark.parametrize(("schedule", "half"), [("linear", 0.5), ("cosine", 0.5), ("constant", 1)])
def test_other_schedules_start_at_the_peak_after_the_warm_up(schedule: str, half: float) -> None:
    config = OptimConfig(peak=2.0, warmup=0.1, schedule=schedule)
    assert rate(0.1, config) == pytest.approx(2.0)
    assert rate(0.55, config) == pytest.approx(2.0 * half)
    assert math.isclose(rate(1.0, config), 2.0 if schedule == "constant" else 0.0, abs_tol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"peak": 0.0},
        {"beta2": 1.0},
        {"warmup": 10_000.0},
        {"layer_decay": 0.0},
        {"layer_decay": 1.1},
        {"eps": 0.0},
        {"decay": -0.1},
        {"max_norm": -2.0},
        *(
            {name: value}
            for name in ("peak", "eps", "decay", "max_norm", "beta1", "beta2", "warmup")
            for value in (math.nan, math.inf)
        ),
        {"layer_decay": math.nan},
    ],
)
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        OptimConfig(**wrong)
