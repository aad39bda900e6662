"""What holds for all tasks: settings survive the model directory; no batch moves a logit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.checkpoint.card import TaskCard, read_card, write_card
from bertie.config import build
from bertie.errors import UserError
from bertie.tasks import TASKS, KnownTask, describe, get_task
from bertie.tasks.choice import Choice, ChoiceExample
from bertie.tasks.classify import Classify, TextExample
from bertie.tasks.questions import Answer, SpanExample
from bertie.tasks.sentences import make_example
from bertie.tasks.span import Span
from bertie.tasks.steps import TaskLoader, predict
from bertie.tasks.tag import Tag
from bertie.tasks.task import Dataset, check_given
from tests.tasks.toys import TOKENIZER, tiny_model

TEXT = "the cat is running 中国 q 🙂 don't " * 4
SETTLED: list[tuple[KnownTask, list[object]]] = [
    (
        Classify(
            kind="multi-label",
            labels=("x", "y"),
            max_length=30,
            thresholds={"x": 0.25},
            class_weights={"x": 2.0},
            limits=(0.0, 5.0),
        ),
        [TextExample(place="", id=str(n), first=TEXT[: 9 * n]) for n in range(1, 12)],
    ),
    (
        Tag(kind="spans", labels=("O", "B-X", "I-X"), max_length=30, columns={"words": "tokens"}),
        [make_example(TEXT.split()[:n], None, place="", id=str(n)) for n in range(1, 25)],
    ),
    (
        Span(max_length=40, max_question=8, stride=9, threshold=-1.5, may_be_unanswerable=True),
        [
            SpanExample(
                place="",
                id=str(n),
                question="the q?",
                context=TEXT[: 9 * n],
                answers=(Answer(text="the", start=0),),
            )
            for n in range(1, 12)
        ],
    ),
    (
        Choice(max_length=30),
        [
            ChoiceExample(place="", id=str(n), context=TEXT[: 9 * n], options=("a",) * (n + 1))
            for n in range(1, 9)
        ],
    ),
]
IDS = ["classify", "tag", "span", "choice"]


@pytest.mark.parametrize(("task", "examples"), SETTLED, ids=IDS)
def test_a_settled_task_survives_the_model_directory(
    tmp_path: Path, task: KnownTask, examples: list[object]
) -> None:
    write_card(tmp_path, TaskCard(**describe(task)))
    back = read_card(tmp_path)
    assert back is not None
    assert build(get_task(back.task), back.settings) == task


@pytest.mark.parametrize(("task", "examples"), SETTLED, ids=IDS)
def test_order_neighbours_and_batch_size_move_no_logit(
    task: KnownTask, examples: list[object]
) -> None:
    model = tiny_model(task.head, task.num_labels)
    instances = task.encode(examples, TOKENIZER)  # type: ignore[arg-type]
    together = predict(model, instances, micro_tokens=100_000)
    alone = predict(model, instances, micro_tokens=1)
    reversed_ = task.encode(examples[::-1], TOKENIZER)  # type: ignore[arg-type]
    back = predict(model, reversed_, micro_tokens=97)
    count = len(examples)
    for number in range(count):
        for one, other in zip(
            instances.inputs_of(number), reversed_.inputs_of(count - 1 - number), strict=True
        ):
            assert np.abs(together[one] - alone[one]).max() < 1e-5
            assert np.abs(together[one] - back[other]).max() < 1e-5


@pytest.mark.parametrize(("task", "examples"), SETTLED, ids=IDS)
def test_without_labels_there_are_predictions(task: KnownTask, examples: list[object]) -> None:
    instances = task.encode(examples, TOKENIZER)  # type: ignore[arg-type]
    outputs = predict(tiny_model(task.head, task.num_labels), instances)
    assert len(task.decode(examples, instances, outputs)) == len(examples)  # type: ignore[arg-type]


def label(task: KnownTask, example: Any, number: int) -> Any:
    """The same example with a label; a tagger's sentences make a document of three."""
    if isinstance(task, Tag):
        tags = tuple(("O", "B-X", "I-X")[n % 3] for n in range(len(example.words)))
        return replace(example, tags=tags, document=number // 3)
    if isinstance(task, Span):
        return example if number % 3 else replace(example, answers=())
    return replace(example, label=("x",) if isinstance(task, Classify) else number % 2)


@pytest.mark.parametrize(("task", "examples"), SETTLED, ids=IDS)
def test_a_step_has_one_gradient_however_it_is_divided(
    task: KnownTask, examples: list[object]
) -> None:
    """Between micro-batches and ranks, of which some have nothing to do."""
    if isinstance(task, Tag):
        task = replace(task, context="document")
    labelled = [label(task, example, number) for number, example in enumerate(examples)]
    instances = task.encode(labelled[:8], TOKENIZER)
    model = tiny_model(task.head, task.num_labels).double()
    found = []
    for world_size, micro_tokens in ((1, 10**6), (1, 1), (2, 90), (5, 40)):
        model.zero_grad()
        total = num_right = 0.0
        for rank in range(world_size):
            loader = TaskLoader(
                instances,
                batch_size=3,
                micro_tokens=micro_tokens,
                rank=rank,
                world_size=world_size,
            )
            step = loader.step(loader.steps_per_epoch - 1)
            for batch in step.micro_batches:
                term = task.objective(model, batch)["task"]
                (term.total / step.num_targets["task"]).backward()
                total += float(term.total.detach())
                num_right += float(term.num_right)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([torch.tensor([total, num_right]), *gradients])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-5)


def test_the_table_names_all_tasks() -> None:
    assert list(TASKS) == IDS
    with pytest.raises(UserError, match="no task 'summarise'; there are: classify, tag"):
        get_task("summarise")


@pytest.mark.parametrize("kind", [Classify, Tag, Choice])
def test_sizes_that_cannot_be_are_refused_as_they_were_given(kind: type) -> None:
    assert kind(max_length=8).max_length == 8
    with pytest.raises(UserError, match="max_length is at least 8; found 5"):
        kind(max_length=5)
    with pytest.raises(UserError, match="stride is at least 1; found 0"):
        kind(stride=0)


def test_a_column_that_was_asked_for_must_be_there() -> None:
    data: Dataset[Any] = Dataset(
        path=Path("a.csv"), format="", examples=[], columns={"first": "text"}
    )
    check_given(data, {"first": "text"})
    with pytest.raises(UserError, match=r"a.csv has no column 'lable' for label; found: first ="):
        check_given(data, {"first": "text", "label": "lable"})
    check_given(replace(data, columns={}), {"first": "text"})  # SQuAD's files have none
