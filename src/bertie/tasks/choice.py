"""Choose one of several options: how a text goes on, which answer to a question is right.

- read: SWAG's CSV (sent1, sent2, ending0 ..), HellaSwag's JSON Lines (query, choices, gold), or any
  table with a context, options in a list or in columns of their own, and a label: A, B, ..., or
  a number from 0; or from 1, in a file that has no 0 but the number of options.
- encode: each option is an input [CLS] context [SEP] option [SEP]; what the option continues
  (`sent2`, a question) stands before it. The options of an example are one instance, of any number.
  Longer ones become windows, as pairs of texts do: each window is an instance with all options, and
  the windows of an example share its weight. With `truncate`, a context loses its beginning, which
  is farthest from the option; only an option that leaves the context less than half the room is
  cut, at its end. Both are counted.
- head: `choice`.
- objective: cross-entropy over the options of an example.
- decode: the option with the highest logit, the mean over the windows.
- score: accuracy.
"""

# N options of all examples   G examples

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

from bertie.errors import UserError
from bertie.metrics.classes import accuracy
from bertie.objectives import Term, segment_cross_entropy
from bertie.tasks.instances import Framer, Input, Instance, Instances, TaskBatch, gather
from bertie.tasks.tables import (
    Row,
    Table,
    as_text,
    check_columns,
    find_column,
    list_columns,
    read_examples,
    read_table,
)
from bertie.tasks.task import Dataset, Rejects, check_roles, check_sizes
from bertie.text.sequences import num_specials
from bertie.text.tokenizer import Tokenizer

CONTEXTS = ("sent1", "query", "context", "ctx", "article", "passage", "premise", "text")
QUESTIONS = ("sent2", "question")  # what stands before each option
OPTIONS = ("choices", "options", "endings", "answers")
LABELS = ("label", "gold", "answer", "correct", "answerkey")
IDS = ("id", "idx", "guid")
ROLES = ("context", "question", "options", "label", "id")
NUMBERED = re.compile(r"(ending|option|choice|answer|sol)_?([0-9]+|[A-Ha-h])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceExample:
    """A context and how it may go on."""

    place: str
    id: str
    context: str
    options: tuple[str, ...]  # with what stands before them
    label: int | None = None  # the right one, counted from 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChoicePrediction:
    """The chosen option."""

    label: int
    scores: np.ndarray  # probabilities of the options


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Settings; what is left open is settled by the training data."""

    head: ClassVar[str] = "choice"

    # context, question, label, id; options is a list's column, or columns joined by commas
    columns: dict[str, str] = field(default_factory=dict)
    metric: str = "accuracy"
    max_length: int = 128  # pieces of an input
    stride: int | None = None  # pieces from window to window; none: half a window
    truncate: bool = False  # cut long texts off instead of windows

    def __post_init__(self) -> None:
        check_roles(self.columns, ROLES)
        check_sizes(self.max_length, self.stride)

    @property
    def num_labels(self) -> int:
        return 1

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("accuracy",)

    # Read.

    def read(
        self, path: Path, *, skip_bad: bool = False, needs_labels: bool = False
    ) -> Dataset[ChoiceExample]:
        rejects = Rejects(skip_bad=skip_bad)
        known = {*CONTEXTS, *QUESTIONS, *OPTIONS, *map(str.casefold, self.columns.values())}
        table = read_table(path, rejects, known=known)
        columns = choose_columns(table, self.columns)
        base = find_base(table, columns)
        read = partial(read_row, base=base)
        examples = read_examples(table, columns, read, rejects, needs_labels=needs_labels)
        return Dataset(
            path=path,
            format=f"{table.format}, labels from {base}" if base else table.format,
            examples=examples,
            columns=columns,
            is_labelled="label" in columns,
            problems=rejects.problems,
        )

    def settle(self, train: Dataset[ChoiceExample]) -> "Choice":
        return replace(self, columns=dict(train.columns))

    # Encode.

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer) -> Instances:
        """An instance per window, its options together."""
        framer, counts = Framer.of(tokenizer), Counter[str]()
        encoded, num_cut = [], list[int]()
        for example in examples:
            context = tokenizer.ids(example.context)
            options = [tokenizer.ids(option) for option in example.options]
            windows = (
                [[self.cut_off(framer, context, option, counts) for option in options]]
                if self.truncate
                else self.make_windows(framer, context, options)
            )
            frame = len(context) + num_specials(is_pair=True)
            lost = [
                frame + len(option) - len(one.ids)
                for option, one in zip(options, windows[0], strict=True)
            ]
            num_cut.append(sum(lost) if self.truncate else 0)
            counts["texts in windows"] += len(windows) > 1
            counts["windows made of them"] += len(windows) if len(windows) > 1 else 0
            label = 0 if example.label is None else example.label
            weight = 0.0 if example.label is None else 1 / len(windows)
            encoded.append([Instance(inputs, label, weight) for inputs in windows])
        return gather(encoded, num_cut=num_cut, counts=counts)

    def make_windows(
        self, framer: Framer, context: np.ndarray, options: Sequence[np.ndarray]
    ) -> list[list[Input]]:
        """Of each window, the inputs of all options; those that need fewer windows come again."""
        parts = [framer.windows(context, one, self.max_length, self.stride) for one in options]
        count = max(map(len, parts))
        return [[part[n * len(part) // count] for part in parts] for n in range(count)]

    def cut_off(
        self, framer: Framer, context: np.ndarray, option: np.ndarray, counts: Counter[str]
    ) -> Input:
        room = self.max_length - num_specials(is_pair=True)
        kept = option[: max(room // 2, room - len(context))]
        end = context[max(0, len(context) + len(kept) - room) :]
        counts["contexts cut off"] += len(end) < len(context)
        counts["options cut off"] += len(kept) < len(option)
        return framer.frame(end, kept)

    # Train.

    def objective(self, model: nn.Module, batch: TaskBatch) -> dict[str, Term]:
        (logits,) = model(*batch[:5])  # (N, 1)
        scores = logits[:, 0]
        return {"task": segment_cross_entropy(scores, batch.groups, batch.labels, batch.weights)}

    # Decode.

    def decode(
        self,
        examples: Sequence[ChoiceExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> list[ChoicePrediction]:
        predictions = []
        for number in range(len(examples)):
            found = np.array([outputs[n][0] for n in instances.inputs_of(number)], np.float64)
            logits = found.reshape(-1, len(examples[number].options)).mean(0)
            shares = np.exp(logits - logits.max())
            scores = shares / shares.sum()
            predictions.append(ChoicePrediction(label=int(logits.argmax()), scores=scores))
        return predictions

    def tune(
        self,
        examples: Sequence[ChoiceExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> "Choice":
        """There is nothing to fit."""
        return self

    # Score.

    def score(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]
    ) -> dict[str, float]:
        pairs = zip(examples, predictions, strict=True)
        both = [(e.label, p.label) for e, p in pairs if e.label is not None]
        return {"accuracy": accuracy(*zip(*both, strict=True))} if both else {}


def choose_columns(table: Table, given: dict[str, str]) -> dict[str, str]:
    """Role -> column, guessed by name where it is not given."""
    names = table.names
    roles = {"context": CONTEXTS, "question": QUESTIONS, "options": OPTIONS, "label": LABELS}
    found = {role: find_column(names, known) for role, known in roles.items()}
    found["id"] = find_column(names, IDS)
    numbered = [name for name in names if NUMBERED.fullmatch(name)]
    if found["options"] is None and len(numbered) > 1:
        found["options"] = ",".join(numbered)
    columns = {role: name for role, name in found.items() if name is not None} | given
    for role in ("context", "options"):
        if role not in columns:
            raise UserError(
                f"{table.path}: which column is the {role}? There are: {list_columns(table)}. "
                f"Name it: --set task.columns.{role}=NAME"
            )
    options = {f"options {n}": one for n, one in enumerate(columns["options"].split(","))}
    check_columns(table, {**columns, "options": columns["context"]}, optional=("label", "id"))
    check_columns(table, options, optional=())
    return {r: n for r, n in columns.items() if r == "options" or n in names}


def options_of(row: Row, columns: dict[str, str]) -> list[str]:
    names = columns["options"].split(",")
    value = row.values.get(names[0])
    return [*map(as_text, value)] if isinstance(value, list) else [*map(row.text, names)]


def find_base(table: Table, columns: dict[str, str]) -> int:
    """1 if the labels of a file count from 1: none is 0, and one is the number of its options."""
    if "label" not in columns:
        return 0
    labels = [row.text(columns["label"]).strip() for row in table.rows]
    numbers = [(int(x), row) for x, row in zip(labels, table.rows, strict=True) if x.isdecimal()]
    has_zero = any(number == 0 for number, _ in numbers)
    return int(not has_zero and any(n == len(options_of(row, columns)) for n, row in numbers))


def read_row(
    row: Row, columns: dict[str, str], number: str, rejects: Rejects, *, base: int = 0
) -> ChoiceExample | None:
    """The example of a row; none if it cannot be used. Labels count from `base`."""
    options = options_of(row, columns)
    context = row.text(columns["context"])
    if len(options) < 2 or not all(option.strip() for option in options):
        rejects.add(row.place, "an empty option, or less than two", f"found {len(options)}")
        return None
    if not context.strip():
        rejects.add(row.place, f"empty text in the column {columns['context']!r}")
        return None
    label = None
    if "label" in columns:
        label = find_label(row.text(columns["label"]).strip(), len(options), base)
        if label is None:
            text = row.text(columns["label"])
            last = len(options) - 1 + base
            advice = f"found {text!r}; there must be {base} to {last}, or A, B, ..."
            rejects.add(row.place, "a label that is not an option", advice)
            return None
    before = row.text(columns["question"]).strip() if "question" in columns else ""
    return ChoiceExample(
        place=row.place,
        id=row.text(columns["id"]) if "id" in columns else number,
        context=context,
        options=tuple(f"{before} {option}" if before else option for option in options),
        label=label,
    )


def find_label(text: str, num_options: int, base: int) -> int | None:
    """The number of an option, counted from 0: that of the file, or A, B, ..."""
    if text.isdecimal():
        label = int(text) - base
    elif len(text) == 1 and text.isascii() and text.isalpha():
        label = ord(text.upper()) - ord("A")
    else:
        return None
    return label if 0 <= label < num_options else None
