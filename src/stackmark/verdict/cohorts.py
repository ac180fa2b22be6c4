"""Find slow devices among many.

A cohort is devices of one model with one stack. ln R of each stands against the cohort's median, in units of 1.4826·MAD, which
a few slow devices do not move. Flagged: below the median by more than the margin, and significant after Benjamini and Hochberg
at 5 % over the cohort. What is flagged is suspected, no more; it is named once it was run again next to a good one (`confirm`).

The p of a device. The MAD of a handful is a poor measure of spread: with it, a normal p would flag somebody in 18 of 100 sweeps
of ten equal devices instead of 5. Simulated (10^4 to 10^6 cohorts of each size from 5 to 500, normal noise), (x − median) /
(1.4826·MAD) of a device that is like the others follows Student's t, with a scale of 1 − 1/k and 0.36·k + 0.6 degrees of freedom
for an even number k of devices, 0.375·k for an odd one (whose median is itself a device): the p is then right within some 15 %
down to 0.01/k, and 4 to 5 % of cohorts without a slow device have one flagged. One-sided: nobody complains about a fast one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import mean, median, variance

import numpy as np
from numpy.typing import NDArray

from stackmark.figures import say_figure
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.student import t_cdf, t_quantile

ALPHA = 0.05
# Of four devices the median is two of them, and the MAD says next to nothing: the p would need a device at a tenth of the speed.
LEAST_DEVICES = 5
# From the median absolute deviation to a standard deviation, for normal noise.
MAD_TO_SD = 1.4826
# Runs of one chip on the quietest machine that we have seen spread by 0.09 %. Devices that agree better do so by chance, or
# because the rate is counted coarsely; without a floor the smallest difference would be infinitely many deviations.
LEAST_SD = 0.0005


@dataclass(frozen=True)
class Device:
    """One device and its ln R. `stack` makes it comparable: model, driver, framework."""

    node: str
    device: str
    log_rate: float
    stack: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.node if self.device == self.node else f"{self.node} {self.device}"


@dataclass(frozen=True)
class Standing:
    """A device's position in its cohort. `p` is its own, `p_adjusted` after Benjamini and Hochberg; None where the cohort
    is too small for either."""

    device: Device
    ratio: float
    deviations: float
    p: float | None = None
    p_adjusted: float | None = None
    flagged: bool = False


@dataclass(frozen=True)
class Cohort:
    stack: tuple[str, ...]
    log_median: float
    sd_log: float
    standings: tuple[Standing, ...]
    # Why nobody can be named in it; empty where somebody can.
    cannot: str = ""

    @property
    def flagged(self) -> tuple[Standing, ...]:
        return tuple(one for one in self.standings if one.flagged)


def cohorts(devices: Sequence[Device], margin: float) -> tuple[Cohort, ...]:
    """Group the devices by model and stack, the largest cohort first, and compare each device with its own cohort."""
    by_stack: dict[tuple[str, ...], list[Device]] = {}
    for device in devices:
        by_stack.setdefault(device.stack, []).append(device)
    ordered = sorted(by_stack.items(), key=lambda item: -len(item[1]))
    return tuple(_cohort(stack, members, margin) for stack, members in ordered)


def _cohort(stack: tuple[str, ...], members: Sequence[Device], margin: float) -> Cohort:
    logs = [member.log_rate for member in members]
    middle = median(logs)
    sd = max(MAD_TO_SD * median(abs(log - middle) for log in logs), LEAST_SD)
    standings = [
        Standing(member, ratio=math.exp(log - middle), deviations=(log - middle) / sd)
        for member, log in zip(members, logs, strict=True)
    ]
    if len(members) < LEAST_DEVICES:
        return Cohort(stack, middle, sd, tuple(standings), _too_few(len(members)))
    p_values = [device_p(one.deviations, len(members)) for one in standings]
    adjusted = benjamini_hochberg(p_values)
    limit = math.log1p(-margin)
    found = tuple(
        replace(one, p=p, p_adjusted=q, flagged=q <= ALPHA and one.device.log_rate - middle < limit)
        for one, p, q in zip(standings, p_values, adjusted, strict=True)
    )
    return Cohort(stack, middle, sd, found)


def _too_few(count: int) -> str:
    what = (
        "one device cannot be compared with others"
        if count == 1
        else f"{count} devices are too few to know what is usual"
    )
    return f"{what}; naming a slow device takes {LEAST_DEVICES} or more of one model and stack"


def device_p(deviations: float, count: int) -> float:
    """Return how often a device that is like its `count` − 1 fellows is this slow, or slower."""
    scale, df = _shape(count)
    return t_cdf(deviations / scale, df)


def _shape(count: int) -> tuple[float, float]:
    return 1 - 1 / count, 0.375 * count if count % 2 else 0.36 * count + 0.6


def seen_from(cohort: Cohort, margin: float) -> float:
    """Return how much slower than the median a single device must be to be flagged: the resolution of a sweep."""
    count = len(cohort.standings)
    scale, df = _shape(count)
    least = -t_quantile(ALPHA / count, df) * scale * cohort.sd_log
    return max(margin, -math.expm1(-least))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return each p as the smallest rate of false discoveries at which it is one (step-up)."""
    adjusted = [1.0] * len(p_values)
    least = 1.0
    for rank, index in reversed(list(enumerate(sorted(range(len(p_values)), key=p_values.__getitem__), start=1))):
        least = min(least, p_values[index] * len(p_values) / rank)
        adjusted[index] = least
    return adjusted


def reference_for(flagged: Standing, cohort: Cohort, busy: Collection[str] = ()) -> Device | None:
    """Return the good device to run it with: near the median, on another node where no device is suspected.

    Whatever slows a node slows a reference on it too, and then nothing would be seen. A node of `busy` is taken where there is
    no other: two repetitions at once need two references."""
    suspected = {one.device.node for one in cohort.flagged}
    good = sorted((one for one in cohort.standings if not one.flagged), key=lambda one: abs(one.deviations))
    elsewhere = [one.device for one in good if one.device.node not in suspected]
    free = [device for device in elsewhere if device.node not in busy]
    other_nodes = [one.device for one in good if one.device.node != flagged.device.node]
    return next(iter(free or elsewhere or other_nodes or [one.device for one in good]), None)


def confirm(
    flagged: Device, reference: Device, logs_flagged: Sequence[float], logs_reference: Sequence[float], margin: float
) -> Comparison | None:
    """Compare the repeated runs, blocks of fresh data that had no part in the suspicion. None without a complete block."""
    if not logs_flagged:
        return None
    return compare_blocks(reference.name, flagged.name, logs_reference, logs_flagged, margin)


def is_confirmed(comparison: Comparison | None) -> bool:
    """Return whether it is slower by more than the margin, with 95 % confidence on that side, as for two arms."""
    return comparison is not None and comparison.word == "SLOWER"


def slow_nodes(devices: Sequence[Device], slow: Sequence[Device]) -> dict[str, int]:
    """Return the nodes with two or more devices, all of them slow: then the node is slow, not each device."""
    of_node: dict[str, int] = {}
    for device in devices:
        of_node[device.node] = of_node.get(device.node, 0) + 1
    found: dict[str, int] = {}
    for device in slow:
        found[device.node] = found.get(device.node, 0) + 1
    return {node: count for node, count in found.items() if count > 1 and count == of_node.get(node)}


def say_cohort(cohort: Cohort, unit: str = "") -> str:
    """Format like `10 × Xeon, PyTorch 2.11: median 142 images/s, devices spread by 0.4 %`."""
    what = ", ".join(part for part in cohort.stack if part) or "devices of an unknown model"
    middle = math.exp(cohort.log_median)
    said = f"{len(cohort.standings)} × {what}: median {say_figure(middle, unit)}"
    if len(cohort.standings) > 1:
        floor = " or less" if cohort.sd_log <= LEAST_SD else ""
        said += f"; they spread by {percent(cohort.sd_log)}{floor}"
    return said


# --- Devices of one model and stack that are two kinds: split them before anything is named
#
# The median of a cohort is a yardstick only where most devices are good and of one kind. Five slow devices of eight
# pull it down to their own rate, and nothing is found; of two populations under one name (another power limit, another
# link), one is named slow device by device. So a cohort of six or more is looked at for two kinds first:
#
# - **Populations.** A fact that sets the speed (power limit, link, memory …) has two values or more with at least two devices
#   each, and the rates differ between them by more than the margin (pooled t at 1 %, divided by the number of questions asked).
# - **A slow group.** The largest gap between neighbours in ln R exceeds the margin, with at least a third of the devices (or ten)
#   below it and a tenth (two at least) above: fewer slow ones leave the median alone, and are named one by one. In a large
#   cohort the tails of two kinds touch, so the gap is taken between the tenth and ninetieth percentile of the two sides; with
#   fewer than ten devices a side that is the gap between neighbours. Its p is simulated under one group twice, and the larger
#   counts: with the spread of repeated runs where there are any, because that is what chance can do; and with the spread within
#   the two groups, because devices of one kind may differ by more than their runs do. Where a fact parts the two groups, they
#   are populations.


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_FOR_GROUPS = 6
# Stricter than a flag: a population is excused from being slow, and a group is not confirmed by another repetition.
SPLIT_ALPHA = 0.01
SLOW_SHARE, FAST_SHARE = 1 / 3, 1 / 10
# This many slow ones are a group, whatever their share: Holm over more suspects would ask for too many runs of each.
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
    """Devices of one kind, by their index in the cohort, with what distinguishes them."""

    members: tuple[int, ...]
    label: str
    log_median: float


@dataclass(frozen=True)
class Split:
    """Two or more kinds of devices, the fastest first. `fact` is what separates them; empty where none is known."""

    parts: tuple[Part, ...]
    fact: str
    p: float

    @property
    def log_ratio(self) -> float:
        """Return ln of the slowest part's median over that of the fastest."""
        return self.parts[-1].log_median - self.parts[0].log_median


def find_split(
    logs: Sequence[float], facts: Sequence[Mapping[str, str]], margin: float, spread: Spread | None = None
) -> Split | None:
    """Find the two or more kinds that a cohort contains; None where it is one kind, or too small to tell."""
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
        if p <= SPLIT_ALPHA and found.log_ratio < math.log1p(-margin) and (best is None or p < best.p):
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
    if p > SPLIT_ALPHA:
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
    """Find the largest gap in ln R that may separate two groups; 0 where the cohort is too small for groups."""
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
    """Gaps of this many devices of one kind whose rates have a spread of 1, and the gaps over the spread within the sides."""
    draws = max(400, min(_DRAWS, 2_000_000 // count))
    gaps, within, _ = _gaps(np.sort(np.random.default_rng(_SEED).standard_normal((draws, count)), axis=1))
    return gaps, gaps / within


# --- Several runs a device: when a sweep needs them, what they show, and how many blocks confirm a suspicion
#
# One run of each device sees a difference of some five times the run-to-run spread: with 1 % noise among eight devices,
# one that is 3 % slower is flagged in 3 to 21 % of sweeps. Where the first pass leaves it open (a device is below the
# median by more than the margin and not flagged, or there is a gap that may part two groups), every device of the
# cohort is run again some times. The runs of one device then tell what chance does, with many degrees of freedom, while
# the MAD of eight devices has three and a half.


# Up to this many devices a second pass is made unasked: three runs of each of a thousand are another decision.
MOST_UNASKED = 64
# The spread of k equal devices by their MAD is off by 1.17/√k (standard error, as a share): within 2.5 of these it is like
# that of their runs.
_MAD_ERROR, _LIKE_RUNS = 1.17, 2.5
_POWER = 0.9


def spread_of(runs: Sequence[Sequence[float]]) -> Spread | None:
    """Return the spread of repeated runs, from ln R of the runs of each device; None where no device has two."""
    several = [logs for logs in runs if len(logs) > 1]
    if not several:
        return None
    df = sum(len(logs) - 1 for logs in several)
    pooled = sum((len(logs) - 1) * variance(logs) for logs in several) / df
    sd = max(math.sqrt(pooled), LEAST_SD)
    return Spread(sd, sd * math.sqrt(mean(1 / len(logs) for logs in runs)), df)


def needs_more(devices: Sequence[Device], margin: float) -> bool:
    """Return whether one run of each device of a cohort leaves the answer undecided."""
    (cohort,) = cohorts(devices, margin)
    if cohort.cannot:
        return False
    limit = math.log1p(-margin)
    unclear = any(one.device.log_rate - cohort.log_median < limit and not one.flagged for one in cohort.standings)
    return unclear or find_gap([device.log_rate for device in devices]) > -limit


def with_runs(cohort: Cohort, spread: Spread | None, margin: float) -> Cohort:
    """Judge the cohort by the spread of repeated runs, where its devices do not vary by more than that explains."""
    if spread is None or not _like_runs(cohort, spread):
        return cohort
    sd = max(cohort.sd_log, spread.sd_of_mean)
    scale = _scale(len(cohort.standings))
    p_values = [t_cdf((one.device.log_rate - cohort.log_median) / (scale * sd), spread.df) for one in cohort.standings]
    adjusted = benjamini_hochberg(p_values)
    limit = math.log1p(-margin)
    standings = tuple(
        replace(one, deviations=(one.device.log_rate - cohort.log_median) / sd, p=p, p_adjusted=q,
                flagged=q <= ALPHA and one.device.log_rate - cohort.log_median < limit)
        for one, p, q in zip(cohort.standings, p_values, adjusted, strict=True)
    )  # fmt: skip
    return replace(cohort, sd_log=sd, standings=standings)


def seen_with_runs(cohort: Cohort, spread: Spread | None, margin: float) -> float:
    """Return how much slower than the median, as a share, a single device must be to be flagged."""
    if not _like_runs(cohort, spread) or spread is None:
        return seen_from(cohort, margin)
    count = len(cohort.standings)
    least = -t_quantile(ALPHA / count, spread.df) * _scale(count) * cohort.sd_log
    return max(margin, -math.expm1(-least))


def _like_runs(cohort: Cohort, spread: Spread | None) -> bool:
    """Whether its devices do not spread by more than their runs explain."""
    if spread is None or cohort.cannot:
        return False
    return cohort.sd_log <= (1 + _LIKE_RUNS * _MAD_ERROR / math.sqrt(len(cohort.standings))) * spread.sd_of_mean


def _scale(count: int) -> float:
    """The median of this many devices is itself uncertain."""
    return math.sqrt(1 + math.pi / 2 / count)


def blocks_to_confirm(
    flagged: Standing, suspects: int, spread: Spread | None, margin: float, least: int, most: int
) -> int:
    """Return the blocks that confirm a device as slow as it looks in 90 % of sweeps: an even number, for AB and BA.

    Holm divides 5 % by the number of suspects. Without repeated runs the spread is not known, and it is the least."""
    if spread is None:
        return least
    beyond = -math.log(flagged.ratio) + math.log1p(-margin)
    sd = math.sqrt(2) * spread.sd_log
    for blocks in range(least, most, 2):
        needed = t_quantile(1 - ALPHA / suspects, blocks - 1) + t_quantile(_POWER, blocks - 1)
        if beyond * math.sqrt(blocks) / sd >= needed:
            return blocks
    return max(least, most)
