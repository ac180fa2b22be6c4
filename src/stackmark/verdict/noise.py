"""Compute the noise floor: what an A/A experiment shows about every other experiment on this machine.

Two equal arms, the protocol of a comparison. What is left between the blocks (s_d) decides how small a margin can be, and how
many blocks it takes; the clock on the wall says what a block costs. Both together are the price of a margin in minutes.

The numbers hold where there is no difference and nine experiments of ten shall say so. s_d is itself an estimate: from six
blocks it may be half or twice of what it really is. So its upper bound (95 %, one-sided) is given with it, and what is promised
is computed from an upper bound of 80 %, with which nine of ten promises come true (needed.py).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from stackmark.verdict.comparison import MOST_MARGIN
from stackmark.verdict.examined import Examined, ExaminedRun
from stackmark.verdict.needed import FORECAST_LEVEL, count_needed, is_practical, sd_upper, smallest_margin

MARGINS = (0.005, 0.01, 0.02, 0.05)
# Where none of those can be had, the first of these that can; `compare` takes all of them.
WIDER_MARGINS = (0.1, 0.2, 0.3, 0.4)
# The widest margin that `compare` takes, as it would be printed: 50 % is none.
WIDEST = MOST_MARGIN - 0.0005
# Two arms make a whole design in two blocks.
WHOLE = 2
# A longer pause between two blocks was somebody's, not the protocol's.
LONGEST_GAP_S = 600.0


@dataclass(frozen=True)
class MarginCost:
    """The cost of a verdict at this margin, where there is no difference. None where thousands of blocks would not suffice."""

    margin: float
    blocks: int | None
    seconds: float | None

    @property
    def is_practical(self) -> bool:
        return self.blocks is not None and is_practical(self.blocks, self.seconds)


@dataclass(frozen=True)
class NoiseFloor:
    """The noise of this machine. Spreads are of ln R, which is a share. `block_s` is one run of each arm with all overhead."""

    blocks: int
    sd_runs: float | None
    sd_blocks: float
    sd_blocks_most: float | None
    # What forecasts take it for; without it, from fewer than four blocks, nothing is promised.
    sd_blocks_planned: float | None
    # None also where `compare` takes none that is wide enough.
    smallest_margin: float | None
    block_s: float | None
    # Where a block's time goes, in seconds.
    parts: tuple[tuple[str, float], ...]
    costs: tuple[MarginCost, ...]
    # A/A, and yet a difference was named: one in twenty is, by chance.
    differs: bool


def noise_floor(examined: Examined) -> NoiseFloor | None:
    """Compute the noise floor; None with fewer than two blocks."""
    comparison = next((c for c in examined.comparisons if c.kind == "blocks" and c.sd_log is not None), None)
    if comparison is None or comparison.sd_log is None or comparison.count_b < 2:
        return None
    sd, blocks = comparison.sd_log, comparison.count_b
    block_s = block_seconds(examined.runs)
    planned = sd_upper(sd, blocks - 1, FORECAST_LEVEL)
    smallest = smallest_margin(planned, blocks) if planned is not None else None
    spreads = [arm.throughput.cv for arm in examined.arms if arm.throughput and arm.throughput.cv is not None]
    return NoiseFloor(
        blocks=blocks,
        sd_runs=math.sqrt(fmean(spread**2 for spread in spreads)) if spreads else None,
        sd_blocks=sd,
        sd_blocks_most=sd_upper(sd, blocks - 1),
        sd_blocks_planned=planned,
        smallest_margin=smallest if smallest is not None and smallest < WIDEST else None,
        block_s=block_s,
        parts=block_parts(examined.runs, block_s),
        costs=margin_costs(planned, block_s) if planned is not None else (),
        differs=comparison.difference is not None,
    )


def margin_costs(sd: float, block_s: float | None) -> tuple[MarginCost, ...]:
    """Return the price of the usual margins, and where none can be paid, of wider ones up to the first that can."""
    costs: list[MarginCost] = []
    for margin in (*MARGINS, *WIDER_MARGINS):
        if margin not in MARGINS and any(cost.is_practical for cost in costs):
            break
        count = count_needed(0.0, sd, margin, multiple=WHOLE)
        costs.append(MarginCost(margin, count, count * block_s if count is not None and block_s is not None else None))
    return tuple(costs)


def block_seconds(runs: Sequence[ExaminedRun]) -> float | None:
    """Return the wall time of a block."""
    return median_block_s(
        (run.block, run.started_unix_s, run.ended_unix_s)
        for run in runs
        if run.counted and run.block is not None and run.ended_unix_s is not None
    )


def median_block_s(runs: Iterable[tuple[int, float, float]]) -> float | None:
    """Return the median of what blocks took and of the pauses between them, from each run's block, start and end."""
    found: dict[int, tuple[float, float]] = {}
    for block, started, ended in runs:
        begin, end = found.get(block, (math.inf, -math.inf))
        found[block] = (min(begin, started), max(end, ended))
    spans = sorted(found.values())
    if not spans:
        return None
    pauses = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    usual = [pause for pause in pauses if 0 <= pause < LONGEST_GAP_S]
    return median(end - begin for begin, end in spans) + (median(usual) if usual else 0.0)


def block_parts(runs: Sequence[ExaminedRun], block_s: float | None) -> tuple[tuple[str, float], ...]:
    """Return where the time of a block goes: set-up, the measured steps, and the rest (warm-up, pauses, ending)."""
    counted = [run for run in runs if run.counted and run.block is not None]
    blocks = len({run.block for run in counted})
    if not blocks or block_s is None:
        return ()
    setup_s = sum((run.start_s or 0.0) + sum(seconds for _, seconds in run.setup) for run in counted) / blocks
    measured_s = sum(sum(run.step_s) for run in counted) / blocks
    rest_s = max(0.0, block_s - setup_s - measured_s)
    return (("set-up", setup_s), ("measured steps", measured_s), ("warm-up, pauses and shutdown", rest_s))
