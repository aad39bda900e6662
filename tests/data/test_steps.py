"""A step is the same instances and masks whatever the ranks and micro-batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.instances import InstanceConfig
from bertie.data.masking import MaskConfig
from bertie.data.steps import (
    DataConfig,
    LoaderConfig,
    Part,
    Shape,
    StepParts,
    Steps,
    check_fit,
    deal,
    find_shape,
    fit_micro_tokens,
    share_out,
)
from bertie.data.store import Store
from bertie.errors import UserError
from tests.data.stores import awkward, write_store

UNITS = ["token", "word", "span"]
Sequence = tuple[Any, ...]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("store"), awkward(huge=200))


def config_of(
    *, unit: Any = "token", kind: Any = "nsp", max_length: int = 64, **loader: Any
) -> DataConfig:
    return DataConfig(
        instances=InstanceConfig(kind=kind, max_length=max_length),
        masking=MaskConfig(unit=unit),
        loader=LoaderConfig(**{"batch_size": 24, "micro_tokens": 500, "seed": 5} | loader),
    )


def sequences_of(parts: list[Part]) -> list[Sequence]:
    """Each sequence with all that belongs to it."""
    found = []
    for part in parts:
        for n, (low, high) in enumerate(zip(part.bounds[:-1], part.bounds[1:], strict=True)):
            inside = (part.predicted >= low) & (part.predicted < high)
            found.append(
                (
                    part.ids[low:high].tolist(),
                    int(part.seconds[n]),
                    int(part.pair_labels[n]),
                    (part.predicted[inside] - low).tolist(),
                    part.labels[inside].tolist(),
                )
            )
    return found


def make_all(store: Store, config: DataConfig, number: int, world_size: int) -> list[StepParts]:
    return [
        Steps(store, config, rank=rank, world_size=world_size).make(number)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_ranks_share_all_and_overlap_nowhere(store: Store, unit: Any, world_size: int) -> None:
    config = config_of(unit=unit)
    for number in (0, 3, 40):  # 40 steps are several epochs
        alone = make_all(store, config, number, 1)[0]
        ranks = make_all(store, config, number, world_size)
        shared = [s for made in ranks for s in sequences_of(made.parts)]
        assert len(shared) == 24
        assert sorted(shared) == sorted(sequences_of(alone.parts))
        assert len({len(made.parts) for made in ranks}) == 1
        for made in ranks:
            assert made.num_targets == alone.num_targets and made.num_tokens == alone.num_tokens
            assert all(len(part.seconds) for part in made.parts)


@pytest.mark.parametrize("kind", ["nsp", "sop", "sentences", "full"])
def test_the_counts_are_those_of_all_ranks(store: Store, kind: Any) -> None:
    config = config_of(kind=kind)
    ranks = make_all(store, config, 2, 3)
    parts = [part for made in ranks for part in made.parts]
    expected = {"mlm": sum(len(part.labels) for part in parts)}
    if kind != "full":
        name = "sop" if kind == "sop" else "nsp"
        expected[name] = sum(int((part.pair_labels >= 0).sum()) for part in parts)
    assert ranks[0].num_targets == expected
    assert ranks[0].num_tokens == sum(len(part.ids) for part in parts)


@pytest.mark.parametrize("micro_tokens", [64, 130, 500, 100_000])
def test_micro_batches_change_nothing(store: Store, micro_tokens: int) -> None:
    whole = Steps(store, config_of(micro_tokens=10**6)).make(1)
    made = Steps(store, config_of(micro_tokens=micro_tokens)).make(1)
    assert len(whole.parts) == 1
    assert sorted(sequences_of(made.parts)) == sorted(sequences_of(whole.parts))
    assert max(len(part.ids) for part in made.parts) <= micro_tokens
    assert made.num_targets == whole.num_targets


def test_a_step_depends_on_nothing_before_it(store: Store) -> None:
    config = config_of()
    steps = Steps(store, config)
    in_order = [sequences_of(steps.make(number).parts) for number in range(12)]
    for number in (11, 4, 7, 0):
        assert sequences_of(Steps(store, config).make(number).parts) == in_order[number]
        assert sequences_of(steps.make(number).parts) == in_order[number]


def test_steps_go_through_the_epoch_once(store: Store) -> None:
    steps = Steps(store, config_of(batch_size=10))
    size = steps.epochs.find_end(0)
    seen = [steps.epochs.draw(10 * k, 10 * k + 10) for k in range(size // 10 + 1)]
    keys = np.concatenate([drawn.keys for drawn in seen])
    assert len(np.unique(keys)) == len(keys)
    assert steps.make(size // 10 - 1).epoch == 0 and steps.make(size // 10 + 1).epoch == 1


def test_masks_are_new_in_each_epoch_unless_they_are_static(store: Store) -> None:
    def keys_of_epochs(copies: int | None) -> list[set[tuple[Any, ...]]]:
        config = DataConfig(
            instances=InstanceConfig(kind="full", short_share=0.0),
            masking=MaskConfig(static_copies=copies),
            loader=LoaderConfig(batch_size=8),
        )
        steps = Steps(store, config)
        found = []
        for epoch in range(2):
            first, last = (steps.epochs.find_end(e) if e >= 0 else 0 for e in (epoch - 1, epoch))
            keys = steps.epochs.draw(first, last).keys
            found.append(set(keys.tolist()))
        return found

    dynamic, static = keys_of_epochs(None), keys_of_epochs(1)
    assert not dynamic[0] & dynamic[1] and static[0] == static[1]


def test_a_tiny_store_may_come_several_times_in_a_step(tmp_path: Any) -> None:
    steps = Steps(write_store(tmp_path, [[4, 5], [6]]), config_of(batch_size=50, seed=1))
    made = steps.make(3)
    assert sum(len(part.seconds) for part in made.parts) == 50
    assert made.epoch > 20


@given(
    st.lists(st.integers(5, 64), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(128, 400),
)
@settings(max_examples=200, deadline=None, database=None)
def test_shares_are_even_and_keep_the_limit(
    lengths: list[int], world_size: int, micro_tokens: int
) -> None:
    world_size = min(world_size, len(lengths))
    array = np.array(lengths)
    rank, micro = share_out(
        array,
        np.ones_like(array),
        world_size=world_size,
        micro_tokens=micro_tokens,
        max_length=64,
        shape=None,
    )
    counts = np.bincount(rank, minlength=world_size)
    assert counts.max() - counts.min() <= 1
    num_micro = micro.max() + 1
    sizes = np.zeros((world_size, num_micro))
    np.add.at(sizes, (rank, micro), array)
    assert sizes.max() <= micro_tokens and sizes.min() > 0
    # Balanced: no two differ by more than about the longest instance and what parity leaves.
    assert sizes.max() - sizes.min() <= 3 * 64


def test_dealing_goes_to_and_fro() -> None:
    assert deal(np.arange(7), 3).tolist() == [0, 1, 2, 2, 1, 0, 0]
    assert deal(np.arange(3), 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("micro_tokens", [128, 700])
def test_fixed_shapes_have_room_for_every_micro_batch(
    store: Store, unit: Any, micro_tokens: int
) -> None:
    config = config_of(unit=unit, micro_tokens=micro_tokens, fill=True)
    shape = find_shape(config)
    assert shape is not None
    for number in range(8):
        for part in Steps(store, config, world_size=3).make(number).parts:
            num_tail = -(-(shape.num_tokens - len(part.ids)) // 64)
            assert len(part.seconds) + num_tail <= shape.num_sequences
            assert len(part.labels) <= shape.num_predicted
    tight = config_of(unit=unit, micro_tokens=128, fill=True, max_sequences=4, max_predicted=20)
    assert find_shape(tight) == Shape(128, 4, 20)
    whole = Steps(store, config_of(unit=unit, micro_tokens=10**6)).make(1)
    made = Steps(store, tight).make(1)
    assert sorted(sequences_of(made.parts)) == sorted(sequences_of(whole.parts))
    assert max(len(part.labels) for part in made.parts) <= 20


@pytest.mark.parametrize(
    ("at_most", "batch_size", "most"), [(4000, 256, 0.06), (40_000, 256, 0.04), (40_000, 32, 0.13)]
)
def test_tails_are_short_where_micro_tokens_fit(
    tmp_path: Any, at_most: int, batch_size: int, most: float
) -> None:
    rng = np.random.default_rng(2)
    store = write_store(tmp_path, [rng.integers(5, 45, 80).tolist() for _ in range(60)])
    config = config_of(batch_size=batch_size, max_length=128, fill=True)
    steps = Steps(store, config, world_size=2)
    samples = [steps.lengths(number) for number in range(4)]
    assert [int(one.sum()) for one in samples] == [steps.make(n).num_tokens for n in range(4)]
    size = fit_micro_tokens(config, samples, world_size=2, at_most=at_most)
    assert 256 <= size <= at_most
    config = replace(config, loader=replace(config.loader, micro_tokens=size))
    parts = [part for k in range(40) for part in Steps(store, config, world_size=2).make(k).parts]
    assert 0 < 1 - sum(len(part.ids) for part in parts) / (size * len(parts)) < most


def test_the_margin_above_the_mean_is_small_where_steps_are_alike() -> None:
    lengths = [np.array([40, 60] * 32), np.array([50] * 64)]
    alike = fit_micro_tokens(config_of(max_length=64), lengths[1:], world_size=1, at_most=9999)
    other = fit_micro_tokens(config_of(max_length=64), lengths[:1], world_size=1, at_most=9999)
    assert alike == 3200 and 3200 + 80 < other < 3200 + 4 * 80
    assert fit_micro_tokens(config_of(max_length=64), lengths, world_size=1, at_most=9) == 128


@pytest.mark.parametrize(
    ("loader", "world_size", "words"),
    [
        ({"batch_size": 2}, 3, "less than the number of ranks"),
        ({"micro_tokens": 63}, 1, "at least 1 x max_length = 64"),
        ({"batch_size": 25, "micro_tokens": 100}, 2, "2 x max_length = 128, as 2 ranks cannot"),
        ({"fill": True, "max_sequences": 3}, 1, "max_sequences must be at least"),
        ({"fill": True, "max_predicted": 5}, 1, "max_predicted must be at least 10"),
    ],
    ids=str,
)
def test_settings_that_some_step_could_not_keep_are_refused(
    loader: dict[str, Any], world_size: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_fit(config_of(**loader), world_size)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": 1_100_000},
        {"num_workers": -1},
        {"prefetch": 0},
        {"max_sequences": 0},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        LoaderConfig(**wrong)
