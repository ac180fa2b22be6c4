"""Devices of one model and stack that are two kinds: split them before anything is named.

The median of a cohort is a yardstick only where most devices are good and of one kind. Five slow devices of eight pull it
down to their own rate, and nothing is found; of two populations under one name (another power limit, another link), one is
named slow device by device. So a cohort of six or more is looked at for two kinds first:

- **Populations.** A fact that sets the speed (power limit, link, memory …) has two values or more with at least two devices
  each, and the rates differ between them by more than the margin (pooled t at 1 %, divided by the number of questions asked).
- **A slow group.** The largest gap between neighbours in ln R exceeds the margin, with at least a third of the devices (or ten)
  below it and a tenth (two at least) above: fewer slow ones leave the median alone, and are named one by one. In a large
  cohort the tails of two kinds touch, so the gap is taken between the tenth and ninetieth percentile of the two sides; with
  fewer than ten devices a side that is the gap between neighbours. Its p is simulated under one group twice, and the larger
  counts: with the spread of repeated runs where there are any, because that is what chance can do; and with the spread within
  the two groups, because devices of one kind may differ by more than their runs do. Where a fact parts the two groups, they
  are populations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import mean, median, variance

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.outliers import LEAST_SD
from stackmark.verdict.student import t_cdf

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_FOR_GROUPS = 6
# Stricter than a flag: a population is excused from being slow, and a group is not confirmed by another repetition.
ALPHA = 0.01
SLOW_SHARE, FAST_SHARE = 1 / 3, 1 / 10
# So many slow ones are a group, whatever their share: Holm over more suspects would ask for too many runs of each.
SLOW_COUNT = 10
# Places where a large cohort may be split: more would only cost time.
_MOST_PLACES = 64
# A p of 0.05 from 4000 draws is known to within 0.7 points.
_DRAWS = 4000
_SEED = 20240301


@dataclass(frozen=True)
class Spread:
    """The spread of repeated runs: of one run, of a device's mean, and the degrees of freedom behind both."""

    sd_log: float
    sd_of_mean: float
    df: int


@dataclass(frozen=True)
class Part:
    """Devices of one kind, by their places in the cohort, with what sets them apart."""

    members: tuple[int, ...]
    label: str
    log_median: float


@dataclass(frozen=True)
class Split:
    """Two kinds of devices, or more, the fastest first. `fact` is what parts them; empty where nothing is known to."""

    parts: tuple[Part, ...]
    fact: str
    p: float

    @property
    def log_ratio(self) -> float:
        """ln of the slowest part's median over that of the fastest."""
        return self.parts[-1].log_median - self.parts[0].log_median


def find_split(
    logs: Sequence[float], facts: Sequence[Mapping[str, str]], margin: float, spread: Spread | None = None
) -> Split | None:
    """The two kinds, or more, that a cohort holds; None where it is one, or too small to tell."""
    if len(logs) < LEAST_FOR_GROUPS:
        return None
    return _by_fact(logs, facts, margin) or _by_gap(logs, facts, margin, spread)


def _by_fact(logs: Sequence[float], facts: Sequence[Mapping[str, str]], margin: float) -> Split | None:
    """The fact whose values part the rates best, if any does."""
    questions = []
    for key in dict.fromkeys(name for one in facts for name in one):
        members = _members(facts, key)
        common = [value for value, where in members.items() if len(where) > 1]
        if len(common) > 1:
            questions.append((key, members, list(combinations(common, 2))))
    asked = sum(len(pairs) for _, _, pairs in questions)
    best: Split | None = None
    for key, members, pairs in questions:
        p = min(_means_p([logs[i] for i in members[a]], [logs[i] for i in members[b]]) for a, b in pairs) * asked
        found = Split(_parts(logs, {f"{key} {value}": where for value, where in members.items()}), key, min(1.0, p))
        if p <= ALPHA and found.log_ratio < math.log1p(-margin) and (best is None or p < best.p):
            best = found
    return best


def _members(facts: Sequence[Mapping[str, str]], key: str) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for index, one in enumerate(facts):
        members.setdefault(one.get(key, "unknown"), []).append(index)
    return members


def _parts(logs: Sequence[float], members: Mapping[str, Sequence[int]]) -> tuple[Part, ...]:
    made = [Part(tuple(where), label, median(logs[i] for i in where)) for label, where in members.items()]
    return tuple(sorted(made, key=lambda part: -part.log_median))


def _means_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of equal means, with one spread for both: two devices have none of their own."""
    df = len(first) + len(second) - 2
    pooled = ((len(first) - 1) * variance(first) + (len(second) - 1) * variance(second)) / df
    error = math.sqrt(max(pooled, LEAST_SD**2) * (1 / len(first) + 1 / len(second)))
    return 2 * t_cdf(-abs(mean(first) - mean(second)) / error, df)


def _by_gap(
    logs: Sequence[float], facts: Sequence[Mapping[str, str]], margin: float, spread: Spread | None
) -> Split | None:
    order = np.argsort(np.asarray(logs, dtype=np.float64))
    gap, within, below = (float(one[0]) for one in _gaps(np.asarray(logs, dtype=np.float64)[order][None, :]))
    if gap <= -math.log1p(-margin):
        return None
    gaps, ratios = _under_one_group(len(logs))
    p = _share_above(ratios, gap / max(within, LEAST_SD))
    if spread is not None:
        # How well the spread is known is part of chance: each draw has its own.
        chi = np.random.default_rng(_SEED).chisquare(spread.df, gaps.size)
        drawn = max(spread.sd_of_mean, LEAST_SD) * np.sqrt(spread.df / chi)
        p = max(p, _share_above(gaps * drawn, gap))
    if p > ALPHA:
        return None
    # By the nearer of the two medians: in a large cohort the tails of the two sides touch.
    ordered = [logs[int(i)] for i in order]
    middle = (median(ordered[: int(below)]) + median(ordered[int(below) :])) / 2
    sides = [[i for i, log in enumerate(logs) if log >= middle], [i for i, log in enumerate(logs) if log < middle]]
    for key in dict.fromkeys(name for one in facts for name in one):
        values = [{facts[i].get(key, "unknown") for i in side} for side in sides]
        if not values[0] & values[1]:
            labels = [f"{key} {' or '.join(sorted(side))}" for side in values]
            return Split(_parts(logs, dict(zip(labels, sides, strict=True))), key, p)
    return Split(_parts(logs, {"the fast group": sides[0], "the slow group": sides[1]}), "", p)


def find_gap(logs: Sequence[float]) -> float:
    """The largest gap in ln R that may part two groups; 0 where the cohort is too small for groups."""
    if len(logs) < LEAST_FOR_GROUPS:
        return 0.0
    return float(_gaps(np.sort(np.asarray(logs, dtype=np.float64))[None, :])[0][0])


def _share_above(draws: Floats, seen: float) -> float:
    return float((1 + (draws >= seen).sum()) / (1 + draws.size))


def _gaps(logs: Floats) -> tuple[Floats, Floats, Ints]:
    """For each row of sorted rates the largest gap, the spread within the two sides, and how many lie below it."""
    rows, count = logs.shape
    low = max(2, min(SLOW_COUNT, math.ceil(SLOW_SHARE * count)))
    high = count - max(2, math.ceil(FAST_SHARE * count))
    below = np.unique(np.linspace(low, high, min(_MOST_PLACES, high - low + 1)).round().astype(np.int64))
    gaps = logs[:, below + (count - below) // 10] - logs[:, below - 1 - below // 10]
    best = gaps.argmax(axis=1)
    cut, row = below[best], np.arange(rows)
    first = np.concatenate([np.zeros((rows, 1)), np.cumsum(logs, axis=1)], axis=1)
    second = np.concatenate([np.zeros((rows, 1)), np.cumsum(logs**2, axis=1)], axis=1)
    slow = second[row, cut] - first[row, cut] ** 2 / cut
    fast = second[row, -1] - second[row, cut] - (first[row, -1] - first[row, cut]) ** 2 / (count - cut)
    return gaps[row, best], np.sqrt(np.maximum(slow + fast, 0.0) / (count - 2)), cut


@lru_cache(maxsize=64)
def _under_one_group(count: int) -> tuple[Floats, Floats]:
    """Gaps of so many devices of one kind whose rates have a spread of 1, and the gaps over the spread within the sides."""
    draws = max(400, min(_DRAWS, 2_000_000 // count))
    gaps, within, _ = _gaps(np.sort(np.random.default_rng(_SEED).standard_normal((draws, count)), axis=1))
    return gaps, gaps / within
