"""A check every night: tonight against the baseline, what the nights before add, and when to wake somebody.

Tonight is judged on its own. Averaged with ten good nights, a drop of 2 % is called EQUIVALENT in six of ten cases, and the
night after too. The earlier nights serve twice: they tell how far nights spread, and from the second slow night on their mean
is a second, more certain answer.

For both, the nights are parted at most once, at the place that explains most: the largest t between the two parts, significant
at 5 % after Bonferroni over the places. The spread is pooled over the baseline and the parts, so that a drop does not count as
spread. The second answer is about the latest part. With fewer than three series in the baseline, both follow the rule for that
(series.py).

An alarm every night must not come by chance once a month. One is two nights in a row that are SLOWER, each on its own. The
other adds up small evidence (a CUSUM): each night's distance from the baseline and the nights before it, as a normal score;
sums of scores below −0.5 that reach 4 are an alarm. On an unchanged machine that happens about once in 200 nights, or less often
(benchmarks/verdicts.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.evidence import ALPHA, Evidence, Floats
from stackmark.verdict.ratio import Pair, judged
from stackmark.verdict.series import ENOUGH, History, compare_series, likely, means_of
from stackmark.verdict.student import t_cdf

# A score counts where it lies so far below what is usual, and so much of it is an alarm. The interval is simulated.
CUSUM_SLACK, CUSUM_LIMIT = 0.5, 4.0
NIGHTS_BETWEEN_FALSE_ALARMS = 200


@dataclass(frozen=True)
class Parted:
    """The nights with at most one change: how many belong to the latest part, and the spread within the parts."""

    latest: int
    sd: float
    df: int


@dataclass(frozen=True)
class Alarm:
    """Whether to wake somebody, and why."""

    two_in_a_row: bool
    # None where the baseline has too few series to know what is usual.
    cusum: float | None
    cusum_limit: float = CUSUM_LIMIT
    nights_between_false_alarms: int = NIGHTS_BETWEEN_FALSE_ALARMS

    @property
    def rings(self) -> bool:
        return self.two_in_a_row or (self.cusum is not None and self.cusum >= self.cusum_limit)

    @property
    def sentence(self) -> str:
        said = ["tonight and the night before are both slower"] if self.two_in_a_row else []
        if self.cusum is not None and self.cusum >= self.cusum_limit:
            said.append(
                f"the nights add up to {self.cusum:.1f} below the baseline (CUSUM, alarm at {self.cusum_limit:g}: by chance "
                f"once in about {self.nights_between_false_alarms} nights)"
            )
        return "; ".join(said) or "none"


@dataclass(frozen=True)
class Nights:
    """What a check shows. `lately` is the latest part of the nights; None where that is tonight alone."""

    tonight: Comparison
    lately: Comparison | None
    # Earlier nights that lie before a change of the rate.
    left_out: int
    alarm: Alarm


def judge_nights(
    baseline: str,
    before: Sequence[Sequence[float]],
    nights: Sequence[Sequence[float]],
    margin: float,
    history: History | None = None,
) -> Nights:
    """Judge the last of `nights` against `before`. Both are ln R of the runs of each series, oldest first."""
    tonight = _tonight(baseline, before, nights, margin, history)
    yesterday = _tonight(baseline, before, nights[:-1], margin, history) if len(nights) > 1 else None
    in_a_row = tonight.is_slower and yesterday is not None and yesterday.is_slower
    means, of_nights = means_of(before, baseline), means_of(nights, "now")
    enough = means.size >= ENOUGH
    parted = part(means, of_nights)
    lately = _lately(baseline, before, nights[-parted.latest :], parted, margin, history) if parted.latest > 1 else None
    alarm = Alarm(in_a_row, float(cusum(means, of_nights)) if enough else None)
    return Nights(tonight, lately, len(nights) - parted.latest, alarm)


def part(before: Floats, nights: Floats) -> Parted:
    """Part the nights once where that explains most, if it explains enough. With too few series before, by the nights alone."""
    squares = float(((before - before.mean()) ** 2).sum())
    n, df = nights.size, before.size - 1 + nights.size - 1
    whole = squares + _squares(nights)
    found = Parted(n, math.sqrt(whole / df) if df else 0.0, df)
    if df < 2:
        return found
    best = 0.0
    for latest in range(1, n):
        early, late = nights[:-latest], nights[-latest:]
        sd = math.sqrt((squares + _squares(early) + _squares(late)) / (df - 1))
        apart = abs(float(late.mean() - early.mean()))
        t = apart / (sd * math.sqrt(1 / early.size + 1 / late.size)) if sd else math.inf if apart else 0.0
        if t > best and 2 * t_cdf(-t, df - 1) * (n - 1) <= ALPHA:
            best, found = t, Parted(latest, sd, df - 1)
    return found


def cusum(before: Floats, nights: Floats) -> Floats:
    """Return the sum of the latest scores below what is usual, along the last axis (in a simulation one row a machine).

    A night's score is its distance from the mean of the baseline and of the nights before it, in their spread: a t with few
    degrees of freedom, turned into a normal score (Wallace 1959), so that the same limit serves any number of series.
    """
    total: Floats = np.zeros(nights.shape[:-1])
    for index in range(nights.shape[-1]):
        known = np.concatenate([before, nights[..., :index]], axis=-1)
        n = known.shape[-1]
        spread = known.std(axis=-1, ddof=1) * math.sqrt(1 + 1 / n)
        away = nights[..., index] - known.mean(axis=-1)
        t = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
        df = n - 1
        score = np.sign(t) * (8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(t**2 / df))
        total = np.maximum(0.0, total - score - CUSUM_SLACK)
    return total


def _squares(values: Floats) -> float:
    return float(((values - values.mean()) ** 2).sum())


def _tonight(
    baseline: str,
    before: Sequence[Sequence[float]],
    nights: Sequence[Sequence[float]],
    margin: float,
    history: History | None,
) -> Comparison:
    means, of_nights = means_of(before, baseline), means_of(nights, "now")
    pair = Pair(baseline, "now", "series", means.size, 1)
    if means.size < ENOUGH:
        return likely(pair, before, nights[-1:], margin, history)
    if of_nights.size == 1:
        return compare_series(baseline, "now", before, nights, margin, history)
    parted = part(means, of_nights)
    others = f"the {means.size} of {baseline} and the {of_nights.size - 1} earlier checks"
    note = f"now is one series: it is taken to spread like {others}"
    return judged(pair, _evidence(means, of_nights[-1:], parted), margin, notes=(note,))


def _lately(
    baseline: str,
    before: Sequence[Sequence[float]],
    latest: Sequence[Sequence[float]],
    parted: Parted,
    margin: float,
    history: History | None,
) -> Comparison:
    means, of_nights = means_of(before, baseline), means_of(latest, "lately")
    pair = Pair(baseline, f"the mean of the last {of_nights.size} checks", "series", means.size, of_nights.size)
    if means.size < ENOUGH:
        return likely(pair, before, latest, margin, history)
    return judged(pair, _evidence(means, of_nights, parted), margin)


def _evidence(before: Floats, after: Floats, parted: Parted) -> Evidence:
    error = parted.sd * math.sqrt(1 / before.size + 1 / after.size)
    return Evidence(
        np.array(after.mean() - before.mean()), np.array(error), np.array(float(parted.df)), np.array(parted.sd)
    )
