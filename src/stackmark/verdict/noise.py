"""The noise floor: what an A/A experiment tells about every other experiment on this machine.

Two equal arms, the protocol of a comparison. What is left between the blocks (s_d) decides how small a margin can be, and how
many blocks it takes; the clock on the wall says what a block costs. Both together are the price of a margin in minutes.

The numbers hold where there is no difference and nine experiments of ten shall say so. s_d is itself an estimate: from six
blocks it may be half or twice of what it really is, so its upper bound (95 %, one-sided) is given beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from stackmark.verdict.examined import Examined, ExaminedRun
from stackmark.verdict.needed import count_needed, smallest_margin
from stackmark.verdict.student import normal_quantile

MARGINS = (0.005, 0.01, 0.02, 0.05)
# Two arms make a whole design in two blocks.
WHOLE = 2
# A longer pause between two blocks was somebody's, not the protocol's.
LONGEST_GAP_S = 600.0
# Wilson and Hilferty's quantile is off by 3 % in s_d at 3 degrees of freedom, and by far more below.
LEAST_DF = 3


@dataclass(frozen=True)
class MarginCost:
    """What a verdict at this margin takes, where there is no difference. None where thousands of blocks would not do."""

    margin: float
    blocks: int | None
    seconds: float | None


@dataclass(frozen=True)
class NoiseFloor:
    """Spreads are of ln R, which is a share. `block_s` is one run of each arm with all that surrounds it."""

    blocks: int
    sd_runs: float | None
    sd_blocks: float
    sd_blocks_most: float | None
    smallest_margin: float
    block_s: float | None
    # Where a block's time goes, in seconds.
    parts: tuple[tuple[str, float], ...]
    costs: tuple[MarginCost, ...]
    # A/A, and yet a difference was named: one in twenty is, by chance.
    differs: bool


def noise_floor(examined: Examined, margins: Sequence[float] = MARGINS) -> NoiseFloor | None:
    """None where there are not two blocks to see a spread in."""
    comparison = next((c for c in examined.comparisons if c.kind == "blocks" and c.sd_log is not None), None)
    if comparison is None or comparison.sd_log is None or comparison.count_b < 2:
        return None
    sd, blocks = comparison.sd_log, comparison.count_b
    block_s = block_seconds(examined.runs)
    costs = []
    for margin in margins:
        count = count_needed(0.0, sd, margin, multiple=WHOLE)
        costs.append(MarginCost(margin, count, count * block_s if count is not None and block_s is not None else None))
    spreads = [arm.throughput.cv for arm in examined.arms if arm.throughput and arm.throughput.cv is not None]
    return NoiseFloor(
        blocks=blocks,
        sd_runs=math.sqrt(fmean(spread**2 for spread in spreads)) if spreads else None,
        sd_blocks=sd,
        sd_blocks_most=sd_upper(sd, blocks - 1),
        smallest_margin=smallest_margin(sd, blocks),
        block_s=block_s,
        parts=block_parts(examined.runs, block_s),
        costs=tuple(costs),
        differs=comparison.difference is not None,
    )


def sd_upper(sd: float, df: int, level: float = 0.05) -> float | None:
    """What the true standard deviation is below, with 95 % confidence; None from too few."""
    if df < LEAST_DF:
        return None
    step = 2.0 / (9.0 * df)
    quantile = df * (1.0 - step + normal_quantile(level) * math.sqrt(step)) ** 3
    return sd * math.sqrt(df / quantile)


def block_seconds(runs: Sequence[ExaminedRun]) -> float | None:
    """The wall time of a block: the median of what they took, and of the pauses between them."""
    spans = sorted(_spans(runs).values())
    if not spans:
        return None
    pauses = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    usual = [pause for pause in pauses if 0 <= pause < LONGEST_GAP_S]
    return median(end - begin for begin, end in spans) + (median(usual) if usual else 0.0)


def _spans(runs: Sequence[ExaminedRun]) -> dict[int, tuple[float, float]]:
    spans: dict[int, tuple[float, float]] = {}
    for run in runs:
        if run.counted and run.block is not None and run.ended_unix_s is not None:
            begin, end = spans.get(run.block, (math.inf, -math.inf))
            spans[run.block] = (min(begin, run.started_unix_s), max(end, run.ended_unix_s))
    return spans


def block_parts(runs: Sequence[ExaminedRun], block_s: float | None) -> tuple[tuple[str, float], ...]:
    """Where the time of a block goes: set-up, the measured steps, and the rest (warm-up, pauses, ending)."""
    counted = [run for run in runs if run.counted and run.block is not None]
    blocks = len({run.block for run in counted})
    if not blocks or block_s is None:
        return ()
    setup_s = sum((run.start_s or 0.0) + sum(seconds for _, seconds in run.setup) for run in counted) / blocks
    measured_s = sum(sum(run.step_s) for run in counted) / blocks
    rest_s = max(0.0, block_s - setup_s - measured_s)
    return (("set-up", setup_s), ("measured steps", measured_s), ("warm-up, pauses and ending", rest_s))
