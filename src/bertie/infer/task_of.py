"""The task behind a model directory: as it was fine-tuned here, or what its config lets one guess.

Of a model that was fine-tuned elsewhere, nothing says how its texts were cut. Texts and pairs are
read as long as the model can, so that what fits is read as `transformers` reads it; questions as
nearly all models for them were trained, in windows of 384. Its words are those of its tokenizer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Literal, cast

from bertie.checkpoint.card import TaskCard, list_labels
from bertie.config import assign, build
from bertie.errors import UserError
from bertie.metrics.spans import guess_scheme
from bertie.model.bert import Bert
from bertie.model.heads import get_head
from bertie.tasks import KnownTask, get_task, name_of
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.glue import GLUE
from bertie.tasks.span import Span
from bertie.tasks.tag import LETTERS, Tag, guess_kind

QUESTION_WINDOW = 384
Scheme = Literal["IOB2", "BIOES", "BMES", "BILOU"]


def find_task(card: TaskCard | None, max_length: int) -> KnownTask | None:
    """The settled task; none where the model has no head for one."""
    if card is None or card.head not in GUESSES:
        return None
    if card.task:
        return build(get_task(card.task), card.settings, "task.")
    return GUESSES[card.head](card, max_length)


def check_task(task: KnownTask, model: Bert, source: object) -> None:
    """That a model computes what the task reads; else answers would be wrong, and look right."""
    if task.head not in model.heads:
        raise UserError(
            f"the task {name_of(task)} reads a head {task.head}, which {source} has not (heads: "
            f"{', '.join(model.heads)}); mend its task.json"
        )
    has_labels = get_head(task.head).num_outputs == "labels"
    if has_labels and task.num_labels != model.num_labels:
        named = f" ({list_labels(task.labels)})" if isinstance(task, Classify | Tag) else ""
        raise UserError(
            f"the task has {task.num_labels} labels{named}, the head {task.head} of {source} has "
            f"{model.num_labels}; name them all, in their order"
        )
    if task.max_length > model.config.max_positions:
        raise UserError(
            f"task.max_length is {task.max_length}, more than the {model.config.max_positions} "
            f"positions of {source}; lower it"
        )


def guess_classify(card: TaskCard, max_length: int) -> Classify:
    return Classify(
        kind=card.kind,
        labels=() if card.kind == "regression" else card.labels,
        thresholds=card.thresholds,
        max_length=max_length,
    )


def guess_tag(card: TaskCard, max_length: int) -> Tag:
    kind = guess_kind([card.labels])
    scheme = guess_scheme([card.labels]) if kind == "spans" else "IOB2"
    return Tag(
        kind=kind,
        labels=card.labels,
        model_scheme=cast(Scheme, scheme if scheme in LETTERS else "IOB2"),  # IOB1 reads the same
        max_length=max_length,
    )


def guess_span(card: TaskCard, max_length: int) -> Span:
    length = min(QUESTION_WINDOW, max_length)
    return Span(
        max_length=length,
        stride=min(128, max(1, length // 3)),
        threshold=card.thresholds.get("no_answer", 0.0),
        may_be_unanswerable="no_answer" in card.thresholds,
    )


def guess_choice(card: TaskCard, max_length: int) -> Choice:
    return Choice(max_length=max_length)


GUESSES: dict[str, Callable[[TaskCard, int], KnownTask]] = {
    "sequence": guess_classify,
    "token": guess_tag,
    "span": guess_span,
    "choice": guess_choice,
}


def change(task: KnownTask, sets: Sequence[str]) -> KnownTask:
    """The task with some settings changed: `task.columns.first=review`."""
    values = {"task": asdict(task)}
    for assignment in sets:
        assign(values, assignment)
    if strange := sorted(values.keys() - {"task"}):
        raise UserError(f"no setting {strange[0]}; there are those of the task: task.columns, ...")
    return build(get_task(name_of(task)), values["task"], "task.")


def reads_pairs(task: Classify) -> bool | None:
    """Whether it was fine-tuned on pairs of texts; none where nothing says so."""
    if task.benchmark in GLUE:
        return GLUE[task.benchmark].second is not None
    return "second" in task.columns if task.columns else None
