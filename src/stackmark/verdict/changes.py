"""Find when a rate changed: the places in a history of series at which one level ends and another begins.

Binary segmentation with a permutation test. Of all places that leave three series on both sides, the one is taken where the
mean ranks of the two sides are furthest apart, in units of their standard error. Whether that is more than chance,
permutations of the same values tell: the largest distance over all places is compared with the largest over all places of each
permutation, so that the search for the place is paid for, and no distribution is assumed. Where it is significant at 5 %,
each side is searched again at half of that, so that all pieces together keep it. Ranks,
since one bad night is no change, however bad.

A change is named in a history without any in at most 5 % of cases, where series do not depend on each other. Where each resembles
the one before it (a room that is warm for days), the distance counts for less, as for fewer series. Without that a change was
named in 50 to 77 % of histories in which neighbours correlate by 0.7; now it is in 7 to 13 % (benchmarks/verdicts.py).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.evidence import ALPHA, Floats, reach, welch

# On each side of a change. With fewer a run of chance is a level.
LEAST = 3
# With seven series no order of them is rare enough for 5 %.
ENOUGH_SERIES = 8
PERMUTATIONS = 1999
# The order in which permutations are drawn is fixed: the same history has the same answer.
SEED = 20
MOST_ROUNDS = 5
MOST_ALIKE = 0.95
# Two years of nights; what is older is left out.
MOST_SERIES = 730


@dataclass(frozen=True)
class Change:
    """One change: `first` is the number of the first series after it. The ratio is of the levels on both sides."""

    first: int
    ratio: float
    low: float
    high: float
    p: float
    series_before: int
    series_after: int


def changes_in(logs: Floats, *, permutations: int = PERMUTATIONS, margin: float = 0.0) -> list[Change]:
    """Return the changes in ln R of series, oldest first; those that are smaller than the margin are left out."""
    rng = np.random.default_rng(SEED)
    found = _refined(logs, _search(logs, 0, logs.size, rng, permutations), rng, permutations)
    places = sorted(found)
    ends = [0, *places, logs.size]
    changes = []
    for number, first in enumerate(places, start=1):
        before, after = logs[ends[number - 1] : first], logs[first : ends[number + 1]]
        evidence = welch(before, after)
        apart, half = float(evidence.mean), float(reach(evidence, ALPHA / 2))
        if abs(apart) > -math.log1p(-margin):
            low, high = math.exp(apart - half), math.exp(apart + half)
            changes.append(Change(first, math.exp(apart), low, high, found[first], before.size, after.size))
    return changes


def _search(
    logs: Floats, start: int, end: int, rng: np.random.Generator, permutations: int, alpha: float = ALPHA
) -> list[int]:
    best = _best(logs, start, end, rng, permutations, alpha)
    if best is None:
        return []
    first, _ = best
    left, right = ((start, first), (first, end))
    return [
        *_search(logs, *left, rng, permutations, alpha / 2), first, *_search(logs, *right, rng, permutations, alpha / 2)
    ]  # fmt: skip


def _refined(logs: Floats, places: list[int], rng: np.random.Generator, permutations: int) -> dict[int, float]:
    """Look for each place again between its neighbours, until all stay; return the p of those that are still significant.

    A first cut through three levels lies near the right place only, and what it cuts off is then found as a change of its own.
    """
    found: dict[int, float] = {}
    for _ in range(MOST_ROUNDS):
        ends = [0, *places, logs.size]
        worth = _worth(logs, places)
        again = [_best(logs, ends[at], ends[at + 2], rng, permutations, ALPHA, worth) for at in range(len(places))]
        found = dict(filter(None, again))
        if sorted(found) == places:
            break
        places = sorted(found)
    return found


def _best(
    logs: Floats,
    start: int,
    end: int,
    rng: np.random.Generator,
    permutations: int,
    alpha: float = ALPHA,
    worth: float = 1.0,
) -> tuple[int, float] | None:
    """Return the place where the two sides are furthest apart, and its p; None where that is no more than chance."""
    values = logs[start:end]
    if values.size < ENOUGH_SERIES:
        return None
    ranks = _ranks(values)
    apart = _distances(ranks[None, :])[0]
    best = int(np.argmax(apart))
    largest = _distances(rng.permuted(np.tile(ranks, (permutations, 1)), axis=1)).max(axis=1)
    seen = apart[best] * worth
    p = (1 + int(np.count_nonzero(largest >= seen - 1e-9))) / (1 + permutations)
    return (start + LEAST + best, p) if p <= alpha else None


def _worth(logs: Floats, places: list[int]) -> float:
    """Return what a distance is worth where each series resembles the one before it: such a history has fewer independent ones.

    The resemblance (the correlation of neighbours, of an AR(1)) is that of the ranks within the levels, so that the changes
    themselves are none of it. It is corrected for being estimated from few.
    """
    ends = [0, *places, logs.size]
    levels = [logs[start:end] for start, end in pairwise(ends)]
    rest = _ranks(np.concatenate([level - level.mean() for level in levels]))
    squares, n = float(rest @ rest), rest.size
    alike = float(rest[:-1] @ rest[1:]) / squares if squares else 0.0
    alike = min(max(alike + (1 + 4 * alike) * len(levels) / n, 0.0), MOST_ALIKE)
    return math.sqrt((1 - alike) / (1 + alike))


def _ranks(values: Floats) -> Floats:
    """Return the ranks around their mean; equal values share theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: NDArray[np.float64] = (last - (counts - 1) / 2.0).astype(np.float64)
    return shared[places] - (values.size + 1) / 2.0


def _distances(ranks: Floats) -> Floats:
    """Return, for each row and each place, how far apart the mean ranks of both sides are, in standard errors."""
    n = ranks.shape[1]
    first = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(ranks, axis=1)[:, first - 1]
    # Ranks around their mean add up to zero, so the sum of the right side is that of the left with another sign.
    found: Floats = np.abs(sums) / np.sqrt(first * (n - first) / n)
    return found
