"""Find the answer to a question in a text, or say that it is not there.

- read: see questions.py.
- encode: [CLS] question [SEP] window of the text [SEP], windows `stride` apart, as in the paper's
  code; a question that takes more than half the room is cut, and counted. Each window is an
  instance of its own: its target is where the answer starts and ends in it, or [CLS] if the whole
  answer is not in it.
- head: `span`.
- objective: the mean of the cross-entropies of start and end, each over the rows of its window.
- decode: the best pair of start and end, at most `max_answer` pieces, over all windows; the answer
  is cut from the original text. No answer where [CLS] (its lowest score over the windows) beats the
  best pair by more than a threshold, which is fitted on dev.
- score: SQuAD's exact match and F1 (1.1 or 2.0), or CMRC's for Chinese; of files in which some
  questions have no answer, also apart for those with and without one.
"""

# L rows of a window   N windows

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from torch import nn

from bertie.errors import UserError
from bertie.metrics.answers import (
    answer_scores,
    fit_no_answer_threshold,
    raw_scores_with_empty,
)
from bertie.metrics.chinese_answers import chinese_answer_scores, raw_chinese_scores
from bertie.objectives import Term, span_cross_entropy
from bertie.tasks.instances import Framer, Input, Instance, Instances, TaskBatch, gather
from bertie.tasks.questions import ROLES, Answer, SpanExample, is_trainable, read_questions
from bertie.tasks.task import Dataset, Rejects, check_positive, check_roles, check_some
from bertie.text.sequences import Pieces, num_specials, window_places
from bertie.text.tokenizer import Tokenizer

NO_CANDIDATE = 1e9  # the score of no answer where the text has no piece; JSON has no infinity
# The paper's code has 30. Of CMRC2018's answers 5% are longer, as their pieces are characters.
MAX_ANSWER = {"english": 30, "chinese": 80}
NOWHERE = -1  # the place of a row that is no piece of the text


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A possible answer."""

    text: str
    start: int  # in characters
    end: int
    score: float  # logit of the start + logit of the end


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanPrediction:
    """The answer, and what else it might have been."""

    text: str  # "" for no answer
    start: int
    end: int
    no_answer: float  # score of no answer less that of the best; the threshold is one of these
    candidates: tuple[Candidate, ...]  # the best first


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Settings; what is left open is settled by the training data."""

    head: ClassVar[str] = "span"

    columns: dict[str, str] = field(default_factory=dict)  # question, context, answer, start, id
    language: Literal["english", "chinese"] | None = None  # whose rules of scoring
    may_be_unanswerable: bool | None = None  # as in SQuAD 2.0
    threshold: float = 0.0  # no answer where its score is more than this above the best
    metric: str = "f1"
    max_length: int = 384  # pieces of an input
    stride: int = 128  # pieces from window to window
    max_question: int | None = (
        None  # pieces, cut beyond; none: half the room (the paper's code: 64)
    )
    max_answer: int | None = None  # pieces; none: see MAX_ANSWER
    num_candidates: int = 20

    def __post_init__(self) -> None:
        check_roles(self.columns, ROLES)
        sizes = ("max_length", "stride", "max_question", "max_answer", "num_candidates")
        check_positive({name: getattr(self, name) for name in sizes})
        if self.room < 2 or self.room <= (self.max_question or 0):
            raise UserError(
                f"max_length {self.max_length} has no room for a text beside a question"
                + (f" of {self.max_question} pieces; raise it or lower max_question")
                * (self.max_question is not None)
            )

    @property
    def room(self) -> int:
        """Pieces of a question and a window of its text."""
        return self.max_length - num_specials(is_pair=True)

    @property
    def num_labels(self) -> int:
        return 2

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "exact", "average") if self.language == "chinese" else ("f1", "exact")

    # Read.

    def read(
        self, path: Path, *, skip_bad: bool = False, needs_labels: bool = False
    ) -> Dataset[SpanExample]:
        """The questions of a file; to train on them, an answer of each must be at its offset."""
        rejects = Rejects(skip_bad=skip_bad)
        examples, columns, name = read_questions(path, self.columns, rejects)
        is_labelled = all(example.answers is not None for example in examples)
        if needs_labels and not is_labelled:
            raise UserError(f"{path} has questions without answers to learn from")
        if needs_labels:
            examples = [example for example in examples if is_trainable(example, rejects)]
        check_some(examples, path, rejects.problems)
        return Dataset(
            path=path,
            format=name,
            examples=examples,
            columns=columns,
            is_labelled=is_labelled,
            problems=rejects.problems,
        )

    def settle(self, train: Dataset[SpanExample]) -> "Span":
        """Whether there may be no answer, and whose rules of scoring hold."""
        may_be = any(example.answers == () for example in train.examples)
        language = self.language or guess_language(train.examples)
        return replace(
            self,
            columns=dict(train.columns),
            language=language,
            max_answer=self.max_answer or MAX_ANSWER[language],
            may_be_unanswerable=self.may_be_unanswerable
            if self.may_be_unanswerable is not None
            else may_be,
        )

    # Encode.

    def encode(self, examples: Sequence[SpanExample], tokenizer: Tokenizer) -> Instances:
        """An instance per window."""
        framer, counts = Framer.of(tokenizer), Counter[str]()
        encoded, num_cut = [], list[int]()
        last, pieces = "", tokenizer.split("")  # many questions are about one text
        for example in examples:
            if example.context != last:
                last, pieces = example.context, tokenizer.split(example.context)
            question = tokenizer.ids(example.question)
            most = self.max_question or self.room // 2
            num_cut.append(max(0, len(question) - most))
            counts["questions cut off"] += num_cut[-1] > 0
            question = question[:most]
            places = window_places(len(pieces.ids), self.room - len(question), self.stride)
            counts["texts in windows"] += len(places) > 1
            target = find_target(example, pieces)
            is_lost = example.answers is None or target == (NOWHERE, NOWHERE)
            counts["answers without a piece"] += is_lost and example.answers is not None
            encoded.append(
                [self.window(framer, question, pieces, place, target, is_lost) for place in places]
            )
        return gather(encoded, num_cut=num_cut, counts=counts)

    def window(
        self,
        framer: Framer,
        question: np.ndarray,
        pieces: Pieces,
        place: tuple[int, int],
        target: tuple[int, int] | None,
        is_lost: bool,
    ) -> Instance:
        """The window of pieces place[0] .. place[1], and where the answer is in it, if it is."""
        part = pieces.part(*place)
        framed = framer.frame(question, part.ids)
        places = np.full((len(framed.ids), 2), NOWHERE, np.int32)
        places[framed.second : framed.second + len(part.ids)] = np.stack(
            [part.starts, part.ends], 1
        )
        label = [0, 0]  # [CLS]
        if target is not None and place[0] <= target[0] and target[1] < place[1]:
            label = [framed.second + row - place[0] for row in target]
        inputs = [Input(framed.ids, framed.second, places=places)]
        return Instance(inputs, [0, 0] if is_lost else label, weight=float(not is_lost))

    # Train.

    def objective(self, model: nn.Module, batch: TaskBatch) -> dict[str, Term]:
        (logits,) = model(*batch[:5])  # (T, 2)
        return {"task": span_cross_entropy(logits, batch.bounds, batch.labels, batch.weights)}

    # Decode.

    def decode(
        self,
        examples: Sequence[SpanExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> list[SpanPrediction]:
        return [
            self.answer(
                example,
                [instances.places_of(n) for n in instances.inputs_of(number)],
                [outputs[n] for n in instances.inputs_of(number)],
            )
            for number, example in enumerate(examples)
        ]

    def answer(
        self, example: SpanExample, places: Sequence[np.ndarray], logits: Sequence[np.ndarray]
    ) -> SpanPrediction:
        """The best candidate over all windows, (L, 2) places and (L, 2) logits of each."""
        best: dict[tuple[int, int], float] = {}
        for window, scores in zip(places, logits, strict=True):
            for place, score in self.candidates(window, scores):
                best[place] = max(score, best.get(place, score))
        ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
        candidates = tuple(
            Candidate(text=example.context[start:end], start=start, end=end, score=score)
            for (start, end), score in ranked[: self.num_candidates]
        )
        null = min(float(scores[0].sum()) for scores in logits)
        no_answer = null - candidates[0].score if candidates else NO_CANDIDATE
        if not candidates or (self.may_be_unanswerable and no_answer > self.threshold):
            text, start, end = "", 0, 0
        else:
            text, start, end = candidates[0].text, candidates[0].start, candidates[0].end
        return SpanPrediction(
            text=text, start=start, end=end, no_answer=no_answer, candidates=candidates
        )

    def candidates(
        self, places: np.ndarray, logits: np.ndarray
    ) -> list[tuple[tuple[int, int], float]]:
        """The best pairs of a window: from where to where in the text, and their scores."""
        rows = np.flatnonzero(places[:, 0] != NOWHERE)
        scores = logits[rows].astype(np.float64)
        starts, ends = (top(scores[:, side], self.num_candidates) for side in (0, 1))
        length = ends[None, :] - starts[:, None] + 1
        longest = self.max_answer or MAX_ANSWER["english"]
        first, last = np.nonzero((length >= 1) & (length <= longest))
        first, last = starts[first], ends[last]
        total = scores[first, 0] + scores[last, 1]
        chosen = top(total, self.num_candidates)
        spans = zip(
            places[rows[first[chosen]], 0].tolist(),
            places[rows[last[chosen]], 1].tolist(),
            strict=True,
        )
        return list(zip(spans, total[chosen].tolist(), strict=True))

    def tune(
        self,
        examples: Sequence[SpanExample],
        instances: Instances,
        outputs: Sequence[np.ndarray],
    ) -> "Span":
        """The threshold of no answer that gives the best F1."""
        if not self.may_be_unanswerable:
            return self
        always = replace(self, may_be_unanswerable=False)
        predictions = always.decode(examples, instances, outputs)
        # Where there is no candidate there is no answer, whatever the threshold.
        pairs = [
            (example, found)
            for example, found in zip(examples, predictions, strict=True)
            if example.answers is not None and found.candidates
        ]
        if not pairs:
            return self
        gold = {example.id: texts_of(example.answers) for example, _ in pairs}
        predicted = {example.id: found.text for example, found in pairs}
        scores = {example.id: found.no_answer for example, found in pairs}
        is_chinese = self.language == "chinese"
        _, f1 = (raw_chinese_scores if is_chinese else raw_scores_with_empty)(gold, predicted)
        return replace(self, threshold=fit_no_answer_threshold(gold, f1, scores))

    # Score.

    def score(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        """Exact match and F1, by the rules of the language."""
        pairs = list(zip(examples, predictions, strict=True))
        gold = {e.id: texts_of(e.answers) for e, _ in pairs if e.answers is not None}
        if not gold:
            return {}
        predicted = {e.id: p.text for e, p in pairs if e.id in gold}
        if self.language == "chinese":
            return chinese_answer_scores(gold, predicted)
        return answer_scores(gold, predicted)


def guess_language(examples: Sequence[SpanExample]) -> Literal["english", "chinese"]:
    """Chinese, if more than a third of the first texts' characters are."""
    text = "".join(example.context for example in examples[:50])
    num_chinese = sum("\u4e00" <= letter <= "\u9fff" for letter in text)
    return "chinese" if 3 * num_chinese > len(text) else "english"


def find_target(example: SpanExample, pieces: Pieces) -> tuple[int, int] | None:
    """First and last piece of the first answer that is there; None if there is no answer.

    (NOWHERE, NOWHERE) if there is one, but not at its offset or not a piece of it.
    """
    if not example.answers:
        return None
    for answer in example.answers:
        if answer.start >= 0:
            first = int(np.searchsorted(pieces.ends, answer.start, "right"))
            last = int(np.searchsorted(pieces.starts, answer.end, "left")) - 1
            if first <= last:
                return first, last
    return NOWHERE, NOWHERE


def top(scores: np.ndarray, count: int) -> np.ndarray:
    """Places of the highest scores, in falling order; of equal ones the first."""
    return np.asarray(np.argsort(-scores, kind="stable")[:count])


def texts_of(answers: Sequence[Answer] | None) -> list[str]:
    return [answer.text for answer in answers or ()]
