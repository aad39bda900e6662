"""Tag words: named entities, parts of speech, anything with one tag per word.

- read: see sentences.py. Spans in any scheme (IOB1, IOB2, BIOES, ...) become IOB2.
- encode: a word's tag belongs to its first piece; a word that gives no piece is an [UNK]. A
  sentence that is too long becomes windows, and each word is trained and decided in the one where
  it is most central. With `context = "document"` a sentence has as much of its document on both
  sides as fits, without labels.
- head: `token`.
- objective: cross-entropy, the mean over words.
- decode: the best tag of each word; spans as conlleval reads them, so they are always valid, with
  their places in the text.
- score: precision, recall and F1 of spans, and accuracy of words.
"""

# T rows   W words   C labels

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from torch import nn

from bertie.data.chance import Ints
from bertie.data.masking import runs
from bertie.errors import UserError
from bertie.metrics.classes import accuracy
from bertie.metrics.spans import Span, convert, guess_scheme, span_scores, spans_of, tags_of
from bertie.objectives import IGNORED, Term, cross_entropy
from bertie.tasks.instances import Framer, Input, Instance, Instances, TaskBatch, gather, sums
from bertie.tasks.sentences import (
    ROLES,
    Level,
    TagExample,
    is_table,
    make_example,
    read_columns,
    read_rows,
)
from bertie.tasks.task import Dataset, Rejects, check_roles, check_sizes, check_some
from bertie.text.sequences import most_central, num_specials, window_places
from bertie.text.tokenizer import Tokenizer

SPAN_TAG = re.compile(r"[BIESMLU](-.+)?|O")
LETTERS = {"IOB2": "BI", "BIOES": "BIES", "BMES": "BMES", "BILOU": "BILU"}


class Entity(NamedTuple):
    """A span of the text."""

    label: str
    start: int  # in characters
    end: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TagPrediction:
    """The tags of a sentence, and the spans they make."""

    tags: tuple[str, ...]  # of the words; spans are in IOB2
    scores: np.ndarray  # (W,) probability of each word's tag
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tag:
    """Settings; what is left open is settled by the training data."""

    head: ClassVar[str] = "token"

    kind: Literal["spans", "words"] | None = None  # whether tags make spans
    labels: tuple[str, ...] = ()  # of the model, in its scheme
    scheme: str = ""  # of the files; none: guessed for each
    model_scheme: Literal["IOB2", "BIOES", "BMES", "BILOU"] = "IOB2"
    level: Level | None = None  # whether texts are words or single characters
    context: Literal["sentence", "document"] = "sentence"
    columns: dict[str, str] = field(default_factory=dict)  # words, tags; or text, entities
    metric: str = ""
    max_length: int = 128  # pieces of an input
    stride: int | None = None  # pieces from window to window; none: half a window

    def __post_init__(self) -> None:
        check_roles(self.columns, ROLES)
        check_sizes(self.max_length, self.stride)

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy") if self.kind == "spans" else ("accuracy",)

    # Read.

    def read(
        self, path: Path, *, skip_bad: bool = False, needs_labels: bool = False
    ) -> Dataset[TagExample]:
        rejects = Rejects(skip_bad=skip_bad)
        if is_table(path):
            examples, columns = read_rows(path, self.columns, self.level, rejects)
        else:
            examples, columns = read_columns(path, rejects)
        is_labelled = bool(examples) and all(example.tags is not None for example in examples)
        if needs_labels and not is_labelled:
            raise UserError(
                f"{path} has no tags; name their column: --set task.columns.tags=NAME (of texts "
                "with marks in them: entities)"
            )
        level = self.level or guess_level(examples, columns)
        if level == "character" and "text" not in columns:
            examples = [close_up(example) for example in examples]
        if is_labelled:
            examples = self.canonical(examples, rejects)
        check_some(examples, path, rejects.problems)
        num_documents = len({example.document for example in examples} - {-1})
        return Dataset(
            path=path,
            format=f"sentences, {level} level"
            + (f", {num_documents} documents" if num_documents else ""),
            examples=examples,
            columns=columns,
            is_labelled=is_labelled,
            problems=rejects.problems,
        )

    def canonical(self, examples: list[TagExample], rejects: Rejects) -> list[TagExample]:
        """Spans in IOB2, and every label known, once the labels are settled."""
        tags = [example.tags or () for example in examples]
        kind = self.kind or guess_kind(tags)
        known = set(self.labels)
        scheme = self.scheme or (guess_scheme(tags) if kind == "spans" else "")
        kept = []
        for example in examples:
            own = example.tags or ()
            if kind == "spans":
                try:
                    own = tuple(convert(own, scheme, "IOB2"))
                except UserError as error:
                    rejects.add(example.place, f"a tag that is not {scheme}", str(error))
                    continue
            used = convert(own, "IOB2", self.model_scheme) if known and kind == "spans" else own
            if known and (strange := set(used) - known):
                advice = f"found {min(strange)!r}, the model's are: {', '.join(self.labels)}"
                rejects.add(example.place, "a tag that the model does not have", advice)
                continue
            kept.append(replace(example, tags=own))
        return kept

    # Settle.

    def settle(self, train: Dataset[TagExample]) -> "Tag":
        """Whether tags make spans, the labels, the level, the metric."""
        tags = [example.tags for example in train.examples if example.tags is not None]
        if not tags:
            raise UserError(f"{train.path} has no tags to learn")
        kind = self.kind or guess_kind(tags)
        labels = self.labels
        if not labels and kind == "spans":
            names = sorted({span.label for own in tags for span in spans_of(own, "IOB2")})
            letters = LETTERS[self.model_scheme]
            labels = ("O", *(f"{x}-{name}" if name else x for name in names for x in letters))
        elif not labels:
            labels = tuple(sorted({tag for own in tags for tag in own}))
        return replace(
            self,
            kind=kind,
            labels=labels,
            level=self.level or guess_level(train.examples, train.columns),
            columns=dict(train.columns) if is_named(train.columns.values()) else {},
            metric=self.metric or ("f1" if kind == "spans" else "accuracy"),
        )

    # Encode.

    def encode(self, examples: Sequence[TagExample], tokenizer: Tokenizer) -> Instances:
        """An instance per window; the examples of a document must follow each other."""
        framer = Framer.of(tokenizer)
        pieces, firsts = self.split(examples, tokenizer)
        ends = sums(np.array([len(example.words) for example in examples], np.int64))
        room = self.max_length - num_specials(is_pair=False)
        encoded = []
        counts = {"sentences in windows": 0}
        for number, (low, high) in enumerate(self.surroundings(examples)):
            own = firsts[ends[number] : ends[number + 1] + 1]  # (W + 1,) the last is the end
            start, end = int(own[0]), int(own[-1])
            inside = window_places(end - start, room, self.stride)
            places = [(start + begin, start + stop) for begin, stop in inside]
            counts["sentences in windows"] += len(places) > 1
            words = most_central(own[:-1], places)  # of each window
            if len(places) == 1:
                places = [widen(start, end, room, int(firsts[ends[low]]), int(firsts[ends[high]]))]
            labels = self.label_ids(examples[number])
            encoded.append(
                [
                    self.window(framer, pieces, place, own[:-1], words[n], labels)
                    for n, place in enumerate(places)
                ]
            )
        return gather(encoded, labels_rows=True, counts=counts)

    def split(
        self, examples: Sequence[TagExample], tokenizer: Tokenizer
    ) -> tuple[np.ndarray, Ints]:
        """Pieces of all words in a row, and where each word begins (and the last ends)."""
        ids, lengths = tokenizer.flat_ids(word for example in examples for word in example.words)
        firsts = sums(np.maximum(lengths, 1))
        pieces = np.full(firsts[-1], tokenizer.id(tokenizer.config.unk_token), np.int32)
        pieces[runs(firsts[:-1], lengths)] = ids
        return pieces, firsts

    def surroundings(self, examples: Sequence[TagExample]) -> Iterator[tuple[int, int]]:
        """For each sentence, from which to before which its context goes."""
        if self.context == "sentence":
            yield from ((number, number + 1) for number in range(len(examples)))
            return
        start = 0
        for document, sentences in groupby(example.document for example in examples):
            end = start + len(list(sentences))
            for number in range(start, end):
                yield (number, number + 1) if document < 0 else (start, end)
            start = end

    def label_ids(self, example: TagExample) -> Ints | None:
        """(W,) the model's labels of the words."""
        tags = self.model_tags(example)
        if tags is None:
            return None
        number = {label: n for n, label in enumerate(self.labels)}
        return np.array([number[tag] for tag in tags], np.int64)

    def model_tags(self, example: TagExample) -> Sequence[str] | None:
        """(W,) the tags of the words in the model's scheme."""
        if example.tags is None or self.kind != "spans":
            return example.tags
        return convert(example.tags, "IOB2", self.model_scheme)

    def window(
        self,
        framer: Framer,
        pieces: np.ndarray,
        place: tuple[int, int],
        firsts: Ints,
        words: Ints,
        labels: Ints | None,
    ) -> Instance:
        """The input of pieces place[0] .. place[1], and the words that are decided in it."""
        framed = framer.frame(pieces[place[0] : place[1]])
        rows = firsts[words] - place[0] + 1  # after [CLS]
        of_rows = np.full(len(framed.ids), IGNORED, np.int64)
        word_of_row = np.full(len(framed.ids), -1, np.int32)
        word_of_row[rows] = words
        if labels is not None:
            of_rows[rows] = labels[words]
        weight = 0 if labels is None else len(words)
        return Instance([Input(framed.ids, framed.second, of_rows, word_of_row)], weight=weight)

    # Train.

    def objective(self, model: nn.Module, batch: TaskBatch) -> dict[str, Term]:
        (logits,) = model(*batch[:5])  # (T, C)
        is_counted = (batch.weights > 0).repeat_interleave(
            batch.bounds.diff(), output_size=len(batch.ids)
        )
        return {"task": cross_entropy(logits, batch.labels.where(is_counted, IGNORED))}

    # Decode.

    def decode(
        self,
        examples: Sequence[TagExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> list[TagPrediction]:
        predictions = []
        for number, example in enumerate(examples):
            logits = np.zeros((len(example.words), self.num_labels))  # (W, C)
            for one in instances.inputs_of(number):
                words = instances.places_of(one)
                logits[words[words >= 0]] = outputs[one][words >= 0]
            predictions.append(self.decide(example, logits))
        return predictions

    def decide(self, example: TagExample, logits: np.ndarray) -> TagPrediction:  # (W, C)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        scores = shares.max(1) / shares.sum(1)
        tags = [self.labels[n] for n in logits.argmax(1)]
        if self.kind != "spans":
            return TagPrediction(tags=tuple(tags), scores=scores)
        spans = spans_of(tags, self.model_scheme)
        return TagPrediction(
            tags=tuple(tags_of(spans, len(tags), "IOB2")),
            scores=scores,
            entities=tuple(find_entity(span, example) for span in spans),
        )

    def tune(
        self,
        examples: Sequence[TagExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> "Tag":
        """There is nothing to fit."""
        return self

    # Score.

    def score(
        self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]
    ) -> dict[str, float]:
        """Of spans precision, recall, F1, also for each label; of words the accuracy."""
        pairs = zip(examples, predictions, strict=True)
        both = [(e.tags, p.tags) for e, p in pairs if e.tags is not None]
        if not both:
            return {}
        gold, guess = ([tag for pair in both for tag in pair[side]] for side in (0, 1))
        scores = {"accuracy": accuracy(gold, guess)}
        if self.kind != "spans":
            return scores
        true, guessed = ([spans_of(pair[side], "IOB2") for pair in both] for side in (0, 1))
        found = span_scores(true, guessed)
        scores |= {"f1": found.f1, "precision": found.precision, "recall": found.recall}
        return scores | {f"f1_{label}": one.f1 for label, one in found.by_label.items()}


def guess_kind(tags: Iterable[Sequence[str]]) -> Literal["spans", "words"]:
    """Spans, if every tag is O or a letter of a scheme and a label, and one of them has a label."""
    used = {tag for own in tags for tag in own}
    has_label = any("-" in tag for tag in used)
    are_spans = all(SPAN_TAG.fullmatch(tag) for tag in used)
    return "spans" if are_spans and (has_label or used <= set("BIO")) else "words"


def guess_level(examples: Sequence[TagExample], columns: Mapping[str, str]) -> Level:
    """Characters, if nearly all words are single ones; texts with marks were split as words."""
    words = [word for example in examples[:1000] for word in example.words]
    num_single = sum(len(word) == 1 for word in words)
    return "character" if "text" not in columns and num_single > 0.9 * len(words) else "word"


def close_up(example: TagExample) -> TagExample:
    """Without the spaces that were put between the words."""
    return make_example(
        example.words,
        example.tags,
        place=example.place,
        id=example.id,
        document=example.document,
        level="character",
    )


def is_named(columns: Iterable[str]) -> bool:
    return not all(name.isdigit() for name in columns)


def widen(start: int, end: int, room: int, low: int, high: int) -> tuple[int, int]:
    """As much on both sides as fits, equally if both have it: within low .. high."""
    spare = room - (end - start)
    left = min(spare // 2, start - low)
    right = min(spare - left, high - end)
    left = min(spare - right, start - low)
    return start - left, end + right


def find_entity(span: Span, example: TagExample) -> Entity:
    start = example.starts[span.start]
    end = example.starts[span.end - 1] + len(example.words[span.end - 1])
    return Entity(span.label, start, end, example.text[start:end])
