"""Which blocks were disturbed by other programs, and what moved with the ratio.

Other programs' use of the CPUs and of the GPU is measured in every run. A run is disturbed where it met clearly more of it than
its arm usually does; its block is measured again, and the verdict is computed with and without the disturbed blocks
(METHOD: "Interference"). What cannot be repeated can be looked at: over eight blocks or more, how the difference between the arms
moved with the difference in load, clock or temperature. That is association: a container may cause the load that it meets.

On a machine with a busy neighbour ln R correlated with its load by -0.99, so this is the first thing to look at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stackmark.verdict.student import t_quantile

# A run is disturbed beyond what is usual plus this: less cannot be told from a timer's tick on two cores, and on a hundred
# cores a quarter of one is nothing.
LEAST_CPUS, SHARE_OF_CORES = 0.25, 0.02
# So many runs of an arm have a median worth the name; before that the idle machine is what is usual.
LEAST_RUNS = 3
# Disturbed blocks are measured again, up to this share of the blocks that were planned.
EXTRA_SHARE = 0.5
# Fewer blocks cannot tell the load's part from the arms' part.
LEAST_BLOCKS = 8
CONFIDENCE = 0.95
# A covariate that moves by less than this share of its value between blocks explains nothing.
LEAST_MOVEMENT = 1e-6


@dataclass(frozen=True)
class Load:
    """What one run met: CPUs that other programs kept busy, and other programs on its GPU; None where nobody could tell."""

    arm: int
    block: int
    attempt: int
    other_cpus: float | None = None
    other_gpu_processes: float | None = None


@dataclass(frozen=True)
class Disturbance:
    """One run that met more than usual, and how much more."""

    arm: int
    block: int
    attempt: int
    sentence: str


def allowance_cpus(cores: int) -> float:
    """Return how many more busy CPUs than usual a run may meet."""
    return max(LEAST_CPUS, SHARE_OF_CORES * cores)


def disturbances(loads: Sequence[Load], cores: int, idle_cpus: float | None = None) -> list[Disturbance]:
    """Return the runs that met clearly more than what is usual for their arm. `idle_cpus` was measured before the first run."""
    found = []
    for load in loads:
        if load.other_gpu_processes:
            found.append(_disturbed(load, "another program used its GPU"))
            continue
        usual = _usual(loads, load.arm, idle_cpus)
        if load.other_cpus is None or usual is None or load.other_cpus - usual <= allowance_cpus(cores):
            continue
        found.append(_disturbed(load, f"other programs kept {load.other_cpus:.2f} CPUs busy, usually {usual:.2f}"))
    return found


def _disturbed(load: Load, sentence: str) -> Disturbance:
    return Disturbance(load.arm, load.block, load.attempt, sentence)


def _usual(loads: Sequence[Load], arm: int, idle_cpus: float | None) -> float | None:
    """Return an arm's own median; before it has one, the idle machine's value, or the least of all where that is unknown."""
    own = [load.other_cpus for load in loads if load.arm == arm and load.other_cpus is not None]
    if len(own) >= LEAST_RUNS:
        return median(own)
    if idle_cpus is not None:
        return idle_cpus
    every = [load.other_cpus for load in loads if load.other_cpus is not None]
    return min(every) if len(every) >= 2 else None


def most_extra_blocks(planned: int) -> int:
    """Return how many disturbed blocks may be measured again."""
    return math.floor(EXTRA_SHARE * planned)


@dataclass(frozen=True)
class Association:
    """How the ratio moved with a covariate: per block d = ln R_b − ln R_a against the difference of the covariate.

    `adjusted` is the ratio where both arms met the same; `slope` is the change of ln R for one unit more of the covariate.
    """

    blocks: int
    correlation: float
    slope: float
    slope_low: float
    slope_high: float
    adjusted: float
    adjusted_low: float
    adjusted_high: float

    @property
    def clear(self) -> bool:
        """Return whether the slope's interval excludes 0."""
        return self.slope_low > 0 or self.slope_high < 0


def association(log_ratios: Sequence[float], moved: Sequence[float]) -> Association | None:
    """Fit a straight line through blocks; None where there are too few, or the covariate did not move."""
    d, x = np.asarray(log_ratios, dtype=np.float64), np.asarray(moved, dtype=np.float64)
    if d.size != x.size or d.size < LEAST_BLOCKS or not (np.isfinite(d).all() and np.isfinite(x).all()):
        return None
    spread = float(((x - x.mean()) ** 2).sum())
    if spread <= (LEAST_MOVEMENT * max(1.0, float(np.abs(x).max()))) ** 2 or float(d.std()) == 0.0:
        return None
    slope = float(((x - x.mean()) * (d - d.mean())).sum()) / spread
    intercept = float(d.mean()) - slope * float(x.mean())
    rest = d - intercept - slope * x
    variance = float((rest**2).sum()) / (d.size - 2)
    quantile = t_quantile(0.5 + CONFIDENCE / 2, d.size - 2)
    reach_slope = quantile * math.sqrt(variance / spread)
    reach = quantile * math.sqrt(variance * (1 / d.size + float(x.mean()) ** 2 / spread))
    return Association(
        blocks=d.size,
        correlation=float(np.corrcoef(d, x)[0, 1]),
        slope=slope,
        slope_low=slope - reach_slope,
        slope_high=slope + reach_slope,
        adjusted=_exp(intercept),
        adjusted_low=_exp(intercept - reach),
        adjusted_high=_exp(intercept + reach),
    )


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
