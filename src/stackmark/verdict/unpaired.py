"""Compare runs that were not made in blocks: two lists of them, such as logs of another machine, or runs of two days.

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

from stackmark.figures import Terms
from stackmark.units import say_percent
from stackmark.verdict.comparison import Comparison, Interval, Needed, SpeedWord, difference_in, word_in
from stackmark.verdict.evidence import ALPHA, efficiency_words, limit_of, logs_of, paired, welch, words
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import Pair, judged, without_interval
from stackmark.verdict.sentence import sentence_of
from stackmark.verdict.student import normal_quantile

# --- One run on a side, as imported logs often have it: what a ratio without a spread still says
#
# For the ratio r to be chance, one run would have to differ from the next by a standard deviation of
#
#     σ* = (|ln r| − |ln(1−m)|) / (1.645·√(1/n_a + 1/n_b))
#
# of ln R. Where the ledger knows how far runs of this workload differ on the chip of each side, the upper bounds of
# these spreads (95 %) stand in for them, and the interval is called assumed. Else, at a factor of 10 or more, the word
# is said with its condition: runs that differ by a factor of several are a fault, not noise. Below that it is
# INCONCLUSIVE, with σ*.


CERTAIN_FACTOR = 10.0
# Below it a factor has too few figures to be read: 1.02 is said as 2 %.
SMALL_FACTOR = 1.2
NOT_THE_SAME_RECIPE = "whether the recipes were the same is unknown"
ADVICE = Needed(None, "four or more runs a side tell how many are needed; six are usual")


@dataclass(frozen=True)
class KnownSpread:
    """How far runs of one workload on one chip differ in a ledger.

    `what` names both; `sd_most` is the upper bound (95 %) of the standard deviation of ln R, from `runs` runs.
    """

    what: str
    sd_most: float
    runs: int


@dataclass(frozen=True)
class RunSpread:
    """The ledger's knowledge of how far one run differs from the next, on the chip of A and on that of B.

    None where too few runs are stored. `largest_factor` is the largest between two runs of one arm of any experiment.
    """

    a: KnownSpread | None = None
    b: KnownSpread | None = None
    largest_factor: float | None = None


def compare_single(pair: Pair, mean: float, margin: float, spread: RunSpread | None = None) -> Comparison:
    """Compare two sides of which one has a single run. `mean` is of ln(B/A)."""
    spread = spread or RunSpread()
    bare = without_interval(pair, mean, margin, why=_why(pair), advice=ADVICE)
    if spread.a is not None and spread.b is not None:
        return _assumed(bare, mean, spread.a, spread.b)
    star = chance_spread(mean, margin, pair.count_a, pair.count_b)
    if star <= 0:
        return replace(
            bare, notes=(*bare.notes, "the ratio is inside the margin, but one run a side does not prove it")
        )
    seen = f"; the most seen in this ledger is {say_by_factor(spread.largest_factor)}" if spread.largest_factor else ""
    chance = (
        f"for this to be chance, one run would have to differ from the next by {say_by_factor(math.exp(star))}{seen}"
    )
    bare = replace(bare, chance_factor=math.exp(min(star, 700.0)))
    if pair.terms == "efficiency" or abs(mean) < math.log(CERTAIN_FACTOR):
        return replace(bare, sentence=f"{bare.sentence}; {chance}")
    word = word_in(pair.terms, "SLOWER" if mean < 0 else "FASTER")
    said = f"{pair.b} is {word} than {pair.a} by a factor of {_factor(math.exp(abs(mean)))} ({_counts(pair)}): {chance}"
    return replace(bare, word=word, needed=None, sentence=f"{said}. {NOT_THE_SAME_RECIPE.capitalize()}")


def chance_spread(mean: float, margin: float, count_a: int, count_b: int) -> float:
    """Return σ*: the standard deviation of ln R between runs that would make this ratio chance."""
    share = math.sqrt(1 / count_a + 1 / count_b)
    return (abs(mean) - limit_of(margin)) / (normal_quantile(1 - ALPHA) * share)


def _assumed(bare: Comparison, mean: float, a: KnownSpread, b: KnownSpread) -> Comparison:
    """Decide by an interval whose spread comes from other runs: normal, since the bounds stand for known spreads."""
    error = math.sqrt(a.sd_most**2 / bare.count_a + b.sd_most**2 / bare.count_b)
    limit = limit_of(bare.margin)
    halves = [normal_quantile(1 - level) * error for level in (ALPHA, ALPHA / 2)]
    one_sided = bare.terms == "efficiency"
    decide = efficiency_words if one_sided else words
    word = decide(np.array(mean), np.array(halves[0]), limit, reach_95=np.array(halves[1]))
    narrow, wide = (
        Interval(math.exp(mean - half), math.exp(mean + half), confidence)
        for half, confidence in zip(halves, (0.90, 0.95), strict=True)
    )
    named = (
        difference_in(bare.terms, "slower" if mean < 0 else "faster")
        if abs(mean) > halves[1] and not one_sided
        else None
    )
    p_difference = 2 * _normal_tail(abs(mean) / error)
    decided = replace(
        bare,
        word=word_in(bare.terms, cast(SpeedWord, str(word))),
        interval_90=narrow,
        interval_95=wide,
        difference=named,
        assumed=True,
        needed=ADVICE if str(word) == "INCONCLUSIVE" else None,
        p_equivalence=_normal_tail((limit - (abs(mean) if not one_sided else -mean)) / error),
        p_difference=p_difference,
        p_outside=max(_normal_tail(((abs(mean) if not one_sided else -mean) - limit) / error), p_difference),
        notes=(f"the interval is assumed: {_say_known(a, b)}", NOT_THE_SAME_RECIPE),
    )
    return replace(decided, sentence=sentence_of(decided))


def _say_known(a: KnownSpread, b: KnownSpread) -> str:
    each = {one.what: one for one in (a, b)}.values()
    known = ", ".join(f"{percent(one.sd_most)} ({one.runs} runs of {one.what})" for one in each)
    return f"one run differs from the next by a standard deviation of at most {known}, by the 95 % bound"


def _normal_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def _why(pair: Pair) -> str:
    alone = " and ".join(name for name, count in ((pair.a, pair.count_a), (pair.b, pair.count_b)) if count == 1)
    return f"one run of {alone} has no spread and so no interval"


def _counts(pair: Pair) -> str:
    return "one run a side" if pair.count_a == pair.count_b == 1 else f"{pair.count_b} runs against {pair.count_a}"


def say_by_factor(factor: float) -> str:
    """`a factor of 8`, and of a small one `2.3 %`."""
    return f"a factor of {_factor(factor)}" if factor >= SMALL_FACTOR else say_percent(factor - 1, figures=2)


def _factor(factor: float) -> str:
    return f"{factor:.2g}" if factor < 10 else f"{factor:.3g}" if factor < 1000 else f"{float(f'{factor:.2g}'):,.0f}"


# The pause after which a machine is no longer what it was: it has cooled, somebody has worked on it.
PAUSE_S = 3600.0
# A series of runs back to back ends after a day: what follows meets another day's temperature and load.
LONGEST_SERIES_S = 24 * 3600.0
NOT_INTERLEAVED = "the runs were not interleaved: the difference includes what changed over time between the two sides"
ONE_SERIES = (
    "logs do not date their runs, so each side counts as one series: how far series of these machines differ is unknown"
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
    terms: Terms = "speed",
) -> Comparison:
    """Compare B with A from ln R of the runs of each, in any order and number.

    `spread` is what the ledger knows of such runs, for a side with a single one. `undated` says that the runs are logs that do
    not say when they were made; a table decides over all of its rows first, and then calls `in_these_logs`.
    """
    first, second = logs_of(logs_a, a), logs_of(logs_b, b)
    pair = Pair(a, b, "runs", first.size, second.size, terms)
    if min(first.size, second.size) < 2:
        single = compare_single(pair, float(second.mean() - first.mean()), margin, spread)
        return in_these_logs(single) if undated else single
    comparison = judged(pair, welch(first, second), margin, notes=(NOT_INTERLEAVED,))
    return in_these_logs(comparison) if undated else comparison


def beyond_any_series(comparison: Comparison) -> Comparison:
    """Say FASTER instead of LIKELY FASTER from a factor of 10 on: no change from one series to the next explains that."""
    if not comparison.is_likely or not _is_certain(comparison):
        return comparison
    word = word_in(comparison.terms, "SLOWER" if comparison.ratio < 1 else "FASTER")
    factor = f"a factor of {_factor(math.exp(abs(math.log(comparison.ratio))))}"
    said = f"{comparison.b} is {word} than {comparison.a} by {factor}, more than any change between series explains"
    return replace(comparison, word=word, needed=None, sentence=said)


def _is_certain(comparison: Comparison) -> bool:
    return abs(math.log(comparison.ratio)) >= math.log(CERTAIN_FACTOR)


def in_these_logs(comparison: Comparison, why: str = ONE_SERIES) -> Comparison:
    """Limit a word to the logs it comes from, unless no day's effect can explain it. `why` is the note about days."""
    if comparison.word == "INCONCLUSIVE" or _is_certain(comparison):
        return replace(comparison, notes=(*comparison.notes, why))
    return replace(
        comparison,
        word="INCONCLUSIVE",
        word_in_logs=comparison.word,
        difference=None,
        # Nothing for Holm to decide: these are p values of the logs, not of the machines.
        p_equivalence=None,
        p_difference=None,
        p_outside=None,
        needed=Needed(None, DATED_ADVICE),
        sentence=f"INCONCLUSIVE at {percent(comparison.margin)}; in these logs {comparison.sentence}",
        notes=(*comparison.notes, why),
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
# never quite ours, so the margin is wider, 5 % unless said, and whoever shows the comparison lists next to it every
# field that differs.


PUBLISHED_MARGIN = 0.05


def compare_published(
    label: str, logs: Sequence[float], published_value: float, margin: float = PUBLISHED_MARGIN, what: str = ""
) -> Comparison:
    """Compare our ln R of each run with a published rate in the same unit. `what` names it: who, which chip, how much."""
    if not (math.isfinite(published_value) and published_value > 0):
        raise ValueError(f"a published rate must be a finite number above 0, got {published_value}")
    runs = logs_of(logs, label)
    pair = Pair(what or f"{published_value:g}", label, "published", 0, runs.size)
    differences = runs - math.log(published_value)
    if differences.size == 1:
        return without_interval(pair, float(differences[0]), margin)
    return judged(pair, paired(differences), margin)
