"""Compute the rate of a run and of an arm, and their uncertainty.

The rate is R = samples / sum of the steady step times: what a user gets for the time that passed. Never the mean of
the per-step rates: the mean of 1/t is above 1/mean(t) by the variance of t (+0.3 % at 5 % step CV, +1 % at 10 %), so
that the noisier of two equal systems would look the faster.

The unit of every statistic is the run, a fresh process. Steps inside one run share its memory layout, its chosen
kernels and its temperature; a thousand of them are one sample. So a single run has no interval, and the interval of
several is Student's over ln R: a rate cannot be negative, and a ratio of two arms is then a difference of two means.

Percentiles of step time are Hyndman and Fan's type 7 (linear interpolation between order statistics; the default of
NumPy, R and spreadsheets) over the steady steps. p99 of fewer than a hundred steps is nearly the longest step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.steady import PAUSE_SHARE, Kind, Steady, checked_steps, find_steady
from stackmark.verdict.student import t_quantile

CLOCK_TOLERANCE = 0.005  # of the wall clock: beyond it, time passed that no step accounts for (or was counted twice)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on one run. A flag is 'key: sentence'; cv is the spread of the steady steps, not of runs."""

    steady: Steady
    rate_per_s: float
    step_p50_s: float
    step_p90_s: float
    step_p99_s: float
    steps_total: int
    steps_used: int
    cv: float
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Throughput:
    """The rate of an arm over its runs: the geometric mean, its 95 % interval, and the spread between the runs.

    low, high and cv are None for a single run. cv is the standard deviation of ln R, which for small spreads is the
    coefficient of variation of R.
    """

    rate_per_s: float
    low_per_s: float | None
    high_per_s: float | None
    runs: int
    cv: float | None


def judge_run(step_s: Sequence[float], samples_per_step: int, wall_s: float | None, tick_s: float) -> RunVerdict:
    """Judge one run by its step times. wall_s is the wall clock over all of these steps, where there is one."""
    steps = checked_steps(step_s)
    if samples_per_step <= 0:
        raise ValueError(f"samples per step must be at least 1, got {samples_per_step}")
    if not (math.isfinite(tick_s) and tick_s >= 0):
        raise ValueError(f"a clock's tick must be a time in seconds, got {tick_s}")
    steady = find_steady(steps, tick_s)
    used = steps[steady.first_step :]
    total_s = float(used.sum())
    if total_s <= 0:
        raise ValueError("all step times of the measured part are zero")
    p50, p90, p99 = (float(value) for value in np.percentile(used, (50, 90, 99), method="linear"))
    flags = []
    if wall_s is not None:
        disagreement = clock_agreement(float(steps.sum()), wall_s)
        if disagreement is not None:
            flags.append(disagreement)
    if steady.pauses and steady.pauses.share >= PAUSE_SHARE:
        flags.append(f"pauses: {steady.pauses.sentence}")
    if steady.kind in ("slow-down", "no steady state", "too short to tell"):
        flags.append(f"{steady.kind.replace(' ', '-')}: {steady.note}")
    return RunVerdict(
        steady=steady,
        rate_per_s=samples_per_step * used.size / total_s,
        step_p50_s=p50,
        step_p90_s=p90,
        step_p99_s=p99,
        steps_total=steps.size,
        steps_used=used.size,
        cv=float(used.std(ddof=1) / used.mean()) if used.size > 1 else 0.0,
        flags=tuple(flags),
    )


def clock_agreement(sum_step_s: float, wall_s: float) -> str | None:
    """Flag a run whose steps do not add up to the wall clock within 0.5 %; None where they do."""
    if not (math.isfinite(wall_s) and wall_s > 0):
        raise ValueError(f"the wall time of the measured part must be above 0, got {wall_s}")
    if not (math.isfinite(sum_step_s) and sum_step_s >= 0):
        raise ValueError(f"the sum of the steps must be a time, got {sum_step_s}")
    gap = sum_step_s / wall_s - 1.0
    if abs(gap) <= CLOCK_TOLERANCE:
        return None
    what = "some time between the steps belongs to no step" if gap < 0 else "the steps overlap or a clock is wrong"
    return (
        f"clocks-disagree: the steps add up to {sum_step_s:.6g} s, the wall clock says {wall_s:.6g} s "
        f"({100 * gap:+.2f} %): {what}. Do not trust this rate; try a longer run."
    )


def throughput_over_runs(rates_per_s: Sequence[float]) -> Throughput:
    """Compute the rate of an arm from its runs: exp of the mean of ln R, with Student's 95 % interval."""
    rates = np.asarray(rates_per_s, dtype=np.float64)
    if rates.ndim != 1 or rates.size == 0:
        raise ValueError("there are no runs")
    if not (np.isfinite(rates).all() and (rates > 0).all()):
        raise ValueError("a rate must be a finite number above 0; failed runs have no rate")
    logs = np.log(rates)
    mean = float(logs.mean())
    if rates.size == 1:
        return Throughput(float(rates[0]), None, None, 1, None)
    spread = float(logs.std(ddof=1))
    reach = half_width_in_deviations(rates.size) * spread
    return Throughput(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), rates.size, spread)


def half_width_in_deviations(runs: int) -> float:
    """Return the half-width of the 95 % interval of this many runs, in standard deviations between runs."""
    if runs < 2:
        raise ValueError("an interval needs two runs or more")
    return t_quantile(0.5 + CONFIDENCE / 2, runs - 1) / math.sqrt(runs)


def worth_of_runs(n: int) -> str:
    """Say in one sentence what n runs can show."""
    if n < 1:
        raise ValueError(f"the number of runs must be at least 1, got {n}")
    if n == 1:
        return "One run has no interval: how far the next run would differ is unknown; five or more would show it."
    reach = half_width_in_deviations(n)
    sentence = f"{n} runs with a standard deviation of 1 % give an interval of ±{reach:.2g} %"
    if n > 4:
        return f"{sentence} (t({n - 1}) = {t_quantile(0.975, n - 1):.2f})."
    worth = "hardly more than a guess" if n == 2 else "good for large differences only"
    return (
        f"{sentence} (t({n - 1}) = {t_quantile(0.975, n - 1):.2f}), {worth}; "
        f"five would give ±{half_width_in_deviations(5):.2g} %, ten ±{half_width_in_deviations(10):.2g} %."
    )


# --- Choose one window for all runs of an experiment, so that the class of a run does not change what is measured
#
# Where each run is measured over its own steady steps, two runs of one system are measured over different parts: with a
# common heat drift of 3 %, of which change points are found here in one run and there in another, the rates spread by
# 0.35 % instead of 0.10 %. So all runs start at the same second: the latest end of a warm-up among them.
#
# The start is in seconds after the first step, because heat and clocks go by time and arms may have steps of different
# length. It is capped at half of each run. A run whose warm-up ends after half of its time is *late*: it does not move
# the window, it is measured over the same one, and it counts as a bad run of its arm. Where most runs are late, the
# window starts at half of the run. A run that is too short to tell has no known end of warm-up: its half counts.


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimedRun:
    """The step times of a run, its class, where its warm-up ended, and how many samples a step has."""

    step_s: Floats
    kind: Kind
    settled_step: int
    samples_per_step: int
    # Of its time, what pauses added.
    pause_share: float = 0.0

    @property
    def warm_up_s(self) -> float:
        """Return when its warm-up ended, in seconds after the first step."""
        return float(self.step_s[: self.settled_step].sum())

    @property
    def own_first_step(self) -> int:
        """Return the first step that counts where the run is measured by itself."""
        return 0 if self.kind == "no steady state" else self.settled_step

    @property
    def half_s(self) -> float:
        return float(self.step_s.sum()) / 2

    @property
    def late(self) -> bool:
        """Return whether its warm-up ended after half of its time."""
        return self.kind != "too short to tell" and self.warm_up_s > self.half_s


@dataclass(frozen=True)
class Window:
    """One window for some runs: start_s is in seconds after the first step; by is the class of the run that decided it.

    late is how many of the runs were still warming up at half of their time.
    """

    start_s: float
    by: Kind
    runs: int
    late: int = 0

    @property
    def sentence(self) -> str:
        if not self.start_s:
            return f"One window for all {self.runs} runs: from the first step on, because none has a warm-up."
        where = f"One window for all {self.runs} runs: it starts {self.start_s:.3g} s after the first step"
        if self.by == "too short to tell":
            return f"{where}, at half of a run too short to distinguish warm-up from noise."
        if self.by == "no steady state":
            return f"{where}, at half of a run: {self.late} of them were still warming up then."
        late = f"; {self.late} with a longer warm-up did not move it" if self.late else ""
        return f"{where}, where the last {self.by} ended, at half of a run at the latest{late}."


def common_window(runs: Sequence[TimedRun]) -> Window:
    """Return the window of the runs of one experiment."""
    late = sum(run.late for run in runs)
    if 2 * late > len(runs):
        # Then the late ones are the rule: a window that a few odd runs decide would hold the warm-up of most.
        return Window(max(run.half_s for run in runs), "no steady state", len(runs), late)
    ends = [(min(run.warm_up_s, run.half_s), run.kind) for run in runs if not run.late]
    start_s, by = max(ends, key=lambda end: end[0], default=(0.0, "flat"))
    return Window(start_s, by, len(runs), late)


def first_step_in(window: Window, run: TimedRun) -> int:
    """Return the first step of a run that begins within the window, or within the second half of the run."""
    start_s = min(window.start_s, run.half_s)
    begins = np.concatenate(([0.0], np.cumsum(run.step_s)[:-1]))
    # Sums of floats differ in their last digits: a step that begins a millionth early is in.
    inside = np.flatnonzero(begins >= start_s * (1 - 1e-6))
    return int(inside[0]) if inside.size else run.step_s.size - 1


def rate_in(window: Window, run: TimedRun) -> float:
    """Return R = samples / sum of the step times within the window."""
    used = run.step_s[first_step_in(window, run) :]
    total_s = float(used.sum())
    if total_s <= 0:
        raise ValueError("all step times of the measured part are zero")
    return run.samples_per_step * used.size / total_s
