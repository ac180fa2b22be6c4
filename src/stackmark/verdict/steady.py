"""Which steps of a run are the steady ones, and what kind of run it was.

The question is asked because a fixed warm-up (the classic's ten steps) is a guess, and a mean over a run that still
speeds up, or that throttles half-way, is a number about nothing. So the step times are cut where their level or their
spread changes, and the run is put into one of five classes.

How it is cut. A cut into segments costs the sum over segments of m·ln(variance), plus 15·ln(n) for every cut;
segments have at least 10 steps; the cheapest cut of all wins. PELT finds it exactly, but it is a loop in Python over
every step, and on a flat series, the usual one, it prunes nothing: five thousand million costs for 100,000 steps.
Binary segmentation is quick, but it decides one cut at a time and walks past a bump whose two edges cancel. Here the
same optimum as PELT's is found by dynamic programming over at most 500 places where a cut may be: every step for up
to 500 steps, every k-th beyond (all sums are over all steps, only the places are coarse), and then again over the steps
around the cuts that were found. What this can miss is a change that lasts less than 0.2 % of the run.
`benchmarks/steady_state.py` prints what is found, how often it is wrong, and how long it takes.

Three things that the bare rule gets wrong on real step times, and what is done about each:

- A lone step of ten times the usual length (a garbage collection, a cron job) has so much variance that the rule cuts
  ten steps out around it. Lone spikes are therefore clipped before cutting, and in the segments' means. They are not
  clipped in the throughput: the time was spent. Spikes in the first ten steps are no accident but a beginning: where
  they lift those ten above the noise of the rest, the ten are warm-up.
- A cut may separate two spreads with the same mean. Neighbours whose means differ by less than 3 standard errors are
  joined again: only a change of level makes a class.
- A clock that ticks in 0.5 µs gives series of equal values, whose variance is 0 and its logarithm -inf. The variance
  is floored at one tick squared. A step is the difference of two readings, each off by up to a tick, so what
  quantisation itself adds is 2·tick²/12; the floor is six times that, on the side of not seeing what is not there.

What is measured. `flat`: everything. `warm-up`, `slow-down`: the trailing segments within the tolerance of the last,
which are then at least half of the run: the state it ended in is the one a longer run would have stayed in. `no
steady state`: everything, because any smaller part would be picked by looking at the result. `too short to tell`:
the second half, unseen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["flat", "warm-up", "slow-down", "no steady state", "too short to tell"]

MIN_STEPS = 200  # below, a 10 % warm-up at 5 % step CV is mostly missed: benchmarks/steady_state.py prints how often
MIN_SEGMENT = 10  # a variance from fewer steps is too uncertain to take a logarithm of
PENALTY = 15.0  # times ln(n) for each cut: false alarms stay rare under autocorrelated and heavy-tailed noise
TOLERANCE = 0.01  # levels closer than this are called the same, as the default margin of a comparison
_JOIN_Z = 3.0  # neighbours within this many standard errors have the same level
_MAX_PLACES = 500  # 500² costs take some 10 ms; twice as many would find changes of 0.1 % of a run instead of 0.2 %
_ROWS = 32  # costs are made for so many ends at a time: half of the square is never needed, and the part stays in cache
_SPIKE_BLOCK = 20  # two least segments: one spike cannot move the median and the MAD of so many
_SPIKE_SIGMA = 5.0
_SPIKE_REACH = 50  # a spike is lone when this many steps on either side hold at most one other
_SPIKE_COMPANY = 2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """Steps start to stop - 1, which have one level. mean_s and cv leave lone spikes out."""

    start: int
    stop: int
    mean_s: float
    cv: float

    @property
    def steps(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Steady:
    """The class of a run; the steps first_step to the end are measured; note says it in a sentence."""

    kind: Kind
    first_step: int
    segments: tuple[Segment, ...]
    note: str


def checked_steps(step_s: Sequence[float] | Floats) -> Floats:
    """The step times as an array; a ValueError where they cannot be any."""
    steps = np.asarray(step_s, dtype=np.float64)
    if steps.ndim != 1 or steps.size == 0:
        raise ValueError("there are no step times to judge")
    if not np.isfinite(steps).all():
        raise ValueError(f"step {int(np.argmin(np.isfinite(steps)))} has a time that is not a finite number")
    if (steps < 0).any():
        raise ValueError(f"step {int(np.argmax(steps < 0))} has a negative time")
    if not steps.any():
        raise ValueError("all step times are zero")
    return steps


def find_steady(step_s: Sequence[float] | Floats, tick_s: float, tolerance: float = TOLERANCE) -> Steady:
    """Put a run into one of the five classes and say from which step on it is measured.

    tick_s is the resolution of the clock that timed the steps: some 0.5e-6 for CUDA events, 1e-9 for perf_counter.
    """
    steps = checked_steps(step_s)
    n = steps.size
    if n < MIN_STEPS:
        return _too_short(steps)
    calm, spikes = _without_lone_spikes(steps, tick_s)
    cuts = _cuts(calm, tick_s)
    segments = _joined(calm, cuts)
    if (spikes < MIN_SEGMENT).any() or cuts[1] < 2 * MIN_SEGMENT:
        segments = _with_the_beginning_apart(steps, calm, segments)

    last = segments[-1]
    levels = np.array([segment.mean_s for segment in segments]) / last.mean_s - 1.0
    apart = np.abs(levels) > tolerance
    if not apart.any():
        return Steady("flat", 0, segments, f"Flat: all {n} steps are measured.")
    first_step = segments[int(np.flatnonzero(apart)[-1]) + 1].start
    share = (n - first_step) / n
    slowest, fastest = float(levels.max()), float(levels.min())
    if share < 0.5:
        note = (
            f"No steady state: the level at the end held for the last {100 * share:.0f} % of {n} steps only "
            f"(parts before were {_span(fastest, slowest, tolerance)}). The whole run is measured; "
            "it says what happened, not what to expect. Try a longer run, and look at clocks and other processes."
        )
        return Steady("no steady state", 0, segments, note)
    if fastest < -tolerance:
        note = (
            f"Slow-down: a part before the end was {-100 * fastest:.1f} % quicker. Measured are the last "
            f"{n - first_step} of {n} steps, after the slow-down. Look at temperature, clocks and power cap."
        )
        return Steady("slow-down", first_step, segments, note)
    note = (
        f"Warm-up: the first {first_step} of {n} steps hold parts up to {100 * slowest:.1f} % slower than the rest. "
        f"The {n - first_step} steps after them are measured."
    )
    return Steady("warm-up", first_step, segments, note)


def change_points(step_s: Sequence[float] | Floats, tick_s: float) -> tuple[int, ...]:
    """The steps at which a new level begins (without 0), however short the series and however small the change."""
    calm, _ = _without_lone_spikes(checked_steps(step_s), tick_s)
    return tuple(segment.start for segment in _joined(calm, _cuts(calm, tick_s))[1:])


def _too_short(steps: Floats) -> Steady:
    n = steps.size
    first_step = n // 2
    bounds = [0, first_step, n] if first_step else [0, n]
    segments = tuple(_segment(steps, start, stop) for start, stop in pairwise(bounds))
    note = f"Too short to tell a warm-up from noise: {n} {'step' if n == 1 else 'steps'}, {MIN_STEPS} are needed. " + (
        f"The second half ({n - first_step}) is measured." if first_step else "It is measured as it is."
    )
    return Steady("too short to tell", first_step, segments, note)


def _without_lone_spikes(steps: Floats, tick_s: float) -> tuple[Floats, Ints]:
    """The series with lone spikes clipped, and where they were. A spike is judged against its block of 20 steps."""
    n = steps.size
    blocks = max(1, n // _SPIKE_BLOCK)
    width = min(n, _SPIKE_BLOCK)
    tiles = steps[: blocks * width].reshape(blocks, width)
    middles = np.median(tiles, axis=1)
    sigmas = 1.4826 * np.median(np.abs(tiles - middles[:, None]), axis=1)
    block = np.minimum(np.arange(n) // width, blocks - 1)
    middle = middles[block]
    reach = _SPIKE_SIGMA * np.maximum(sigmas, tick_s)[block]
    far = np.abs(steps - middle) > reach
    counted = np.concatenate(([0], np.cumsum(far)))
    index = np.arange(n)
    near = counted[np.minimum(index + _SPIKE_REACH + 1, n)] - counted[np.maximum(index - _SPIKE_REACH, 0)]
    lone = far & (near <= _SPIKE_COMPANY)
    return np.where(lone, np.clip(steps, middle - reach, middle + reach), steps), np.flatnonzero(lone)


class _Sums:
    """Running sums of a series and of its squares: the cost of any segment in constant time."""

    def __init__(self, values: Floats, tick_s: float) -> None:
        centred = values - np.median(values)
        self.first = np.concatenate(([0.0], np.cumsum(centred)))
        self.second = np.concatenate(([0.0], np.cumsum(centred**2)))
        # The second term is the rounding error that such sums can carry; it decides only where tick_s is 0.
        rounding = 16 * np.finfo(np.float64).eps * float(self.second[-1])
        self.floor = max(tick_s**2, rounding, float(np.finfo(np.float64).tiny))

    def cost(self, starts: Ints, stops: Ints) -> Floats:
        """m·ln(variance) for each pair of start and stop; infinite for segments that are too short."""
        steps = np.maximum(stops - starts, 1)
        mean = (self.first[stops] - self.first[starts]) / steps
        variance = (self.second[stops] - self.second[starts]) / steps - mean**2
        cost: Floats = steps * np.log(np.maximum(variance, self.floor))
        return np.where(stops - starts < MIN_SEGMENT, np.inf, cost)


def _cuts(values: Floats, tick_s: float) -> list[int]:
    """The cheapest cut of the series: [0, …, n]. Where steps are more than places, once coarsely, then closer by."""
    n = values.size
    if n < 2 * MIN_SEGMENT:
        return [0, n]
    sums = _Sums(values, tick_s)
    stride = -(-n // _MAX_PLACES)
    cuts = _cheapest(sums, np.append(np.arange(0, n, stride, dtype=np.int64), n))
    while stride > 1 and len(cuts) > 2:
        # A change between two coarse places may have cost two cuts, one on either side: decide anew, not only move.
        closer = -(-2 * stride * len(cuts) // _MAX_PLACES)
        if closer >= stride:
            break
        around = [np.arange(cut - stride, cut + stride + 1, closer, dtype=np.int64) for cut in cuts[1:-1]]
        cuts = _cheapest(sums, np.unique(np.clip(np.concatenate([*around, np.array(cuts)]), 0, n)))
        stride = closer
    return cuts


def _cheapest(sums: _Sums, places: Ints) -> list[int]:
    """The cheapest cut among those at the given places, of which the first is 0 and the last is n."""
    penalty = PENALTY * math.log(int(places[-1]))
    best = np.full(places.size, np.inf)
    best[0] = -penalty
    came_from = np.zeros(places.size, dtype=np.int64)
    for low in range(1, places.size, _ROWS):
        high = min(low + _ROWS, places.size)
        cost = sums.cost(places[None, :high], places[low:high, None])
        for stop in range(low, high):
            totals = best[:stop] + cost[stop - low, :stop]
            came_from[stop] = int(np.argmin(totals))
            best[stop] = totals[came_from[stop]] + penalty
    chosen = [places.size - 1]
    while chosen[-1]:
        chosen.append(int(came_from[chosen[-1]]))
    return [int(places[place]) for place in reversed(chosen)]


def _joined(values: Floats, cuts: list[int]) -> tuple[Segment, ...]:
    """Segments between the cuts, the most alike neighbours joined first, until all neighbours differ in level."""
    segments = [_segment(values, start, stop) for start, stop in pairwise(cuts)]
    while len(segments) > 1:
        distances = [_distance(a, b) for a, b in pairwise(segments)]
        i = int(np.argmin(distances))
        if distances[i] > _JOIN_Z:
            break
        segments[i : i + 2] = [_segment(values, segments[i].start, segments[i + 1].stop)]
    return tuple(segments)


def _distance(a: Segment, b: Segment) -> float:
    """How far two means are apart, in standard errors of their difference."""
    error = math.hypot(a.mean_s * a.cv / math.sqrt(a.steps), b.mean_s * b.cv / math.sqrt(b.steps))
    gap = abs(a.mean_s - b.mean_s)
    return gap / error if error > 0 else (math.inf if gap > 0 else 0.0)


def _segment(values: Floats, start: int, stop: int) -> Segment:
    part = values[start:stop]
    mean = float(part.mean())
    deviation = float(part.std(ddof=1)) if part.size > 1 else 0.0
    return Segment(start, stop, mean, deviation / mean if mean > 0 else 0.0)


def _with_the_beginning_apart(steps: Floats, calm: Floats, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The first ten steps as they were, spikes and all, as a segment of their own, where they stand out of the noise.

    The noise is that of the rest: their own, which a spike makes as large as their distance, would hide it.
    """
    first = segments[0]
    if first.stop < 2 * MIN_SEGMENT:  # the beginning is apart already
        return segments
    beginning, rest = _segment(steps, 0, MIN_SEGMENT), _segment(calm, MIN_SEGMENT, first.stop)
    if beginning.mean_s - rest.mean_s < _JOIN_Z * rest.cv * rest.mean_s / math.sqrt(MIN_SEGMENT):
        return segments
    return (beginning, rest, *segments[1:])


def _span(fastest: float, slowest: float, tolerance: float) -> str:
    """'3.0 % quicker', '2.0 % slower', or both."""
    parts = []
    if fastest < -tolerance:
        parts.append(f"up to {-100 * fastest:.1f} % quicker")
    if slowest > tolerance:
        parts.append(f"up to {100 * slowest:.1f} % slower")
    return " and ".join(parts)
