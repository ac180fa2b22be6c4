"""Several runs a device: when a sweep needs them, what they show, and how many blocks confirm a suspicion.

One run of each device sees a difference of some five times the run-to-run spread: with 1 % noise among eight devices, one that
is 3 % slower is flagged in 3 to 21 % of sweeps. Where the first pass leaves it open (a device is below the median by more than
the margin and not flagged, or there is a gap that may part two groups), every device of the cohort is run again some times. The
runs of one device then tell what chance does, with many degrees of freedom, while the MAD of eight devices has three and a half.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, variance

from stackmark.verdict.device_groups import Spread, find_gap
from stackmark.verdict.outliers import (
    ALPHA,
    LEAST_SD,
    Cohort,
    Device,
    Standing,
    benjamini_hochberg,
    cohorts,
    seen_from,
)
from stackmark.verdict.student import t_cdf, t_quantile

# Up to so many devices a second pass is made unasked: three runs of each of a thousand are another decision.
MOST_UNASKED = 64
# The spread of k equal devices by their MAD is off by 1.17/√k (standard error, as a share): within 2.5 of these it is like
# that of their runs.
_MAD_ERROR, _LIKE_RUNS = 1.17, 2.5
_POWER = 0.9


def spread_of(runs: Sequence[Sequence[float]]) -> Spread | None:
    """The spread of repeated runs, from ln R of the runs of each device; None where no device has two."""
    several = [logs for logs in runs if len(logs) > 1]
    if not several:
        return None
    df = sum(len(logs) - 1 for logs in several)
    pooled = sum((len(logs) - 1) * variance(logs) for logs in several) / df
    sd = max(math.sqrt(pooled), LEAST_SD)
    return Spread(sd, sd * math.sqrt(mean(1 / len(logs) for logs in runs)), df)


def needs_more(devices: Sequence[Device], margin: float) -> bool:
    """Whether one run of each device of a cohort leaves something open."""
    (cohort,) = cohorts(devices, margin)
    if cohort.cannot:
        return False
    limit = math.log1p(-margin)
    unclear = any(one.device.log_rate - cohort.log_median < limit and not one.flagged for one in cohort.standings)
    return unclear or find_gap([device.log_rate for device in devices]) > -limit


def with_runs(cohort: Cohort, spread: Spread | None, margin: float) -> Cohort:
    """The cohort judged by the spread of repeated runs, where its devices do not spread by more than that explains."""
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
    """How much slower than the median, as a share, a single device must be to be flagged."""
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
    """The median of so many devices is itself uncertain."""
    return math.sqrt(1 + math.pi / 2 / count)


def blocks_to_confirm(
    flagged: Standing, suspects: int, spread: Spread | None, margin: float, least: int, most: int
) -> int:
    """Blocks by which a device as slow as it looks is confirmed in 90 % of sweeps: an even number, for AB and BA.

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
