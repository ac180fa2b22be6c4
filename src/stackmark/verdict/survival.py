"""Times that are known to lie between two evaluations, or only to be longer than a limit.

A model is evaluated now and then, so the moment at which it reached its target lies between two evaluations (the time is
interval-censored). A run that ended at its limit without the target says that its time is longer (right-censored): to drop it
would make an arm the faster the more often it fails.

The model: ln time is normal. In μ/σ and 1/σ its log-likelihood is concave, also with intervals and limits (Burridge 1982). So
Newton's method finds the maximum, and the profile over the mean, or over the difference of two means, has one peak. Intervals are
those means whose profile deviance D is small enough. With N times known exactly, √((N − p)(exp(D/N) − 1)) is Student's t of N − p
degrees of freedom, and the interval is the usual t interval; the same scale is used with censored times, where N counts the runs
that reached their target (benchmarks/time_to_quality.py shows what the intervals cover then).

Below ten runs a side the difference of two arms is tested by permutation: the log-rank test asks nothing of the distribution.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.evidence import DRAWS, EXACT_BLOCKS, Floats
from stackmark.verdict.student import t_cdf, t_quantile

CONFIDENCE = 0.95
# Splits of two groups up to this number are all tried: nine runs against nine are 48,620.
EXACT_SPLITS = 50_000
# Beyond a factor of e^50 a bound is none.
_FARTHEST = 50.0
# The spread of ln time may be smaller than this only by chance, or since all runs fit into one evaluation interval.
_LEAST_SPREAD = 1e-6
_ROOT_2, _ROOT_2_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class Span:
    """A time above `low_s`, and at most `high_s`; without it, only longer than `low_s`."""

    low_s: float
    high_s: float | None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low_s) and self.low_s >= 0 and (self.high_s is None or self.high_s > self.low_s)):
            raise ValueError(f"a span must begin at 0 or later and end after it begins: {self.low_s} to {self.high_s}")

    @property
    def reached(self) -> bool:
        return self.high_s is not None


@dataclass(frozen=True)
class Estimate:
    """A mean of logarithms. An end that the data do not bound is None; so is a spread that cannot be told from none."""

    mean: float
    low: float | None
    high: float | None
    spread: float | None
    # How many observations have two ends.
    events: int
    profile: "Profile"


@dataclass(frozen=True)
class Profile:
    """The profile likelihood of one number: of a mean, or of a difference of two."""

    mean: float
    deviance: Callable[[float], float]
    events: int
    df: float
    # About its standard error, from which a search for the ends begins.
    step: float = 0.01

    def t(self, at: float) -> float:
        """Return how far a value is from the estimate, on the scale of Student's t."""
        relative = min(max(self.deviance(at), 0.0) / self.events, 700.0)
        return math.copysign(math.sqrt(self.df * math.expm1(relative)), at - self.mean)

    def bounds(self, one_sided_level: float) -> tuple[float | None, float | None]:
        """Return the interval with this probability beyond each end."""
        quantile = -t_quantile(one_sided_level, self.df)
        return self._end(-quantile), self._end(quantile)

    def p_below(self, at: float) -> float:
        """Return the p of the claim that the true value is below `at`."""
        return t_cdf(-self.t(at), self.df)

    def p_above(self, at: float) -> float:
        return t_cdf(self.t(at), self.df)

    def _end(self, quantile: float) -> float | None:
        way = math.copysign(1.0, quantile)
        inside, step = self.mean, 2.5 * self.step
        while abs(self.t(inside + way * step)) < abs(quantile):
            inside += way * step
            step *= 2
            if abs(inside - self.mean) > _FARTHEST:
                return None
        outside = inside + way * step
        # On the scale of t the profile is nearly a straight line, so false position takes a few steps.
        f_in, f_out = self.t(inside) - quantile, self.t(outside) - quantile
        for _ in range(60):
            if abs(outside - inside) < 1e-6:
                break
            at = inside - f_in * (outside - inside) / (f_out - f_in) if f_in != f_out else (inside + outside) / 2
            f_at = self.t(at) - quantile
            if abs(f_at) < 1e-6:
                return at
            if f_at * way < 0:
                inside, f_in, f_out = at, f_at, f_out / 2
            else:
                outside, f_out, f_in = at, f_at, f_in / 2
        return (inside + outside) / 2


def mean_log(spans: Sequence[Span], level: float = (1 - CONFIDENCE) / 2) -> Estimate | None:
    """Estimate the mean of ln time; None where fewer than two runs reached their target."""
    lows, highs = _logs(spans)
    return _mean(lows, highs, level)


def difference_of_logs(a: Sequence[Span], b: Sequence[Span], level: float = (1 - CONFIDENCE) / 2) -> Estimate | None:
    """Estimate mean ln time of B less that of A, with one spread for both; None with fewer than three that reached their target.

    Each arm needs one: where none of an arm reached its target, nothing bounds its mean.
    """
    (low_a, high_a), (low_b, high_b) = _logs(a), _logs(b)
    events_a, events_b = (_events(*ends) for ends in ((low_a, high_a), (low_b, high_b)))
    if not events_a or not events_b or events_a + events_b < 3:
        return None
    lows, highs = np.concatenate([low_a, low_b]), np.concatenate([high_a, high_b])
    of_b = np.concatenate([np.zeros(low_a.size), np.ones(low_b.size)])
    free = _maximum(np.column_stack([-(1 - of_b), -of_b]), lows, highs)
    mean = (free.theta[1] - free.theta[0]) / free.theta[2]
    if free.overlapping:
        mean = _middle(low_b, high_b) - _middle(low_a, high_a)

    def deviance(delta: float) -> float:
        shifted = delta * of_b
        return 2 * (free.value - _maximum(-np.ones((lows.size, 1)), lows - shifted, highs - shifted).value)

    return _estimate(float(mean), deviance, events_a + events_b, 2, free, level)


def mean_difference(pairs: Sequence[tuple[Span, Span]], level: float = (1 - CONFIDENCE) / 2) -> Estimate | None:
    """Estimate the mean of ln time of B less that of A over pairs; None with fewer than two pairs that both reached their target.

    A pair of which one run ended at its limit bounds the difference from one side; of which both did, it says nothing.
    """
    lows: list[float] = []
    highs: list[float] = []
    for pair in pairs:
        ends = _logs(pair)
        if ends[0].size < 2:
            continue  # a run that was never evaluated
        (low_a, low_b), (high_a, high_b) = (map(float, side) for side in ends)
        if math.isfinite(low_b - high_a) or math.isfinite(high_b - low_a):
            lows.append(low_b - high_a)
            highs.append(high_b - low_a)
    return _mean(np.asarray(lows), np.asarray(highs), level)


def _mean(lows: Floats, highs: Floats, level: float) -> Estimate | None:
    events = _events(lows, highs)
    if events < 2:
        return None
    free = _maximum(-np.ones((lows.size, 1)), lows, highs)
    mean = _middle(lows, highs) if free.overlapping else float(free.theta[0] / free.theta[1])

    def deviance(at: float) -> float:
        return 2 * (free.value - _maximum(np.empty((lows.size, 0)), lows - at, highs - at).value)

    return _estimate(mean, deviance, events, 1, free, level)


def _estimate(
    mean: float, deviance: Callable[[float], float], events: int, means: int, free: "_Peak", level: float
) -> Estimate:
    error = max(float(1 / free.theta[-1]), 1e-4) / math.sqrt(events)
    profile = Profile(mean, deviance, events, float(events - means), error)
    low, high = profile.bounds(level)
    return Estimate(mean, low, high, None if free.overlapping else float(1 / free.theta[-1]), events, profile)


def _middle(lows: Floats, highs: Floats) -> float:
    """Return the middle of what all intervals have in common."""
    low, high = float(lows.max()), float(highs.min())
    return (low + high) / 2 if math.isfinite(low) and math.isfinite(high) else low if math.isfinite(low) else high


def _events(lows: Floats, highs: Floats) -> int:
    """Count what is known from both sides: a time before the first evaluation has no lower end."""
    return int((np.isfinite(lows) & np.isfinite(highs)).sum())


def _logs(spans: Sequence[Span]) -> tuple[Floats, Floats]:
    """Return the ends of ln time. A run that was never evaluated says nothing, and is left out."""
    spans = [span for span in spans if span.low_s > 0 or span.reached]
    lows = [math.log(span.low_s) if span.low_s > 0 else -math.inf for span in spans]
    highs = [math.log(span.high_s) if span.high_s is not None else math.inf for span in spans]
    return np.asarray(lows, dtype=np.float64), np.asarray(highs, dtype=np.float64)


# --- The peak of the likelihood


@dataclass(frozen=True)
class _Peak:
    # The means divided by the spread, then 1 / spread.
    theta: Floats
    value: float

    @property
    def overlapping(self) -> bool:
        """Tell whether one time would fit into all intervals: then no spread is seen."""
        return self.value > -1e-6


def _maximum(means: Floats, lows: Floats, highs: Floats) -> _Peak:
    """Find the peak of Σ ln(Φ(high·b + means·a) − Φ(low·b + means·a)) over a and b = 1/σ by Newton's method.

    `means` has −1 in the column of an observation's mean, and no columns where all means are 0.
    """
    below, above = np.isfinite(lows), np.isfinite(highs)
    low_rows = np.column_stack([means, np.where(below, lows, 0.0)])
    high_rows = np.column_stack([means, np.where(above, highs, 0.0)])
    theta = _start(means, lows, highs)
    value, slope, bend = _likelihood(theta, low_rows, high_rows, below, above)
    for _ in range(200):
        step = np.linalg.lstsq(-bend, slope, rcond=1e-13)[0]
        rise = float(slope @ step)
        if rise < 1e-11:
            break
        share = 1.0
        while share > 1e-9:
            at = theta + share * step
            if at[-1] > 0:
                tried = _likelihood(at, low_rows, high_rows, below, above)
                if tried[0] >= value + 1e-4 * share * rise:
                    break
            share /= 2
        else:
            break
        theta, (value, slope, bend) = at, tried
        if theta[-1] > 1 / _LEAST_SPREAD or value > -1e-9:
            break
    return _Peak(theta, value)


def _start(means: Floats, lows: Floats, highs: Floats) -> Floats:
    """Start from the middles of the intervals, and a spread that is rather too large."""
    both = np.isfinite(lows) & np.isfinite(highs)
    middles = np.where(np.isfinite(lows), lows + 0.3, highs - 0.3)
    middles[both] = (lows[both] + highs[both]) / 2
    columns = means.shape[1]
    centres = np.array([middles[means[:, column] < 0].mean() for column in range(columns)])
    rest = middles + (means @ centres if columns else 0.0)
    spread = max(float(np.sqrt((rest**2).mean())), 0.05)
    widths = (highs - lows)[both]
    spread = max(spread, float(widths.mean()) / 2 if widths.size else 0.0)
    return np.append(centres / spread, 1 / spread)


def _likelihood(
    theta: Floats, low_rows: Floats, high_rows: Floats, below: NDArray[np.bool_], above: NDArray[np.bool_]
) -> tuple[float, Floats, Floats]:
    """Return the log-likelihood with its first and second derivatives; −∞ where an interval has no chance at all."""
    u = np.where(below, low_rows @ theta, -np.inf)
    v = np.where(above, high_rows @ theta, np.inf)
    # In the tail in which the difference keeps its digits.
    flip = u > 0
    p = 0.5 * (_erfc(np.where(flip, u, -v) / _ROOT_2) - _erfc(np.where(flip, v, -u) / _ROOT_2))
    if not (p > 0).all():
        return -math.inf, np.zeros(theta.size), -np.eye(theta.size)
    u, v = np.where(below, u, 0.0), np.where(above, v, 0.0)
    at_u = np.where(below, np.exp(-(u**2) / 2), 0.0) / _ROOT_2_PI / p
    at_v = np.where(above, np.exp(-(v**2) / 2), 0.0) / _ROOT_2_PI / p
    slopes = at_v[:, None] * high_rows - at_u[:, None] * low_rows
    bend = (
        -(high_rows.T * (v * at_v)) @ high_rows + (low_rows.T * (u * at_u)) @ low_rows - slopes.T @ slopes
    )  # fmt: skip
    return float(np.log(p).sum()), slopes.sum(axis=0), bend


def _erfc(values: Floats) -> Floats:
    return np.fromiter(map(math.erfc, values.tolist()), dtype=np.float64, count=values.size)


# --- A test that asks nothing of the distribution


def log_rank_scores(times_s: Sequence[float], reached: Sequence[bool]) -> Floats:
    """Return each run's part of the log-rank statistic: 1 if it reached the target, less the hazard that it had passed by then.

    The statistic of an arm (reached less expected) is the sum over its runs.
    """
    times, events = np.asarray(times_s, dtype=np.float64), np.asarray(reached, dtype=bool)
    moments = np.unique(times[events])
    at_risk = (times[None, :] >= moments[:, None]).sum(axis=1)
    happened = ((times[None, :] == moments[:, None]) & events[None, :]).sum(axis=1)
    hazard = ((moments[None, :] <= times[:, None]) * (happened / at_risk)[None, :]).sum(axis=1)
    found: Floats = events.astype(np.float64) - hazard
    return found


def log_rank_p(a: Sequence[Span], b: Sequence[Span], *, paired: bool) -> float:
    """Return the two-sided p of the permutation log-rank test. A run that reached its target counts at the evaluation that did.

    Of pairs (runs of one block, with one seed) the two runs change sides; else any runs do.
    """
    spans = [*a, *b]
    scores = log_rank_scores([_known_s(span) for span in spans], [span.reached for span in spans])
    of_a, of_b = scores[: len(a)], scores[len(a) :]
    if paired:
        if len(a) != len(b):
            raise ValueError(f"pairs need as many runs of one arm as of the other, got {len(a)} and {len(b)}")
        sums = _flips(len(a)) @ (of_a - of_b)
        return _share_beyond(sums, float((of_a - of_b).sum()))
    return _share_beyond(_split_sums(scores, len(a)), float(of_a.sum()))


def _known_s(span: Span) -> float:
    return span.low_s if span.high_s is None else span.high_s


def _share_beyond(sums: Floats, seen: float) -> float:
    # The assignment that was seen is among them; rounding must not lose it.
    return float((np.abs(sums) >= abs(seen) - 1e-9).mean())


def _flips(n: int) -> Floats:
    if n <= EXACT_BLOCKS:
        return np.where((np.arange(2**n)[:, None] >> np.arange(n)) & 1, -1.0, 1.0)
    drawn = np.random.default_rng(n).choice((1.0, -1.0), size=(DRAWS, n))
    drawn[0] = 1.0
    return drawn


def _split_sums(scores: Floats, first: int) -> Floats:
    """Sum the scores of the first arm over all ways to choose its runs, or over many of them with a fixed seed."""
    if math.comb(scores.size, first) <= EXACT_SPLITS:
        chosen = np.fromiter(
            (index for split in combinations(range(scores.size), first) for index in split), dtype=np.intp
        )
        sums: Floats = scores[chosen.reshape(-1, first)].sum(axis=1)
        return sums
    dice = np.random.default_rng(scores.size)
    drawn = np.array([dice.permutation(scores)[:first].sum() for _ in range(DRAWS)])
    drawn[0] = scores[:first].sum()
    return drawn
