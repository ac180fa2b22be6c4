"""How the ratio of two arms moved with a covariate from block to block: the load of others, a clock, a temperature.

That is association and no cause: a container may cause the load that it meets. So it is printed next to a verdict, never as one,
and over eight blocks or more: fewer cannot tell the covariate's part from the arms' part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stackmark.verdict.student import t_quantile

LEAST_BLOCKS = 8
CONFIDENCE = 0.95
# A covariate that moves by less than this share of its value between blocks explains nothing.
LEAST_MOVEMENT = 1e-6


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
