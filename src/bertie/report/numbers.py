"""Numbers as people read them, and the round ones to write along an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bertie.metrics.intervals import mean, spread

NO_NUMBER = "–"
MOST_TICKS = 6


def short(value: float) -> str:
    """About three digits, thousands as k, M, G.

    >>> [short(value) for value in (0, 0.0005, 0.25, 12.345, 1500, 2_000_000)]
    ['0', '5e-4', '0.25', '12.3', '1.5k', '2M']
    """
    if not math.isfinite(value):
        return NO_NUMBER
    size = abs(value)
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.9995:
            return f"{value / unit:.3g}{name}" if size < 1e15 else f"{value:.2e}"
    if 0 < size < 9.995e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%" if math.isfinite(share) else NO_NUMBER


def fixed(value: float, digits: int = 3) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else NO_NUMBER


def mean_and_spread(values: Sequence[float], *, scale: float = 100, signed: bool = False) -> str:
    """Of seeds; shares in percent.

    >>> mean_and_spread([0.9, 0.92]), mean_and_spread([0.01], signed=True), mean_and_spread([])
    ('91.00 ± 1.41', '+1.00', '–')
    """
    if not values:
        return NO_NUMBER
    text = f"{scale * mean(values):{'+' if signed else ''}.2f}"
    return f"{text} ± {scale * spread(values):.2f}" if len(values) > 1 else text


def duration(seconds: float) -> str:
    """
    >>> [duration(value) for value in (4.25, 61, 3600, 100_000)]
    ['4.2 s', '1 min 01 s', '1 h 00 min', '27 h 46 min']
    """
    if not math.isfinite(seconds):
        return NO_NUMBER
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def labels(values: Sequence[float]) -> list[str]:
    """Short, but never the same for two values."""
    found = [short(value) for value in values]
    return found if len(set(found)) == len(found) else [f"{value:.6g}" for value in values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A range of values, and where they lie between 0 and 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def has(self, value: float) -> bool:
        """Whether the value can be drawn at all."""
        return math.isfinite(value) and (value > 0 or not self.is_log)


def make_axis(values: Sequence[float], *, is_log: bool = False) -> Axis:
    """An axis that holds all values that can be drawn; from 0 to 1 if there are none."""
    drawn = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    if not drawn:
        return Axis(low=0, high=1, ticks=(0, 1)) if not is_log else make_axis([1, 10], is_log=True)
    low, high = min(drawn), max(drawn)
    if is_log and high / low > 3:
        return Axis(low=low, high=high, ticks=log_ticks(low, high), is_log=True)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):  # one value: in the middle, or 0
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    ticks = linear_ticks(low, high)  # a short range has no powers of ten in it
    return Axis(low=low, high=high, ticks=ticks, is_log=is_log)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten inside the range, MOST_TICKS at most."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, every second or third if they are many; 2 and 5 times them if they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = max(1, math.ceil((last - first) / MOST_TICKS))
    ticks = [f * 10.0**p for p in range(first, last + 1) if p % every == 0 for f in factors]
    return tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))
