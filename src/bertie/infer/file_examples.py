"""Rows of any file as examples of a task, without labels; columns as trained with, or guessed.

A task also reads the files that it is trained with: taggers columns as in CoNLL-2003, models for
questions the JSON of SQuAD and of CMRC2018.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bertie.data.formats import kind_of
from bertie.errors import UserError, check_known
from bertie.infer.examples import Example, make_tagged
from bertie.infer.json_lists import parse_items
from bertie.infer.rows import (
    BEGINNING,
    FORMATS,
    PEEKED,
    Stream,
    check_file,
    guess_format,
    is_stream,
    open_rows,
    peek,
    read_lines,
    read_parts,
)
from bertie.infer.task_of import reads_pairs
from bertie.tasks import KnownTask, choice, classify, questions, sentences
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
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
TAG = re.compile("O|[BIESMLU]-.+")  # of any scheme
LISTS = {  # how files begin that are one list of articles
    "squad": re.compile(
        r'\s*\{(\s*"[^"]*"\s*:\s*("[^"]*"|[\w.+-]+)\s*,)*\s*"data"\s*:\s*\[(?=\s*[{\]])'
    ),
    "cmrc": re.compile(r'\s*\[(?=\s*\{[^{]*"(context_text|context_id)")'),
}
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
    format = find_format(path, task, format)
    if format in OWN:
        yield from OWN[format].read(path, task, rejects)
        return
    columns = task.columns.values()
    known = KNOWN | {name.casefold() for name in columns if not name.isdigit()}
    stream = open_rows(path, rejects, known=known, format=format)
    read = choose_reader(task, stream, tokenizer, rejects)
    for number, row in enumerate(stream.rows):
        example = read(row, str(number))
        if example is not None:
            yield example


def find_format(path: Path, task: KnownTask, format: str | None = None) -> str:
    """The format that is said, or else what the name or the beginning of a file says."""
    if format is not None:
        check_known("format", format, (*FORMATS, *OWN))
    if format in OWN and not isinstance(task, OWN[format].task):
        raise UserError(f"{format} is for {OWN[format].does}; the model does something else")
    check_file(path, format)
    if format is not None or is_stream(path):
        return format or guess_format(path)
    found = guess_format(path)
    if isinstance(task, Tag) and found in ("text", "tsv"):
        return "conll" if is_columns(path, task) else found
    if isinstance(task, Span) and found == "jsonl":
        beginning = peek(path)
        return next((name for name, one in LISTS.items() if one.match(beginning)), found)
    return found


def is_columns(path: Path, task: Tag) -> bool:
    """Whether lines are words with their tags, and not texts; a name in `.conll` says so, too."""
    if kind_of(path) == ".conll":
        return True
    lines = [sentences.split_fields(line) for line in peek(path).split("\n")[:BEGINNING]]
    words = [fields for fields in lines if sentences.is_word(fields)]
    if len({len(fields) for fields in words}) != 1 or len(words[0]) < 2:
        return False
    return all(fields[-1] in task.labels or TAG.fullmatch(fields[-1]) for fields in words)


def read_columns(path: Path, task: KnownTask, rejects: Rejects) -> Iterator[Example]:
    """Sentences of CoNLL."""
    is_close = isinstance(task, Tag) and task.level == "character"
    for example in sentences.group_lines(path, read_lines(path, rejects), rejects):
        yield replace(close_up(example) if is_close else example, tags=None)


def read_squad(path: Path, task: KnownTask, rejects: Rejects) -> Iterator[Example]:
    found = questions.read_squad(read_list(path, LISTS["squad"], rejects), path)
    return (replace(example, answers=None) for example in found)


def read_cmrc(path: Path, task: KnownTask, rejects: Rejects) -> Iterator[Example]:
    found = questions.read_cmrc(read_list(path, LISTS["cmrc"], rejects), path)
    return (replace(example, answers=None) for example in found)


def read_list(path: Path, start: re.Pattern[str], rejects: Rejects) -> Iterator[object]:
    """The articles of a file, of which no more than one is in memory."""
    parts = read_parts(path, rejects)
    beginning = ""
    while len(beginning) < PEEKED and (part := next(parts, "")):
        beginning += part
    found = start.match(beginning)
    if found is None:
        raise UserError(f"{path} does not begin as SQuAD's and CMRC's files do; is it JSON Lines?")
    return parse_items(chain([beginning[found.end() :]], parts), path)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFormat:
    """Files that only one task reads."""

    task: type
    does: str
    read: Callable[[Path, KnownTask, Rejects], Iterator[Example]]


OWN = {
    "conll": OwnFormat(task=Tag, does="taggers", read=read_columns),
    "squad": OwnFormat(task=Span, does="models that answer questions", read=read_squad),
    "cmrc": OwnFormat(task=Span, does="models that answer questions", read=read_cmrc),
}


def choose_reader(task: KnownTask, stream: Stream, tokenizer: Tokenizer, rejects: Rejects) -> Read:
    if isinstance(task, Classify):
        return read_texts(task, stream, rejects)
    if isinstance(task, Tag):
        return read_sentences(task, stream, tokenizer, rejects)
    if stream.is_text:
        what = "a question and a context" if isinstance(task, Span) else "a context and options"
        raise UserError(
            f"{stream.table.path} is lines of text; the model wants {what}, such as columns of "
            ".csv, fields of .jsonl" + (" or SQuAD's .json" if isinstance(task, Span) else "")
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
        benchmark = task.benchmark_of(table)
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
