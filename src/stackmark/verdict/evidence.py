"""The arithmetic behind every verdict: a difference of logarithms, its standard error, and the rule of the margin.

It works on arrays as well as on one experiment. The simulations of benchmarks/verdicts.py call the same functions, with ten
thousand experiments in one array, that `compare_blocks` calls with one: what is validated is what decides.

The margin m is a band of the ratio, [1−m, 1/(1−m)], which is symmetric for logarithms: whoever is compared with whom, the
answer is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.comparison import Word
from stackmark.verdict.student import t_cdf, t_quantile

Floats = NDArray[np.float64]

ALPHA = (
    0.05  # of each one-sided test behind a word (hence the 90 % interval), and of the two-sided one behind a difference
)
# A spread of ln R below this is none: rates have fewer than twelve digits, and a logarithm's rounding is some 1e-16.
NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Evidence:
    """The evidence about ln(B/A): its mean, the standard error of that, and the spread of one observation.

    Each is one number or, in a simulation, an array with one number an experiment.
    """

    mean: Floats
    error: Floats
    df: Floats
    sd: Floats


def paired(differences: Floats) -> Evidence:
    """Gather evidence from differences ln R_b − ln R_a along the last axis, one per block, or one sample against a constant."""
    n = differences.shape[-1]
    sd = differences.std(axis=-1, ddof=1)
    return Evidence(differences.mean(axis=-1), sd / math.sqrt(n), np.full(sd.shape, n - 1.0), sd)


def welch(logs_a: Floats, logs_b: Floats) -> Evidence:
    """Gather evidence from two independent samples along the last axis with their own spreads (Welch and Satterthwaite)."""
    n_a, n_b = logs_a.shape[-1], logs_b.shape[-1]
    var_a, var_b = logs_a.var(axis=-1, ddof=1), logs_b.var(axis=-1, ddof=1)
    part_a, part_b = var_a / n_a, var_b / n_b
    variance = part_a + part_b
    weights = part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1)
    # Without any spread there is nothing to weigh; the pooled degrees of freedom stand in, and the caller says so.
    df = np.divide(variance**2, weights, out=np.full(variance.shape, n_a + n_b - 2.0), where=weights > 0)
    pooled = ((n_a - 1) * var_a + (n_b - 1) * var_b) / (n_a + n_b - 2)
    return Evidence(logs_b.mean(axis=-1) - logs_a.mean(axis=-1), np.sqrt(variance), df, np.sqrt(pooled))


def pooled(logs_a: Floats, logs_b: Floats) -> Evidence:
    """Gather evidence from two independent samples of equal spread (Student); one of them may be a single number."""
    n_a, n_b = logs_a.shape[-1], logs_b.shape[-1]
    squares = sum(((logs - logs.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for logs in (logs_a, logs_b))
    sd = np.sqrt(squares / (n_a + n_b - 2))
    mean = logs_b.mean(axis=-1) - logs_a.mean(axis=-1)
    return Evidence(mean, sd * math.sqrt(1 / n_a + 1 / n_b), np.full(sd.shape, n_a + n_b - 2.0), sd)


def limit_of(margin: float) -> float:
    """Return half the width of the margin's band in logarithms, |ln(1−m)|."""
    if not 0.0 < margin < 1.0:
        raise ValueError(f"margin must be a share between 0 and 1 (0.01 is 1 %), got {margin}")
    return -math.log1p(-margin)


def reach(evidence: Evidence, one_sided_level: float) -> Floats:
    """Return how far an interval reaches to either side of the mean, with this probability beyond each end."""
    quantiles = {df: -t_quantile(one_sided_level, df) for df in np.unique(evidence.df).tolist()}
    found: Floats = evidence.error * np.vectorize(quantiles.__getitem__, otypes=[np.float64])(evidence.df)
    return found


def words(mean: Floats, reach_90: Floats, limit: float, *, reach_95: Floats | None) -> NDArray[np.str_]:
    """Decide the verdict at the margin, by where the 90 % interval lies and by whether the 95 % interval excludes 1.

    The second is asked of SLOWER and FASTER: where the spread is much larger than the margin, a 90 % interval beyond the margin
    is one that excludes 1, which it does in one of ten experiments without a difference. Without `reach_95` it is not asked:
    those were the rules 1.
    """
    low, high = mean - reach_90, mean + reach_90
    slower, faster = (mean + reach_95 < 0, mean - reach_95 > 0) if reach_95 is not None else (True, True)
    return np.select(
        [(low >= -limit) & (high <= limit), (high < -limit) & slower, (low > limit) & faster],
        ["EQUIVALENT", "SLOWER", "FASTER"],
        "INCONCLUSIVE",
    )


def efficiency_words(mean: Floats, reach_90: Floats, limit: float, *, reach_95: Floats) -> NDArray[np.str_]:
    """Decide whether an efficiency is at least 1 − margin, as `words` with its lower side alone.

    EQUIVALENT stands for SCALES and SLOWER for FALLS SHORT, which `word_in` makes of them.
    """
    low, high = mean - reach_90, mean + reach_90
    return np.select([low >= -limit, (high < -limit) & (mean + reach_95 < 0)], ["EQUIVALENT", "SLOWER"], "INCONCLUSIVE")


def named_differences(mean: Floats, reach_95: Floats) -> NDArray[np.str_]:
    """Return 'slower' or 'faster' where the 95 % interval excludes 1, else an empty text."""
    return np.select([mean + reach_95 < 0, mean - reach_95 > 0], ["slower", "faster"], "")


def one_sided_p(value: float, error: float, df: float, at: float, side: Literal["below", "above"]) -> float:
    """Return how likely a value this low (or high), or one beyond it, is where the truth is `at`."""
    t = (value - at) / error
    return t_cdf(t if side == "below" else -t, df)


def logs_of(values: Sequence[float], what: str) -> Floats:
    """Return one side's ln R as an array, after validating it."""
    logs = np.asarray(values, dtype=np.float64)
    if logs.ndim != 1 or logs.size == 0:
        raise ValueError(f"there are no runs of {what} to compare")
    if not np.isfinite(logs).all():
        raise ValueError(f"ln R of a run of {what} is not a finite number; failed runs cannot be compared")
    return logs


# --- A test over blocks that does not take the noise for normal
#
# Without a difference, the sign of each block's d = ln R_b − ln R_a is a matter of chance, whatever the distribution of
# the noise (the order within blocks is drawn at random). So all 2^n ways to give the blocks signs are equally likely,
# and p is the share of them whose mean is as far out as the one that was seen. With four blocks p cannot fall below
# 0.125, with six it can reach 0.031.


# Below this spread of a block's ln R_b − ln R_a, words rest on differences that are many times smaller than any tail.
NORMAL_UP_TO = 0.03
LEAST_BLOCKS = 6
# All signs of this many blocks are tried; of more, as many as this are drawn, with a fixed seed.
EXACT_BLOCKS, DRAWS = 14, 2**14


def sign_flip_p(differences: Floats, word: Word, margin: float) -> float | None:
    """Return the p of the claim that a word makes; None where the spread is small or the blocks are too few.

    EQUIVALENT claims that the mean lies inside the margin (the larger p of two one-sided tests), any other word that it differs
    from 0 (two-sided).
    """
    n = differences.size
    if n < LEAST_BLOCKS or differences.std(ddof=1) <= NORMAL_UP_TO:
        return None
    signs = _signs(n)
    if word != "EQUIVALENT":
        return _share(np.abs(signs @ differences), abs(differences.sum()))
    limit = limit_of(margin)
    return max(
        _share(signs @ (differences + limit), (differences + limit).sum()),
        _share(signs @ (limit - differences), (limit - differences).sum()),
    )


def _share(sums: Floats, seen: float) -> float:
    # The signs that were seen are among them; rounding must not lose them.
    return float((sums >= seen - 1e-12 * abs(seen)).mean())


def _signs(n: int) -> Floats:
    if n <= EXACT_BLOCKS:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return np.where(bits, -1.0, 1.0)
    drawn = np.random.default_rng(n).choice((1.0, -1.0), size=(DRAWS, n))
    drawn[0] = 1.0
    return drawn
