"""What a run will do: phases of whole steps, and micro-batches that fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bertie import plan as planning
from bertie.data.loader import Loader
from bertie.data.steps import DataConfig
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.plan import Plan, make_full_batch, make_plan
from bertie.pretrain import objective_of
from bertie.train.budget import Phase
from bertie.train.distributed import World
from bertie.train.loop import TrainConfig
from tests.data.stores import PIECES, awkward, write_store
from tests.train.runs import recipe

HEADS = ("masked_lm", "next_sentence")
CONFIG = ModelConfig(
    vocab_size=len(PIECES), hidden_size=12, num_layers=1, num_heads=3, max_positions=64
)
PHASES = (Phase(share=0.9, max_length=16), Phase(share=0.1, max_length=64, batch_size=5))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("plan"), awkward(huge=20))


def plan(store: Store, *sets: str, phases: tuple[Phase, ...] = (), **more: Any) -> Plan:
    settings = recipe(*sets)
    return make_plan(
        settings.data,
        phases,
        settings.train,
        store=store,
        **{
            "optim": settings.optim,
            "model": Bert(CONFIG, HEADS),
            "objective": objective_of(settings),
            "world": World(),
            "micro_tokens": 0,
        }
        | more,
    )


def test_without_phases_there_is_one(store: Store) -> None:
    (phase,) = plan(store).phases
    assert (phase.until, phase.num_steps) == (1.0, 20)
    assert phase.data.instances.max_length == 32 and phase.data.loader.batch_size == 12


def test_a_phase_has_its_length_and_its_batches(store: Store) -> None:
    short, long = plan(store, phases=PHASES).phases
    assert (short.data.instances.max_length, long.data.instances.max_length) == (16, 64)
    assert (short.data.loader.batch_size, long.data.loader.batch_size) == (12, 5)
    assert (short.num_steps, long.num_steps) == (18, 2) and (short.until, long.until) == (0.9, 1.0)


@pytest.mark.parametrize("copies", ["none", "2"])
def test_phases_of_one_length_go_on_with_the_instances(store: Store, copies: str) -> None:
    phases = tuple(Phase(share=0.25, max_length=length) for length in (16, 64, 16, 16))
    made = plan(store, f"data.masking.static_copies={copies}", phases=phases)
    ended = [phase.num_steps or 0 for phase in made.phases]
    firsts = [made.first_step(n, ended[:n]) for n in range(4)]
    assert firsts == [0, 0, 5, 10]
    assert made.phases[0].data == made.phases[2].data == made.phases[3].data


def test_with_another_batch_size_a_phase_begins_at_a_step_of_its_own(store: Store) -> None:
    phases = (Phase(share=0.5, max_length=16), Phase(share=0.5, max_length=16, batch_size=7))
    made = plan(store, phases=phases)
    assert made.first_step(1, [10]) == 18  # 120 instances are gone, 17 steps and one instance


def test_where_phases_before_ended_must_be_known(store: Store) -> None:
    """Checkpoints of earlier commits do not tell."""
    alike = (Phase(share=0.5, max_length=16), Phase(share=0.5, max_length=16, batch_size=7))
    with pytest.raises(UserError, match="begun by an earlier bertie"):
        plan(store, phases=alike).first_step(1, ())
    assert plan(store, phases=PHASES).first_step(1, ()) == 0


def test_steps_of_phases_are_whole_and_none_is_lost(store: Store) -> None:
    for steps in (1, 3, 7, 19):
        phases = plan(store, f"train.budget={steps} steps", phases=PHASES).phases
        assert sum(phase.num_steps or 0 for phase in phases) == steps


def test_epochs_are_turned_into_steps_phase_by_phase(store: Store) -> None:
    made = plan(store, "train.budget=2.5 epochs", phases=PHASES)
    expected = []
    for phase, size in zip(PHASES, (12, 5), strict=True):
        data = recipe().data
        data = replace(data, instances=replace(data.instances, max_length=phase.max_length))
        with Loader(store, data) as loader:
            epoch = loader.header().num_instances
        expected.append(round(2.5 * phase.share * epoch / size))
    assert [phase.num_steps for phase in made.phases] == expected
    assert made.budget.unit == "steps" and made.budget.amount == sum(expected)
    assert made.phases[-1].until == 1


def test_the_clock_and_tokens_leave_the_steps_open(store: Store) -> None:
    for budget in ("1000 tokens", "2 minutes"):
        made = plan(store, f"train.budget={budget}", phases=PHASES)
        assert [phase.num_steps for phase in made.phases] == [None, None]
        assert [phase.until for phase in made.phases] == [0.9, 1.0]


def test_what_cannot_be_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match="sum to 1"):
        plan(store, phases=PHASES[:1])
    with pytest.raises(UserError, match="65 tokens are more than the 64 positions"):
        plan(store, phases=(replace(PHASES[0], share=1.0, max_length=65),))


# --- micro-batches ---


def test_the_setting_wins_then_what_was_stored_then_what_fits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = "data.loader.micro_tokens=0"
    assert plan(store, micro_tokens=640).micro_tokens == 400
    assert plan(store, auto, micro_tokens=640).micro_tokens == 640
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 1 << 40)
    assert plan(store, auto).micro_tokens == 8192  # as many as are of use
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 0)
    made = plan(store, auto, phases=PHASES)
    assert made.micro_tokens == 128  # two of the longest sequences, come what may
    assert {phase.data.loader.micro_tokens for phase in made.phases} == {128}


def test_less_memory_smaller_micro_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for megabytes in (1, 10, 100):
        free = megabytes << 20
        monkeypatch.setattr(planning, "find_free_bytes", lambda device, free=free: free)
        found.append(plan(store, "data.loader.micro_tokens=0").micro_tokens)
    assert found == sorted(found) and found[0] < found[-1]
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 10 << 20)
    half = plan(store, "data.loader.micro_tokens=0", "train.precision=bf16").micro_tokens
    assert half > found[1]


@pytest.mark.parametrize(
    ("sets", "ranks"),
    [
        (("train.precision=bf16",), 1),
        (("train.recompute=true",), 1),
        (("train.sharding=full",), 2),
        (("optim.name=muon",), 1),
    ],
)
def test_what_spares_memory_is_in_what_is_told_and_in_what_fits(
    store: Store, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], ranks: int
) -> None:
    monkeypatch.setattr(World, "least", lambda self, value: value)
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 20 << 20)
    more = {"model": Bert(replace(CONFIG, num_layers=6), HEADS), "world": World(size=ranks)}
    auto, fixed = "data.loader.micro_tokens=0", "data.loader.micro_tokens=640"
    assert plan(store, fixed, *sets, **more).memory.total < plan(store, fixed, **more).memory.total
    found = plan(store, auto, *sets, **more)
    assert found.micro_tokens >= plan(store, auto, **more).micro_tokens
    left = (20 << 20) - found.memory.gradients - found.memory.optimizer
    assert 0.4 * left < found.memory.activations <= 0.5 * left


def test_all_ranks_take_what_the_least_can(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "least", lambda self, value: min(value, 192))
    assert plan(store, "data.loader.micro_tokens=0").micro_tokens == 192


@pytest.mark.parametrize("runs_out", [False, True])
def test_trying_out_leaves_no_gradient(
    store: Store, monkeypatch: pytest.MonkeyPatch, runs_out: bool
) -> None:
    """A first step would add to what is left."""
    model, tried = Bert(CONFIG, HEADS), []
    objective = objective_of(recipe())

    def out_of_memory(gradient: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("in the middle of the backward pass")

    def find(try_out: Any, **more: Any) -> int:
        if runs_out:
            model.embeddings.token.weight.register_hook(out_of_memory)
            with pytest.raises(torch.OutOfMemoryError):
                try_out(256)
        else:
            try_out(256)
        tried.append(True)
        return 256

    monkeypatch.setattr(planning, "find_micro_tokens", find)
    plan(store, "data.loader.micro_tokens=0", model=model, objective=objective)
    assert tried and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("num_tokens", [1, 64, 500, 1024])
def test_a_full_batch_is_one_that_a_model_takes(num_tokens: int) -> None:
    batch = make_full_batch(num_tokens, 32, len(PIECES), 0.15)
    assert len(batch.ids) == max(1, num_tokens // 32) * 32 == batch.bounds[-1]
    assert len(batch.predicted) >= 0.14 * len(batch.ids)
    words, pairs = Bert(CONFIG, HEADS)(*batch[:5], predicted=batch.predicted)
    assert len(words) == len(batch.labels) and len(pairs) == len(batch.pair_labels)


def test_a_compiled_model_has_filled_batches(store: Store) -> None:
    made = plan(store, "train.compile=true", phases=PHASES)
    for phase in made.phases:
        loader = phase.data.loader
        assert loader.fill and 2 * phase.data.instances.max_length <= loader.micro_tokens <= 400
        with Loader(store, phase.data) as steps:
            shapes = {len(b.ids) for n in range(3) for b in steps.step(n).micro_batches}
        assert shapes == {loader.micro_tokens}
    assert not plan(store).phases[0].data.loader.fill


def test_settings_of_data_stay_what_they_were(store: Store) -> None:
    data = DataConfig()
    made = planning.settings_of(data, PHASES[0], TrainConfig())
    assert made.masking == data.masking and made.loader == data.loader
    assert made.instances == replace(data.instances, max_length=16)
