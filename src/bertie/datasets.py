"""The labelled data of a fine-tuning: read, held out where there is no dev, encoded, described."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bertie.checkpoint.card import list_labels
from bertie.checkpoint.model_dir import read_config
from bertie.config import build
from bertie.errors import UserError
from bertie.tasks import get_task
from bertie.tasks.classify import Classify, as_names
from bertie.tasks.instances import Instances
from bertie.tasks.sentences import DOCUMENT
from bertie.tasks.tag import Tag
from bertie.tasks.task import AnyTask, Dataset, check_given
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """What to learn from, what to choose by, what to answer in the end."""

    train: Path | None = None
    dev: Path | None = None  # none: a share of train, those with the lowest hash of their text
    dev_share: float = 0.1  # of train, where there is no dev
    test: tuple[Path, ...] = ()  # predicted by the chosen model; scored where they have labels
    skip_bad: bool = False  # leave rows out that cannot be read, and count them

    def __post_init__(self) -> None:
        if not 0 < self.dev_share < 1:
            raise UserError(f"data.dev_share is between 0 and 1; found {self.dev_share}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sets:
    """Read, settled and encoded."""

    task: AnyTask
    train: Dataset[Any]
    dev: Dataset[Any]
    tests: tuple[Dataset[Any], ...]
    train_instances: Instances
    dev_instances: Instances
    test_instances: tuple[Instances, ...]
    notes: tuple[str, ...]  # how the files were understood
    remarks: tuple[str, ...]  # what of them was left out, cut or divided


def read_sets(settings: Mapping[str, Any], files: DataFiles, source: Path) -> Sets:
    """The data, and a task that knows all that they decide; `source` is the model's directory."""
    if files.train is None:
        raise UserError("say what to learn from: --train FILE")
    task, notes = make_task(settings, source)
    train = task.read(files.train, skip_bad=files.skip_bad, needs_labels=True)
    check_given(train, task.columns)
    task = task.settle(train)
    check_metric(task)
    if files.dev is None:
        train, dev = hold_out(task, train, files.dev_share)
    else:
        dev = task.read(files.dev, skip_bad=files.skip_bad)
        check_labelled(dev)
    # Read before anything is trained: a broken line is found now, and not hours later.
    tests = tuple(task.read(path, skip_bad=files.skip_bad) for path in files.test)
    tokenizer = Tokenizer.load(source)
    dev_name = "dev, held out" if files.dev is None else "dev"
    read = {"train": train, dev_name: dev} | {f"test {n}": data for n, data in enumerate(tests, 1)}
    encoded = {name: task.encode(data.examples, tokenizer) for name, data in read.items()}
    notes += [describe_data(name, data) for name, data in read.items()]
    remarks = list[str]()
    for name, data in read.items():
        if files.dev is not None or data is not dev:  # else it is of the same file as train
            remarks += [*describe_left_out(name, data), *describe_context(task, name, data)]
    for name, instances in encoded.items():
        remarks += [f"{name}: {count:,} {what}" for what, count in instances.counts.items()]
    for name, data in (("train", train), (dev_name, dev)):
        remarks += describe_missing(task, name, data)
    return Sets(
        task=task,
        train=train,
        dev=dev,
        tests=tests,
        train_instances=encoded["train"],
        dev_instances=encoded[dev_name],
        test_instances=tuple(list(encoded.values())[2:]),
        notes=(*notes, *describe_task(task)),
        remarks=tuple(remarks),
    )


def make_task(settings: Mapping[str, Any], source: Path) -> tuple[AnyTask, list[str]]:
    """The task of the settings, and what is to be said of it.

    Where they leave the length open, it is the task's usual one or as long as the model can read,
    if that is less: longer texts become windows. A length that is asked for is had or refused.
    """
    values = {name: value for name, value in settings.items() if name != "name"}
    kind = get_task(str(settings.get("name", "classify")))
    longest, usual = read_config(source).max_positions, kind()
    notes = []
    if "max_length" not in values and usual.max_length > longest:
        values["max_length"] = longest
        notes.append(f"inputs of up to {longest} pieces: the model has no more positions")
    task: AnyTask = build(kind, values, "task.")
    if task.max_length > longest:
        raise UserError(
            f"task.max_length {task.max_length} is more than the {longest} positions of {source}; "
            f"lower it: --set task.max_length={longest}"
        )
    return task, notes


def check_metric(task: AnyTask) -> None:
    if task.metric not in task.metrics:
        raise UserError(
            f"no score task.metric = {task.metric!r} for this task and data; there are: "
            f"{', '.join(task.metrics)}"
        )


def check_labelled(dev: Dataset[Any]) -> None:
    if not dev.is_labelled:
        raise UserError(
            f"{dev.path} has no labels to choose by; leave --dev out to take a share of the "
            "training data, and give it as --test to have it predicted"
        )


def hold_out(task: AnyTask, data: Dataset[Any], share: float) -> tuple[Dataset[Any], Dataset[Any]]:
    """Training data without, and dev made of, the examples that are held out."""
    flags = is_held_out(task, data, share)
    train, dev = (
        replace(data, examples=[e for e, f in zip(data.examples, flags, strict=True) if f is side])
        for side in (False, True)
    )
    return train, dev


def is_held_out(task: AnyTask, data: Dataset[Any], share: float) -> list[bool]:
    """Whether each example is among those with the lowest hash of their text.

    Examples about the same text stay together, so that no text is on both sides.
    """
    hashes = [hashlib.sha256(text.encode()).digest() for text in texts_of(task, data.examples)]
    ranked = sorted(set(hashes))
    chosen = set(ranked[: max(1, round(share * len(ranked)))])
    if len(chosen) == len(ranked):
        raise UserError(f"{data.path} has one text only; give examples to choose by: --dev FILE")
    return [one in chosen for one in hashes]


def texts_of(task: AnyTask, examples: Sequence[Any]) -> Iterator[str]:
    """What each example is about: its context, its first text, its sentence.

    Of sentences that are read with their document, the whole document.
    """
    if isinstance(task, Tag) and task.context == "document":
        for number, group in groupby(examples, key=lambda example: example.document):
            sentences = [example.text for example in group]
            whole = "\n".join(sentences)
            yield from sentences if number < 0 else [whole] * len(sentences)
        return
    names = [name for name in ("context", "first", "text") if hasattr(examples[0], name)]
    yield from (getattr(example, names[0]) for example in examples)


def describe_data(name: str, data: Dataset[Any]) -> str:
    """How a file was understood."""
    columns = ", ".join(f"{role} = {column}" for role, column in data.columns.items())
    text = f"{name}: {len(data.examples):,} examples of {data.path}, {data.format}"
    return f"{text}; columns: {columns}" if columns else text


def describe_left_out(name: str, data: Dataset[Any]) -> Iterator[str]:
    for what, count in data.problems.counts.items():
        places = ", ".join(data.problems.places[what][:3])
        yield f"{name}: left out {count:,}: {what} ({places})"


def describe_context(task: AnyTask, name: str, data: Dataset[Any]) -> Iterator[str]:
    """Whether sentences that are to be read with their document have one."""
    reads_documents = isinstance(task, Tag) and task.context == "document"
    if reads_documents and (alone := sum(example.document < 0 for example in data.examples)):
        yield (
            f"{name}: {alone:,} sentences are read without their neighbours, as no document begins "
            f"before them ({DOCUMENT})"
        )


def describe_missing(task: AnyTask, name: str, data: Dataset[Any]) -> Iterator[str]:
    """The labels that none of the examples has: they are not learned, or not looked at."""
    if isinstance(task, Classify | Tag):
        names = [plain_label(task, label) for label in task.labels]
        there = {plain_label(task, label) for label in labels_of(task, data.examples)}
        if missing := [label for label in dict.fromkeys(names) if label not in there]:
            yield f"{name}: no example has the label {list_labels(missing)}"


def plain_label(task: Classify | Tag, label: str) -> str:
    """Of the tag of a span, what the span is: where it begins and ends need not occur."""
    is_span = isinstance(task, Tag) and task.kind == "spans"
    return label.partition("-")[2] or label if is_span else label


def labels_of(task: Classify | Tag, examples: Iterable[Any]) -> Iterator[str]:
    """The names of examples' labels, as the task has them."""
    for example in examples:
        if isinstance(task, Tag):
            yield from task.model_tags(example) or ()
        elif example.label is not None and task.kind != "regression":
            yield from as_names(example.label)


def describe_task(task: AnyTask) -> Iterator[str]:
    if labels := getattr(task, "labels", ()):
        yield f"{len(labels)} labels: {list_labels(labels)}"
    if positive := getattr(task, "positive", ""):
        yield f"f1 is of the label {positive} (task.positive)"
    yield f"chosen by {task.metric} on dev"
