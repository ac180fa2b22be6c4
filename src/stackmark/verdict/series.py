"""Compare before and after: an upgrade is in between, so nothing can be interleaved, and the unit is the series.

Two series of an unchanged machine differ too: another temperature, another memory layout, another neighbour. How much, only
several series tell; any number of runs in one series does not. So each series counts once, with the mean of its ln R, and
three a side are asked for. With fewer it says what can be said:

- one or two series after, three or more before (a `check` against a good baseline): those after are taken to spread like those
  before (Student's pooled variance), and that assumption is in the notes;
- fewer than three before: how far series differ is not known from them. Beyond an allowance for that the word is LIKELY SLOWER
  or LIKELY FASTER, within it INCONCLUSIVE. The allowance comes from the machine's history where there are five series or more
  of this workload, else it is 10 %. The intervals that are shown are those of the runs, and hold for these series only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stackmark.figures import Terms
from stackmark.verdict.comparison import Comparison, Needed, SpeedWord, Word, difference_in, word_in
from stackmark.verdict.evidence import ALPHA, Evidence, Floats, limit_of, logs_of, pooled, welch
from stackmark.verdict.needed import percent, sd_upper
from stackmark.verdict.ratio import Pair, judged, without_interval
from stackmark.verdict.sentence import say_ratios
from stackmark.verdict.student import normal_quantile, t_cdf

ENOUGH = 3
ADVICE = f"a verdict needs {ENOUGH} series; a reboot or an hour without runs begins a new one"
# By how much two series of an unchanged machine may differ, where nothing tells: a turbo clock or a warm summer day is less.
USUAL_ALLOWANCE = 0.10
ENOUGH_HISTORY = 5


@dataclass(frozen=True)
class History:
    """How far earlier series of this workload on this machine and chip spread: the standard deviation of their means of ln R.

    It is the spread around one level, or around two where the rate changed once; `df` are its degrees of freedom.
    """

    sd: float
    series: int
    df: int


def history_of(means: Sequence[float]) -> History | None:
    """Summarise earlier series, oldest first; None where there are too few.

    Where the rate changed once, the change does not count as spread: else a machine that became slow would widen its own
    allowance night by night, until nothing is LIKELY SLOWER any more.
    """
    if len(means) < ENOUGH_HISTORY:
        return None
    parted = part(np.array([]), np.array(means, dtype=np.float64))
    return History(parted.sd, len(means), parted.df)


def compare_series(
    a: str,
    b: str,
    series_a: Sequence[Sequence[float]],
    series_b: Sequence[Sequence[float]],
    margin: float,
    history: History | None = None,
    terms: Terms = "speed",
) -> Comparison:
    """Compare B (after) with A (before), from ln R of the runs of each series."""
    means_a, means_b = means_of(series_a, a), means_of(series_b, b)
    pair = Pair(a, b, "series", means_a.size, means_b.size, terms)
    if means_a.size < ENOUGH:
        return likely(pair, series_a, series_b, margin, history)
    if means_b.size >= ENOUGH:
        return judged(pair, welch(means_a, means_b), margin)
    note = (
        f"{b} has {means_b.size} series, too few to tell how its series spread; they are taken to spread like the "
        f"{means_a.size} of {a}, which an upgrade may have changed"
    )
    return judged(pair, pooled(means_a, means_b), margin, notes=(note,))


def likely(
    pair: Pair,
    series_a: Sequence[Sequence[float]],
    series_b: Sequence[Sequence[float]],
    margin: float,
    history: History | None,
) -> Comparison:
    """Say what can be said where A has fewer than three series."""
    means_a, means_b = means_of(series_a, pair.a), means_of(series_b, pair.b)
    mean = float(means_b.mean() - means_a.mean())
    allowed = max(allowance(history, means_a.size, means_b.size), limit_of(margin))
    why = f"{pair.a} has {pair.count_a} series, which does not tell how far two series of an unchanged machine differ"
    bare = without_interval(pair, mean, margin, why=why, advice=Needed(ENOUGH, say_series_needed(pair.a, pair.count_a)))
    runs_a, runs_b = np.concatenate(series_a), np.concatenate(series_b)
    runs: Comparison | None = None
    if min(runs_a.size, runs_b.size) >= 2:
        by_runs = replace(pair, kind="runs", count_a=runs_a.size, count_b=runs_b.size)
        runs = judged(by_runs, welch(runs_a, runs_b), margin)
    seen: SpeedWord = "INCONCLUSIVE"
    if abs(mean) > allowed and (runs is None or runs.difference):
        seen = "LIKELY SLOWER" if mean < 0 else "LIKELY FASTER"
    word = word_in(pair.terms, seen)
    notes = [_say_allowance(history, allowed)]
    if runs:
        notes.append(
            f"the intervals are those of the runs ({runs_b.size} against {runs_a.size}) and hold for these series only"
        )
    return replace(
        bare,
        word=word,
        interval_90=runs.interval_90 if runs else None,
        interval_95=runs.interval_95 if runs else None,
        sentence=_say_likely(bare, word, allowed, runs),
        notes=tuple(notes),
    )


def allowance(history: History | None, count_a: int, count_b: int) -> float:
    """Return by how much the mean ln R of `count_a` and of `count_b` series may differ on an unchanged machine."""
    if history is None:
        return -math.log1p(-USUAL_ALLOWANCE)
    most = sd_upper(history.sd, history.df)
    assert most is not None
    return normal_quantile(1 - ALPHA / 2) * most * math.sqrt(1 / count_a + 1 / count_b)


def _say_allowance(history: History | None, allowed: float) -> str:
    share = percent(-math.expm1(-allowed))
    if history is None:
        return f"{share} is allowed for the difference between series; from five series on, this machine's own is used"
    return (
        f"{share} is allowed for the difference between series, by the {history.series} earlier series of this machine"
    )


def say_series_needed(name: str, count: int) -> str:
    """Say what turns a likely word into a verdict: more series of the baseline, before anything changes."""
    more = ENOUGH - count
    other = "another day" if more == 1 else f"{more} other days"
    return (
        f"{name} needs {ENOUGH} series for a verdict and has {count}: measure {more} more on {other} or after a reboot, with the "
        "machine as it was then"
    )


def _say_likely(bare: Comparison, word: Word, allowed: float, runs: Comparison | None) -> str:
    ratio, low, high = say_ratios(bare.ratio, runs.interval_90 if runs else None)
    counts = f"{bare.count_b} series against {bare.count_a}"
    said = f"; in these series alone the runs' 90 % interval is {low} to {high}" if runs else ""
    share = percent(-math.expm1(-allowed))
    if word == "INCONCLUSIVE":
        return f"INCONCLUSIVE at {percent(bare.margin)}: {bare.b} against {bare.a} has ratio {ratio} ({counts}){said}"
    return (
        f"{bare.b} is {word} than {bare.a}: ratio {ratio} ({counts}), more than the {share} that is allowed for the difference "
        f"between series{said}"
    )


def means_of(series: Sequence[Sequence[float]], what: str) -> Floats:
    """Return the mean ln R of each series."""
    if not series:
        raise ValueError(f"there are no series of {what} to compare")
    return np.array([logs_of(one, what).mean() for one in series], dtype=np.float64)


# --- A check every night: tonight against the baseline, what the nights before add, and when to wake somebody
#
# Tonight is judged on its own. Averaged with ten good nights, a drop of 2 % is called EQUIVALENT in six of ten cases,
# and the night after too. The earlier nights serve twice: they tell how far nights spread, and from the second slow
# night on their mean is a second, more certain answer.
#
# For both, the nights are parted at most once, at the place that explains most: the largest t between the two parts,
# significant at 5 % after Bonferroni over the places. The spread is pooled over the baseline and the parts, so that a
# drop does not count as spread. The second answer is about the latest part. With fewer than three series in the
# baseline, both follow the rule for that (series.py).
#
# An alarm every night must not come by chance once a month. One is two nights in a row that are SLOWER, each on its
# own. The other adds up small evidence (a CUSUM): each night's distance from the baseline and the nights before it, as
# a normal score; sums of scores below −0.5 that reach 4 are an alarm. On an unchanged machine that happens about once
# in 200 nights, or less often (benchmarks/verdicts.py).


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
    """Whether to raise an alarm, and why."""

    two_in_a_row: bool
    # None where the baseline has too few series to know what is usual.
    cusum: float | None
    cusum_limit: float = CUSUM_LIMIT
    nights_between_false_alarms: int = NIGHTS_BETWEEN_FALSE_ALARMS
    terms: Terms = "speed"

    @property
    def rings(self) -> bool:
        return self.two_in_a_row or (self.cusum is not None and self.cusum >= self.cusum_limit)

    @property
    def sentence(self) -> str:
        both = f"this check and the one before are both {difference_in(self.terms, 'slower')}"
        said = [both] if self.two_in_a_row else []
        if self.cusum is not None and self.cusum >= self.cusum_limit:
            said.append(
                f"small drops add up to {self.cusum:.1f} (CUSUM; alarm at {self.cusum_limit:g}, which an unchanged machine "
                f"reaches once in about {self.nights_between_false_alarms} nights)"
            )
        return "; ".join(said) or "none"


@dataclass(frozen=True)
class Nights:
    """The result of a check. `lately` is the latest part of the nights; None where that is only tonight."""

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
    terms: Terms = "speed",
) -> Nights:
    """Judge the last of `nights` against `before`. Both are ln R of the runs of each series, oldest first."""
    judging = _Judging(baseline, before, margin, history, terms)
    tonight = judging.tonight(nights)
    yesterday = judging.tonight(nights[:-1]) if len(nights) > 1 else None
    in_a_row = tonight.is_slower and yesterday is not None and yesterday.is_slower
    means, of_nights = means_of(before, baseline), means_of(nights, "now")
    enough = means.size >= ENOUGH
    parted = part(means, of_nights)
    lately = judging.lately(nights[-parted.latest :], parted) if parted.latest > 1 else None
    alarm = Alarm(in_a_row, float(cusum(means, of_nights)) if enough else None, terms=terms)
    return Nights(tonight, lately, len(nights) - parted.latest, alarm)


def part(before: Floats, nights: Floats) -> Parted:
    """Part the nights once where that explains most, if it explains enough. `before` may be empty: then by the nights alone."""
    squares = _squares(before) if before.size else 0.0
    n, df = nights.size, max(before.size - 1, 0) + nights.size - 1
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


@dataclass(frozen=True)
class _Judging:
    """What all comparisons of a check have in common."""

    baseline: str
    before: Sequence[Sequence[float]]
    margin: float
    history: History | None
    terms: Terms

    def _pair(self, label: str, count: int) -> Pair:
        return Pair(self.baseline, label, "series", len(self.before), count, self.terms)

    def tonight(self, nights: Sequence[Sequence[float]]) -> Comparison:
        """Judge the last night on its own; the others tell how far nights spread."""
        means, of_nights = means_of(self.before, self.baseline), means_of(nights, "now")
        pair = self._pair("now", 1)
        if means.size < ENOUGH:
            return likely(pair, self.before, nights[-1:], self.margin, self.history)
        if of_nights.size == 1:
            return compare_series(
                self.baseline, "now", self.before, nights, self.margin, self.history, terms=self.terms
            )
        others = f"the {means.size} of {self.baseline} and the {of_nights.size - 1} earlier checks"
        note = f"this check is one series, which is taken to spread like {others}"
        return judged(pair, _evidence(means, of_nights[-1:], part(means, of_nights)), self.margin, notes=(note,))

    def lately(self, latest: Sequence[Sequence[float]], parted: Parted) -> Comparison:
        """Judge the mean of the latest nights."""
        means, of_nights = means_of(self.before, self.baseline), means_of(latest, "lately")
        pair = self._pair(f"the mean of the last {of_nights.size} checks", of_nights.size)
        if means.size < ENOUGH:
            return likely(pair, self.before, latest, self.margin, self.history)
        return judged(pair, _evidence(means, of_nights, parted), self.margin)


def _evidence(before: Floats, after: Floats, parted: Parted) -> Evidence:
    error = parted.sd * math.sqrt(1 / before.size + 1 / after.size)
    return Evidence(
        np.array(after.mean() - before.mean()), np.array(error), np.array(float(parted.df)), np.array(parted.sd)
    )
