"""Compute the median of samples and its interval, without assuming a distribution.

Call times have a floor and a tail, so their mean moves with the tail and Student's interval is not theirs. The interval of a
median by order statistics needs only that the samples are independent draws: the k-th smallest and the k-th largest enclose
the median with a probability that is a sum of binomials. It belongs to the contracts because a worker stops by it and a
verdict prints it, and the two must never be two rules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# Of fewer samples even the smallest and the largest enclose the median with less than 95 %.
LEAST_SAMPLES = 6


@dataclass(frozen=True)
class Median:
    """A median. `low` and `high` enclose it with 95 % confidence or a little more; None with fewer than six samples."""

    value: float
    low: float | None
    high: float | None
    samples: int

    @property
    def half_width(self) -> float:
        """Return half of the interval as a share of the median; infinite where there is none."""
        if self.low is None or self.high is None or self.value <= 0:
            return math.inf
        return (self.high - self.low) / (2 * self.value)


def median_of(samples: Sequence[float]) -> Median:
    if not samples:
        raise ValueError("an empty list has no median")
    ordered = sorted(samples)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = interval_rank(count)
    if rank is None:
        return Median(middle, None, None, count)
    return Median(middle, ordered[rank], ordered[count - 1 - rank], count)


def interval_rank(count: int) -> int | None:
    """Return how many samples are outside the interval on either side: the most that leave it 95 %."""
    if count < LEAST_SAMPLES:
        return None
    # P(fewer than j + 1 of n samples lie below the median) = sum of C(n, i) / 2^n for i ≤ j, on each side.
    tail, total = 0, 2**count
    binomial = 1
    for below in range(count):
        tail += binomial
        if 2 * tail > (1 - CONFIDENCE) * total:
            return below - 1 if below else None
        binomial = binomial * (count - below) // (below + 1)
    return None
