"""What a pre-training run will do, worked out before it starts: phases, steps, micro-batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from bertie.data.chance import Ints
from bertie.data.index import Header
from bertie.data.loader import Batch, Loader
from bertie.data.steps import DataConfig, fit_micro_tokens
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import Memory, train_flops, train_memory
from bertie.objectives import Term
from bertie.train.budget import Budget, Phase, find_ends
from bertie.train.distributed import World
from bertie.train.evaluate import PIECES
from bertie.train.hardware import find_free_bytes
from bertie.train.health import check_pairs
from bertie.train.loop import DTYPES, TrainConfig
from bertie.train.memory import find_micro_tokens
from bertie.train.muon import count_matrices
from bertie.train.optim import OptimConfig

HALF = 0.6  # of the memory of activations is what half precision takes: norms stay in fp32
NUM_SAMPLES = 16  # steps whose lengths are looked at to choose a fixed shape

Objective = Callable[[nn.Module, Batch], dict[str, Term]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePlan:
    """A phase with all its settings."""

    data: DataConfig
    until: float  # the progress at which it ends
    num_steps: int | None  # none: that depends on the clock or on the tokens
    header: Header  # of the first epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that follows from the recipe, the store and the machine."""

    budget: Budget  # not in epochs
    phases: tuple[PhasePlan, ...]
    micro_tokens: int  # most of a micro-batch that fit the memory
    memory: Memory  # estimated

    def first_step(self, number: int, ended: Sequence[int]) -> int:
        """The step at which a phase begins: behind the instances that phases of the same ones took.

        `ended` are the steps of the phases before it. One of another batch size begins at the next
        whole step of its own.
        """
        data = self.phases[number].data
        alike = [n for n in range(number) if self.phases[n].data.instances == data.instances]
        if alike and len(ended) < number:
            raise UserError(
                "the run was begun by an earlier bertie, whose phases of one length drew other "
                "instances; take another --out"
            )
        taken = sum(ended[n] * self.phases[n].data.loader.batch_size for n in alike)
        return -(-taken // data.loader.batch_size)


def make_plan(
    data: DataConfig,
    phases: tuple[Phase, ...],
    train: TrainConfig,
    *,
    optim: OptimConfig,
    store: Store,
    model: Bert,
    objective: Objective,
    world: World,
    micro_tokens: int,
) -> Plan:
    """`micro_tokens` is what an earlier run has found to fit, or 0."""
    phases = phases or (Phase(share=1.0, max_length=data.instances.max_length),)
    settings = [settings_of(data, phase, train) for phase in phases]
    longest = max(phase.max_length for phase in phases)
    if longest > model.config.max_positions:
        raise UserError(
            f"sequences of {longest} tokens are more than the {model.config.max_positions} "
            "positions of the model"
        )
    headers = [read_header(store, one) for one in settings]
    budget, ends = find_budget(train.budget, phases, settings, headers)
    share = data.masking.predicted_share
    memory_of = partial(
        estimate_memory, model, train, optim, world, length=longest, predicted_share=share
    )
    fitting = data.loader.micro_tokens or micro_tokens
    if not fitting:
        try_out = partial(
            try_step, model, objective, train, world, length=longest, predicted_share=share
        )
        fitting = find_fitting(memory_of(num_sequences=1), longest, train, world, try_out)
    return Plan(
        budget=budget,
        phases=tuple(
            PhasePlan(
                data=with_micro_tokens(one, fitting, store, world.size),
                until=end,
                num_steps=round((end - begin) * budget.amount) if budget.unit == "steps" else None,
                header=header,
            )
            for one, header, begin, end in zip(settings, headers, [0.0, *ends], ends, strict=False)
        ),
        micro_tokens=fitting,
        memory=memory_of(num_sequences=max(1, fitting // longest)),
    )


def preflight(plan: Plan, model: Bert, store: Store, unigram: float) -> Iterator[str]:
    """What the run will do and cost, before it starts."""
    first, manifest = plan.phases[0], store.manifest
    batch_size, header = first.data.loader.batch_size, first.header
    tokens = header.mean_length * batch_size
    share = first.data.masking.predicted_share
    flops = train_flops(model.config, length=round(header.mean_length), predicted_share=share)
    yield f"{sum(p.numel() for p in model.parameters()):,} parameters"
    yield (
        f"{manifest.num_tokens:,} tokens of text, {header.num_instances:,} instances an epoch of "
        f"{header.mean_length:.0f} tokens on average"
    )
    if header.num_pairs:
        yield f"{header.second_share:.1%} of the pairs are of the second kind: NotNext, or swapped"
    lengths = ", then ".join(str(phase.data.instances.max_length) for phase in plan.phases)
    yield (
        f"a step: {batch_size:,} instances, {tokens:,.0f} tokens, {flops * batch_size:.2e} "
        f"operations; micro-batches of up to {plan.micro_tokens:,} tokens; length {lengths}"
    )
    yield f"{plan.memory.total / 1e9:.2f} GB of memory, estimated"
    if plan.budget.unit == "steps":
        drawn = [(p.num_steps or 0) * p.data.loader.batch_size for p in plan.phases]  # instances
        parts = list(zip(drawn, (p.header for p in plan.phases), strict=True))
        total = sum(count * epoch.mean_length for count, epoch in parts)
        epochs = sum(count / epoch.num_instances for count, epoch in parts)
        yield f"{plan.budget.amount:,.0f} steps, {total:,.0f} tokens, {epochs:.1f} epochs"
    else:
        yield f"{plan.budget.amount:,.12g} {plan.budget.unit}"
    if PIECES.keys() & {*model.heads}:
        yield f"guessing by frequency loses {unigram:.2f} nats a predicted token"
    num_wanted = header.num_instances if "next_sentence" in model.heads else 0
    if warning := check_pairs(header.num_second, header.num_pairs, num_wanted):
        yield f"warning: {warning}"


def settings_of(data: DataConfig, phase: Phase, train: TrainConfig) -> DataConfig:
    """The data of one phase; a compiled model gets batches of a fixed shape."""
    loader = replace(
        data.loader,
        batch_size=phase.batch_size or data.loader.batch_size,
        fill=data.loader.fill or train.compile,
    )
    instances = replace(data.instances, max_length=phase.max_length)
    return replace(data, instances=instances, loader=loader)


def read_header(store: Store, data: DataConfig) -> Header:
    data = replace(data, loader=replace(data.loader, micro_tokens=0, fill=False))
    with Loader(store, data) as loader:
        return loader.header()


def find_budget(
    text: str, phases: tuple[Phase, ...], settings: list[DataConfig], headers: list[Header]
) -> tuple[Budget, list[float]]:
    """The budget, and the progress at which each phase ends; epochs are turned into steps."""
    budget, shares = Budget.parse(text), [phase.share for phase in phases]
    if budget.unit != "epochs":
        return budget, find_ends(shares, budget)
    find_ends(shares, budget)  # refuses shares that do not sum to 1
    steps = [
        max(1, round(share * budget.amount * header.num_instances / one.loader.batch_size))
        for share, header, one in zip(shares, headers, settings, strict=True)
    ]
    total = sum(steps)
    return Budget(total, "steps"), [sum(steps[: n + 1]) / total for n in range(len(steps))]


def with_micro_tokens(data: DataConfig, fitting: int, store: Store, world_size: int) -> DataConfig:
    if data.loader.fill:
        samples = sample_lengths(store, data)
        fitting = fit_micro_tokens(data, samples, world_size=world_size, at_most=fitting)
    return replace(data, loader=replace(data.loader, micro_tokens=fitting))


def sample_lengths(store: Store, data: DataConfig) -> list[Ints]:
    """Of the instances of some steps, all in one epoch if it has so many."""
    plain = replace(data, loader=replace(data.loader, micro_tokens=0, fill=False))
    with Loader(store, plain) as loader:
        whole_steps = loader.header().num_instances // data.loader.batch_size
        return [loader.steps.lengths(n) for n in range(max(1, min(NUM_SAMPLES, whole_steps)))]


def estimate_memory(
    model: Bert,
    train: TrainConfig,
    optim: OptimConfig,
    world: World,
    *,
    num_sequences: int,
    length: int,
    predicted_share: float,
) -> Memory:
    """Of one rank, when the backward pass of a micro-batch begins."""
    whole = train_memory(
        model.config,
        batch_size=num_sequences,
        length=length,
        predicted_share=predicted_share,
        recompute=train.recompute,
    )
    num_ranks = world.size if train.sharding == "full" else 1  # that share the weights
    spared = 4 * count_matrices(model) if optim.name == "muon" else 0  # one moment, not two
    return Memory(
        weights=whole.weights // num_ranks,
        gradients=whole.gradients // num_ranks,
        optimizer=(whole.optimizer - spared) // num_ranks,
        activations=round(whole.activations * (HALF if train.precision in DTYPES else 1)),
    )


def find_fitting(
    one: Memory, length: int, train: TrainConfig, world: World, try_out: Callable[[int], None]
) -> int:
    """The largest micro-batch that all ranks have the memory for; `one` is of one sequence."""
    found = find_micro_tokens(
        None if train.sharding == "full" else try_out,
        free_bytes=max(0, find_free_bytes(world.device) - one.gradients - one.optimizer),
        bytes_per_token=one.activations / length,
        least=2 * length,
        device=world.device,
    )
    return world.least(found)


def try_step(
    model: Bert,
    objective: Objective,
    train: TrainConfig,
    world: World,
    num_tokens: int,
    *,
    length: int,
    predicted_share: float,
) -> None:
    """Forward and backward on a batch of so many tokens."""
    vocab_size, dtype = model.config.vocab_size, DTYPES.get(train.precision)
    batch = make_full_batch(num_tokens, length, vocab_size, predicted_share).to(world.device)
    model.train()
    try:
        with torch.autocast(world.device.type, dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        torch.stack([term.total for term in terms.values()]).sum().backward()
    finally:  # where memory ran out, too: the first step must not find gradients
        model.zero_grad(set_to_none=True)


def make_full_batch(num_tokens: int, length: int, vocab_size: int, predicted_share: float) -> Batch:
    """A batch as large as they get: full sequences, as many predicted tokens as usual."""
    num_sequences = max(1, num_tokens // length)
    size = num_sequences * length
    predicted = torch.arange(0, size, max(1, round(1 / predicted_share)))
    return Batch(
        ids=torch.arange(size) % vocab_size,
        segments=torch.zeros(size, dtype=torch.int64),
        positions=torch.arange(length).repeat(num_sequences),
        bounds=torch.arange(0, size + 1, length),
        longest=length,
        predicted=predicted,
        labels=predicted % vocab_size,
        pair_labels=torch.zeros(num_sequences, dtype=torch.int64),
    )
