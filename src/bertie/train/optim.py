"""Optimizers as BERT and its relatives use them, and what depends on progress alone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bertie.errors import UserError

MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names of Adam's two


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """The defaults are the paper's (A.2)."""

    name: Literal["bert", "adamw", "lamb"] = "bert"  # bert: Adam without bias correction
    peak: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    decay: float = 0.01  # decoupled; not on biases and norms
    max_norm: float = 1.0  # gradients are clipped to it; 0: not at all
    warmup: float = 0.01  # share of the run
    schedule: Literal["google", "linear", "cosine", "constant"] = "google"
    layer_decay: float = 1.0  # a layer's rate, as a share of that of the layer above it

    def __post_init__(self) -> None:
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


def parameter_groups(
    model: nn.Module, decay: float, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Matrices decay; biases and norms, all that has one dimension, do not.

    `share` is what of the rate a group gets: less, the deeper its layer lies, if so wished.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    depths = {name: find_depth(name) for name, _ in named}
    # What lies above all layers counts as one layer more.
    top = 1 + max((depth for depth in depths.values() if depth is not None), default=0)
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named:
        depth = depths[name]
        share = 1.0 if depth is None else layer_decay ** (top - depth)
        groups.setdefault((decay if parameter.ndim > 1 else 0.0, share), []).append(parameter)
    return [{"params": p, "decay": decay, "share": share} for (decay, share), p in groups.items()]


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
        groups = parameter_groups(model, config.decay, config.layer_decay)
        betas = (config.beta1, config.beta2)
        self.inner: Optimizer = (
            Lamb(groups, betas=betas, eps=config.eps)
            if config.name == "lamb"
            else AdamW(groups, betas=betas, eps=config.eps, fused=True)
        )
        is_sharded = any(hasattr(p, "full_tensor") for group in groups for p in group["params"])
        self.decides_on_device = config.name != "lamb" and not is_sharded
        self.num_steps = 0

    def step(self, rate: float, norm: Tensor | None = None) -> None:
        """One step; none where the gradients' norm is given and not finite, see `forget_step`."""
        self.num_steps += 1
        for group in self.inner.param_groups:
            sizes = self.step_sizes(rate * group["share"], group["decay"])
            group["lr"], group["eps"], group["weight_decay"] = sizes
        if self.decides_on_device:  # torch's fused AdamW looks itself: nobody waits for the device
            is_bad = None if norm is None else (~norm.isfinite()).float()
            self.inner.found_inf = is_bad  # type: ignore[attr-defined]
        elif norm is not None and not math.isfinite(float(norm)):
            return
        self.inner.step()

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
        return {
            f"{name}.{part}": self.inner.state[parameter][part]
            for name, parameter in model.named_parameters()
            for part in MOMENTS
            if parameter in self.inner.state
        }

    def load_tensors(self, model: nn.Module, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Puts back what `tensors` gave after `num_steps` steps."""
        self.num_steps = num_steps
        for name, parameter in model.named_parameters():
            if f"{name}.{MOMENTS[0]}" in tensors:
                state = self.inner.state[parameter]
                state["step"] = torch.tensor(float(num_steps), device=parameter.device)
                for part in MOMENTS:
                    state[part] = tensors[f"{name}.{part}"].to(parameter.device)

    def zero_grad(self) -> None:
        self.inner.zero_grad(set_to_none=True)


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
        if group["decay"]:  # biases and norms take Adam's step as it is
            weights, step = parameter.norm(), update.norm()
            trust = torch.where((weights > 0) & (step > 0), weights / step, 1.0)
            update.mul_(trust)
        parameter.add_(update, alpha=-group["lr"])
