"""SQuAD's scores are those of its scorers; the fitted threshold is the best there is."""

import random
from collections import Counter

import numpy as np
import pytest

from bertie.errors import UserError
from bertie.metrics.answers import (
    answer_scores,
    fit_no_answer_threshold,
    normalise,
    raw_scores_with_empty,
)
from tests.metrics.plain_answers import plain_squad_1, plain_squad_2

WORDS = """the The a A an and Beatles beatles beatles' U.S. us 1,000 1000 É é the–cat a-b “the” ...
$ _a_ İ 中国 an. the's ² x²"""
AWKWARD = [*WORDS.split(), "e\u0301", "\u00a0", "\t", "\u2028x", ""]
Questions = tuple[dict[str, list[str]], dict[str, str], dict[str, float]]


def an_answer(chance: random.Random) -> str:
    return chance.choice(["", " "]).join(chance.choices(AWKWARD, k=chance.randint(0, 4)))


def questions(chance: random.Random, *, has_empty: bool) -> Questions:
    """Answers that often agree, are empty or come to nothing; scores that are often equal."""
    gold, predicted, no_answer = {}, {}, {}
    for number in range(chance.randint(1, 12)):
        key = f"q{number}"
        gold[key] = [an_answer(chance) for _ in range(chance.randint(0 if has_empty else 1, 3))]
        predicted[key] = chance.choice([*gold[key], an_answer(chance), ""])
        no_answer[key] = chance.choice([0.0, 0.25, 0.5, 1.0, chance.random()])
    keys = list(no_answer)
    chance.shuffle(keys)  # equal scores come in an order of their own
    return gold, predicted, {key: no_answer[key] for key in keys}


def test_squad_1_is_scored_as_its_scorer_does(compared: Counter[str]) -> None:
    chance = random.Random(1)
    for _ in range(2000):
        gold, predicted, _ = questions(chance, has_empty=False)
        if chance.random() < 0.3:
            predicted.pop("q0")  # not answered: wrong
        expected = plain_squad_1(gold, predicted) | {"num_questions": len(gold)}
        assert answer_scores(gold, predicted) == pytest.approx(expected, abs=1e-12)
        compared["SQuAD 1.1 questions"] += len(gold)


def test_squad_2_is_scored_as_its_scorer_does(compared: Counter[str]) -> None:
    chance = random.Random(2)
    for _ in range(2000):
        gold, predicted, no_answer = questions(chance, has_empty=True)
        threshold = chance.choice([0.0, 0.3, 0.5, 1.0])
        ours = answer_scores(gold, predicted, no_answer, threshold)
        expected = plain_squad_2(gold, predicted, no_answer, threshold)
        assert {k: v for k, v in ours.items() if not k.startswith("num_")} == pytest.approx(
            expected, abs=1e-12
        )
        assert ours["num_questions"] == len(gold)
        compared["SQuAD 2.0 questions"] += len(gold)


def test_questions_without_answers_need_no_scores() -> None:
    scores = answer_scores({"a": ["x"], "b": [], "c": []}, {"a": "X!", "b": "", "c": "y"})
    assert scores == {
        "exact": 2 / 3,
        "f1": 2 / 3,
        "num_questions": 3,
        "has_answer_exact": 1,
        "has_answer_f1": 1,
        "num_has_answer_questions": 1,
        "no_answer_exact": 0.5,
        "no_answer_f1": 0.5,
        "num_no_answer_questions": 2,
    }


@pytest.mark.parametrize("by", ["exact", "f1"])
def test_no_threshold_is_better_than_the_fitted_one(by: str) -> None:
    chance = random.Random(3)
    for _ in range(500):
        gold, predicted, no_answer = questions(chance, has_empty=True)
        no_answer = {key: 20 * score - 10 for key, score in no_answer.items()}  # as logits are
        raw = raw_scores_with_empty(gold, predicted)[("exact", "f1").index(by)]
        fitted = fit_no_answer_threshold(gold, raw, no_answer)
        tried = [-np.inf, *no_answer.values()]
        best = max(answer_scores(gold, predicted, no_answer, t)[by] for t in tried)
        assert answer_scores(gold, predicted, no_answer, fitted)[by] == pytest.approx(best)


@pytest.mark.parametrize("by", ["exact", "f1"])
def test_rounding_does_not_flip_a_question_at_the_threshold(by: str) -> None:
    chance = random.Random(4)
    for _ in range(200):
        gold, predicted, no_answer = questions(chance, has_empty=True)
        # on a grid, so that half a step is no small thing
        no_answer = {key: round(4 * score) for key, score in no_answer.items()}
        raw = raw_scores_with_empty(gold, predicted)[("exact", "f1").index(by)]
        fitted = fit_no_answer_threshold(gold, raw, no_answer)
        wanted = answer_scores(gold, predicted, no_answer, fitted)[by]
        shaken = {key: score + chance.choice([-0.4, 0.4]) for key, score in no_answer.items()}
        assert answer_scores(gold, predicted, shaken, fitted)[by] == wanted


def test_a_threshold_lies_between_scores() -> None:
    gold = {"a": ["x"], "b": [], "c": []}
    worth, scores = np.array([1.0, 0.0, 0.0]), {"a": 1.0, "b": 3.0, "c": 9.0}
    assert fit_no_answer_threshold(gold, worth, scores) == 2.0
    assert fit_no_answer_threshold({"a": [], "b": []}, np.zeros(2), scores) == 0.0
    assert fit_no_answer_threshold({"a": ["x"], "b": ["y"]}, np.array([1.0, 1.0]), scores) == 4.0
    near = np.nextafter(1.0, 2.0)
    assert 1.0 <= fit_no_answer_threshold(gold, worth, scores | {"b": near}) < near


def test_a_missing_no_answer_score_is_named() -> None:
    with pytest.raises(UserError, match="question b has no no-answer score"):
        answer_scores({"a": ["x"], "b": []}, {"a": "x", "b": ""}, {"a": 0.5})


def test_no_questions_give_no_nan() -> None:
    assert answer_scores({}, {}) == {"exact": 0.0, "f1": 0.0, "num_questions": 0}
    with pytest.raises(UserError, match="at least one question"):
        fit_no_answer_threshold({}, np.zeros(0), {})


def test_what_is_left_of_an_answer() -> None:
    assert normalise("  The U.S.A.,\n an  Answer ") == "usa answer"
    assert normalise("theatre another a1") == "theatre another a1"
    assert normalise("the–a") == "–"  # only ASCII punctuation goes
