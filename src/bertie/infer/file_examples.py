"""Rows of any file as examples of a task, without labels; columns as trained with, or guessed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bertie.errors import UserError
from bertie.infer.examples import Example, make_tagged
from bertie.infer.rows import Stream, open_rows
from bertie.infer.task_of import reads_pairs
from bertie.tasks import KnownTask, choice, classify, questions, sentences
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.glue import find_columns, find_set
from bertie.tasks.span import Span
from bertie.tasks.tables import Row, Table, find_column
from bertie.tasks.tag import Tag, close_up
from bertie.tasks.task import Rejects
from bertie.text.tokenizer import Tokenizer

KNOWN = classify.KNOWN | frozenset(
    (
        *(*sentences.WORDS, *sentences.TAGS, *questions.QUESTIONS, *questions.CONTEXTS),
        *(*choice.CONTEXTS, *choice.QUESTIONS, *choice.OPTIONS),
    )
)
Read = Callable[[Row, str], Example | None]  # a row and its number; none where it was rejected


def read_examples(
    path: Path,
    task: KnownTask,
    tokenizer: Tokenizer,
    rejects: Rejects,
    *,
    format: str | None = None,
) -> Iterator[Example]:
    """The examples of a file or of standard input, one after the other."""
    columns = task.columns.values()
    known = KNOWN | {name.casefold() for name in columns if not name.isdigit()}
    stream = open_rows(path, rejects, known=known, format=format)
    read = choose_reader(task, stream, tokenizer, rejects)
    for number, row in enumerate(stream.rows):
        example = read(row, str(number))
        if example is not None:
            yield example


def choose_reader(task: KnownTask, stream: Stream, tokenizer: Tokenizer, rejects: Rejects) -> Read:
    if isinstance(task, Classify):
        return read_texts(task, stream, rejects)
    if isinstance(task, Tag):
        return read_sentences(task, stream, tokenizer, rejects)
    if stream.is_text:
        what = "a question and a context" if isinstance(task, Span) else "a context and options"
        raise UserError(
            f"{stream.table.path} is lines of text; the model wants {what}, such as columns of "
            ".csv or fields of .jsonl"
        )
    if isinstance(task, Span):
        found = without(questions.choose_columns(stream.table, given(task, stream.table)), "answer")
        return lambda row, number: questions.read_row(row, found, int(number))
    columns = without(choice.choose_columns(stream.table, given(task, stream.table)), "label")
    return lambda row, number: choice.read_row(row, columns, number, rejects)


def given(task: Classify | Tag | Span | Choice, table: Table) -> dict[str, str]:
    """The columns that the model was trained with, if the file has those that matter."""
    optional = ("label", "id", "tags", "entities", "answer", "start")
    needed = [
        name
        for role, names in task.columns.items()
        if role not in optional
        for name in (names.split(",") if role == "options" else [names])
    ]
    return task.columns if set(needed) <= set(table.names) else {}


def without(columns: Mapping[str, str], *roles: str) -> dict[str, str]:
    return {role: name for role, name in columns.items() if role not in roles}


def read_texts(task: Classify, stream: Stream, rejects: Rejects) -> Read:
    table = stream.table
    if stream.is_text:
        columns = {"first": "text"}
    else:
        benchmark = find_set(table.path, table.names, table.rows[0].values if table.rows else {})
        if not benchmark and task.benchmark and find_columns(task.benchmark, table.names):
            benchmark = task.benchmark
        columns = without(classify.choose_columns(table, given(task, table), benchmark), "label")
    is_paired = reads_pairs(task)
    if is_paired is not None and is_paired != ("second" in columns):
        wanted, found = ("pairs", "single texts") if is_paired else ("single texts", "pairs")
        raise UserError(
            f"the model was fine-tuned on {wanted}; {table.path} ({table.format}) has {found}. "
            "Name its columns: --set task.columns.first=NAME (and second)"
        )
    return lambda row, number: task.read_row(row, columns, number, rejects)


def read_sentences(task: Tag, stream: Stream, tokenizer: Tokenizer, rejects: Rejects) -> Read:
    table = stream.table
    columns = {"text": "text"} if stream.is_text else given(task, table)
    columns = without(columns or sentences.guess_columns(table), "tags", "entities")
    if not {"words", "text"} & columns.keys():
        raise UserError(
            f"{table.path} has no column of words or texts; there are: "
            f"{', '.join(table.names):.300}. Name it: --set task.columns.text=NAME (or words)"
        )

    def read(row: Row, number: str) -> Example | None:
        id = row.text(columns["id"]) if "id" in columns else number
        if "words" in columns:
            example = sentences.read_lists(row, columns, id, rejects)
            is_close = example is not None and task.level == "character"
            return close_up(example) if is_close and example is not None else example
        return make_tagged(row.text(columns["text"]), task.level, tokenizer, row.place, id)

    return read


def read_column(
    path: Path, rejects: Rejects, *, column: str | None = None, format: str | None = None
) -> Iterator[str]:
    """The texts of one column: the one named, or the first whose name says that it is text."""
    known = classify.KNOWN | ({column.casefold()} if column is not None else set())
    stream = open_rows(path, rejects, known=known, format=format)
    names = stream.table.names
    found = column if column in names else None
    if column is None:
        found = find_column(names, classify.TEXTS) or (names[0] if len(names) == 1 else None)
    if found is None:
        if not names:
            return
        raise UserError(
            f"{path}: which column is the text? There are: {', '.join(names):.300}. Name it: "
            "--column NAME"
        )
    for row in stream.rows:
        yield row.text(found)
