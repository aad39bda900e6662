"""Fine-tuning tasks: files to examples, to batches, to losses; logits to answers, to scores."""

from dataclasses import asdict
from typing import Any

from bertie.errors import check_known
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tasks.task import Task

KnownTask = Classify | Tag | Span | Choice

TASKS: dict[str, type[Classify] | type[Tag] | type[Span] | type[Choice]] = {
    "classify": Classify,
    "tag": Tag,
    "span": Span,
    "choice": Choice,
}


def get_task(name: str) -> type[Classify] | type[Tag] | type[Span] | type[Choice]:
    """The settings of a task, by its name."""
    check_known("task", name, TASKS)
    return TASKS[name]


def name_of(task: Task[Any, Any]) -> str:
    return next(name for name, kind in TASKS.items() if isinstance(task, kind))


def list_metrics(name: str) -> tuple[str, ...]:
    """All that a task of this name may be scored by, whatever its data turn out to be.

    >>> list_metrics("tag")
    ('f1', 'precision', 'recall', 'accuracy')
    """
    kinds: dict[str, list[KnownTask]] = {
        "classify": [
            Classify(kind="classes", labels=("no", "yes")),
            Classify(kind="multi-label", labels=("no", "yes")),
            Classify(kind="regression"),
        ],
        "tag": [Tag(kind="spans"), Tag(kind="words")],
        "span": [Span(), Span(language="chinese")],
        "choice": [Choice()],
    }
    return tuple(dict.fromkeys(metric for task in kinds[name] for metric in task.metrics))


def describe(task: Task[Any, Any]) -> dict[str, Any]:
    """What a model directory remembers of a settled task: the fields of its task card."""
    described: dict[str, Any] = {
        "head": task.head,
        "task": name_of(task),
        "settings": asdict(task),  # type: ignore[call-overload]
    }
    if isinstance(task, Classify):
        described |= {"kind": task.kind, "labels": task.labels, "thresholds": task.thresholds}
    elif isinstance(task, Tag):
        described["labels"] = task.labels
    elif isinstance(task, Span):
        described["thresholds"] = {"no_answer": task.threshold}
    return described
