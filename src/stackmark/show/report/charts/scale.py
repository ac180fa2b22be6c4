"""From numbers to places on paper: a scale, its ticks, and how a tick is said."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`low` stands at `start`, `high` at `end`, in pixels; between them linear, or in the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def clipped(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))

    def shows(self, value: float) -> bool:
        return self.low <= value <= self.high


def round_step(span: float, about: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that makes about so many ticks: the nearest in the logarithm."""
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(
        factor * power for factor, limit in ((1, 1.42), (2, 3.17), (5, 7.08), (10, math.inf)) if raw < limit * power
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high, whose distance is at least a millionth of either: every axis here has a least span."""
    step = round_step(high - low, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def factor_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """1, 2, 5, 10 …, or powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [tick for tick in found if low * 0.9999 <= tick <= high * 1.0001]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def decimals_of(step: float) -> int:
    return max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0


def padded(low: float, high: float, share: float = 0.08, least: float = 0.0) -> tuple[float, float]:
    """A little air on both sides, and at least so much from low to high, so that noise does not fill the picture."""
    missing = max(0.0, least - (high - low)) / 2
    low, high = low - missing, high + missing
    air = (high - low) * share or abs(high) * share or 1.0
    return low - air, high + air


def good(values: Iterable[float | None]) -> list[float]:
    """Only what can be drawn."""
    return [value for value in values if value is not None and math.isfinite(value)]
