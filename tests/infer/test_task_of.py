"""A settled task comes back as it was; that of a model from elsewhere is guessed."""

import pytest

from bertie.checkpoint.card import TaskCard
from bertie.errors import UserError
from bertie.infer.task_of import change, find_task, reads_pairs
from bertie.tasks import KnownTask, describe
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag

TASKS = [
    Classify(kind="multi-label", labels=("x", "y"), thresholds={"x": 0.3}, max_length=99),
    Tag(kind="spans", labels=("O", "B-X", "E-X"), model_scheme="BIOES", level="character"),
    Span(threshold=-1.5, may_be_unanswerable=True, language="chinese"),
    Choice(columns={"context": "a", "options": "b,c"}),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_settled_task_comes_back(task: KnownTask) -> None:
    assert find_task(TaskCard(**describe(task)), 512) == task
    assert change(task, []) == task


def test_what_a_config_tells_is_used() -> None:
    assert find_task(None, 512) is None
    classes = find_task(TaskCard(head="sequence", labels=("no", "yes")), 512)
    assert classes == Classify(kind="classes", labels=("no", "yes"), max_length=512)
    number = find_task(TaskCard(head="sequence", kind="regression", labels=("LABEL_0",)), 40)
    assert number == Classify(kind="regression", max_length=40)
    tags = find_task(TaskCard(head="token", labels=("O", "B-X", "M-X", "E-X", "S-X")), 512)
    assert isinstance(tags, Tag) and (tags.kind, tags.model_scheme) == ("spans", "BMES")
    for length in (16, 40, 512):
        span = find_task(TaskCard(head="span"), length)
        assert isinstance(span, Span) and not span.may_be_unanswerable
        assert span.max_length == min(384, length)


def test_settings_can_be_changed() -> None:
    task = Classify(kind="classes", labels=("a", "b"))
    changed = change(task, ["task.columns.first=body", "task.max_length=64"])
    assert changed == Classify(
        kind="classes", labels=("a", "b"), columns={"first": "body"}, max_length=64
    )
    with pytest.raises(UserError, match=r"no setting task\.maximum"):
        change(task, ["task.maximum=3"])
    with pytest.raises(UserError, match="no setting model"):
        change(task, ["model.size=3"])


def test_whether_pairs_are_read() -> None:
    assert reads_pairs(Classify()) is None
    assert reads_pairs(Classify(benchmark="RTE")) is True
    assert reads_pairs(Classify(benchmark="CoLA")) is False
    assert reads_pairs(Classify(columns={"first": "a", "second": "b"})) is True
    assert reads_pairs(Classify(columns={"first": "a"})) is False
