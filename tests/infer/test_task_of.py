"""A settled task comes back as it was; that of a model from elsewhere is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.checkpoint.card import TaskCard
from bertie.errors import UserError
from bertie.infer.answers import to_json
from bertie.infer.examples import make_text
from bertie.infer.task_of import change, find_task, reads_pairs
from bertie.tasks import KnownTask, describe
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from tests.infer.models import make_directory, make_tuned

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


CLASSES = Classify(kind="classes", labels=("a", "b", "c"), max_length=20)
TAGS = Tag(kind="spans", labels=("O", "B-X", "I-X"), max_length=20)


@pytest.mark.parametrize(
    "task, changed, message",
    [
        (CLASSES, {"settings": {"labels": ["a", "b"]}}, "a, b, c, those of its settings a, b;"),
        (CLASSES, {"settings": {"labels": ["a", "c", "b"]}}, "labels are a, b, c, those of its"),
        (CLASSES, {"labels": []}, "its labels are none, those of its settings a, b, c"),
        (CLASSES, {"task": "tag"}, "reads a head token, which .* has not .heads: sequence"),
        (CLASSES, {"settings": {"max_length": 41}}, "41, more than the 40 positions of"),
        (TAGS, {"settings": {"labels": ["O"]}}, "labels are O, B-X, I-X, those of its settings O"),
        (CLASSES, {"settings": {"kind": "regression"}}, "has 1 labels .*sequence .* has 3; name"),
        (CLASSES, {"settings": {}, "task": "", "labels": []}, "has 0 labels .* has 3; name"),
    ],
)
def test_a_card_that_does_not_fit_its_model_is_refused(
    task: KnownTask, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = make_tuned(tmp_path, task) / "task.json"
    card = json.loads(path.read_text("utf-8"))
    settings = {**card["settings"], **changed.get("settings", {})} if card["task"] else {}
    if changed.get("task") in ("tag", ""):
        settings = {"labels": ["a", "b", "c"], "max_length": 20} if changed["task"] else {}
    path.write_text(json.dumps({**card, **changed, "settings": settings}), "utf-8")
    with pytest.raises(UserError, match=message):
        bertie.load(path.parent)


@pytest.mark.parametrize("labels", ["[]", '["a", "b"]', '["a", "b", "c", "d"]'])
def test_labels_that_are_set_are_as_many_as_the_models(labels: str, tmp_path: Path) -> None:
    engine = bertie.load(make_tuned(tmp_path, CLASSES))
    assert isinstance(engine.task, Classify)
    with pytest.raises(UserError, match=r"the head sequence of .* has 3; name them all"):
        engine.for_task(change(engine.task, [f"task.labels={labels}"]))
    named = engine.for_task(change(engine.task, ['task.labels=["x", "y", "z"]']))
    assert set(to_json(named.one(make_text("Paris")))["scores"]) == {"x", "y", "z"}


def test_a_card_about_a_head_of_pre_training_is_no_task(tmp_path: Path) -> None:
    made = make_directory(tmp_path)
    (made / "task.json").write_text('{"head": "masked_lm"}')
    assert bertie.load(made).task is None
