"""The SQuAD and CMRC 2018 scorers once more, from their rules, one question at a time."""

import string
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby


def plain_words(answer: str) -> list[str]:
    """Small letters, no ASCII punctuation; a run of letters and digits that is an article goes."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    runs = ["".join(run) for _, run in groupby(kept, key=str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def plain_exact(gold: str, predicted: str) -> float:
    return 1.0 if plain_words(gold) == plain_words(predicted) else 0.0


def plain_f1(gold: str, predicted: str) -> float:
    left, num_same = plain_words(gold), 0
    for word in plain_words(predicted):
        if word in left:
            left.remove(word)
            num_same += 1
    if num_same == 0:
        return 0.0
    precision = num_same / len(plain_words(predicted))
    recall = num_same / len(plain_words(gold))
    return 2 * precision * recall / (precision + recall)


def plain_squad_1(
    gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]
) -> dict[str, float]:
    sums = {"exact": 0.0, "f1": 0.0}
    for key, answers in gold.items():
        if key in predicted:
            sums["exact"] += max(plain_exact(answer, predicted[key]) for answer in answers)
            sums["f1"] += max(plain_f1(answer, predicted[key]) for answer in answers)
    return {name: total / len(gold) for name, total in sums.items()}


Score = Callable[[Sequence[str], str], float]


def exact_2(answers: Sequence[str], predicted: str) -> float:
    kept = [answer for answer in answers if plain_words(answer)] or [""]
    return max(plain_exact(answer, predicted) for answer in kept)


def f1_2(answers: Sequence[str], predicted: str) -> float:
    kept = [answer for answer in answers if plain_words(answer)] or [""]
    if kept == [""] or not plain_words(predicted):
        return 1.0 if kept == [""] and not plain_words(predicted) else 0.0
    return max(plain_f1(answer, predicted) for answer in kept)


def plain_squad_2(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    no_answer: Mapping[str, float],
    threshold: float,
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, score in (("exact", exact_2), ("f1", f1_2)):
        scores = {}
        for key, answers in gold.items():
            if no_answer[key] > threshold:
                scores[key] = 0.0 if answers else 1.0
            else:
                scores[key] = score(answers, predicted[key])
        has, none = [k for k in gold if gold[k]], [k for k in gold if not gold[k]]
        for prefix, keys in (("", list(gold)), ("has_answer_", has), ("no_answer_", none)):
            if keys or not prefix:
                found[prefix + name] = sum(scores[k] for k in keys) / len(keys)
        found |= plain_best(name, score, gold, predicted, no_answer)
    return found


def plain_best(
    name: str,
    score: Score,
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    no_answer: Mapping[str, float],
) -> dict[str, float]:
    """From nothing answered, questions are answered one by one, the surest first."""
    total = best = float(sum(1 for answers in gold.values() if not answers))
    best_at = 0.0
    for key in sorted(no_answer, key=lambda key: no_answer[key]):
        if gold[key]:
            total += score(gold[key], predicted[key])
        elif predicted[key]:
            total -= 1
        if total > best:
            best, best_at = total, no_answer[key]
    return {f"best_{name}": best / len(gold), f"best_{name}_threshold": best_at}


IGNORED = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"


def plain_chinese_exact(gold: str, predicted: str) -> float:
    left, right = (
        [c for c in text.lower().strip() if c not in IGNORED] for text in (gold, predicted)
    )
    return float(left == right)


def plain_segments(answer: str, tokenize: Callable[[str], list[str]]) -> list[str]:
    found, other = [], ""
    for character in answer.lower().strip():
        if character in IGNORED:
            continue
        if 0x4E00 <= ord(character) <= 0x9FA5:
            found += [*(tokenize(other) if other else []), character]
            other = ""
        else:
            other += character
    return found + tokenize(other)


def plain_segment_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Over all stretches of one, the longest that the other has."""
    longest = 0
    for start in range(len(gold)):
        for end in range(start + 1, len(gold) + 1):
            size = end - start
            places = range(len(predicted) - size + 1)
            if any(gold[start:end] == predicted[p : p + size] for p in places):
                longest = max(longest, size)
    if longest == 0:
        return 0.0
    precision, recall = longest / len(predicted), longest / len(gold)
    return 2 * precision * recall / (precision + recall)
