"""The statistics of tf_cnn_benchmarks, exactly as it computes them.

People know the line `images/sec: 139.6 +/- 0.1 (jitter = 0.3)`, and scripts parse it; it is kept beside our own rate,
with its formulas, not ours. What they mean, since the program does not say it (`get_perf_timing`): the rate is
batch / mean(step time) over all steps since warm-up, cumulative at each row; "+/-" is the standard error of the mean of the
per-step rates (ddof 0): it takes steps for independent and says nothing about the next run; jitter is 1.4826 times the
median absolute deviation of the per-step rates, a robust standard deviation, which a few slow steps do not move.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.steady import checked_steps

MAD_TO_SIGMA = 1.4826  # the digits that the program uses


class ClassicStats(NamedTuple):
    """In samples per second, all three."""

    speed_mean: float
    uncertainty: float
    jitter: float


def classic_line_stats(step_s: Sequence[float], batch: int, ewma: float | None = None) -> ClassicStats:
    """tf_cnn_benchmarks' rate, '+/-' and jitter of all steps since warm-up.

    ewma is its --display_perf_ewma: the weight of the latest step in an exponentially weighted mean of step times.
    None and 0 both mean the plain mean, as in the original.
    """
    times, speeds = _times_and_speeds(step_s, batch)
    if ewma is not None and not 0.0 <= ewma <= 1.0:
        raise ValueError(f"the weight of the latest step lies between 0 and 1, not {ewma}")
    if ewma:
        weights = (1.0 - ewma) ** np.arange(times.size - 1, -1, -1, dtype=np.float64)
        mean_s = float(np.average(times, weights=weights))
    else:
        mean_s = float(times.mean())
    return ClassicStats(batch / mean_s, float(speeds.std(ddof=0)) / math.sqrt(speeds.size), _jitter(speeds))


def classic_row(step: int, stats: ClassicStats, loss: float, accuracies: tuple[float, float] | None = None) -> str:
    """A row as tf_cnn_benchmarks prints it, without the line's end; top-1 and top-5 accuracy where they are shown."""
    columns = [str(step), f"images/sec: {_three(stats)}", f"{loss:.3f}"]
    if accuracies is not None:
        columns += [f"{accuracy:.3f}" for accuracy in accuracies]
    return "\t".join(columns)


def _three(stats: ClassicStats) -> str:
    return f"{stats.speed_mean:.1f} +/- {stats.uncertainty:.1f} (jitter = {stats.jitter:.1f})"


def _times_and_speeds(step_s: Sequence[float], batch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    times = checked_steps(step_s)
    if batch <= 0:
        raise ValueError(f"a batch has at least one sample, not {batch}")
    if not times.all():
        raise ValueError("a step of no time has no rate")
    return times, batch / times


def _jitter(speeds: NDArray[np.float64]) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(speeds - np.median(speeds))))
