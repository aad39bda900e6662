"""Steps are a function of their number; neighbours, order and batch size move no logit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.tasks.classify import Classify, TextExample
from bertie.tasks.instances import Instances
from bertie.tasks.steps import TaskLoader, evaluation_batches, predict
from tests.tasks.toys import TOKENIZER, tiny_model

TASK = Classify(kind="classes", labels=("x", "y"), max_length=14, class_weights={"x": 0.25})


def encode(lengths: list[int]) -> Instances:
    examples = [
        TextExample(place="", id=str(n), first="the " * length, label="xy"[n % 2])
        for n, length in enumerate(lengths)
    ]
    return TASK.encode(examples, TOKENIZER)


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(
    lengths=LENGTHS,
    batch_size=st.integers(1, 9),
    micro_tokens=st.integers(1, 80),
    world_size=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
@settings(max_examples=60)
def test_an_epoch_has_every_example_once_whatever_the_ranks(
    lengths: list[int], batch_size: int, micro_tokens: int, world_size: int, epoch: int
) -> None:
    instances = encode(lengths)
    loaders = [
        TaskLoader(
            instances,
            batch_size=batch_size,
            micro_tokens=micro_tokens,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    per_epoch = loaders[0].steps_per_epoch
    num_tokens, weight = 0, 0.0
    for number in range(epoch * per_epoch, (epoch + 1) * per_epoch):
        steps = [loader.step(number) for loader in loaders]
        assert len({len(step.micro_batches) for step in steps}) == 1
        batches = [batch for step in steps for batch in step.micro_batches]
        counted = [batch for batch in batches if float(batch.weights.sum()) > 0]
        total = sum(float(batch.weights.sum()) for batch in batches)
        assert total == pytest.approx(steps[0].num_targets["task"])
        assert sum(len(batch.ids) for batch in counted) == steps[0].num_tokens
        for batch in counted:
            assert len(batch.ids) <= micro_tokens or len(batch.weights) == 1
        num_tokens, weight = num_tokens + steps[0].num_tokens, weight + total
    assert num_tokens == len(instances.ids)
    assert weight == pytest.approx(float(instances.weights.sum()))


def test_a_step_depends_on_its_number_alone() -> None:
    instances = encode([3, 9, 30, 4, 1, 7, 7])
    whole = list(TaskLoader(instances, batch_size=3, seed=5, end_step=9))
    again = list(TaskLoader(instances, batch_size=3, seed=5, start_step=4, end_step=9))
    for one, two in zip(whole[4:], again, strict=True):
        assert (one.number, one.num_targets) == (two.number, two.num_targets)
        for a, b in zip(one.micro_batches, two.micro_batches, strict=True):
            assert torch.equal(a.ids, b.ids) and torch.equal(a.labels, b.labels)
    other = TaskLoader(instances, batch_size=7, seed=6).step(0).micro_batches[0]
    assert sorted(other.ids.tolist()) == sorted(instances.ids.tolist())
    orders = {
        tuple(
            TaskLoader(instances, batch_size=1, seed=5).step(n).num_tokens for n in range(k, k + 7)
        )
        for k in (0, 7, 14, 21)
    }
    assert len(orders) > 1  # epochs are shuffled anew


def test_a_text_of_many_windows_keeps_the_budget_and_is_drawn_as_one() -> None:
    instances = encode([3, 2000, 4])
    assert len(instances) > 300
    loader = TaskLoader(instances, batch_size=2, micro_tokens=100)
    assert loader.steps_per_epoch == 2
    steps = [loader.step(number) for number in range(2)]
    assert {round(step.num_targets["task"], 4) for step in steps} <= {0.25, 0.5, 1.0, 1.25}
    for step in steps:
        assert all(len(batch.ids) <= 100 for batch in step.micro_batches)
    batches = [batch for _, batch in evaluation_batches(instances, micro_tokens=100)]
    assert sum(len(batch.ids) for batch in batches) == len(instances.ids)
    assert max(len(batch.ids) for batch in batches) <= 100


@given(lengths=LENGTHS, micro_tokens=st.integers(1, 200))
@settings(max_examples=25)
def test_evaluation_sees_each_once_and_batches_move_no_logit(
    lengths: list[int], micro_tokens: int
) -> None:
    instances, model = encode(lengths), tiny_model("sequence")
    numbers = np.concatenate(
        [n for n, _ in evaluation_batches(instances, micro_tokens=micro_tokens)]
    )
    assert sorted(numbers.tolist()) == list(range(len(instances)))
    together = predict(model, instances, micro_tokens=100_000)
    apart = predict(model, instances, micro_tokens=micro_tokens)
    for one, two in zip(together, apart, strict=True):
        assert one.shape == (2,) and np.abs(one - two).max() < 1e-5


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="batch_size"):
        TaskLoader(encode([3]), batch_size=0)
    with pytest.raises(UserError, match="rank"):
        TaskLoader(encode([3]), rank=2, world_size=2)
