"""Scores of answers as the SQuAD scorers count them, 1.1's and 2.0's.

`gold` has the accepted answers of each question, none for a question that has no answer;
`predicted` the answer given, "" for none. A question without a prediction counts as wrong.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertie.errors import UserError

Gold = Mapping[str, Sequence[str]]
Floats = NDArray[np.float64]

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalise(answer: str) -> str:
    """What is left to compare: no capitals, punctuation, articles, nor white space but one blank.

    >>> normalise("The  Beatles' album")
    'beatles album'
    """
    return " ".join(ARTICLE.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> float:
    return float(normalise(gold) == normalise(predicted))


def word_f1(gold: str, predicted: str) -> float:
    """F1 of the bags of words, as 1.1 counts it: 0.0 if no word is left on either side."""
    true, guess = normalise(gold).split(), normalise(predicted).split()
    num_same = sum((Counter(true) & Counter(guess)).values())
    return 2 * num_same / (len(true) + len(guess)) if num_same else 0.0


def word_f1_or_empty(gold: str, predicted: str) -> float:
    """2.0's difference: two answers of which nothing is left agree."""
    return 1.0 if normalise(gold) == normalise(predicted) == "" else word_f1(gold, predicted)


def answer_scores(
    gold: Gold,
    predicted: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """`exact`, `f1` and `num_questions`; by 2.0's rules if a question has no answer or scores come.

    2.0 counts apart the questions that have an answer (`has_answer_exact`, ...) and those that do
    not (`no_answer_exact`, ...). With the scores of `no_answer`, a question whose score is above
    `threshold` counts as unanswered, and there are `best_exact`, `best_exact_threshold`, `best_f1`
    and `best_f1_threshold` over all thresholds.
    """
    has_answer = np.array([bool(answers) for answers in gold.values()], bool)
    if no_answer is None and has_answer.all():
        exact, f1 = raw_scores(gold, predicted, exact_match), raw_scores(gold, predicted, word_f1)
        return mean_scores("", exact, f1)
    raw_exact, raw_f1 = raw_scores_with_empty(gold, predicted)
    nulls = null_scores(gold, no_answer) if no_answer is not None else np.zeros(len(gold))
    exact, f1 = (np.where(nulls > threshold, ~has_answer, raw) for raw in (raw_exact, raw_f1))
    scores = mean_scores("", exact, f1) | scores_apart(has_answer, exact, f1)
    if no_answer is not None:
        is_given = np.array([bool(predicted.get(key)) for key in gold], bool)
        order = order_of(gold, no_answer)
        for name, raw in (("exact", raw_exact), ("f1", raw_f1)):
            gains = np.where(has_answer, raw, -1.0 * is_given)[order]
            totals = np.append(0, np.cumsum(gains)) + (~has_answer).sum()
            place = int(totals.argmax())
            scores[f"best_{name}"] = float(totals[place] / len(gold))
            scores[f"best_{name}_threshold"] = float(nulls[order][place - 1]) if place else 0.0
    return scores


def fit_no_answer_threshold(gold: Gold, raw: Floats, no_answer: Mapping[str, float]) -> float:
    """The threshold that gives the best score: a question scoring above it is left unanswered.

    `raw` is what the answer to each question of `gold` is worth, if it is given; that is of any
    metric: see `raw_scores_with_empty`, `raw_chinese_scores`.

    Unlike the scorer's `best_f1_threshold` it holds for scores of any range (logits too), and lies
    half-way between scores that differ: were it one of them, rounding would decide that question.
    Of equally good ones it is the lowest.
    """
    if not gold:
        raise UserError("a no-answer threshold needs at least one question; found none")
    has_answer = np.array([bool(answers) for answers in gold.values()], bool)
    nulls = null_scores(gold, no_answer)
    order = np.argsort(nulls, kind="stable")
    ranked = nulls[order]
    totals = np.append(0, np.cumsum((raw - ~has_answer)[order]))  # of answering the first k
    totals[1:-1][ranked[1:] == ranked[:-1]] = -np.inf
    totals = np.round(totals, 9)  # sums that differ by rounding alone are equal
    return middle_at(ranked, int(totals.argmax()))


def middle_at(ranked: Floats, place: int) -> float:
    """What divides the first `place` of rising scores from the rest; never one of them.

    >>> middle_at(np.array([1.0, 2.0, 4.0]), 2)
    3.0
    """
    if 0 < place < len(ranked):
        below, above = ranked[place - 1 : place + 1]
        return float(min((below + above) / 2, np.nextafter(above, -np.inf)))
    steps = np.diff(ranked)
    steps = steps[steps > 0]
    beyond = float(np.median(steps)) / 2 if len(steps) else 0.5  # as if another came after the last
    return float(ranked[-1] + beyond if place else ranked[0] - beyond)


def raw_scores(
    gold: Gold, predicted: Mapping[str, str], score: Callable[[str, str], float]
) -> Floats:
    """The best over a question's gold answers, whatever the threshold.

    Of a question that has none: whether nothing was answered.
    """
    return np.array(
        [
            max((score(a, predicted[key]) for a in answers), default=float(not predicted[key]))
            if key in predicted
            else 0.0
            for key, answers in gold.items()
        ],
        np.float64,
    )


def raw_scores_with_empty(gold: Gold, predicted: Mapping[str, str]) -> tuple[Floats, Floats]:
    """2.0's exact matches and F1: gold answers of which nothing is left are dropped."""
    kept = {key: [a for a in answers if normalise(a)] or [""] for key, answers in gold.items()}
    exact, f1 = (raw_scores(kept, predicted, s) for s in (exact_match, word_f1_or_empty))
    return exact, f1


def mean_scores(prefix: str, exact: Floats, f1: Floats) -> dict[str, float]:
    return {
        f"{prefix}exact": float(exact.mean()) if len(exact) else 0.0,
        f"{prefix}f1": float(f1.mean()) if len(f1) else 0.0,
        f"num_{prefix}questions": len(exact),
    }


def scores_apart(has_answer: NDArray[np.bool_], exact: Floats, f1: Floats) -> dict[str, float]:
    """Of the questions that have an answer and of those that have none, where there are such."""
    scores: dict[str, float] = {}
    for name, chosen in (("has_answer_", has_answer), ("no_answer_", ~has_answer)):
        if chosen.any():
            scores |= mean_scores(name, exact[chosen], f1[chosen])
    return scores


def null_scores(gold: Gold, no_answer: Mapping[str, float]) -> Floats:
    for key in gold:
        if key not in no_answer:
            raise UserError(f"question {key} has no no-answer score; every question needs one")
    return np.array([no_answer[key] for key in gold], np.float64)


def order_of(gold: Gold, no_answer: Mapping[str, float]) -> NDArray[np.int64]:
    """Places of the questions by rising score; equal ones in the order of `no_answer`."""
    place = {key: number for number, key in enumerate(gold)}
    keys = [key for key in no_answer if key in place]
    return np.array([place[k] for k in sorted(keys, key=no_answer.__getitem__)], np.int64)
