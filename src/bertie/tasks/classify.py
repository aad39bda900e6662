"""Classify a text or a pair of texts: one of several classes, any of several labels, or a number.

- read: a table of texts and labels, or a file of GLUE; columns are guessed from their names.
- encode: [CLS] text [SEP] or [CLS] first [SEP] second [SEP]. Longer ones become windows, each of
  which is trained with the label and an equal share of the example's weight; cutting them off is a
  setting, and counted.
- head: `sequence`.
- objective: cross-entropy, with class weights if wished; binary cross-entropy, the mean over the
  labels; squared error of the number in units of the training data's spread around their mean.
- decode: the mean of the windows' logits; of several labels, those above their thresholds.
- score: accuracy, F1, Matthews; of several labels F1; of numbers, correlations.
"""

# G windows   E examples   C labels

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from torch import nn

from bertie.errors import UserError
from bertie.metrics.classes import (
    accuracy,
    f1,
    fit_thresholds,
    macro_f1,
    matthews,
    multi_label_scores,
)
from bertie.metrics.regression import pearson, spearman
from bertie.objectives import Term, binary_cross_entropy, squared_error, weighted_cross_entropy
from bertie.tasks.glue import GLUE, find_columns, find_folder, find_set
from bertie.tasks.instances import Framer, Input, Instance, Instances, TaskBatch, gather
from bertie.tasks.labels import Weights, choose_positive, parse_number, sort_labels, weigh
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
from bertie.text.sequences import fit, num_specials
from bertie.text.tokenizer import Tokenizer

Kind = Literal["classes", "multi-label", "regression"]
Label = str | float | tuple[str, ...]

ROLES = ("first", "second", "label", "id")
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("#1 string", "#2 string"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
)
TEXTS = ("text", "sentence", "text_a", "review", "content", "comment", "document", "tweet", "body")
LABELS = (
    *("label", "gold_label", "labels", "is_duplicate", "quality", "score", "class", "category"),
    *("target", "sentiment", "rating", "stars"),
)
IDS = ("id", "idx", "index", "guid", "uid", "pairid")
KNOWN = frozenset((*TEXTS, *LABELS, *IDS, *(name for pair in PAIRS for name in pair)))
MAIN = {"classes": "accuracy", "multi-label": "micro_f1", "regression": "pearson"}
FEW = 0.1  # so many labels that are no numbers, among numbers, are a mistake
NO_GOLD = "-"  # what SNLI and MNLI write where the annotators did not agree


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExample:
    """A text or a pair, and what it is."""

    place: str
    id: str
    first: str
    second: str | None = None
    label: Label | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextPrediction:
    """What a text is taken for."""

    label: Label
    scores: np.ndarray  # (C,) probabilities; of a regression its one number


@dataclass(frozen=True, kw_only=True, slots=True)
class Classify:
    """Settings; what is left open is settled by the training data."""

    head: ClassVar[str] = "sequence"

    kind: Kind | None = None
    labels: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)  # first, second, label, id
    label_separator: str = ","  # between several labels in a cell
    benchmark: str = ""  # a set of GLUE
    metric: str = ""
    positive: str = ""  # of two labels the one that F1 is of; none: the rarer one, as in GLUE "1"
    max_length: int = 128  # pieces of an input
    stride: int | None = None  # pieces from window to window; none: half a window
    truncate: bool = False  # cut long texts off instead of windows
    class_weights: Weights = "none"
    thresholds: dict[str, float] = field(default_factory=dict)  # of several labels; else 0.5
    center: float = 0.0  # of a regression: mean and spread of the training data
    spread: float = 1.0
    limits: tuple[float, ...] = ()  # of a regression: lowest and highest value

    def __post_init__(self) -> None:
        check_roles(self.columns, ROLES)
        check_sizes(self.max_length, self.stride)
        if len(self.limits) not in (0, 2):
            raise UserError(f"limits are the lowest and the highest value; found {self.limits}")
        if len(set(self.labels)) != len(self.labels):
            raise UserError(f"a label stands there twice: {', '.join(self.labels)}")

    @property
    def num_labels(self) -> int:
        return 1 if self.kind == "regression" else len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        if self.kind == "regression":
            return ("pearson", "spearman")
        if self.kind == "multi-label":
            return ("micro_f1", "macro_f1", "exact")
        return ("accuracy", "macro_f1", "matthews", *(["f1"] if len(self.labels) == 2 else []))

    # Read.

    def read(
        self, path: Path, *, skip_bad: bool = False, needs_labels: bool = False
    ) -> Dataset[TextExample]:
        """The examples of a file; without a column of labels they have none."""
        rejects = Rejects(skip_bad=skip_bad)
        known = KNOWN | {name.casefold() for name in self.columns.values() if not name.isdigit()}
        table = read_table(path, rejects, known=known, literal=True if find_folder(path) else None)
        benchmark = self.benchmark_of(table)
        columns = choose_columns(table, self.columns, benchmark)
        task = self.adopt(benchmark)
        examples = read_examples(table, columns, task.read_row, rejects, needs_labels=needs_labels)
        return Dataset(
            path=path,
            format=f"GLUE {benchmark}" if benchmark in GLUE else table.format,
            examples=examples,
            columns=columns,
            is_labelled="label" in columns,
            problems=rejects.problems,
            benchmark=benchmark,
        )

    def benchmark_of(self, table: Table) -> str:
        """The set of GLUE that a file is of: as itself says, or the task's if the columns fit."""
        first_row = table.rows[0].values if table.rows else {}
        found = find_set(table.path, table.names, first_row)
        fits = self.benchmark and find_columns(self.benchmark, table.names)
        return found or (self.benchmark if fits else "")

    def adopt(self, benchmark: str) -> "Classify":
        """With the kind and the labels of a benchmark, where they are not settled."""
        known = GLUE.get(benchmark)
        if known is None or self.kind is not None:
            return self
        return replace(self, kind=known.kind, labels=self.labels or known.labels)

    def read_row(
        self, row: Row, columns: dict[str, str], number: str, rejects: Rejects
    ) -> TextExample | None:
        """The example of a row; none if it cannot be used."""
        texts = [row.text(columns[role]) for role in ("first", "second") if role in columns]
        label = None
        if "label" in columns:
            is_void = row.text(columns["label"]) == NO_GOLD
            if is_void and columns["label"].casefold() == "gold_label":
                rejects.leave_out(row.place, "no gold label (-)")
                return None
            label = self.read_label(row, columns["label"], rejects)
            if label is None:
                return None
            # A submission needs every row of its test file; what is learned from must have text.
            for role, text in zip(("first", "second"), texts, strict=False):
                if not text.strip():
                    rejects.add(row.place, f"empty text in the column {columns[role]!r}")
                    return None
        name = row.text(columns["id"]) if "id" in columns else number
        second = texts[1] if len(texts) > 1 else None
        return TextExample(place=row.place, id=name, first=texts[0], second=second, label=label)

    def read_label(self, row: Row, column: str, rejects: Rejects) -> Label | None:
        value, text = row.values.get(column), row.text(column).strip()
        if self.kind == "multi-label" or (self.kind is None and isinstance(value, list | tuple)):
            names = value if isinstance(value, list | tuple) else text.split(self.label_separator)
            stripped = (as_text(name).strip() for name in names)
            found = tuple(dict.fromkeys(name for name in stripped if name))
            return found if self.knows(found, row, rejects) else None
        if not text:
            rejects.add(row.place, f"no label in the column {column!r}")
            return None
        if self.kind == "regression":
            number = parse_number(text)
            if number is None:
                rejects.add(row.place, "a label that is not a number", f"found {text!r}")
            return number
        return text if self.knows((text,), row, rejects) else None

    def knows(self, names: Sequence[str], row: Row, rejects: Rejects) -> bool:
        """Whether the labels are those of the task, once they are settled."""
        strange = [name for name in names if self.labels and name not in self.labels]
        if strange:
            shown = ", ".join(self.labels[:20])
            advice = f"found {strange[0]!r}, the model's are: {shown}; mend it"
            rejects.add(row.place, "a label that the model does not have", advice)
        return not strange

    # Settle.

    def settle(self, train: Dataset[TextExample]) -> "Classify":
        """The kind, the labels and their weights, the columns, the metric."""
        found = [example.label for example in train.examples if example.label is not None]
        if not found:
            raise UserError(f"{train.path} has no labels to learn")
        known = GLUE.get(train.benchmark)
        kind = self.kind or (known.kind if known else guess_kind(found, train.path))
        settled = replace(
            self,
            kind=kind,
            columns={} if known else dict(train.columns),  # the files of a set differ in theirs
            benchmark=train.benchmark,
            metric=self.metric or (known.metric if known else MAIN[kind]),
        )
        if kind == "regression":
            values = np.array([settled.number_of(example) for example in train.examples])
            return replace(
                settled,
                positive=choose_positive(self.positive, (), Counter()),
                center=float(values.mean()),
                spread=float(values.std()) or 1.0,
                limits=self.limits or (known.limits if known else ()),
            )
        counts = Counter(name for label in found for name in as_names(label))
        labels = self.labels or (known.labels if known else ()) or sort_labels(counts)
        if strange := sorted(counts.keys() - set(labels)):
            shown = ", ".join(labels[:20])
            raise UserError(f"{train.path} has the label {strange[0]!r}; the task's are: {shown}")
        if len(labels) < 2 and kind == "classes":
            raise UserError(f"{train.path} has one label only, {labels[0]!r}; there must be two")
        return replace(
            settled,
            labels=labels,
            positive=choose_positive(
                self.positive, labels if kind == "classes" else (), Counter() if known else counts
            ),
            class_weights=weigh(self.class_weights, kind, counts, labels),
        )

    def number_of(self, example: TextExample) -> float:
        number = parse_number(str(example.label))
        if number is None:
            raise UserError(f"{example.place}: a label that is not a number: {example.label!r}")
        return number

    # Encode.

    def encode(self, examples: Sequence[TextExample], tokenizer: Tokenizer) -> Instances:
        """An instance per window; a step draws examples."""
        framer, counts = Framer.of(tokenizer), Counter[str]()
        firsts = tokenizer.flat_ids(example.first for example in examples)
        seconds = tokenizer.flat_ids(example.second or "" for example in examples)
        encoded, num_cut = [], list[int]()
        for example, first, second in zip(examples, divide(*firsts), divide(*seconds), strict=True):
            pair = None if example.second is None else second
            size = len(first) + len(second)
            if self.truncate:
                first, pair = self.cut_off(first, pair)
            num_cut.append(size - len(first) - (0 if pair is None else len(pair)))
            counts["texts cut off"] += num_cut[-1] > 0
            counts["pieces cut off"] += num_cut[-1]
            inputs = framer.windows(first, pair, self.max_length, self.stride)
            counts["texts in windows"] += len(inputs) > 1
            counts["windows made of them"] += len(inputs) if len(inputs) > 1 else 0
            encoded.append(self.instances_of(example, inputs))
        return self.gather(encoded, num_cut, counts)

    def instances_of(self, example: TextExample, windows: Sequence[Input]) -> list[Instance]:
        """Every window has its example's label, and an equal share of its weight."""
        label, weight = self.target_of(example), self.weight_of(example) / len(windows)
        return [Instance([one], label, weight) for one in windows]

    def gather(
        self,
        encoded: Sequence[Sequence[Instance]],
        num_cut: Sequence[int] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> Instances:
        label_type = np.int64 if self.kind == "classes" else np.float32
        return gather(
            encoded, label_type=label_type, draws_examples=True, num_cut=num_cut, counts=counts
        )

    def cut_off(
        self, first: np.ndarray, second: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The beginnings of texts that are too long together, the longer one cut first."""
        room = self.max_length - num_specials(second is not None)
        num_second = 0 if second is None else len(second)
        kept = fit(len(first), num_second, room, "longest")
        return first[: kept[0]], None if second is None else second[: kept[1]]

    def target_of(self, example: TextExample) -> float | list[float]:
        if self.kind == "regression":
            unit = 0.0 if example.label is None else self.number_of(example) - self.center
            return unit / self.spread
        if self.kind == "multi-label":
            return self.indicators(example.label)
        return 0 if example.label is None else self.labels.index(str(example.label))

    def indicators(self, label: Label | None) -> list[float]:
        """1 for each of the task's labels that is there, else 0."""
        names = () if label is None else as_names(label)
        return [float(one in names) for one in self.labels]

    def weight_of(self, example: TextExample) -> float:
        if example.label is None:
            return 0.0
        if isinstance(self.class_weights, dict):
            return self.class_weights.get(str(example.label), 1.0)
        return 1.0

    # Train.

    def objective(self, model: nn.Module, batch: TaskBatch) -> dict[str, Term]:
        (logits,) = model(*batch[:5])  # (G, C)
        if self.kind == "regression":
            return {"task": squared_error(logits[:, 0], batch.labels, batch.weights)}
        if self.kind == "multi-label":
            return {"task": binary_cross_entropy(logits, batch.labels, batch.weights)}
        return {"task": weighted_cross_entropy(logits, batch.labels, batch.weights)}

    # Decode.

    def merge(self, instances: Instances, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """(E, C) probabilities, or the number, by the mean of the windows' logits."""
        numbers = range(len(instances.examples) - 1)
        logits = np.stack(
            [np.mean([outputs[n] for n in instances.inputs_of(e)], 0, np.float64) for e in numbers]
        )
        if self.kind == "regression":
            values = logits * self.spread + self.center
            return values.clip(self.limits[0], self.limits[1]) if self.limits else values
        if self.kind == "multi-label":
            return np.asarray(1 / (1 + np.exp(-logits)))
        shares = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(shares / shares.sum(1, keepdims=True))

    def decode(
        self,
        examples: Sequence[TextExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> list[TextPrediction]:
        return [
            TextPrediction(label=self.label_of(scores), scores=scores)
            for scores in self.merge(instances, outputs)
        ]

    def label_of(self, scores: np.ndarray) -> Label:  # (C,)
        if self.kind == "regression":
            return float(scores[0])
        if self.kind == "multi-label":
            limits = [self.thresholds.get(label, 0.5) for label in self.labels]
            named = zip(self.labels, scores, limits, strict=True)
            return tuple(label for label, score, limit in named if score >= limit)
        return self.labels[int(scores.argmax())]

    def tune(
        self,
        examples: Sequence[TextExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> "Classify":
        """Of several labels: the threshold of each that gives the best F1."""
        if self.kind != "multi-label" or any(example.label is None for example in examples):
            return self
        true_rows = np.array([self.indicators(example.label) for example in examples]) > 0.5
        fitted = fit_thresholds(true_rows, self.merge(instances, outputs))
        named = zip(self.labels, fitted.tolist(), strict=True)
        return replace(self, thresholds=dict(named))

    # Score.

    def score(
        self, examples: Sequence[TextExample], predictions: Sequence[TextPrediction]
    ) -> dict[str, float]:
        """All metrics of the kind; `metric` says which of them decides."""
        pairs = zip(examples, predictions, strict=True)
        both = [(e, p.label) for e, p in pairs if e.label is not None]
        if not both:
            return {}
        if self.kind == "regression":
            gold, guess = [self.number_of(e) for e, _ in both], [float(str(p)) for _, p in both]
            return {"pearson": pearson(gold, guess), "spearman": spearman(gold, guess)}
        if self.kind == "multi-label":
            true_rows = [self.indicators(e.label) for e, _ in both]
            return multi_label_scores(true_rows, [self.indicators(p) for _, p in both])
        number = {label: n for n, label in enumerate(self.labels)}
        true = [number[str(e.label)] for e, _ in both]
        guessed = [number[str(p)] for _, p in both]
        scores = {"accuracy": accuracy(true, guessed), "macro_f1": macro_f1(true, guessed)}
        scores["matthews"] = matthews(true, guessed)
        if len(self.labels) == 2:
            scores["f1"] = f1(true, guessed, number[self.positive or self.labels[1]])
        return scores


def choose_columns(table: Table, given: dict[str, str], benchmark: str) -> dict[str, str]:
    """Role -> column: as given, else as the benchmark has it, else guessed by name.

    A pair is guessed as a whole: whoever names the first text says whether there is a second.
    """
    check_columns(table, given, optional=("label", "id"))
    guessed = guess(table)
    if benchmark in GLUE:  # its files come with other names of labels and ids, too
        others = {role: name for role, name in guessed.items() if role in ("label", "id")}
        guessed = others | find_columns(benchmark, table.names)
    if "first" in given:
        guessed.pop("second", None)
    columns = {role: name for role, name in (guessed | given).items() if name in table.names}
    if "first" not in columns:
        raise UserError(
            f"{table.path}: which column is the text? There are: {list_columns(table)}. Name it: "
            "--set task.columns.first=NAME (and second, label; without a header by number)"
        )
    return columns


def guess(table: Table) -> dict[str, str]:
    """Role -> column, by the names; without a header, text or pair and then a label that recurs."""
    names = table.names
    columns: dict[str, str | None] = {}
    if table.has_header:
        there = {name.casefold() for name in names}
        pair = next((pair for pair in PAIRS if set(pair) <= there), None)
        columns["first"] = find_column(names, pair[:1] if pair else TEXTS)
        columns["second"] = find_column(names, pair[1:]) if pair else None
        columns["label"], columns["id"] = find_column(names, LABELS), find_column(names, IDS)
    elif len(names) in (2, 3) and len(table.rows) > 1:
        values = [row.text(names[-1]) for row in table.rows]
        if values[0] in values[1:] and len(set(values)) <= len(values) // 2:
            columns = dict(zip(("first", "second"), names[:-1], strict=False))
            columns["label"] = names[-1]
    return {role: column for role, column in columns.items() if column is not None}


def guess_kind(labels: Sequence[Label], path: Path) -> Kind:
    """Lists are several labels; numbers with fractions are a regression; the rest are classes."""
    if any(isinstance(label, tuple) for label in labels):
        return "multi-label"
    numbers = [parse_number(str(label)) for label in labels]
    if not any(number and not number.is_integer() for number in numbers):
        return "classes"
    strange = [label for label, number in zip(labels, numbers, strict=True) if number is None]
    if 0 < len(strange) < FEW * len(labels):
        raise UserError(
            f"{path}: nearly all labels are numbers, but not {strange[0]!r}. If they are values: "
            "--set task.kind=regression --skip-bad; if they are names: --set task.kind=classes"
        )
    return "classes" if strange else "regression"


def as_names(label: Label) -> tuple[str, ...]:
    return label if isinstance(label, tuple) else (str(label),)


def divide(ids: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []
