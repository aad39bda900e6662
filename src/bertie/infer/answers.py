"""What a fine-tuned model answers: the tasks' predictions, with names for their numbers."""

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar

from bertie.infer.batches import run_head
from bertie.model.bert import Bert
from bertie.tasks.choice import Choice, ChoiceExample, ChoicePrediction
from bertie.tasks.classify import Classify, Label, TextExample, TextPrediction
from bertie.tasks.questions import SpanExample
from bertie.tasks.sentences import TagExample
from bertie.tasks.span import Span, SpanPrediction
from bertie.tasks.tag import Tag, TagPrediction
from bertie.tasks.task import Task
from bertie.text.tokenizer import Tokenizer

DECIMALS = 6  # of numbers in JSON
E = TypeVar("E")
P = TypeVar("P")


class CutOff(UserWarning):
    """A part of what was asked does not fit into the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    """What a text, or a pair of them, is taken for."""

    label: Label  # of a regression the number, of several labels all that are above their limits
    scores: dict[str, float]  # probability of each label; empty of a regression
    num_cut: int  # pieces that were left out, of a model that was fine-tuned to truncate


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSpan:
    """Words that belong together, such as a name."""

    label: str
    text: str
    start: int  # in characters of the text
    end: int
    score: float  # mean of its words' probabilities


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedWord:
    """A word and its tag; tags of spans are in IOB2."""

    tag: str
    text: str
    start: int
    end: int
    score: float  # probability of the tag


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagged:
    """A text, the spans found in it, and all of its words."""

    text: str
    spans: tuple[TaggedSpan, ...]  # none where the tags are those of single words
    words: tuple[TaggedWord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCandidate:
    """A possible answer."""

    text: str
    start: int  # in characters of the context
    end: int
    score: float  # logit of the start + logit of the end
    probability: float  # among the candidates, and no answer where there may be none


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """The answer, cut from the context; "" where it has none."""

    text: str
    start: int
    end: int
    probability: float
    no_answer: float  # score of no answer less that of the best; against the model's threshold
    candidates: tuple[AnswerCandidate, ...]  # the best first
    num_cut: int  # pieces at the question's end that did not fit into the model


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The option that fits best."""

    label: int  # its number, from 0
    option: str
    scores: tuple[float, ...]  # probabilities of the options
    num_cut: int = 0  # pieces that were left out over all options, of a model that truncates


Answer = Classified | Tagged | Answered | Chosen


def predict(task: Task[E, P], examples: Sequence[E], model: Bert, tokenizer: Tokenizer) -> list[P]:
    return [found for found, _ in find_all(task, examples, model, tokenizer)]


def find_all(
    task: Task[E, P], examples: Sequence[E], model: Bert, tokenizer: Tokenizer
) -> list[tuple[P, int]]:
    """Encodes, computes, decodes; what does not fit is a warning, and counted for each example."""
    instances = task.encode(examples, tokenizer)
    for what, count in instances.counts.items():
        if "cut off" in what:
            warnings.warn(f"{count:,} {what} to fit into the model", CutOff, stacklevel=3)
    inputs = [instances.input(number) for number in range(len(instances.bounds) - 1)]
    found = task.decode(examples, instances, run_head(model, task.head, inputs))
    return list(zip(found, instances.num_cut.tolist(), strict=True))


def classify_all(
    task: Classify, model: Bert, tokenizer: Tokenizer, examples: Sequence[TextExample]
) -> list[Classified]:
    found = find_all(task, examples, model, tokenizer)
    return [name_classes(task, one, num_cut) for one, num_cut in found]


def tag_all(
    task: Tag, model: Bert, tokenizer: Tokenizer, examples: Sequence[TagExample]
) -> list[Tagged]:
    return list(map(name_tags, examples, predict(task, examples, model, tokenizer)))


def answer_all(
    task: Span, model: Bert, tokenizer: Tokenizer, examples: Sequence[SpanExample]
) -> list[Answered]:
    found = find_all(task, examples, model, tokenizer)
    return [name_answer(task, one, num_cut) for one, num_cut in found]


def choose_all(
    task: Choice, model: Bert, tokenizer: Tokenizer, examples: Sequence[ChoiceExample]
) -> list[Chosen]:
    found = find_all(task, examples, model, tokenizer)
    return [name_choice(*pair) for pair in zip(examples, found, strict=True)]


ANSWERS: dict[type, Callable[..., Sequence[Answer]]] = {  # by task
    Classify: classify_all,
    Tag: tag_all,
    Span: answer_all,
    Choice: choose_all,
}


def name_classes(task: Classify, found: TextPrediction, num_cut: int) -> Classified:
    scores = found.scores.tolist() if task.kind != "regression" else []
    named = dict(zip(task.labels, scores, strict=False))
    return Classified(label=found.label, scores=named, num_cut=num_cut)


def name_tags(example: TagExample, found: TagPrediction) -> Tagged:
    scores = found.scores.tolist()
    words = tuple(
        TaggedWord(tag=tag, text=word, start=start, end=start + len(word), score=score)
        for tag, word, start, score in zip(
            found.tags, example.words, example.starts, scores, strict=True
        )
    )
    spans = []
    for entity in found.entities:
        first, last = (bisect_left(example.starts, place) for place in (entity.start, entity.end))
        score = sum(scores[first:last]) / (last - first)
        spans.append(TaggedSpan(**entity._asdict(), score=score))
    return Tagged(text=example.text, spans=tuple(spans), words=words)


def name_answer(task: Span, found: SpanPrediction, num_cut: int) -> Answered:
    """With probabilities as the paper's code gives them: among the best, and no answer."""
    scores = [candidate.score for candidate in found.candidates]
    if scores and task.may_be_unanswerable:
        scores.append(found.no_answer + scores[0])
    shares = [math.exp(score - max(scores)) for score in scores]
    probabilities = [share / sum(shares) for share in shares]
    candidates = tuple(
        AnswerCandidate(text=c.text, start=c.start, end=c.end, score=c.score, probability=chance)
        for c, chance in zip(found.candidates, probabilities, strict=False)
    )
    is_answered = bool(candidates) and (found.start, found.end) != (0, 0)
    chance = probabilities[0 if is_answered else -1] if probabilities else 1.0
    return Answered(
        text=found.text,
        start=found.start,
        end=found.end,
        probability=chance,
        no_answer=found.no_answer,
        candidates=candidates,
        num_cut=num_cut,
    )


def name_choice(example: ChoiceExample, answer: tuple[ChoicePrediction, int]) -> Chosen:
    found, num_cut = answer
    return Chosen(
        label=found.label,
        option=example.options[found.label],
        scores=tuple(found.scores.tolist()),
        num_cut=num_cut,
    )


def to_json(value: object) -> object:
    """An answer as JSON can hold it.

    >>> to_json((0.12345678, "x"))
    [0.123457, 'x']
    """
    if isinstance(value, float):
        return round(value, DECIMALS)
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value
