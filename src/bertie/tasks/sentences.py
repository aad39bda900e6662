"""Files of tagged words: columns as in CoNLL-2003, lists in JSON, texts with marked spans.

| file | a sentence is |
|---|---|
| columns | lines of word, ..., tag up to a blank line; `-DOCSTART-` begins a document |
| `tokens` and `tags` in JSON Lines or Parquet | a row with two lists |
| `text_a` and `label` with \\x02 in a table with tabs (ERNIE's MSRA-NER) | a row of joined lists |
| `text`, and `entities` if labelled | a row: a text, and (start, end, label) in characters |
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from bertie.data.formats import DELIMITERS, JSON, PARQUET, kind_of
from bertie.errors import UserError
from bertie.metrics.spans import Span, tags_of
from bertie.tasks.tables import (
    Row,
    Table,
    as_text,
    find_column,
    list_columns,
    read_table,
    read_text,
)
from bertie.tasks.task import Rejects
from bertie.text.characters import CJK, within

Level = Literal["word", "character"]

DOCUMENT = "-DOCSTART-"
BLANKS = re.compile("[ \t]+")  # not all white space: U+3000 is a character of Chinese sets
COMBINING = ("Mn", "Mc", "Me", "Cf")  # categories of what belongs to the character before it
ROLES = ("words", "tags", "text", "entities", "id")
WORDS = ("tokens", "words", "text_a")
TAGS = ("ner_tags", "tags", "labels", "label", "ner")
ENTITIES = ("entities", "spans", "label", "labels")
JOINT = "\x02"  # between the characters of a cell


@dataclass(frozen=True, kw_only=True, slots=True)
class TagExample:
    """A sentence; word i is text[starts[i]:starts[i] + len(words[i])]."""

    place: str
    id: str
    words: tuple[str, ...]
    text: str
    starts: tuple[int, ...]
    tags: tuple[str, ...] | None = None  # of the words; spans are in IOB2
    document: int = -1  # sentences that follow each other in one; -1: alone


def read_columns(path: Path, rejects: Rejects) -> tuple[list[TagExample], dict[str, str]]:
    """The sentences of a file of columns: the first is the word, the last the tag."""
    lines = list(enumerate(read_text(path).split("\n"), 1))
    examples = list(group_lines(path, lines, rejects))
    width = next((len(f) for f in (split_fields(line) for _, line in lines) if is_word(f)), 0)
    return examples, {"words": "0"} | ({"tags": str(width - 1)} if width > 1 else {})


def group_lines(
    path: Path, lines: Iterable[tuple[int, str]], rejects: Rejects
) -> Iterator[TagExample]:
    """The sentences of lines of columns, each as soon as it ends."""
    sentence: list[tuple[int, list[str]]] = []
    document, width = -1, 0
    for number, line in chain(lines, [(0, "")]):
        fields = split_fields(line)
        if is_word(fields):
            width = width or len(fields)
            sentence.append((number, fields))
            continue
        if sentence:
            example = make_sentence(path, sentence, width, document, rejects)
            if example is not None:
                yield example
            sentence = []
        document += bool(fields)


def split_fields(line: str) -> list[str]:
    line = line.strip(" \t")
    return BLANKS.split(line) if line else []


def is_word(fields: Sequence[str]) -> bool:
    """Whether a line of columns has a word; else it is blank, or begins a document."""
    return bool(fields) and fields[0] != DOCUMENT


def make_sentence(
    path: Path,
    lines: Sequence[tuple[int, list[str]]],
    width: int,
    document: int,
    rejects: Rejects,
) -> TagExample | None:
    """The sentence of some lines; none if one of them is broken."""
    for number, fields in lines:
        if len(fields) != width:
            advice = f"found {len(fields)} columns, the first line has {width}; mend it"
            rejects.add(f"{path}, line {number}", "not as many columns as the first line", advice)
            return None
    first = lines[0][0]
    return make_example(
        [fields[0] for _, fields in lines],
        [fields[-1] for _, fields in lines] if width > 1 else None,
        place=f"{path}, line {first}",
        id=str(first),
        document=document,
    )


def make_example(
    words: Sequence[str],
    tags: Sequence[str] | None,
    *,
    place: str,
    id: str,
    document: int = -1,
    level: Level = "word",
) -> TagExample:
    """A sentence of words alone; the text is made of them."""
    gap = "" if level == "character" else " "
    starts, place_in_text = [], 0
    for word in words:
        starts.append(place_in_text)
        place_in_text += len(word) + len(gap)
    return TagExample(
        place=place,
        id=id,
        words=tuple(words),
        text=gap.join(words),
        starts=tuple(starts),
        tags=None if tags is None else tuple(tags),
        document=document,
    )


def is_table(path: Path) -> bool:
    """Whether a file is a table; one with tabs is, if its first line names columns."""
    kind = kind_of(path)
    if kind in (*JSON, *PARQUET) or DELIMITERS.get(kind) == ",":
        return True
    first = read_text(path).lstrip("\n").split("\n", 1)[0].split("\t")
    return bool({name.strip().casefold() for name in first} & {*WORDS, "text"}) and len(first) > 1


def read_rows(
    path: Path, columns: Mapping[str, str], level: Level | None, rejects: Rejects
) -> tuple[list[TagExample], dict[str, str]]:
    """The sentences of a table."""
    known = frozenset((*WORDS, *TAGS, *ENTITIES, "text", *map(str.casefold, columns.values())))
    table = read_table(path, rejects, known=known)
    found = guess_columns(table, columns)
    needed = (name for role, name in found.items() if role not in ("tags", "entities", "id"))
    missing = sorted(set(needed) - set(table.names))
    if missing or not {"words", "text"} & found.keys():
        raise UserError(
            f"{path} has no column {missing[0] if missing else 'of words or texts'}; there are: "
            f"{list_columns(table)}. Name it: --set task.columns.words=NAME (or text)"
        )
    found = {role: name for role, name in found.items() if name in table.names}
    examples = []
    for number, row in enumerate(table.rows):
        id = row.text(found["id"]) if "id" in found else str(number)
        if "words" in found:
            example = read_lists(row, found, id, rejects)
        else:
            example = read_marked(row, found, id, level or "word", rejects)
        if example is not None:
            examples.append(example)
    return examples, found


def guess_columns(table: Table, given: Mapping[str, str] = {}) -> dict[str, str]:
    """Role -> column, by the names where they are not given: lists, or texts with marks in them."""
    candidates = {"words": WORDS, "tags": TAGS, "text": ("text", "sentence"), "entities": ENTITIES}
    guessed = {role: find_column(table.names, names) for role, names in candidates.items()}
    lists, marks = ("words", "tags"), ("text", "entities")
    has_lists = given.keys() & lists or (guessed["words"] and not given.keys() & marks)
    found = {role: guessed[role] for role in (lists if has_lists else marks)}
    found["id"] = find_column(table.names, ("id", "idx", "guid"))
    return {role: name for role, name in found.items() if name is not None} | dict(given)


def read_lists(
    row: Row, columns: Mapping[str, str], id: str, rejects: Rejects
) -> TagExample | None:
    """A list of words and one of as many tags."""
    lists = [as_list(row, columns[role]) for role in ("words", "tags") if role in columns]
    words, tags = lists[0], lists[1] if len(lists) > 1 else None
    if not words or not all(words):
        rejects.add(row.place, "no words, or an empty one")
        return None
    if tags is not None and len(tags) != len(words):
        advice = f"found {len(words)} words and {len(tags)} tags; mend it"
        rejects.add(row.place, "not as many tags as words", advice)
        return None
    return make_example(words, tags, place=row.place, id=id)


def as_list(row: Row, column: str) -> list[str]:
    value = row.values.get(column)
    if isinstance(value, list):
        return [as_text(item) for item in value]
    text = row.text(column)
    return text.split(JOINT) if JOINT in text else text.split(" ")


def read_marked(
    row: Row, columns: Mapping[str, str], id: str, level: Level, rejects: Rejects
) -> TagExample | None:
    """A text, and the spans marked in it."""
    text = row.text(columns["text"])
    places = split_words(text, level)
    if not places:
        rejects.add(row.place, f"empty text in the column {columns['text']!r}")
        return None
    tags = None
    if "entities" in columns:
        spans = [find_words(mark, places) for mark in as_marks(row.values.get(columns["entities"]))]
        try:
            whole = [span for span in spans if span is not None]
            tags = tags_of(whole, len(places), "IOB2") if len(whole) == len(spans) else None
        except UserError:
            tags = None
        if tags is None:
            advice = (
                "marks are (start, end, label) in characters, without overlap; if words need no "
                "spaces between them: --set task.level=character"
            )
            rejects.add(row.place, "a marked span that is not made of whole words", advice)
            return None
    return TagExample(
        place=row.place,
        id=id,
        words=tuple(text[start:end] for start, end in places),
        text=text,
        starts=tuple(start for start, _ in places),
        tags=None if tags is None else tuple(tags),
    )


def split_words(text: str, level: Level) -> list[tuple[int, int]]:
    """Where the words of a plain text are: runs of letters and digits; all else stands alone.

    So do Chinese characters, as in BERT's own words. Accents and the like, and signs that are not
    seen, belong to what they follow.
    """
    if level == "character":
        return [(n, n + 1) for n, letter in enumerate(text) if not letter.isspace()]
    places: list[tuple[int, int]] = []
    is_run = False  # whether the last word is of letters and digits
    for n, letter in enumerate(text):
        if letter.isspace():
            continue
        is_letter = letter.isalnum() and not within(ord(letter), CJK)
        is_combining = not letter.isascii() and unicodedata.category(letter) in COMBINING
        if places and places[-1][1] == n and (is_combining or (is_run and is_letter)):
            places[-1] = places[-1][0], n + 1
        else:
            places.append((n, n + 1))
            is_run = is_letter
    return places


def as_marks(value: object) -> list[tuple[object, ...]]:
    """Marks as lists (start, end, label) or as objects of these names."""
    marks: list[tuple[object, ...]] = []
    for mark in value if isinstance(value, list) else ():
        if isinstance(mark, dict):
            marks.append(tuple(mark.get(name) for name in ("start", "end", "label")))
        else:
            marks.append(tuple(mark) if isinstance(mark, list | tuple) else ())
    return marks


def find_words(mark: tuple[object, ...], places: Sequence[tuple[int, int]]) -> Span | None:
    """The words of a mark; none if it begins or ends inside of one."""
    if len(mark) != 3:
        return None
    start, end, label = mark
    firsts = [n for n, place in enumerate(places) if place[0] == start]
    lasts = [n for n, place in enumerate(places) if place[1] == end]
    if not firsts or not lasts or lasts[0] < firsts[0] or not label:
        return None
    return Span(str(label), firsts[0], lasts[0] + 1)
