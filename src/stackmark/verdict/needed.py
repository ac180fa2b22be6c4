"""Forecast how many blocks (runs, series) would decide, or that no number is likely to.

n ≈ ((t(1−α) + t(1−β))·s / (|ln(1−m)| − |d̄|))², with β/2 where d̄ is near 0, since then either end of the interval may
miss. Here the chances that the one and the other end misses are added up, which is β at either extreme and passes from one
to the other without a rule of what "near" is.

The spread of a few blocks is itself an estimate, and a forecast from it is kept too seldom: at s_d 5 % and a margin of 1 %,
the number that six blocks forecast with 90 % decides in 56 %. So the spread is taken at an upper bound, and where no
difference is shown yet, the mean at 0 too where that needs more (benchmarks/verdicts.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stackmark.units import say_percent, say_seconds
from stackmark.verdict.comparison import Advice, Kind, Needed
from stackmark.verdict.evidence import ALPHA, limit_of
from stackmark.verdict.student import normal_quantile, t_cdf, t_quantile

# How margins and spreads are written: `1 %`, `0.5 %`.
percent = say_percent

BETA = 0.1
MOST_COUNTED = 10_000
MOST = 1000  # more blocks than a forecast from a few is worth
# More than anybody runs for one verdict: then it cannot be decided on this machine by more blocks. Blocks of a second or two may
# be many, if an hour is enough for them.
MOST_PRACTICAL, SOON_S, MOST_PRACTICAL_S = 100, 3600.0, 86_400.0
# Within this share of the margin around it the count depends on where exactly the mean lies, which is what is not known;
# a count of many times what was run is then a number without a meaning.
NEAR_SHARE = 0.2
NEAR_TIMES = 4
# In which margins people think, all below MOST_MARGIN. One of them is proposed where theirs cannot be decided.
ROUND_MARGINS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4)
UNIT: dict[Kind, str] = {"blocks": "block", "runs": "run", "series": "series", "published": "run"}
# One-sided, of the upper bound of the spread that forecasts use. With it, what is promised at 90 % comes true in 88 % or more;
# a bound of 95 % would ask for twice as many blocks to keep the promise in 98 %.
FORECAST_LEVEL = 0.2
# Wilson and Hilferty's quantile is off by 3 % in the spread at 3 degrees of freedom, and by far more below.
LEAST_DF = 3
FREE_MACHINE = Advice("free-machine", "stop other programs on the machine, which disturb the runs")
LONGER_RUNS = Advice("longer-runs", "make the runs longer")
WIDER_MARGIN = Advice("wider-margin", "use a wider margin")


def sides_of(kind: Kind) -> int:
    """Return how many samples carry the noise: a block has both arms' in one difference, a constant has none."""
    return 2 if kind in ("runs", "series") else 1


def count_needed(
    mean: float,
    sd: float,
    margin: float,
    *,
    sides: int = 1,
    alpha: float = ALPHA,
    least: int = 2,
    most: int = MOST_COUNTED,
    multiple: int = 1,
) -> int | None:
    """Return how many (a side, where there are two) decide in nine of ten experiments; None where more than `most` would.

    mean and sd are the true ones, of ln(B/A) and of one observation of it: `sd_upper` gives a bound of the latter.
    """
    if not (math.isfinite(mean) and math.isfinite(sd) and sd >= 0):
        raise ValueError(f"mean and spread must be finite, got {mean} and {sd}")
    limit, distance = limit_of(margin), abs(mean)
    least = max(least, 2)
    if sd == 0:
        return whole(least, multiple) if distance != limit else None

    def missed(n: int) -> float:
        error, df = sd * math.sqrt(sides / n), sides * (n - 1)
        reach = t_quantile(1 - alpha, df)
        near = t_cdf(reach - abs(limit - distance) / error, df)
        if distance < limit:
            return near + t_cdf(reach - (limit + distance) / error, df)
        # SLOWER and FASTER also need the 95 % interval to exclude 1.
        return max(near, t_cdf(t_quantile(1 - alpha / 2, df) - distance / error, df))

    found = _first(lambda n: missed(n) <= BETA, least, max(most, least))
    return None if found is None else whole(found, multiple)


def smallest_margin(sd: float, count: int) -> float:
    """Return the margin that this many blocks of this spread decide in nine of ten experiments without a difference."""
    if count < 2:
        raise ValueError("one block has no spread, so the margin it can decide is unknown")
    df = count - 1
    limit = (t_quantile(1 - ALPHA, df) + t_quantile(1 - BETA / 2, df)) * sd / math.sqrt(count)
    return -math.expm1(-limit)


def sd_upper(sd: float, df: float, level: float = 0.05) -> float | None:
    """Return what the true standard deviation is below, with 95 % confidence unless said; None from too few."""
    if df < LEAST_DF:
        return None
    step = 2.0 / (9.0 * df)
    quantile = df * (1.0 - step + normal_quantile(level) * math.sqrt(step)) ** 3
    return sd * math.sqrt(df / quantile)


@dataclass(frozen=True)
class Pilot:
    """The result so far: mean and spread of ln(B/A), from `ran` blocks (the smaller side's runs) that did not decide.

    `shown` is whether the 95 % interval excludes 1. `block_s` is what a block takes, where that is known.
    """

    kind: Kind
    mean: float
    sd: float
    df: float
    ran: int
    shown: bool = False
    block_s: float | None = None


def needed(pilot: Pilot, margin: float, *, alpha: float = ALPHA, multiple: int = 1) -> Needed:
    """Forecast what would decide. What was run did not, so it takes at least one more."""
    unit, sides = plural(pilot.kind), sides_of(pilot.kind)
    sd = sd_upper(pilot.sd, pilot.df, FORECAST_LEVEL)
    if sd is None:
        known = f"more {unit}: four or more tell how many are needed; six are usual"
        return advised(Needed(None, "", advice=(LONGER_RUNS, WIDER_MARGIN, Advice("more-blocks", known))))
    limit = limit_of(margin)
    error = pilot.sd * math.sqrt(sides / pilot.ran)
    # Where the mean is not known to within the margin, it is the spread that decides nothing.
    near = abs(limit - abs(pilot.mean)) < NEAR_SHARE * limit and error < limit
    most = max(NEAR_TIMES * pilot.ran if near else MOST, pilot.ran + 1)
    count = _count(pilot, sd, margin, most, alpha, multiple)
    seconds = (count - pilot.ran) * pilot.block_s if count is not None and pilot.block_s is not None else None
    practical = count is not None and is_practical(count, seconds)
    advice = [
        *([] if near and count is None else [LONGER_RUNS]),
        *_other_margin(pilot, sd, margin, alpha, multiple),
        _more(pilot, margin, count, seconds) if practical else _not_by_blocks(pilot, margin, count, seconds, near),
    ]
    return advised(Needed(count, "", seconds, practical, tuple(advice)))


def is_practical(count: int, seconds: float | None) -> bool:
    """Return whether people run this many blocks, which take this long, for one verdict."""
    if seconds is None or count > MOST:
        return count <= MOST_PRACTICAL
    return seconds <= (MOST_PRACTICAL_S if count <= MOST_PRACTICAL else SOON_S)


def advised(wanted: Needed) -> Needed:
    """Return it with its advice in one sentence: what does not help, then what to do, numbered where there is more than one."""
    ways = [one.words for one in wanted.advice if one.kind != "not-by-blocks"]
    numbered = [f"{number}. {said}" for number, said in enumerate(ways, 1)] if len(ways) > 1 else ways
    no_way = [one.words for one in wanted.advice if one.kind == "not-by-blocks"]
    return replace(wanted, sentence="; ".join([*no_way, *numbered]))


def after_freeing(wanted: Needed | None) -> Needed:
    """Return what is needed where other programs disturbed the measurement: that they end comes first."""
    known = wanted or Needed(None, "")
    return advised(replace(known, advice=(FREE_MACHINE, *known.advice)))


def _more(pilot: Pilot, margin: float, count: int | None, seconds: float | None) -> Advice:
    assert count is not None
    unit, side = plural(pilot.kind), " a side" if sides_of(pilot.kind) == 2 else ""
    took = f", about {say_seconds(seconds)}" if seconds is not None else ""
    return Advice(
        "more-blocks",
        f"measure {count} {unit}{side} in all ({count - pilot.ran} more{took}); they decide at {percent(margin)} in nine of ten "
        "experiments if the ratio stays as it is",
    )


def _not_by_blocks(pilot: Pilot, margin: float, count: int | None, seconds: float | None, near: bool) -> Advice:
    unit = plural(pilot.kind)
    why = (
        "the ratio is too close to the margin" if near and count is None else f"the {unit} vary by {percent(pilot.sd)}"
    )
    took = f", about {say_seconds(seconds)}" if seconds is not None else ""
    many = f" and {count} {unit} in all would be needed{took}" if count is not None else ""
    return Advice("not-by-blocks", f"more {unit} cannot decide it at {percent(margin)} on this machine: {why}{many}")


def _count(pilot: Pilot, sd: float, margin: float, most: int, alpha: float, multiple: int) -> int | None:
    means = {pilot.mean} if pilot.shown else {pilot.mean, 0.0}
    sides, least = sides_of(pilot.kind), pilot.ran + 1
    counts = [
        count_needed(mean, sd, margin, sides=sides, alpha=alpha, least=least, most=most, multiple=multiple)
        for mean in means
    ]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _other_margin(pilot: Pilot, sd: float, margin: float, alpha: float, multiple: int) -> list[Advice]:
    """Name the next wider margin that is decided, or can be with a few more."""
    sides, ran = sides_of(pilot.kind), pilot.ran
    side = " a side" if sides == 2 else ""
    reach = t_quantile(1 - alpha, sides * (ran - 1)) * pilot.sd * math.sqrt(sides / ran) if ran > 1 else math.inf
    for other in (candidate for candidate in ROUND_MARGINS if candidate > margin):
        wider = f"use a margin of {percent(other)}:"
        if abs(pilot.mean) + reach <= limit_of(other):
            return [Advice("wider-margin", f"{wider} the present runs decide it")]
        count = _count(pilot, sd, other, max(2 * ran, 20), alpha, multiple)
        if count is not None:
            return [Advice("wider-margin", f"{wider} {count} {plural(pilot.kind)}{side} in all decide it")]
    return []


def plural(kind: Kind) -> str:
    """Return `blocks`, `runs` or `series`."""
    return UNIT[kind] if kind == "series" else f"{UNIT[kind]}s"


def whole(count: int, multiple: int) -> int:
    """Round up to whole designs."""
    return -(-count // multiple) * multiple


def _first(decides: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest n from `least` to `most` that decides, where every larger one decides too."""
    if decides(least):
        return least
    if not decides(most):
        return None
    low, high = least, min(2 * least, most)
    while not decides(high):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
