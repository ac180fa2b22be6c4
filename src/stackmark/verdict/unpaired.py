"""Runs that were not made in blocks: two lists of them, such as logs of somebody else's machine, or runs of two days.

Nothing was held equal between them, so a drift of the machine is in the difference, and more noise than between the runs of a
block. Welch's interval takes the two sides to be independent and lets them spread differently. What it cannot see is said in a
note: all of one side may have run on a warmer day.

Logs that do not say when they were written are one series a side: their runs may all be of one day, and a day's own 1 % makes
a word of nothing in one of three comparisons. So the word is said of these logs alone, and the verdict is INCONCLUSIVE.

`series_of` tells which runs belong together in time; series.py compares before and after by them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from stackmark.verdict.comparison import Comparison, Interval, Needed, Word
from stackmark.verdict.evidence import ALPHA, limit_of, logs_of, paired, welch, words
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import Pair, judged, without_interval
from stackmark.verdict.sentence import say_ratios
from stackmark.verdict.student import normal_quantile

# --- One run on a side, as imported logs often have it: what a ratio without a spread still says
#
# For the ratio r to be chance, one run would have to differ from the next by a standard deviation of
#
#     σ* = (|ln r| − |ln(1−m)|) / (1.645·√(1/n_a + 1/n_b))
#
# of ln R. Where the ledger knows how far runs of this workload differ on that chip, the upper bound of that (95 %)
# stands in for the spread, and the interval is called assumed. Else, at a factor of 10 or more, the word is said with
# its condition: runs that differ by a factor of several are a fault, not noise. Below that it is INCONCLUSIVE, with σ*.


CERTAIN_FACTOR = 10.0
NOT_THE_SAME_RECIPE = "whether the recipe was the same is not shown"
ADVICE = Needed(None, "how many runs it takes is known when there are four or more a side; six are usual")


@dataclass(frozen=True)
class RunSpread:
    """What the ledger knows of how far one run differs from the next.

    `sd_most` is the upper bound for this workload on this chip, from `runs` runs; None where there are too few.
    `largest_factor` is the largest between two runs of one arm of any experiment.
    """

    sd_most: float | None = None
    runs: int = 0
    largest_factor: float | None = None


def compare_single(pair: Pair, mean: float, margin: float, spread: RunSpread | None = None) -> Comparison:
    """Compare two sides of which one has a single run. `mean` is of ln(B/A)."""
    spread = spread or RunSpread()
    bare = without_interval(pair, mean, margin, why=_why(pair), advice=ADVICE)
    share = math.sqrt(1 / pair.count_a + 1 / pair.count_b)
    if spread.sd_most is not None:
        return _assumed(bare, mean, spread.sd_most * share, spread)
    star = (abs(mean) - limit_of(margin)) / (normal_quantile(1 - ALPHA) * share)
    if star <= 0:
        return replace(
            bare, notes=(*bare.notes, "the ratio lies inside the margin, which one run a side does not prove")
        )
    seen = f"; the most seen in this ledger is {_factor(spread.largest_factor)}" if spread.largest_factor else ""
    chance = f"for this to be chance, one run would have to differ from the next by a factor of {_factor(math.exp(star))}{seen}"
    if abs(mean) < math.log(CERTAIN_FACTOR):
        return replace(bare, sentence=f"{bare.sentence}; {chance}")
    word: Word = "SLOWER" if mean < 0 else "FASTER"
    said = f"{pair.b} is {word} than {pair.a} by a factor of {_factor(math.exp(abs(mean)))} ({_counts(pair)}): {chance}"
    return replace(bare, word=word, needed=None, sentence=f"{said}. {NOT_THE_SAME_RECIPE.capitalize()}")


def _assumed(bare: Comparison, mean: float, error: float, spread: RunSpread) -> Comparison:
    halves = [normal_quantile(1 - level) * error for level in (ALPHA, ALPHA / 2)]
    word = cast(
        Word, str(words(np.array(mean), np.array(halves[0]), limit_of(bare.margin), reach_95=np.array(halves[1])))
    )
    narrow, wide = (
        Interval(math.exp(mean - half), math.exp(mean + half), confidence)
        for half, confidence in zip(halves, (0.90, 0.95), strict=True)
    )
    ratio, low, high = say_ratios(bare.ratio, narrow)
    than = {"EQUIVALENT": f"to {bare.a} within", "INCONCLUSIVE": f"against {bare.a} at"}
    by = f"{bare.b} is {word} {than.get(word, f'than {bare.a} by more than')} {percent(bare.margin)}"
    known = (
        f"runs of this workload on this chip differ by at most {percent(spread.sd_most or 0.0)} ({spread.runs} runs)"
    )
    return replace(
        bare,
        word=word,
        interval_90=narrow,
        interval_95=wide,
        needed=ADVICE if word == "INCONCLUSIVE" else None,
        sentence=f"{by}: ratio {ratio}, assumed 90 % interval {low} to {high} ({_counts_of(bare)})",
        notes=(f"the interval is assumed: by the ledger, {known}", NOT_THE_SAME_RECIPE),
    )


def _why(pair: Pair) -> str:
    alone = " and ".join(name for name, count in ((pair.a, pair.count_a), (pair.b, pair.count_b)) if count == 1)
    return f"one run of {alone} has no spread, so there is no interval"


def _counts(pair: Pair) -> str:
    return "one run a side" if pair.count_a == pair.count_b == 1 else f"{pair.count_b} runs against {pair.count_a}"


def _counts_of(bare: Comparison) -> str:
    return _counts(Pair(bare.a, bare.b, bare.kind, bare.count_a, bare.count_b))


def _factor(factor: float) -> str:
    return f"{factor:.2g}" if factor < 10 else f"{factor:.3g}" if factor < 1000 else f"{float(f'{factor:.2g}'):,.0f}"


# The pause after which a machine is no longer what it was: it has cooled, somebody has worked on it.
PAUSE_S = 3600.0
# A series of runs back to back ends after a day: what follows meets another day's temperature and load.
LONGEST_SERIES_S = 24 * 3600.0
NOT_INTERLEAVED = "the runs were not interleaved: what changed between the two sides over time is in the difference too"
ONE_SERIES = (
    "logs do not say when their runs were made, so each side is one series: how far series of these machines differ is "
    "not known"
)
DATED_ADVICE = "runs of three days or more a side, measured with stackmark or with their dates, would tell"


def compare_runs(
    a: str,
    b: str,
    logs_a: Sequence[float],
    logs_b: Sequence[float],
    margin: float,
    *,
    spread: RunSpread | None = None,
    undated: bool = False,
) -> Comparison:
    """Compare B with A from ln R of the runs of each, in any order and number.

    `spread` is what the ledger knows of such runs, for a side with a single one. `undated` says that the runs are logs that do
    not say when they were made.
    """
    first, second = logs_of(logs_a, a), logs_of(logs_b, b)
    pair = Pair(a, b, "runs", first.size, second.size)
    if min(first.size, second.size) < 2:
        single = compare_single(pair, float(second.mean() - first.mean()), margin, spread)
        return _in_these_logs(single) if undated else single
    comparison = judged(pair, welch(first, second), margin, notes=(NOT_INTERLEAVED,))
    return _in_these_logs(comparison) if undated else comparison


def _in_these_logs(comparison: Comparison) -> Comparison:
    """Limit a word to the logs it comes from, unless no day's effect can explain it."""
    if comparison.word == "INCONCLUSIVE":
        return replace(comparison, notes=(*comparison.notes, ONE_SERIES))
    if abs(math.log(comparison.ratio)) >= math.log(CERTAIN_FACTOR):
        return replace(comparison, notes=(*comparison.notes, ONE_SERIES))
    return replace(
        comparison,
        word="INCONCLUSIVE",
        difference=None,
        # Nothing for Holm to decide: these are p values of the logs, not of the machines.
        p_equivalence=None,
        p_difference=None,
        p_outside=None,
        needed=Needed(None, DATED_ADVICE),
        sentence=f"INCONCLUSIVE at {percent(comparison.margin)}; in these logs {comparison.sentence}",
        notes=(*comparison.notes, ONE_SERIES),
    )


def series_of(runs: Sequence[tuple[float, float | None, str]], longest_s: float = LONGEST_SERIES_S) -> list[int]:
    """Return for each run (started, ended, boot id) the number of its series, in the order of time, from 0.

    A reboot, an hour's pause or the end of `longest_s` begins a new one. Runs of several machines may be mixed: each boot has its
    own series.
    """
    numbers = [0] * len(runs)
    current: dict[str, int] = {}
    began_unix_s: dict[str, float] = {}
    latest_unix_s: dict[str, float] = {}
    count = 0
    for index in sorted(range(len(runs)), key=lambda at: runs[at][0]):
        started, ended, boot = runs[index]
        paused = boot not in current or started - latest_unix_s[boot] >= PAUSE_S
        if paused or started - began_unix_s[boot] >= longest_s:
            current[boot], began_unix_s[boot] = count, started
            count += 1
        numbers[index] = current[boot]
        # A run that never ended lasted at least until it began; one inside another does not end the other.
        latest_unix_s[boot] = max(latest_unix_s.get(boot, started), started if ended is None else ended)
    return numbers


# --- Our runs against a number that somebody else printed
#
# The number is taken for a constant, since nobody printed how sure it is; that is said in the sentence. Its recipe is
# never quite ours, so the margin is wider, 5 % unless said, and whoever shows the comparison lists beside it every
# field that differs.


PUBLISHED_MARGIN = 0.05


def compare_published(
    label: str, logs: Sequence[float], published_value: float, margin: float = PUBLISHED_MARGIN, what: str = ""
) -> Comparison:
    """Our ln R of each run against a published rate in the same unit. `what` names it: who, which chip, how much."""
    if not (math.isfinite(published_value) and published_value > 0):
        raise ValueError(f"a published rate is a finite number above zero, not {published_value}")
    runs = logs_of(logs, label)
    pair = Pair(what or f"{published_value:g}", label, "published", 0, runs.size)
    differences = runs - math.log(published_value)
    if differences.size == 1:
        return without_interval(pair, float(differences[0]), margin)
    return judged(pair, paired(differences), margin)
