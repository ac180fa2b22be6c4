"""One run on a side, as imported logs often have it: what a ratio without a spread still says.

For the ratio r to be chance, one run would have to differ from the next by a standard deviation of

    σ* = (|ln r| − |ln(1−m)|) / (1.645·√(1/n_a + 1/n_b))

of ln R. Where the ledger knows how far runs of this workload differ on that chip, the upper bound of that (95 %) stands in for
the spread, and the interval is called assumed. Else, at a factor of 10 or more, the word is said with its condition: runs that
differ by a factor of several are a fault, not noise. Below that it is INCONCLUSIVE, with σ*.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from stackmark.verdict.comparison import Comparison, Interval, Needed, Word
from stackmark.verdict.evidence import ALPHA, limit_of, words
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import Pair, without_interval
from stackmark.verdict.sentence import say_ratios
from stackmark.verdict.student import normal_quantile

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
