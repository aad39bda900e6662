"""The only training loop. Evaluating, saving and logging are lines in it, not hooks on it."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from bertie.checkpoint.state import Checkpoint, Counters, save_checkpoint
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.objectives import Term
from bertie.train.log import Log
from bertie.train.optim import BertOptimizer, OptimConfig, rate

MAX_SKIPPED_IN_A_ROW = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long, how exactly, and how often to save."""

    steps: int = 1000
    precision: Literal["fp32", "bf16"] = "fp32"
    save_every: int = 500  # steps
    keep: int = 2  # checkpoints, the newest
    log_every: int = 10  # steps a line of metrics.jsonl is the mean of
    seed: int = 0  # of initial weights and dropout

    def __post_init__(self) -> None:
        for name in ("steps", "save_every", "keep", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1; found {getattr(self, name)}")
        if self.save_every % self.log_every:
            raise UserError(
                f"train.save_every must be a multiple of train.log_every, so that a resumed run "
                f"logs the same lines; found {self.save_every} and {self.log_every}"
            )


class Moved(Protocol):
    """A batch that can be put on a device."""

    def to(self, device: torch.device) -> Any: ...


class GlobalStep(Protocol):
    """What a loader gives: micro-batches, and counts that hold for all of them together."""

    @property
    def number(self) -> int: ...
    @property
    def micro_batches(self) -> tuple[Moved, ...]: ...
    @property
    def num_targets(self) -> Mapping[str, float]: ...  # weights may count
    @property
    def num_tokens(self) -> int: ...


Objective = Callable[[nn.Module, Any], Mapping[str, Term]]  # of a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Where a run writes, and what it must remember."""

    folder: Path
    settings: Mapping[str, Any]
    tokenizer_from: Path


def train(
    model: Bert,
    steps: Iterable[GlobalStep],
    objective: Objective,
    run: Run,
    *,
    config: TrainConfig,
    optim: OptimConfig,
    log: Log,
    resume: Checkpoint | None = None,
) -> Counters:
    """Trains from the checkpoint, or from the start, to `config.steps`."""
    device = next(model.parameters()).device
    optimizer = BertOptimizer(model, optim)
    counters = Counters()
    if resume is not None:
        counters = resume.counters
        optimizer.load_tensors(model, resume.load_tensors(), counters.step - counters.skipped)
    model.train()
    num_skipped_in_a_row = 0
    started_at = time.monotonic() - counters.seconds
    for step in steps:
        torch.manual_seed(seed_of(config.seed, step.number))  # dropout: a function of the step
        sums = backward(model, step, objective, device, config.precision)
        norm = nn.utils.clip_grad_norm_(model.parameters(), optim.max_norm or torch.inf)
        learning_rate = rate(step.number / config.steps, optim)
        is_finite = bool(torch.isfinite(norm))
        if is_finite:
            optimizer.step(learning_rate)
        optimizer.zero_grad()
        num_skipped_in_a_row = 0 if is_finite else num_skipped_in_a_row + 1
        counters = replace(
            counters,
            step=step.number + 1,
            tokens=counters.tokens + step.num_tokens,
            seconds=time.monotonic() - started_at,
            skipped=counters.skipped + (not is_finite),
        )
        log.add(counters, sums, step.num_targets, norm=float(norm), rate=learning_rate)
        if num_skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"the gradient was not finite in {MAX_SKIPPED_IN_A_ROW} steps in a row, the last "
                f"was {step.number}; lower optim.peak, or lengthen optim.warmup"
            )
        if counters.step % config.save_every == 0 or counters.step == config.steps:
            save_checkpoint(
                run.folder,
                model,
                optimizer.tensors(model),
                counters,
                settings=run.settings,
                tokenizer_from=run.tokenizer_from,
                keep=config.keep,
            )
    return counters


def seed_of(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step * 2_654_435_761) % 2**63


def backward(
    model: nn.Module,
    step: GlobalStep,
    objective: Objective,
    device: torch.device,
    precision: str,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Gradients of the mean loss of the whole step; the sums and right answers of each term."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for batch in step.micro_batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            terms = objective(model, batch.to(device))
        parts = [term.total / step.num_targets[name] for name, term in terms.items()]
        torch.stack(parts).sum().backward()
        for name, term in terms.items():
            total, right = sums.get(name, (torch.zeros_like(term.total), 0))
            sums[name] = total + term.total.detach(), right + term.num_right
    return sums
