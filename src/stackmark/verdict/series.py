"""Before and after: an upgrade lies between, so nothing can be interleaved, and the unit is the series.

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

from stackmark.verdict.comparison import Comparison, Needed, Word
from stackmark.verdict.evidence import ALPHA, Floats, limit_of, logs_of, pooled, welch
from stackmark.verdict.needed import percent, sd_upper
from stackmark.verdict.ratio import Pair, judged, without_interval
from stackmark.verdict.sentence import say_ratios
from stackmark.verdict.student import normal_quantile

ENOUGH = 3
ADVICE = f"{ENOUGH} series a side are asked for: measure again after a reboot, or an hour later"
# By how much two series of an unchanged machine may differ, where nothing tells: a turbo clock or a warm summer day is less.
USUAL_ALLOWANCE = 0.10
ENOUGH_HISTORY = 5


@dataclass(frozen=True)
class History:
    """How far earlier series of this workload on this machine and chip spread: the standard deviation of their means of ln R."""

    sd: float
    series: int


def history_of(means: Sequence[float]) -> History | None:
    """Summarise earlier series; None where there are too few."""
    return History(float(np.std(means, ddof=1)), len(means)) if len(means) >= ENOUGH_HISTORY else None


def compare_series(
    a: str,
    b: str,
    series_a: Sequence[Sequence[float]],
    series_b: Sequence[Sequence[float]],
    margin: float,
    history: History | None = None,
) -> Comparison:
    """Compare B (after) with A (before), from ln R of the runs of each series."""
    means_a, means_b = means_of(series_a, a), means_of(series_b, b)
    pair = Pair(a, b, "series", means_a.size, means_b.size)
    if means_a.size < ENOUGH:
        return likely(pair, series_a, series_b, margin, history)
    if means_b.size >= ENOUGH:
        return judged(pair, welch(means_a, means_b), margin)
    note = (
        f"{b} has {means_b.size} series, too few to tell how its series spread: they are taken to spread like the "
        f"{means_a.size} of {a}, which an upgrade may have changed; {ADVICE}"
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
    why = f"{pair.a} has {pair.count_a} series, so how far two series of an unchanged machine differ here is not known from it"
    bare = without_interval(pair, mean, margin, why=why, advice=Needed(ENOUGH, ADVICE))
    runs_a, runs_b = np.concatenate(series_a), np.concatenate(series_b)
    runs: Comparison | None = None
    if min(runs_a.size, runs_b.size) >= 2:
        by_runs = replace(pair, kind="runs", count_a=runs_a.size, count_b=runs_b.size)
        runs = judged(by_runs, welch(runs_a, runs_b), margin)
    word: Word = "INCONCLUSIVE"
    if abs(mean) > allowed and (runs is None or runs.difference):
        word = "LIKELY SLOWER" if mean < 0 else "LIKELY FASTER"
    notes = [why, _say_allowance(history, allowed)]
    if runs:
        notes.append(
            f"the intervals are those of the runs ({runs_b.size} against {runs_a.size}): they hold for these series only"
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
    """Return by how much, in logarithms, the means of so many series may differ on an unchanged machine."""
    if history is None:
        return -math.log1p(-USUAL_ALLOWANCE)
    most = sd_upper(history.sd, history.series - 1)
    assert most is not None
    return normal_quantile(1 - ALPHA / 2) * most * math.sqrt(1 / count_a + 1 / count_b)


def _say_allowance(history: History | None, allowed: float) -> str:
    share = percent(-math.expm1(-allowed))
    if history is None:
        return f"two series of an unchanged machine are taken to differ by up to {share}; five series of it would tell"
    return f"by its {history.series} earlier series, two series of this machine differ by up to {share}"


def _say_likely(bare: Comparison, word: Word, allowed: float, runs: Comparison | None) -> str:
    ratio, low, high = say_ratios(bare.ratio, runs.interval_90 if runs else None)
    counts = f"{bare.count_b} series against {bare.count_a}"
    said = f"; in these series alone the runs' 90 % interval is {low} to {high}" if runs else ""
    share = percent(-math.expm1(-allowed))
    if word == "INCONCLUSIVE":
        return f"INCONCLUSIVE at {percent(bare.margin)}: {bare.b} against {bare.a} has ratio {ratio} ({counts}){said}"
    return (
        f"{bare.b} is {word} than {bare.a}: ratio {ratio} ({counts}), beyond the {share} that series of an unchanged machine "
        f"may differ by{said}"
    )


def means_of(series: Sequence[Sequence[float]], what: str) -> Floats:
    """Return the mean ln R of each series."""
    if not series:
        raise ValueError(f"there are no series of {what} to compare")
    return np.array([logs_of(one, what).mean() for one in series], dtype=np.float64)
