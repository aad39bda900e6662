"""Answers kept for the next time, in bounded memory."""

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(dict[str, V], Generic[V]):
    """`memo[text]` is `function(text)`, computed once while there is room.

    A dict, so that a known answer costs no Python frame: `map(memo.__getitem__, words)` runs in C.
    """

    def __init__(self, function: Callable[[str], V], *, capacity: int, longest: int) -> None:
        self.function = function
        self.capacity = capacity
        self.longest = longest  # longer texts hardly ever come twice

    def __missing__(self, text: str) -> V:
        answer = self.function(text)
        if len(text) <= self.longest:
            if len(self) >= self.capacity:
                # Frequent words come early in any text: keep the older half, drop the newer.
                while len(self) > self.capacity // 2:
                    self.popitem()
            self[text] = answer
        return answer
