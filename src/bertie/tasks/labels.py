"""Labels of classes: their order, what each of them weighs, and which of two F1 is of."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from bertie.errors import UserError

Weights = Literal["none", "balanced"] | dict[str, float]


def parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def sort_labels(names: Counter[str]) -> tuple[str, ...]:
    """Whole numbers by value, else by name."""
    is_number = all(name.lstrip("-").isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if is_number else 0, name)))


def weigh(given: Weights, kind: str, counts: Counter[str], labels: Sequence[str]) -> Weights:
    """What each label weighs, as it is wished."""
    if given == "none":
        return "none"
    if kind != "classes":
        raise UserError("class_weights are for classes, not for several labels or numbers")
    if given == "balanced":
        return balance(counts, labels)
    check_weights(given, labels)
    return given


def check_weights(weights: Mapping[str, float], labels: Sequence[str]) -> None:
    for name, weight in weights.items():
        if name not in labels:
            raise UserError(f"class_weights has {name!r}, which is not a label")
        if not 0 < weight < math.inf:
            raise UserError(f"class_weights.{name} is above 0; found {weight}")


def balance(counts: Counter[str], labels: Sequence[str]) -> dict[str, float]:
    """Labels weigh the same altogether, and the mean weight of an example is 1."""
    present = [label for label in labels if counts[label]]
    return {label: counts.total() / (len(present) * counts[label]) for label in present}


def choose_positive(given: str, labels: Sequence[str], counts: Counter[str]) -> str:
    """Of two labels the one that F1 is of: the given one, or the rarer one, or else the last."""
    if len(labels) != 2:
        if given:
            raise UserError(f"task.positive is for two classes; found {given!r}")
        return ""
    if given and given not in labels:
        raise UserError(f"task.positive is {given!r}; the labels are: {', '.join(labels)}")
    first, last = labels
    return given or (first if counts[first] < counts[last] else last)
