"""How long a run is: in steps, tokens, epochs or minutes; progress is a function of the counters.

>>> Budget.parse("100M tokens")
Budget(amount=100000000.0, unit='tokens')
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from bertie.checkpoint.state import Counters
from bertie.errors import UserError

Unit = Literal["steps", "tokens", "epochs", "minutes"]
SCALES = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}
PATTERN = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kMB]?)\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of one unit."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Reads "1000 steps", "3 epochs", "2.5B tokens", "30 minutes"."""
        found = PATTERN.fullmatch(text.strip())
        unit = "" if found is None else found[3] if found[3].endswith("s") else f"{found[3]}s"
        amount = 0.0 if found is None else float(found[1].replace("_", "")) * SCALES[found[2]]
        if unit not in get_args(Unit) or not 0 < amount < math.inf:
            raise UserError(
                f'a budget is a number and a unit, such as "1000 steps", "3 epochs", '
                f'"500M tokens" or "30 minutes"; found {text!r}'
            )
        if unit == "steps" and amount != int(amount):
            raise UserError(f"a budget in steps is a whole number; found {text!r}")
        return cls(amount, unit)  # type: ignore[arg-type]

    def progress(self, counters: Counters) -> float:
        """The share of the run that is done; 1 and more: all of it."""
        if self.unit == "epochs":
            raise AssertionError("a budget in epochs is turned into steps before a run starts")
        done = {
            "steps": counters.step,
            "tokens": counters.tokens,
            "minutes": counters.seconds / 60,
        }
        return done[self.unit] / self.amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A part of a run; attention costs L², so most steps run short (paper, A.2)."""

    share: float  # of the budget
    max_length: int  # tokens of a sequence
    batch_size: int | None = None  # instances of a step; none: as in data.loader

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(f"the share of a phase is above 0 and at most 1; found {self.share}")
        for name in ("max_length", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} of a phase is at least 1; found {value}")


def find_ends(shares: list[float], budget: Budget) -> list[float]:
    """The progress at which each phase ends; in steps, at a whole one.

    >>> find_ends([0.9, 0.1], Budget(55, "steps"))
    [0.9090909090909091, 1.0]
    """
    if abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"the shares of the phases sum to 1; found {shares}")
    ends = [sum(shares[: n + 1]) for n in range(len(shares) - 1)] + [1.0]
    if budget.unit == "steps":
        ends = [round(end * budget.amount) / budget.amount for end in ends]
    return ends
