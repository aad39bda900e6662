"""Muon: each matrix steps along its momentum, all singular values of which are made about one.

Jordan et al. 2024. A number of a matrix moves by the rate, as a root of a mean square. AdamW moves
it so far where all gradients agree, so that its rates hold; Liu et al. 2025 (arXiv 2502.16982) take
a fifth of it, which here learned more slowly (docs/log.md).
"""

# P parameters of one shape, B matrices   R rows   C columns   S the fewer of both

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertie.train.distributed import own_part, part_like, whole

MOMENTUM = "momentum"
# The matrices of a layer -> how many lie in each, one below the other: queries, keys and values are
# three maps, and the directions of one say nothing of another's.
MATRICES = {
    "attention.qkv.weight": 3,
    "attention.out.weight": 1,
    "ffn.up.weight": 1,
    "ffn.down.weight": 1,
}
COEFFICIENTS = 3.4445, -4.7750, 2.0315  # Jordan's; five times, singular values are 0.7 to 1.2
NUM_ITERATIONS = 5
MOST_TOGETHER = 2**25  # numbers that are made orthogonal at a time, or memory would grow


def count_parts(name: str) -> int:
    """How many matrices a parameter is; 0: none that Muon is for."""
    if not name.startswith("layers."):
        return 0
    return next((parts for end, parts in MATRICES.items() if name.endswith("." + end)), 0)


def count_matrices(model: nn.Module) -> int:
    """The numbers of all parameters that Muon is for."""
    return sum(p.numel() for name, p in model.named_parameters() if count_parts(name))


class Muon(Optimizer):
    """A group tells its `num_parts`. Where `is_bad` is set and true, a step changes nothing."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, momentum: float) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0})
        self.is_bad: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameters in list_alike(group["params"]):
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """One alone would leave a GPU idle, and asking for each would take longer than its work."""
        ahead = self._look_ahead(parameters, group["momentum"])
        matrices = ahead.unflatten(1, (group["num_parts"], -1)).flatten(0, 1)  # (B, R, C)
        length = group["lr"] * max(matrices.shape[1:]) ** 0.5
        steps = orthogonalise(matrices).mul_(-length).view_as(ahead)  # (P, ...)
        kept = steps.new_full((), 1 - group["lr"] * group["weight_decay"])
        if self.is_bad is not None:
            steps.masked_fill_(self.is_bad, 0.0)
            kept.masked_fill_(self.is_bad, 1.0)
        own = list(map(own_part, parameters))
        torch._foreach_mul_(own, kept)
        pairs = zip(steps, parameters, strict=True)
        torch._foreach_add_(own, [own_part(part_like(step, p)) for step, p in pairs])

    def _look_ahead(self, parameters: list[Tensor], momentum: float) -> Tensor:  # -> (P, ...)
        """Takes up the gradients; where the momentum leads from there (Nesterov), whole."""
        for parameter in parameters:
            if MOMENTUM not in self.state[parameter]:
                self.state[parameter][MOMENTUM] = torch.zeros_like(parameter)
        means = [self.state[parameter][MOMENTUM] for parameter in parameters]
        gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
        before = torch.stack(means)
        mean = before.lerp(gradient, 1 - momentum)
        ahead = whole(gradient.lerp(mean, momentum))
        kept = mean if self.is_bad is None else torch.where(self.is_bad, before, mean)
        torch._foreach_copy_(list(map(own_part, means)), list(own_part(kept)))
        return ahead


def list_alike(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Those that have a gradient, of one shape together, so many as fit."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_shape.setdefault(parameter.shape, []).append(parameter)
    for shape, alike in by_shape.items():
        most = max(1, MOST_TOGETHER // shape.numel())
        for first in range(0, len(alike), most):
            yield alike[first : first + most]


def orthogonalise(matrices: Tensor) -> Tensor:  # (B, R, C) -> (B, R, C)
    """The nearest matrices whose singular values are about one, by products alone.

    A polynomial of the matrix brings its singular values closer to one each time; in bf16 on a GPU,
    where it is meant to be rough.
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-30)  # at most one, all of them
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = COEFFICIENTS
    for _ in range(NUM_ITERATIONS):
        square = x @ x.mT  # (B, S, S)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return torch.empty_like(matrices).copy_(x.mT if is_tall else x)
