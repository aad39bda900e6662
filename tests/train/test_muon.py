"""Muon against torch's own, its polynomial against singular values."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import LayerKind, ModelConfig
from bertie.train import muon
from bertie.train.muon import Muon, count_parts, orthogonalise
from bertie.train.optim import BertOptimizer, OptimConfig

SHAPES = [(7, 7), (3, 11), (11, 3), (1, 6), (6, 1)]


def make(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e12])
def test_singular_values_come_near_one_and_directions_stay(
    shape: tuple[int, int], size: float
) -> None:
    left, _, right = torch.linalg.svd(make(4, *shape), full_matrices=False)
    values = torch.linspace(size, 0.02 * size, min(shape), dtype=torch.float64)
    found = left.mT @ orthogonalise((left * values) @ right) @ right.mT
    scales = found.diagonal(dim1=-2, dim2=-1)
    assert 0.65 < scales.min() <= scales.max() < 1.25
    torch.testing.assert_close(found, torch.diag_embed(scales), rtol=0, atol=1e-8)


def test_nothing_has_no_direction() -> None:
    assert orthogonalise(torch.zeros(2, 3, 5)).eq(0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ten_steps_are_those_of_torchs_muon(shape: tuple[int, int]) -> None:
    """As near as its bf16 allows."""
    ours, theirs = (nn.Parameter(make(*shape).float()) for _ in range(2))
    group = {"params": [ours], "num_parts": 1}
    optimizer = Muon([group], momentum=0.9)
    optimizer.param_groups[0] |= {"lr": 1e-2, "weight_decay": 0.5}
    settings = {"lr": 5e-2, "weight_decay": 0.1, "momentum": 0.9}  # of its rate it takes a fifth
    other = torch.optim.Muon([theirs], **settings, adjust_lr_fn="match_rms_adamw")
    for step in range(10):
        ours.grad, theirs.grad = (make(*shape, seed=step + 1).float() for _ in range(2))
        optimizer.step()
        other.step()
    assert (ours - theirs).norm() < 0.02 * (theirs - make(*shape)).norm()


def test_queries_keys_and_values_step_apart() -> None:
    model = make_bert()
    model.layers[0].attention.qkv.weight.data.zero_()
    before = model.layers[0].attention.qkv.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    model.layers[0].attention.qkv.weight.grad[:6] *= 1e6  # queries alone
    optimizer = BertOptimizer(model, OptimConfig(name="muon"))
    optimizer.step(1e-2)
    moved = (before - model.layers[0].attention.qkv.weight).view(3, 6, 6)
    for part in moved:  # each as large as if it were alone
        scales = torch.linalg.svdvals(part) / (1e-2 * 6**0.5)
        assert 0.6 < scales.max() < 1.35


def make_bert(layer: LayerKind = "transformer") -> Bert:
    config = ModelConfig(
        vocab_size=7,
        hidden_size=6,
        num_layers=3,
        num_heads=2,
        ffn_size=5,
        max_positions=4,
        layer=layer,
    )
    generator = torch.Generator().manual_seed(1)
    return Bert(config, ("masked_lm", "next_sentence"), generator=generator)


def test_it_is_for_the_four_matrices_of_each_layer() -> None:
    counts = {name: count_parts(name) for name, _ in make_bert().named_parameters()}
    found = {name: parts for name, parts in counts.items() if parts}
    assert len(found) == 4 * 3 and set(found.values()) == {1, 3}
    assert all(name.startswith("layers.") and name.endswith(".weight") for name in found)
    assert [n for n, parts in found.items() if parts == 3] == [
        f"layers.{layer}.attention.qkv.weight" for layer in range(3)
    ]


def test_steps_do_not_depend_on_how_many_matrices_go_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = []
    for most in (2**25, 1):
        monkeypatch.setattr(muon, "MOST_TOGETHER", most)
        model = make_bert().double()
        optimizer = BertOptimizer(model, OptimConfig(name="muon"))
        for step in range(3):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = make(*parameter.shape, seed=100 * step + number)
            optimizer.step(1e-2)
        weights.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def step_alone(
    weight: torch.Tensor, gradients: list[torch.Tensor], num_parts: int, config: OptimConfig
) -> torch.Tensor:
    """What becomes of one matrix, step by step and part by part."""
    mean = torch.zeros_like(weight)
    for gradient in gradients:
        mean = config.beta1 * mean + (1 - config.beta1) * gradient
        ahead = config.beta1 * mean + (1 - config.beta1) * gradient
        parts = [orthogonalise(part[None])[0] for part in ahead.chunk(num_parts)]
        length = 1e-2 * max(parts[0].shape) ** 0.5
        weight = weight * (1 - 1e-2 * config.decay) - length * torch.cat(parts)
    return weight


def test_together_they_step_as_each_alone() -> None:
    """In steps that are none, whose gradients are no numbers, nothing of them changes."""
    config = OptimConfig(name="muon", decay=0.3)
    model = make_bert().double()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = BertOptimizer(model, config)
    bad = [1, 3]
    for step in range(5):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = make(*parameter.shape, seed=100 * step + number)
            if step in bad:
                parameter.grad *= float("nan")
        held = {n: t.clone() for n, t in optimizer.tensors(model).items()}
        held |= {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.step(1e-2, torch.tensor(float("nan") if step in bad else 1.0))
        if step in bad:
            optimizer.forget_step()
            now = optimizer.tensors(model) | dict(model.named_parameters())
            assert all(torch.equal(now[name], tensor) for name, tensor in held.items())
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if num_parts := count_parts(name):
            shape = parameter.shape
            gradients = [make(*shape, seed=100 * s + number) for s in range(5) if s not in bad]
            wanted = step_alone(before[name], gradients, num_parts, config)
            torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-10, atol=1e-10)


class Counted(TorchDispatchMode):
    """How many operations torch is asked for."""

    number = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return op(*args, **(kwargs or {}))


def test_more_layers_are_no_more_operations() -> None:
    """A GPU is asked for each, which takes longer than a small one."""
    numbers = []
    for num_layers in (1, 12):
        layers = {f"layers.{n}": nn.Parameter(make(8, 6).float()) for n in range(num_layers)}
        optimizer = Muon([{"params": list(layers.values()), "num_parts": 1}], momentum=0.9)
        for _ in range(2):  # the first makes the momentum
            for parameter in layers.values():
                parameter.grad = make(8, 6, seed=1).float()
            optimizer.is_bad = torch.tensor(False)
            with Counted() as counted:
                optimizer.step()
        numbers.append(counted.number)
    assert numbers[0] == numbers[1]


def test_what_is_frozen_or_has_no_gradient_stays() -> None:
    model = make_bert()
    model.layers[0].requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = BertOptimizer(model, OptimConfig(name="muon"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.startswith("layers.1."):
            parameter.grad = torch.randn(parameter.shape)
    optimizer.step(1e-2)
    stays = ("layers.0.", "layers.1.")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith(stays), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)], ids=str)
def test_on_a_gpu_it_is_as_near_as_bf16_allows(shape: tuple[int, int]) -> None:
    matrices = make(5, *shape).float()
    on_cpu, on_gpu = orthogonalise(matrices), orthogonalise(matrices.cuda())
    assert on_gpu.dtype == torch.float32
    assert (on_gpu.cpu() - on_cpu).norm() < 0.03 * on_cpu.norm()


def test_where_it_has_nothing_to_step_it_is_refused() -> None:
    lstm, frozen = make_bert(layer="lstm"), make_bert()
    frozen.layers.requires_grad_(False)
    for model in (lstm, frozen, nn.Linear(3, 2)):
        with pytest.raises(UserError, match="muon is for the matrices of a Transformer's layers"):
            BertOptimizer(model, OptimConfig(name="muon"))
