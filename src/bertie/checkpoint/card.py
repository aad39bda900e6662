"""What the head of a fine-tuned model is for: task.json, and the labels in config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertie.checkpoint.json_files import read_json, write_json
from bertie.config import build
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.heads import PRETRAINED, get_head

TASK = "task.json"
LABELLED = ("sequence", "token")
MOST_LABELS = 20  # to be shown
Kind = Literal["classes", "multi-label", "regression"]
PROBLEMS: dict[str, Kind] = {  # Hugging Face's -> ours
    "single_label_classification": "classes",
    "multi_label_classification": "multi-label",
    "regression": "regression",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCard:
    """How to read the outputs of a head."""

    head: str
    kind: Kind = "classes"  # of the head `sequence`
    labels: tuple[str, ...] = ()  # of the outputs, in order
    thresholds: dict[str, float] = field(default_factory=dict)  # fitted on dev, by name
    task: str = ""  # which of the tasks the model was fine-tuned for
    settings: dict[str, Any] = field(default_factory=dict)  # of that task, settled: how to read on

    def __post_init__(self) -> None:
        get_head(self.head)


def read_card(directory: Path) -> TaskCard | None:
    path = directory / TASK
    if not path.is_file():
        return None
    values = read_json(path)
    if "head" not in values:
        raise UserError(f'{path} does not say which head it is about; add it: "head"')
    try:
        return build(TaskCard, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def write_card(directory: Path, card: TaskCard) -> None:
    write_json(directory / TASK, asdict(card))


def check_card(card: TaskCard, model: Bert, path: Path) -> None:
    """A card must be about a head that is there, with as many labels, and the same twice."""
    if card.head not in model.heads:
        there = ", ".join(model.heads) or "none"
        raise UserError(f"{path} is about the head {card.head}; the model's heads: {there}")
    if card.head in LABELLED and len(card.labels) not in (0, model.num_labels):
        raise UserError(
            f"{path} names {len(card.labels)} labels; the head {card.head} has {model.num_labels}"
        )
    settled = card.settings.get("labels", card.labels)
    if isinstance(settled, list | tuple) and tuple(settled) != card.labels:
        named, other = (list_labels([*map(str, one)]) or "none" for one in (card.labels, settled))
        raise UserError(
            f"{path} contradicts itself: its labels are {named}, those of its settings {other}; "
            "mend one"
        )


def derive_card(
    values: Mapping[str, Any], heads: Sequence[str], num_labels: int, notes: list[str], path: Path
) -> TaskCard | None:
    """What config.json says of the task; the weights decide how many labels there are."""
    head = next((head for head in heads if head not in PRETRAINED), None)
    if head is None:
        return None
    if head not in LABELLED:
        return TaskCard(head=head)
    labels = _read_labels(values, path)
    if labels and len(labels) != num_labels:
        notes.append(
            f"{path} names {len(labels)} labels, the weights have {num_labels}: took {num_labels}, "
            f"called LABEL_0 to LABEL_{num_labels - 1}"
        )
        labels = ()
    labels = labels or generic_labels(num_labels)
    problem = values.get("problem_type") if head == "sequence" else None
    if problem is None:  # transformers, too, takes a single output of a sequence as a number
        is_number = head == "sequence" and num_labels == 1
        return TaskCard(head=head, kind="regression" if is_number else "classes", labels=labels)
    if not isinstance(problem, str) or problem not in PROBLEMS:
        raise UserError(f"{path}: problem_type is {problem!r}; there are: {', '.join(PROBLEMS)}")
    return TaskCard(head=head, kind=PROBLEMS[problem], labels=labels)


def _read_labels(values: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The names of config.json's id2label in order; none where it has none."""
    table, ids = (values.get(name) or {} for name in ("id2label", "label2id"))
    if not isinstance(table, Mapping) or not isinstance(ids, Mapping):
        raise UserError(f"{path}: id2label and label2id must be tables of labels")
    if set(table) != {str(n) for n in range(len(table))}:
        raise UserError(
            f"{path} contradicts itself: the ids of its {len(table)} labels (id2label) are not "
            f"0 to {len(table) - 1}"
        )
    labels = tuple(str(table[str(number)]) for number in range(len(table)))
    if any(ids.get(label, number) != number for number, label in enumerate(labels)):
        raise UserError(f"{path} contradicts itself: id2label and label2id differ; mend one")
    return labels


def describe_labels(model: Bert, card: TaskCard | None) -> dict[str, Any]:
    """What config.json says of the labels."""
    if not set(LABELLED) & set(model.heads):
        return {}
    labels = (card.labels if card is not None else ()) or generic_labels(model.num_labels)
    described: dict[str, Any] = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    if card is not None and card.head == "sequence":
        theirs_of = {ours: theirs for theirs, ours in PROBLEMS.items()}
        described["problem_type"] = theirs_of[card.kind]
    return described


def list_labels(labels: Sequence[str]) -> str:
    """The first of them, and how many there are more."""
    more = len(labels) - MOST_LABELS
    return ", ".join(labels[:MOST_LABELS]) + (f" and {more} more" if more > 0 else "")


def generic_labels(num_labels: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{number}" for number in range(num_labels))
