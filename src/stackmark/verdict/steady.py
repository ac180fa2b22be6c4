"""Find the steady steps of a run and put the run into one of five classes.

A fixed warm-up (the classic's ten steps) is a guess, and a mean over a run that still speeds up, or that throttles
half-way, describes no state at all. So the step times are cut where their level changes.

How it is cut. A cut into segments costs the sum over segments of m·ln(variance), plus 15·ln(n) for every cut;
segments have at least 10 steps; the cheapest cut of all wins. PELT finds it exactly, but it is a loop in Python over
every step, and on a flat series, the usual one, it prunes nothing: five thousand million costs for 100,000 steps.
Binary segmentation is quick, but it decides one cut at a time and misses a bump whose two edges cancel. Here the
same optimum as PELT's is found by dynamic programming over at most 500 places where a cut may be: every step for up
to 500 steps, every k-th beyond (all sums are over all steps, only the places are coarse), and then again over the steps
around the cuts that were found. This can miss a change that lasts less than 0.2 % of the run.
`benchmarks/steady_state.py` prints what is found, how often it is wrong, and how long it takes.

The bare rule is wrong about real step times in four ways:

- **Pauses.** A step of ten times the usual length (a checkpoint, a garbage collection) has so much variance that the
  rule cuts ten steps out around it. Pauses, one or two long steps in a row, are replaced by the usual step before
  cutting. Whether they come more often in one part of the run than in another is a test of its own, on their number:
  the same search with the cost of a Bernoulli series. A run with a checkpoint every 50 steps is `flat`; one whose
  stalls end after 300 steps has a warm-up. The throughput counts every pause: the time was spent.
- **The first ten steps.** Pauses among them are a beginning, unless the rest of the run has as many and as long ones:
  where they lift those ten above the noise of the rest, the ten are warm-up.
- **Spread.** A cut may separate two spreads with the same level. The level of a segment is its median; neighbours
  whose medians differ by less than 3 standard errors are joined again.
- **Ticks.** A clock that ticks in 0.5 µs gives series of equal values, whose variance is 0 and its logarithm -inf. The
  variance is floored at one tick squared. A step is the difference of two readings, each off by up to a tick, so what
  quantisation itself adds is 2·tick²/12; the floor is six times that, on the side of seeing too little. A median is
  interpolated within its tick, or it would jump by a whole one.

What is measured. `flat`: everything. `warm-up`, `slow-down`: the trailing segments, which are at least half of the run:
the state it ended in is the one a longer run would have stayed in. After a warm-up these begin where the level is within
0.1 % of the last one, or at half of the run if that comes first: the tail of a slow warm-up would otherwise pull the rate
down. `no steady state`: everything, because any smaller part would be picked by looking at the result. `too short to
tell`: the second half, unseen. The runs of one experiment are then measured over one common window (throughput.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from stackmark.units import counted

Kind = Literal["flat", "warm-up", "slow-down", "no steady state", "too short to tell"]

MIN_STEPS = 200  # below, a 10 % warm-up at 5 % step CV is mostly missed: benchmarks/steady_state.py prints how often
MIN_SEGMENT = 10  # a variance from fewer steps is too uncertain to take a logarithm of
PENALTY = 15.0  # times ln(n) for each cut: false alarms stay rare under autocorrelated and heavy-tailed noise
TOLERANCE = 0.01  # levels closer than this are called the same, as the default margin of a comparison
SETTLED = 0.001  # a warm-up is over where the level is this close to the last: a tenth of the tolerance
_PAUSE_PENALTY = 4.0  # times ln(n): pauses are counted, and a count has no tails to be mistaken for a change
_JOIN_Z = 3.0  # neighbours within this many standard errors have the same level
_BEGIN_Z = 5.0  # the first ten steps differ from the rest: more than 3, since steps may hang together
_MEDIAN_ERROR = 1.2533  # √(π/2): how much more a median of normal noise scatters than a mean
_MAX_PLACES = 500  # 500² costs take some 10 ms; twice as many would find changes of 0.1 % of a run instead of 0.2 %
_ROWS = (
    32  # costs are made for this many ends at a time: half of the square is never needed, and the part stays in cache
)
_SPIKE_BLOCK = 20  # two least segments: one spike cannot move the median and the MAD of this many
_SPIKE_SIGMA = 5.0
_SPIKE_ROW = 2  # more far steps in a row than this are a level, not a pause
PAUSE_TIMES = 1.5  # a step this many times the usual one is reported as a pause; shorter ones look like noise
PAUSE_SHARE = 0.01  # pauses that take more of the time than this are a flag

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """Steps start to stop - 1, which have one level and one rate of pauses.

    level_s is the median step, pauses_s what pauses add to a step on average in this part of the run.
    """

    start: int
    stop: int
    level_s: float
    cv: float
    pauses_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """Return what a step takes here on average, pauses included."""
        return self.level_s + self.pauses_s

    @property
    def steps(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Pauses:
    """The long steps of a run: how many, which share of its time they add, and every how many steps they come.

    every is None where they do not come at regular intervals.
    """

    count: int
    share: float
    every: int | None

    @property
    def sentence(self) -> str:
        often = f", one every {self.every} steps" if self.every else ""
        return f"{counted(self.count, 'pause')}{often}, took {100 * self.share:.2g} % of the time."


@dataclass(frozen=True)
class Steady:
    """The class of a run; the steps first_step to the end are measured; note says it in a sentence.

    settled_step is where warm-up ended. It is first_step, except in a run without a steady state that only got quicker: its
    warm-up ended after half of the run, and the whole run is measured.
    """

    kind: Kind
    first_step: int
    segments: tuple[Segment, ...]
    note: str
    settled_step: int
    pauses: Pauses | None = None


def checked_steps(step_s: Sequence[float] | Floats) -> Floats:
    """Return the step times as an array; raise ValueError where they cannot be step times."""
    steps = np.asarray(step_s, dtype=np.float64)
    if steps.ndim != 1 or steps.size == 0:
        raise ValueError("there are no step times")
    if not np.isfinite(steps).all():
        raise ValueError(f"step {int(np.argmin(np.isfinite(steps)))} has a time that is not a finite number")
    if (steps < 0).any():
        raise ValueError(f"step {int(np.argmax(steps < 0))} has a negative time")
    if not steps.any():
        raise ValueError("all step times are zero")
    return steps


def find_steady(step_s: Sequence[float] | Floats, tick_s: float) -> Steady:
    """Put a run into one of the five classes and say from which step on it is measured.

    tick_s is the resolution of the clock that timed the steps: some 0.5e-6 for CUDA events, 1e-9 for perf_counter.
    """
    steps = checked_steps(step_s)
    n = steps.size
    if n < MIN_STEPS:
        return _too_short(steps)
    parts = _parted(steps, tick_s)
    segments, pauses = _segments(steps, parts, tick_s), _pauses(steps, parts)
    steady = _class(segments, n)
    return replace(steady, note=f"{steady.note} {pauses.sentence}", pauses=pauses) if pauses else steady


def _class(segments: tuple[Segment, ...], n: int) -> Steady:
    levels = np.array([segment.cost_s for segment in segments]) / segments[-1].cost_s - 1.0
    apart = np.abs(levels) > TOLERANCE
    if not apart.any():
        return Steady("flat", 0, segments, f"Flat: all {n} steps are measured.", 0)
    first_step = segments[int(np.flatnonzero(apart)[-1]) + 1].start
    share = (n - first_step) / n
    slowest, fastest = float(levels.max()), float(levels.min())
    if share < 0.5:
        note = (
            f"No steady state: the final level lasted for only {100 * share:.0f} % of {n} steps "
            f"(earlier parts were {_span(fastest, slowest)}). The whole run is measured; "
            "the rate says what happened, not what to expect. Try a longer run; look at clocks and other processes."
        )
        return Steady("no steady state", 0, segments, note, 0 if fastest < -TOLERANCE else first_step)
    if fastest < -TOLERANCE:
        note = (
            f"Slow-down: an earlier part was {-100 * fastest:.1f} % faster. Measured: the last "
            f"{n - first_step} of {n} steps, after the slow-down. Look at temperature, clocks and power cap."
        )
        return Steady("slow-down", first_step, segments, note, first_step)
    settled = segments[int(np.flatnonzero(np.abs(levels) > SETTLED)[-1]) + 1].start
    first_step = max(first_step, min(settled, n // 2))
    note = (
        f"Warm-up: the first {first_step} of {n} steps were up to {100 * slowest:.1f} % slower than the rest. "
        f"The {n - first_step} steps after them are measured."
    )
    return Steady("warm-up", first_step, segments, note, first_step)


def change_points(step_s: Sequence[float] | Floats, tick_s: float) -> tuple[int, ...]:
    """Find the steps at which a new level begins (without 0), however short the series and however small the change."""
    steps = checked_steps(step_s)
    parts = _parted(steps, tick_s)
    return tuple(sorted({*_level_cuts(parts, tick_s)[1:-1], *_pause_cuts(parts)[1:-1]}))


def _too_short(steps: Floats) -> Steady:
    n = steps.size
    first_step = n // 2
    bounds = [0, first_step, n] if first_step else [0, n]
    segments = tuple(_segment(steps, start, stop, 0.0) for start, stop in pairwise(bounds))
    note = f"Too short to tell a warm-up from noise: {n} {'step' if n == 1 else 'steps'}, {MIN_STEPS} are needed. " + (
        f"The second half ({n - first_step}) is measured." if first_step else "It is measured as it is."
    )
    return Steady("too short to tell", first_step, segments, note, first_step)


@dataclass(frozen=True)
class _Parts:
    """A series taken apart: its usual steps with pauses replaced, where pauses were, and what each added in seconds."""

    calm: Floats
    is_pause: NDArray[np.bool_]
    added_s: Floats


def _parted(steps: Floats, tick_s: float) -> _Parts:
    """Take the pauses out. A step is judged against its block of 20 steps and the blocks next to it.

    The neighbours are asked so that the edge of a change of level, one or two steps into a block, is not a pause.
    """
    n = steps.size
    blocks, width = max(1, n // _SPIKE_BLOCK), min(n, _SPIKE_BLOCK)
    tiles = steps[: blocks * width].reshape(blocks, width)
    middles = np.median(tiles, axis=1)
    sigmas = 1.4826 * np.median(np.abs(tiles - middles[:, None]), axis=1)
    block = np.minimum(np.arange(n) // width, blocks - 1)
    reach = _SPIKE_SIGMA * np.maximum(sigmas, tick_s)[block]
    far = np.ones(n, dtype=np.bool_)
    for other in (block, np.maximum(block - 1, 0), np.minimum(block + 1, blocks - 1)):
        far &= np.abs(steps - middles[other]) > reach
    alone = far & (_row_lengths(far) <= _SPIKE_ROW)
    middle = middles[block]
    is_pause = alone & (steps > middle)
    return _Parts(np.where(alone, middle, steps), is_pause, np.where(is_pause, steps - middle, 0.0))


def _row_lengths(flags: NDArray[np.bool_]) -> Ints:
    """For each place how many equal flags stand in a row there."""
    edges = np.flatnonzero(np.diff(flags)) + 1
    lengths = np.diff(np.concatenate(([0], edges, [flags.size])))
    return np.repeat(lengths, lengths)


def _pauses(steps: Floats, parts: _Parts) -> Pauses | None:
    """Count the pauses that are worth a word; None without any."""
    usual = float(np.median(parts.calm))
    where = np.flatnonzero(parts.is_pause & (steps > PAUSE_TIMES * usual))
    if where.size == 0:
        return None
    gaps = np.diff(where)
    regular = where.size >= 4 and float(gaps.std()) < 0.1 * float(gaps.mean())
    share = float(parts.added_s[where].sum() / steps.sum())
    return Pauses(int(where.size), share, round(float(gaps.mean())) if regular else None)


class _Costs(Protocol):
    """What a segment costs, for arrays of starts and stops that are broadcast; infinite where it is too short."""

    def cost(self, starts: Ints, stops: Ints) -> Floats: ...


class _Counts:
    """The cost of a segment of a series of pauses: −2·ln of its likelihood with one rate of pauses."""

    def __init__(self, is_pause: NDArray[np.bool_]) -> None:
        self.before = np.concatenate(([0], np.cumsum(is_pause)))

    def cost(self, starts: Ints, stops: Ints) -> Floats:
        steps = np.maximum(stops - starts, 1)
        share = (self.before[stops] - self.before[starts]) / steps
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(share * np.log(share)) - np.nan_to_num((1 - share) * np.log1p(-share))
        return np.where(stops - starts < MIN_SEGMENT, np.inf, 2.0 * steps * entropy)


def _pause_cuts(parts: _Parts) -> list[int]:
    """Where pauses begin to come more often or less often: [0, …, n]."""
    n = parts.calm.size
    if n < 2 * MIN_SEGMENT or not parts.is_pause.any():
        return [0, n]
    return _search(_Counts(parts.is_pause), n, _PAUSE_PENALTY)


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
        """Compute m·ln(variance) for each pair of start and stop; infinite for segments that are too short."""
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
    return _search(_Sums(values, tick_s), n, PENALTY)


def _search(costs: _Costs, n: int, penalty: float) -> list[int]:
    stride = -(-n // _MAX_PLACES)
    cuts = _cheapest(costs, np.append(np.arange(0, n, stride, dtype=np.int64), n), penalty)
    while stride > 1 and len(cuts) > 2:
        # A change between two coarse places may have cost two cuts, one on either side: decide again, not only move.
        closer = -(-2 * stride * len(cuts) // _MAX_PLACES)
        if closer >= stride:
            break
        around = [np.arange(cut - stride, cut + stride + 1, closer, dtype=np.int64) for cut in cuts[1:-1]]
        cuts = _cheapest(costs, np.unique(np.clip(np.concatenate([*around, np.array(cuts)]), 0, n)), penalty)
        stride = closer
    return cuts


def _cheapest(costs: _Costs, places: Ints, penalty: float) -> list[int]:
    """The cheapest cut among those at the given places, of which the first is 0 and the last is n."""
    penalty *= math.log(int(places[-1]))
    best = np.full(places.size, np.inf)
    best[0] = -penalty
    came_from = np.zeros(places.size, dtype=np.int64)
    for low in range(1, places.size, _ROWS):
        high = min(low + _ROWS, places.size)
        cost = costs.cost(places[None, :high], places[low:high, None])
        for stop in range(low, high):
            totals = best[:stop] + cost[stop - low, :stop]
            came_from[stop] = int(np.argmin(totals))
            best[stop] = totals[came_from[stop]] + penalty
    chosen = [places.size - 1]
    while chosen[-1]:
        chosen.append(int(came_from[chosen[-1]]))
    return [int(places[place]) for place in reversed(chosen)]


def _level_cuts(parts: _Parts, tick_s: float) -> list[int]:
    """Where the level of the calm series changes: its cuts, less those between neighbours of one level."""
    cuts = _cuts(parts.calm, tick_s)
    segments = [_segment(parts.calm, start, stop, tick_s) for start, stop in pairwise(cuts)]
    while len(segments) > 1:
        distances = [_distance(a, b) for a, b in pairwise(segments)]
        i = int(np.argmin(distances))
        if distances[i] > _JOIN_Z:
            break
        segments[i : i + 2] = [_segment(parts.calm, segments[i].start, segments[i + 1].stop, tick_s)]
    return [0, *(segment.stop for segment in segments)]


def _segments(steps: Floats, parts: _Parts, tick_s: float) -> tuple[Segment, ...]:
    """The run in parts of one level and one rate of pauses."""
    levels, pauses = _level_cuts(parts, tick_s), _pause_cuts(parts)
    found = []
    for start, stop in pairwise(sorted({*levels, *pauses})):
        level = _around(levels, start)
        usual = _segment(parts.calm, *level, tick_s)
        added = float(parts.added_s[slice(*_around(pauses, start))].mean())
        found.append(Segment(start, stop, usual.level_s, usual.cv, added))
    return _with_the_beginning_apart(steps, parts, tuple(found))


def _around(cuts: Sequence[int], step: int) -> tuple[int, int]:
    """The two neighbouring cuts with the step between them."""
    return next((start, stop) for start, stop in pairwise(cuts) if start <= step < stop)


def _distance(a: Segment, b: Segment) -> float:
    """How far two levels are apart, in standard errors of their difference."""
    error = _MEDIAN_ERROR * math.hypot(a.level_s * a.cv / math.sqrt(a.steps), b.level_s * b.cv / math.sqrt(b.steps))
    gap = abs(a.level_s - b.level_s)
    return gap / error if error > 0 else (math.inf if gap > 0 else 0.0)


def _segment(values: Floats, start: int, stop: int, tick_s: float) -> Segment:
    part = values[start:stop]
    level = _median(part, tick_s)
    deviation = float(part.std(ddof=1)) if part.size > 1 else 0.0
    return Segment(start, stop, level, deviation / level if level > 0 else 0.0)


def _median(values: Floats, tick_s: float) -> float:
    """The median, interpolated within the tick of the clock: of times that are 25.0 or 25.5 µs it is in between."""
    middle = float(np.median(values))
    below = int((values < middle - tick_s / 2).sum())
    inside = int((np.abs(values - middle) <= tick_s / 2).sum())
    return middle + tick_s * ((values.size / 2 - below) / inside - 0.5) if inside else middle


def _with_the_beginning_apart(steps: Floats, parts: _Parts, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The first ten steps as they were, pauses and all, as a segment of their own, where they stand out of the rest.

    The noise is that of the rest: their own, which a pause makes as large as their distance, would hide it.
    """
    first = segments[0]
    if first.stop < 2 * MIN_SEGMENT or _pauses_as_usual(parts):
        return segments
    rest = _segment(parts.calm, MIN_SEGMENT, first.stop, 0.0)
    beginning = float(steps[:MIN_SEGMENT].mean())
    least_z = _JOIN_Z if parts.is_pause[:MIN_SEGMENT].any() else _BEGIN_Z
    if beginning - rest.level_s < least_z * rest.cv * rest.level_s / math.sqrt(MIN_SEGMENT):
        return segments
    added = float(parts.added_s[MIN_SEGMENT : first.stop].mean())
    after = Segment(MIN_SEGMENT, first.stop, rest.level_s, rest.cv, added)
    return (Segment(0, MIN_SEGMENT, beginning, rest.cv), after, *segments[1:])


def _pauses_as_usual(parts: _Parts) -> bool:
    """Whether the first ten steps hold pauses, but no more and no longer ones than the rest of the run leads to expect."""
    count = int(parts.is_pause[:MIN_SEGMENT].sum())
    rest = parts.is_pause[MIN_SEGMENT:]
    if count == 0 or not rest.any():
        return False
    longest = float(parts.added_s[MIN_SEGMENT:].max())
    share = float(rest.mean())
    fewer = sum(math.comb(MIN_SEGMENT, k) * share**k * (1 - share) ** (MIN_SEGMENT - k) for k in range(count))
    return 1 - fewer > 0.05 and float(parts.added_s[:MIN_SEGMENT].max()) <= 1.5 * longest


def _span(fastest: float, slowest: float) -> str:
    """'3.0 % quicker', '2.0 % slower', or both."""
    parts = []
    if fastest < -TOLERANCE:
        parts.append(f"up to {-100 * fastest:.1f} % faster")
    if slowest > TOLERANCE:
        parts.append(f"up to {100 * slowest:.1f} % slower")
    return " and ".join(parts)
