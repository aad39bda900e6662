"""Files of questions about texts: SQuAD 1.1 and 2.0 (and DRCD, CMRC2018 in its layout), CMRC2018's
own layout, and tables with the columns question, context and answer.

An answer counts for training where it stands at its offset; of files without offsets, such as those
of CMRC's own layout, at its first place in the text. CMRC's SQuAD-like files have offsets of -1: of
several answers one that is there will do. For scoring, the answers' texts are enough.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.data.formats import JSON, kind_of
from bertie.errors import UserError
from bertie.tasks.tables import (
    Row,
    Table,
    as_text,
    find_column,
    list_columns,
    load_json,
    read_table,
    read_text,
)
from bertie.tasks.task import Ids, Rejects

ROLES = ("question", "context", "answer", "start", "id")
QUESTIONS = ("question", "query")
CONTEXTS = ("context", "passage", "paragraph", "text", "document")
ANSWERS = ("answers", "answer", "answer_text")
STARTS = ("answer_start", "start")
UNPLACED = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A piece of the context."""

    text: str
    start: int  # in characters; -1: it is nowhere

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanExample:
    """A question about a text; None for the answers if they are not known."""

    place: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None  # none at all: it cannot be answered
    title: str = ""


def read_questions(
    path: Path, columns: Mapping[str, str], rejects: Rejects
) -> tuple[list[SpanExample], dict[str, str], str]:
    """The questions of a file, what was taken for what, and the file's format."""
    examples, found, name = read_any(path, columns, rejects)
    ids = Ids()
    kept = [example for example in examples if ids.is_new(example.id, example.place, rejects)]
    return kept, found, name


def is_trainable(example: SpanExample, rejects: Rejects) -> bool:
    """Whether there is something to learn: an answer at its offset, or that there is none."""
    if not example.question.strip() or not example.context.strip():
        what = "question" if not example.question.strip() else "context"
        rejects.add(example.place, f"an empty {what}")
        return False
    if not example.answers or any(answer.start >= 0 for answer in example.answers):
        return True
    text = example.answers[0].text
    advice = f"found {text[:60]!r}; mend answer_start"
    rejects.add(example.place, "an answer that is not at its offset", advice)
    return False


def read_any(
    path: Path, columns: Mapping[str, str], rejects: Rejects
) -> tuple[Iterator[SpanExample], dict[str, str], str]:
    if kind_of(path) in JSON:
        try:
            tree = load_json(read_text(path))
        except (ValueError, RecursionError):
            tree = None  # JSON Lines
        if isinstance(tree, dict) and isinstance(tree.get("data"), list):
            return read_squad(tree["data"], path), {}, "SQuAD"
        first = tree[0] if isinstance(tree, list) and tree else None
        if isinstance(first, dict) and "context_text" in first:
            return read_cmrc(tree, path), {}, "CMRC2018"
    known = frozenset((*QUESTIONS, *CONTEXTS, *ANSWERS, *map(str.casefold, columns.values())))
    table = read_table(path, rejects, known=known)
    found = choose_columns(table, columns)
    return read_table_rows(table, found, rejects), found, table.format


def read_table_rows(
    table: Table, columns: Mapping[str, str], rejects: Rejects
) -> Iterator[SpanExample]:
    for number, row in enumerate(table.rows):
        try:
            yield read_row(row, columns, number)
        except TypeError as error:
            rejects.add(row.place, "an answer that is not text", f"{error}; mend it")


def choose_columns(table: Table, given: Mapping[str, str]) -> dict[str, str]:
    """Role -> column, guessed by name where it is not given."""
    candidates = {"question": QUESTIONS, "context": CONTEXTS, "answer": ANSWERS, "start": STARTS}
    guessed = {role: find_column(table.names, names) for role, names in candidates.items()}
    guessed["id"] = find_column(table.names, ("id", "qid"))
    found = {role: name for role, name in guessed.items() if name is not None} | dict(given)
    for role in ("question", "context"):
        if found.get(role) not in table.names:
            raise UserError(
                f"{table.path} has no column of the {role}; there are: {list_columns(table)}. "
                f"Name it: --set task.columns.{role}=NAME"
            )
    return {role: name for role, name in found.items() if name in table.names}


def read_squad(articles: Iterable[Any], path: Path) -> Iterator[SpanExample]:
    for number, article in enumerate(articles, 1):
        try:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    yield SpanExample(
                        place=f"{path}, question {qa['id']}",
                        id=str(qa["id"]),
                        question=text_of(qa, "question"),
                        context=text_of(paragraph, "context"),
                        answers=squad_answers(qa, paragraph["context"]),
                        title=str(article.get("title", "")),
                    )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}, article {number}: not as SQuAD has it: {error!r}") from None


def squad_answers(qa: Mapping[str, Any], context: str) -> tuple[Answer, ...] | None:
    if "answers" not in qa:
        return () if qa.get("is_impossible") else None
    return tuple(
        place_answer(text_of(answer, "text"), int(answer.get("answer_start", UNPLACED)), context)
        for answer in qa["answers"]
    )


def text_of(values: Mapping[str, Any], name: str) -> str:
    text = values[name]
    if not isinstance(text, str):
        raise TypeError(f"found {name} {text!r}, which is not text")
    return text


def place_answer(text: str, start: int, context: str, *, may_seek: bool = False) -> Answer:
    """The answer where it says it is, or nowhere; sought only where there is no offset at all."""
    if may_seek:
        return Answer(text=text, start=context.find(text) if text else UNPLACED)
    is_there = start >= 0 and bool(text) and context[start : start + len(text)] == text
    return Answer(text=text, start=start if is_there else UNPLACED)


def read_cmrc(articles: Iterable[Any], path: Path) -> Iterator[SpanExample]:
    for number, article in enumerate(articles, 1):
        try:
            for qa in article["qas"]:
                context, answers = text_of(article, "context_text"), None
                if "answers" in qa:
                    texts = [answer_text(answer) for answer in qa["answers"]]
                    answers = tuple(place_answer(t, 0, context, may_seek=True) for t in texts)
                yield SpanExample(
                    place=f"{path}, question {qa['query_id']}",
                    id=str(qa["query_id"]),
                    question=str(qa["query_text"]),
                    context=context,
                    answers=answers,
                    title=str(article.get("title", "")),
                )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, article {number}: not as CMRC has it: {error!r}") from None


def read_row(row: Row, columns: Mapping[str, str], number: int) -> SpanExample:
    """A row of a table: an answer's text and start, or SQuAD's lists of both."""
    context = row.text(columns["context"])
    answers = None
    if "answer" in columns:
        value = row.values.get(columns["answer"])
        texts, starts = as_lists(value, row.values.get(columns.get("start", "")))
        answers = tuple(
            place_answer(text, 0 if start is None else start, context, may_seek=start is None)
            for text, start in zip(texts, starts, strict=True)
        )
    return SpanExample(
        place=row.place,
        id=row.text(columns["id"]) if "id" in columns else str(number),
        question=row.text(columns["question"]),
        context=context,
        answers=answers,
        title=row.text("title"),
    )


def as_lists(value: object, start: object) -> tuple[list[str], list[int | None]]:
    """Texts and starts of {"text": [...], "answer_start": [...]}, of lists, or of one answer.

    Of lists of {"text": ..., "answer_start": ...}, too.
    """
    if isinstance(value, dict):
        if "text" not in value:
            raise TypeError(f"found {value!r:.60}, which has no `text`")
        return as_lists(value["text"], value.get("answer_start"))
    values = value if isinstance(value, list) else [value]
    if values and all(isinstance(one, dict) for one in values):
        found = [as_lists(one, None) for one in values]
        return [t for texts, _ in found for t in texts], [s for _, starts in found for s in starts]
    texts = [answer_text(one) for one in values]
    given = start if isinstance(start, list) else [start] * len(texts)
    starts = [int(str(s)) if str(s).lstrip("-").isdecimal() else None for s in given]
    if len(starts) != len(texts):
        starts = [None] * len(texts)
    pairs = [(text, start) for text, start in zip(texts, starts, strict=True) if text]
    return [text for text, _ in pairs], [start for _, start in pairs]


def answer_text(value: object) -> str:
    """An answer; of a number, which spreadsheets make of some, its text."""
    if isinstance(value, list | dict | bool):
        raise TypeError(f"found {value!r:.60}")
    return as_text(value)
