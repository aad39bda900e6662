"""Optimizers as BERT and its relatives use them, and what depends on progress alone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bertie.errors import UserError
from bertie.train.muon import MOMENTUM, Muon, count_parts

STATE = ("exp_avg", "exp_avg_sq", MOMENTUM)  # torch's names of Adam's two moments, and Muon's one


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """The defaults are the paper's (A.2)."""

    # bert: Adam without bias correction; muon: for the layers' matrices, AdamW for the rest
    name: Literal["bert", "adamw", "lamb", "muon"] = "bert"
    peak: float = 1e-4
    beta1: float = 0.9  # Muon's momentum, too
    beta2: float = 0.999
    eps: float = 1e-6
    decay: float = 0.01  # decoupled; not on biases and norms
    max_norm: float = 1.0  # gradients are clipped to it; 0: not at all
    warmup: float = 0.01  # share of the run
    schedule: Literal["google", "linear", "cosine", "constant"] = "google"
    layer_decay: float = 1.0  # a layer's rate, as a share of that of the layer above it

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"optim.{one.name} is a number; found {value}")
        if self.peak <= 0 or not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1:
            raise UserError("optim: peak must be positive, beta1 and beta2 in 0 .. 1, below 1")
        if self.eps <= 0 or self.decay < 0 or self.max_norm < 0:
            raise UserError(
                "optim: eps must be positive, decay and max_norm at least 0; found "
                f"{self.eps}, {self.decay}, {self.max_norm}"
            )
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"optim.layer_decay is above 0 and at most 1; found {self.layer_decay}")
        if not 0 <= self.warmup <= 1:
            raise UserError(f"optim.warmup is a share of the run, 0 .. 1; found {self.warmup}")


def rate(progress: float, config: OptimConfig) -> float:
    """The learning rate when `progress` (0 .. 1) of the run is done.

    Google's decay counts from the start of the run, so there is a small jump where the warm-up
    ends; "linear" counts from the end of the warm-up, as `transformers` does.
    """
    if progress < config.warmup:
        return config.peak * progress / config.warmup
    after = (progress - config.warmup) / (1 - config.warmup) if config.warmup < 1 else 1.0
    shares = {
        "google": 1 - progress,
        "linear": 1 - after,
        "cosine": (1 + math.cos(math.pi * after)) / 2,
        "constant": 1.0,
    }
    return config.peak * max(0.0, shares[config.schedule])


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Matrices decay; biases and norms, all that has one dimension, do not.

    `share` is what of the rate a group gets: less, the deeper its layer lies, if so wished.
    `num_parts` is how many matrices each is for Muon, 0 where it is not for Muon.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    depths = {name: find_depth(name) for name, _ in named}
    # What lies above all layers counts as one layer more.
    top = 1 + max((depth for depth in depths.values() if depth is not None), default=0)
    groups: dict[tuple[float, float, int], list[Tensor]] = {}
    for name, parameter in named:
        depth = depths[name]
        share = 1.0 if depth is None else config.layer_decay ** (top - depth)
        decay = config.decay if parameter.ndim > 1 else 0.0
        num_parts = count_parts(name) if config.name == "muon" else 0
        groups.setdefault((decay, share, num_parts), []).append(parameter)
    names = "decay", "share", "num_parts"
    return [{"params": p, **dict(zip(names, key, strict=True))} for key, p in groups.items()]


def find_depth(name: str) -> int | None:
    """0 of the embeddings, 1 of the first layer, ...; none of what lies above the layers."""
    first, _, rest = name.partition(".")
    if first == "layers":
        return int(rest.partition(".")[0]) + 1
    return 0 if first == "embeddings" else None


class BertOptimizer:
    """One step of the optimizer at a given rate; its state is tensors and a count of steps."""

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.config = config
        groups = parameter_groups(model, config)
        betas = (config.beta1, config.beta2)
        rest = [group for group in groups if not group["num_parts"]]
        self.inners: list[Optimizer] = []  # each parameter belongs to one of them
        if rest and config.name == "lamb":
            self.inners.append(Lamb(rest, betas=betas, eps=config.eps))
        elif rest:
            self.inners.append(AdamW(rest, betas=betas, eps=config.eps, fused=True))
        if matrices := [group for group in groups if group["num_parts"]]:
            self.inners.append(Muon(matrices, momentum=config.beta1))
        elif config.name == "muon":
            raise UserError(
                "optim.name = muon is for the matrices of a Transformer's layers, and none is "
                "trained here; take adamw"
            )
        is_sharded = any(hasattr(p, "full_tensor") for group in groups for p in group["params"])
        self.decides_on_device = config.name != "lamb" and not is_sharded
        self.num_steps = 0

    def step(self, rate: float, norm: Tensor | None = None) -> None:
        """One step; none where the gradients' norm is given and not finite, see `forget_step`."""
        self.num_steps += 1
        is_bad = None if norm is None else ~norm.isfinite()
        if is_bad is not None and not self.decides_on_device:
            if is_bad:
                return
            is_bad = None
        for inner in self.inners:
            for group in inner.param_groups:
                sizes = self.step_sizes(rate * group["share"], group["decay"])
                group["lr"], group["eps"], group["weight_decay"] = sizes
            # Nobody waits for the device: Muon looks itself, and so does torch's fused AdamW.
            if isinstance(inner, Muon):
                inner.is_bad = is_bad
            elif isinstance(inner, AdamW):
                inner.found_inf = None if is_bad is None else is_bad.float()  # type: ignore[attr-defined]
            inner.step()

    def forget_step(self) -> None:
        """The last one was none: its norm was not finite."""
        self.num_steps -= 1

    def step_sizes(self, rate: float, decay: float) -> tuple[float, float, float]:
        """lr, eps and weight decay to hand to the inner optimizer for this step.

        AdamW divides the moments by 1 - beta**t. BERT's Adam does not; with c1, c2 those divisors,
        m/(sqrt(v) + eps) = (c1/sqrt(c2)) * (m/c1) / (sqrt(v/c2) + eps/sqrt(c2)): so the fused
        AdamW takes BERT's step if rate and eps are scaled, and decay scaled back.
        """
        if self.config.name != "bert":
            return rate, self.config.eps, decay
        c1 = 1 - self.config.beta1**self.num_steps
        c2 = 1 - self.config.beta2**self.num_steps
        scale = c1 / math.sqrt(c2)
        return rate * scale, self.config.eps / math.sqrt(c2), decay / scale

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The state, by parameter and by what it is."""
        states = {parameter: s for inner in self.inners for parameter, s in inner.state.items()}
        return {
            f"{name}.{part}": state[part]
            for name, parameter in model.named_parameters()
            for state in [states.get(parameter, {})]
            for part in STATE
            if part in state
        }

    def load_tensors(self, model: nn.Module, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Puts back what `tensors` gave after `num_steps` steps."""
        self.num_steps = num_steps
        names = {parameter: name for name, parameter in model.named_parameters()}
        for inner in self.inners:
            for parameter in chain.from_iterable(group["params"] for group in inner.param_groups):
                parts = {part: f"{names[parameter]}.{part}" for part in STATE}
                state = {
                    p: tensors[n].to(parameter.device) for p, n in parts.items() if n in tensors
                }
                if state and not isinstance(inner, Muon):
                    state["step"] = torch.tensor(float(num_steps), device=parameter.device)
                inner.state[parameter].update(state)

    def zero_grad(self) -> None:
        for inner in self.inners:
            inner.zero_grad(set_to_none=True)


class Lamb(Optimizer):
    """Adam whose step is scaled, matrix by matrix, by the norm of the weights (You et al. 2019)."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        num_steps = int(state["step"])
        beta1, beta2 = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = mean / (1 - beta1**num_steps)
        spread = (square / (1 - beta2**num_steps)).sqrt_().add_(group["eps"])
        update = corrected.div_(spread).add_(parameter, alpha=group["weight_decay"])
        if parameter.ndim > 1:  # biases and norms take Adam's step as it is
            weights, step = parameter.norm(), update.norm()
            trust = torch.where((weights > 0) & (step > 0), weights / step, 1.0)
            update.mul_(trust)
        parameter.add_(update, alpha=-group["lr"])
