"""Tags of words <-> spans of words, and scores of spans as conlleval and seqeval count them.

    U.N.   official  Rolf   Smith  ,  York      IOB2: B starts every span
    B-ORG  O         B-PER  I-PER  O  B-LOC     IOB1: B only where a span touches one of its kind
    S-ORG  O         B-PER  E-PER  O  S-LOC     BIOES: the last word (E) and single words (S) too

A tag is O, or a letter, "-" and a label; the letter alone is a span without a label.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bertie.errors import UserError, check_known
from bertie.metrics.classes import ClassScore, class_score


class Span(NamedTuple):
    """Words `start` to `end` - 1."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scheme:
    """The letters of a span's first, middle and last word, and of a single word."""

    begin: str
    inside: str
    end: str
    single: str

    @property
    def letters(self) -> set[str]:
        return {"B", self.begin, self.inside, self.end, self.single}


@dataclass(frozen=True, slots=True)
class SpanScores:
    """Of all spans, and of those of each label that occurs."""

    precision: float
    recall: float
    f1: float
    by_label: dict[str, ClassScore]


SCHEMES = {
    "IOB1": Scheme("I", "I", "I", "I"),  # and B where two spans of a label touch
    "IOB2": Scheme("B", "I", "I", "B"),
    "BIOES": Scheme("B", "I", "E", "S"),
    "IOBES": Scheme("B", "I", "E", "S"),  # another name of BIOES
    "BMES": Scheme("B", "M", "E", "S"),
    "BILOU": Scheme("B", "I", "L", "U"),
}
MEANING = {"M": "I", "L": "E", "U": "S"}  # letters of other schemes -> those of BIOES


def get_scheme(name: str) -> Scheme:
    check_known("tag scheme", name, SCHEMES)
    return SCHEMES[name]


def spans_of(tags: Sequence[str], scheme: str) -> list[Span]:
    """The spans, in order. Sequences that break the scheme are read as conlleval reads them.

    B and S start a span always, I and E where none of their label goes on; a span goes on while
    I or E of its label follow, up to the first E.

    >>> spans_of(["O", "I-PER", "I-PER", "I-LOC"], "IOB2")
    [Span(label='PER', start=1, end=3), Span(label='LOC', start=3, end=4)]
    """
    letters = get_scheme(scheme).letters
    spans: list[Span] = []
    open_label: str | None = None  # of the span that may go on
    for place, tag in enumerate(tags):
        if tag == "O":
            open_label = None
            continue
        letter, label = split_tag(tag, letters, scheme)
        if letter in "IE" and label == open_label:
            spans[-1] = spans[-1]._replace(end=place + 1)
        else:
            spans.append(Span(label, place, place + 1))
        open_label = None if letter in "ES" else label
    return spans


def tags_of(spans: Iterable[Span], num_words: int, scheme: str) -> list[str]:
    """The tags of spans that do not overlap: spans_of(tags_of(spans)) = spans."""
    letters = get_scheme(scheme)
    tags = ["O"] * num_words
    before = Span("", 0, 0)
    for span in sorted(spans, key=lambda span: span.start):
        if not before.end <= span.start < span.end <= num_words:
            raise UserError(
                f"{span} is empty, overlaps {before}, or is not inside {num_words} words; spans "
                "must lie one after another"
            )
        chain = [letters.begin, *letters.inside * (span.end - span.start - 2), letters.end]
        if span.end - span.start == 1:
            chain = [letters.single]
        if scheme == "IOB1" and span.label == before.label and span.start == before.end > 0:
            chain[0] = "B"
        tags[span.start : span.end] = [f"{x}-{span.label}" if span.label else x for x in chain]
        before = span
    return tags


def convert(tags: Sequence[str], from_scheme: str, to_scheme: str) -> list[str]:
    """The same spans in another scheme; with equal schemes, broken sequences are mended."""
    return tags_of(spans_of(tags, from_scheme), len(tags), to_scheme)


def guess_scheme(sequences: Iterable[Sequence[str]]) -> str:
    """The scheme that tags are in; IOB2 where nothing tells."""
    kept = [list(tags) for tags in sequences]
    used = {tag[:1] for tags in kept for tag in tags}
    for letters, scheme in (("M", "BMES"), ("LU", "BILOU"), ("ES", "BIOES")):
        if used & set(letters):
            return scheme
    # In both, B and I mean the same spans: what is already written as IOB2 would, is IOB2.
    if all(convert(tags, "IOB2", "IOB2") == tags for tags in kept):
        return "IOB2"
    is_first = all(convert(tags, "IOB1", "IOB1") == tags for tags in kept)
    return "IOB1" if is_first else "IOB2"


def span_scores(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> SpanScores:
    """A span is right if label, start and end are; sentence by sentence."""
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(gold)} sentences and {len(predicted)} predictions cannot be compared"
        )
    num_right: Counter[str] = Counter()
    num_gold: Counter[str] = Counter()
    num_predicted: Counter[str] = Counter()
    for true, guess in zip(gold, predicted, strict=True):
        num_gold.update(span.label for span in set(true))
        num_predicted.update(span.label for span in set(guess))
        num_right.update(span.label for span in set(true) & set(guess))
    total = class_score(num_right.total(), num_predicted.total(), num_gold.total())
    by_label = {
        label: class_score(num_right[label], num_predicted[label], num_gold[label])
        for label in sorted(num_gold | num_predicted)
    }
    return SpanScores(total.precision, total.recall, total.f1, by_label)


def split_tag(tag: str, letters: set[str], scheme: str) -> tuple[str, str]:
    """The letter, as BIOES writes it, and the label."""
    letter, _, label = tag.partition("-")
    if letter not in letters:
        known = ", ".join(sorted(letters))
        raise UserError(f"tag {tag!r} is not of {scheme}: O, or {known} and a label (B-PER)")
    return MEANING.get(letter, letter), label
