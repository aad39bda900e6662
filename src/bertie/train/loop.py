"""The only training loop. Evaluating, saving and logging are lines in it, not hooks on it."""

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertie import kernels
from bertie.checkpoint.state import Checkpoint, Counters, Saving, save_checkpoint
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.objectives import Term
from bertie.train.budget import Budget
from bertie.train.distributed import (
    Device,
    Sharding,
    World,
    part_like,
    spread,
    syncing,
    whole,
)
from bertie.train.hardware import time_threads
from bertie.train.log import Log
from bertie.train.optim import BertOptimizer, OptimConfig, rate

MAX_SKIPPED_IN_A_ROW = 5
MOST_THREADS = 1024  # with a hundred thousand, torch ends in a segmentation fault
FIRST_SCALE = 2.0**14  # of losses in fp16; gradients below 6e-8 would vanish
SCALE_GROWS_AFTER = 1000  # steps without an overflow

M = TypeVar("M", bound=nn.Module)
M_in = TypeVar("M_in", bound=nn.Module, contravariant=True)
Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long, how exactly, on what, and how often to look and to save."""

    budget: str = "1000 steps"  # or "3 epochs", "500M tokens", "30 minutes"
    precision: Precision = "fp32"
    compile: bool = False  # by torch.compile; batches then have a fixed shape
    kernels: bool = True  # our own, on a GPU in half precision; false: torch's
    fp8: bool = False  # two thirds of the layers' products in eight bits (bf16, our kernels)
    graphs: bool = True  # record small steps on a GPU and play them again (with our kernels)
    recompute: bool = False  # activations, in the backward pass: a third more work, less memory
    sharding: Sharding = "none"  # full: weights too large for one GPU lie over all of them
    device: Device = "auto"  # cuda if there is one
    threads: int | None = None  # of a CPU; 0: one or all, what is faster at first; none: all
    log_every: int = 10  # steps that a line of metrics.jsonl is the mean of
    evaluate_every: int = 500  # steps; on held-out data, and a checkpoint with it; 0: at the end
    save_every: int = 500  # steps; 0: with evaluations only
    patience: int = 0  # evaluations without a better score that end the run; 0: none do
    keep: int = 2  # checkpoints, the newest; the best stays too
    tensorboard: bool = False  # write its files too
    seed: int = 0  # of initial weights and dropout

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        least = {"save_every": 0, "evaluate_every": 0, "patience": 0, "keep": 1, "log_every": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise UserError(
                    f"train.{name} must be at least {number}; found {getattr(self, name)}"
                )
        if self.threads is not None and not 0 <= self.threads <= MOST_THREADS:
            raise UserError(f"train.threads is 0 to {MOST_THREADS}; found {self.threads}")
        if not 0 <= self.seed < 2**64:
            raise UserError(f"train.seed is at least 0 and below 2^64; found {self.seed}")
        if self.fp8 and (self.precision != "bf16" or not self.kernels):
            raise UserError(
                "train.fp8 is a part of our kernels for bf16: it needs train.precision=bf16 and "
                f"train.kernels=true; found {self.precision}, {str(self.kernels).lower()}"
            )


class OnDevice(Protocol):
    """A batch that can be put on a device."""

    def to(self, device: torch.device) -> Any: ...


class GlobalStep(Protocol):
    """What a loader gives: micro-batches, and counts that hold for all of them together."""

    @property
    def number(self) -> int: ...
    @property
    def micro_batches(self) -> tuple[OnDevice, ...]: ...
    @property
    def num_targets(self) -> Mapping[str, float]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def filled_share(self) -> float: ...  # of this rank's tokens, those that fill up a shape


Objective = Callable[[nn.Module, Any], Mapping[str, Term]]  # of a batch


class Evaluation(Protocol[M_in]):
    """How good the model is on held-out data; all ranks ask together."""

    def __call__(self, model: M_in) -> tuple[dict[str, float], float | None]:
        """Figures to log, and the one to choose by, higher is better; none: there is no data."""


class Stopped(Exception):
    """A signal ended the run, after it was saved."""

    def __init__(self, number: int, saved: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; saved in {saved}")
        self.number, self.saved = number, saved

    def __reduce__(self) -> tuple[type["Stopped"], tuple[int, Path]]:
        """Else it could not be told to another process: it is made of more than its message."""
        return Stopped, (self.number, self.saved)


class Diverged(UserError):
    """Losses or gradients are no numbers any more."""


@contextmanager
def on_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Signals that ask to end are handled so; gives the handlers that were there before."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python lets no other catch them
        for kind in (signal.SIGTERM, signal.SIGINT):
            before[kind] = signal.signal(kind, handle)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def catch_signals(caught: list[int]) -> Iterator[None]:
    """Notes them; a second one ends at once, as ever."""

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    with on_signals(note) as before:
        yield


def switch_kernels(config: TrainConfig, device: torch.device) -> None:
    """On or off, as the settings say; before anything is tried or trained."""
    if config.fp8 and not kernels.has_float8(device):
        raise UserError(
            "train.fp8 needs a GPU that multiplies eight bits (compute capability 8.9 or "
            f"more: L4, 4090, H100) and cuBLASLt; found {device}: train.fp8=false"
        )
    kernels.Switch.is_on, kernels.Switch.is_float8 = config.kernels, config.fp8


def can_record(model: Bert, config: TrainConfig, world: World) -> bool:
    """Whether the encoder can be played from CUDA graphs: one GPU, and our kernels in it."""
    is_plain = not config.compile and not config.recompute and config.sharding == "none"
    is_alone = world.device.type == "cuda" and world.size == 1
    encoder = (*model.embeddings.parameters(), *model.layers.parameters())
    learns = any(parameter.requires_grad for parameter in encoder)  # all may be held still
    return (
        config.graphs
        and is_plain
        and is_alone
        and learns
        and config.precision in DTYPES
        and is_recordable(model.config)
        and model.config.head_size in kernels.HEAD_SIZES
        and kernels.can_use(model.embeddings.token.weight)
    )


def is_recordable(config: ModelConfig) -> bool:
    """Whether all layers are a Transformer's: an LSTM's programs run as long as its sequences."""
    return config.layer != "lstm" and not config.bilstm_layers


def add_up(terms: Mapping[str, Term], sums: dict[str, Tensor]) -> None:
    """Adds a micro-batch's losses and right answers to the sums of its step."""
    for name, term in terms.items():
        for kind, value in (("loss", term.total.detach()), ("accuracy", term.num_right)):
            sums[f"{name}_{kind}"] = sums.get(f"{name}_{kind}", 0) + value


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A step that the device was asked for, and may not have done yet."""

    step: GlobalStep
    counters: Counters  # with it
    rate: float
    names: tuple[str, ...]  # of the sums
    numbers: Callable[[], list[float]]  # signal, seconds, norm and sums; waits until they are there


class Trainer(Generic[M]):
    """A model in training: the weights, the optimizer and how far it has come."""

    def __init__(
        self,
        model: M,
        objective: Objective,
        *,
        config: TrainConfig,
        optim: OptimConfig,
        budget: Budget,
        saving: Saving,
        world: World,
        log: Log,
        evaluate: Evaluation[M],
        resume: Checkpoint | None = None,
    ) -> None:
        self.model, self.objective, self.evaluate = model, objective, evaluate
        self.config, self.optim, self.budget = config, optim, budget
        self.saving, self.world, self.log = saving, world, log
        switch_kernels(config, world.device)
        if isinstance(model, Bert):
            model.recomputes = config.recompute
        if config.compile:
            model.compile(dynamic=False)
        self.spread = spread(model, world, config.sharding)
        if isinstance(model, Bert) and can_record(model, config, world):
            model.record()
        self.optimizer = BertOptimizer(model, optim)
        scale = FIRST_SCALE if config.precision == "fp16" else 1.0
        self.counters = Counters(loss_scale=scale) if resume is None else resume.counters
        if resume is not None:
            self._load(resume)
        self.threads = config.threads if world.device.type == "cpu" else None
        # A GPU that is waited for after each step is idle until the next one is asked for. LAMB and
        # shards wait before they step; a loss scale, and how many steps BERT's Adam has taken, must
        # be known before the next one.
        can_lag = optim.name in ("adamw", "muon") and config.precision != "fp16"
        can_lag = can_lag and self.optimizer.decides_on_device
        self.lag = int(world.device.type == "cuda" and can_lag)  # steps that are not waited for
        self.launched: deque[Launched] = deque()
        self.num_skipped_in_a_row = 0
        self.signals: list[int] = []  # one that comes between two phases counts in the next
        self.started_at = time.monotonic() - self.counters.seconds
        self.figures: dict[str, float] = {}  # of the last evaluation
        self.score: float | None = None  # of the weights as they are now

    def _load(self, checkpoint: Checkpoint) -> None:
        named = dict(self.model.named_parameters())
        tensors = {
            name: part_like(tensor, named[name.rpartition(".")[0]])
            for name, tensor in checkpoint.load_tensors().items()
        }
        num_steps = self.counters.step - self.counters.skipped
        self.optimizer.load_tensors(self.model, tensors, num_steps)

    @property
    def progress(self) -> float:
        return self.budget.progress(self.counters)

    def run(self, steps: Iterable[GlobalStep], *, until: float = 1.0) -> None:
        """Trains until the progress is `until`, the steps end or the patience does."""
        if self.is_out_of_patience:  # already, in the checkpoint that it goes on from
            return
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            with catch_signals(self.signals):
                self._run(steps, until)
        finally:
            torch.set_num_threads(before)

    def _run(self, steps: Iterable[GlobalStep], until: float) -> None:
        self.spread.train()
        for step in steps:
            if self.threads == 0:
                self.threads = self.choose_threads(step)
            self.launch(step)
            signal_number = self.settle(self.lag)
            looks, saves = map(self.is_due, (self.config.evaluate_every, self.config.save_every))
            if looks or saves or signal_number or self.progress >= until:
                signal_number = max(signal_number, self.settle())
                if looks or self.progress >= 1:
                    self.look()
                self.save_and_stop(signal_number)
                if self.progress >= until or self.is_out_of_patience:
                    return
        if signal_number := self.settle():
            self.save_and_stop(signal_number)

    def save_and_stop(self, signal_number: int) -> None:
        """Saves, and ends the run if there was a signal."""
        saved = self.save()
        if signal_number:
            raise Stopped(signal_number, saved)

    def is_due(self, every: int) -> bool:
        return every > 0 and self.counters.step % every == 0

    @property
    def is_out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.counters.num_worse

    def choose_threads(self, step: GlobalStep) -> int:
        """One or all, whichever goes faster over a step; the weights differ by rounding alone."""

        def work() -> None:
            self.backward(step)
            self.optimizer.zero_grad()

        seconds = time_threads(work, torch.get_num_threads())
        found = ", ".join(f"{1000 * s:.0f} ms with {n} thread(s)" for n, s in seconds.items())
        self.log.tell(f"a step takes {found}")
        return torch.get_num_threads()

    def launch(self, step: GlobalStep) -> None:
        """Asks for one step."""
        torch.manual_seed(self._seed_of(step.number))  # dropout: a function of step and rank
        learning_rate = rate(self.progress, self.optim)
        sums = self.backward(step)
        norm = self.clip()
        self.optimizer.step(learning_rate, norm)
        self.optimizer.zero_grad()
        signal_number, is_first = max(self.signals, default=0), self.world.is_first
        seconds = time.monotonic() - self.started_at if is_first else 0.0
        self.counters = replace(
            self.counters,
            step=self.counters.step + 1,
            phase_step=self.counters.phase_step + 1,
            tokens=self.counters.tokens + step.num_tokens,
        )
        numbers = self.world.start_sum(
            [signal_number, seconds],
            [norm if is_first else torch.zeros_like(norm), *sums.values()],
        )
        self.launched.append(
            Launched(
                step=step,
                counters=self.counters,
                rate=learning_rate,
                names=tuple(sums),
                numbers=numbers,
            )
        )
        self.score = None

    def settle(self, lag: int = 0) -> int:
        """Waits for all steps but the last `lag`; the number of a signal some rank caught, or 0."""
        signal_number = 0
        while len(self.launched) > lag:
            done = self.launched.popleft()
            found, seconds, norm, *sums = done.numbers()
            is_finite = math.isfinite(norm)
            if not is_finite:
                self.optimizer.forget_step()
            self.count(is_finite=is_finite, seconds=seconds)
            counters = replace(done.counters, seconds=seconds, skipped=self.counters.skipped)
            found_sums = dict(zip(done.names, sums, strict=True))
            num_targets = dict(done.step.num_targets)
            if done.step.filled_share:  # a line has its mean over the steps
                found_sums["filled_share"], num_targets["filled"] = done.step.filled_share, 1
            self.log.add(
                counters,
                found_sums,
                num_targets,
                norm=norm,
                rate=done.rate,
                progress=self.budget.progress(counters),
                is_last=not self.launched and self.progress >= 1,
            )
            if self.num_skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
                self._give_up(done)
            if found:
                signal_number = max(self.signals, default=int(signal.SIGTERM))
        return signal_number

    def _seed_of(self, step: int) -> int:
        phase = self.counters.phase
        parts = (self.config.seed, 1_000_003), (step, 2_654_435_761), (phase, 7_919)
        return (sum(a * b for a, b in parts) + self.world.rank * 40_503) % 2**63

    def backward(self, step: GlobalStep) -> dict[str, Tensor]:
        """Gradients of the mean loss of the whole step; each term's sum and right answers."""
        device, sums = self.world.device, dict[str, Tensor]()
        # DDP and FSDP average over the ranks; the sum is wanted.
        scale = self.world.size * self.counters.loss_scale
        dtype = DTYPES.get(self.config.precision)
        for number, batch in enumerate(step.micro_batches, 1):
            with syncing(self.spread, number == len(step.micro_batches)):
                with torch.autocast(device.type, dtype, enabled=dtype is not None):
                    terms = self.objective(self.spread, batch.to(device))
                # A step may lack targets of a kind: of an [UNK] nothing is predicted.
                counts = {name: step.num_targets[name] or 1 for name in terms}
                parts = [term.total / counts[name] for name, term in terms.items()]
                (scale * torch.stack(parts).sum()).backward()
            add_up(terms, sums)
            del terms, parts  # or the next micro-batch could not be recorded
        return sums

    def clip(self) -> Tensor:
        """Clips the gradients; their norm before that."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if self.counters.loss_scale != 1:
            gradients = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(gradients, 1 / self.counters.loss_scale)
        return whole(nn.utils.clip_grad_norm_(parameters, self.optim.max_norm or torch.inf))

    def count(self, *, is_finite: bool, seconds: float) -> None:
        """What is known of a step only when it is done."""
        counters = self.counters
        scale, scaled = counters.loss_scale, counters.scaled_steps + 1
        is_overflow = not is_finite and scale > 1  # to be expected now and then
        if is_overflow:
            scale, scaled = scale / 2, 0
        elif self.config.precision == "fp16" and scaled == SCALE_GROWS_AFTER:
            scale, scaled = scale * 2, 0
        if not is_overflow:
            self.num_skipped_in_a_row = 0 if is_finite else self.num_skipped_in_a_row + 1
        self.counters = replace(
            counters,
            seconds=seconds,
            skipped=counters.skipped + (not is_finite),
            loss_scale=scale,
            scaled_steps=scaled,
        )

    def _give_up(self, done: Launched) -> None:
        number, rank = done.counters.step, self.world.rank
        path = self.saving.folder / f"bad-step-{number}-rank-{rank}.safetensors"
        tensors = {
            f"{place}.{name}": value
            for place, batch in enumerate(done.step.micro_batches)
            for name, value in batch._asdict().items()  # type: ignore[attr-defined]
            if isinstance(value, Tensor)
        }
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
        raise Diverged(
            f"loss or gradient was not finite in {MAX_SKIPPED_IN_A_ROW} steps in a row, the last "
            f"was {number}; its batch is in {path}. Lower optim.peak, lengthen optim.warmup, "
            f"or take precision fp32; then begin anew, from the model of a checkpoint if you like: "
            f"--start {self.saving.folder}/checkpoints/step-.../model --out OTHER"
        )

    def look(self) -> dict[str, float]:
        """Evaluates, and logs what comes out."""
        self.figures, self.score = self.evaluate(self.model)
        if self.score is not None:
            best = self.counters.best_score
            is_better = math.isfinite(self.score) and (best is None or self.score > best)
            self.counters = replace(
                self.counters,
                best_score=self.score if is_better else best,
                num_worse=0 if is_better else self.counters.num_worse + 1,
            )
        if self.figures:
            self.log.add_held_out(self.counters, self.figures)
        self.spread.train()
        return self.figures

    def save(self) -> Path:
        """A checkpoint, written by the first rank."""
        weights = {name: whole(p.detach()) for name, p in self.model.named_parameters()}
        moments = self.optimizer.tensors(self.model)
        tensors = {name: whole(moment) for name, moment in moments.items()}
        if self.world.is_first:
            save_checkpoint(
                self.saving,
                weights,
                tensors,
                self.counters,
                score=self.score,
                log=self.log.state(),
            )
        self.world.wait()
        return self.saving.folder

    def next_phase(self) -> None:
        before = self.counters
        ended = (*before.ended, before.phase_step)
        self.counters = replace(before, phase=before.phase + 1, phase_step=0, ended=ended)
