"""The latencies of a test by our own clock, from the moment at which each query was due, and how they agree with LoadGen's.

LoadGen's log has percentiles and no single latency. We time each query from inside, in the order in which LoadGen sent them. In
`server` it sends them by a schedule, and counts from the moment of the schedule; that moment is not told, but the schedule is
drawn from a seed that we chose, so we draw it again (a Mersenne Twister and an exponential distribution, as C++ has them). Where
another version of LoadGen drew otherwise, the percentiles would not agree, and the result would say so.
"""

import math
import random
from collections.abc import Sequence

from stackmark.histogram import Histogram
from stackmark.units import say_seconds
from stackmark.workloads.serve.definition import LATENCY
from stackmark.workloads.serve.impl.loadgen import Load, LoadResult

# By how much our percentiles and LoadGen's may differ before a result says so: a share, and what a thread needs to wake up.
SHARE, WAKING_S = 0.1, 100e-6
COMPARED = (50.0, 90.0, 99.0)
_WORDS, _WORD_BITS = 624, 32


def latencies_ns(load: Load, came_ns: Sequence[int], done_ns: Sequence[int]) -> list[int]:
    """Return how long each query took, or of offline each batch since the start.

    `came_ns` is when LoadGen sent it, `done_ns` when it had its answer.
    """
    due_ns = _due_ns(load, came_ns) if load.scenario == "server" else came_ns
    return [done - due for done, due in zip(done_ns, due_ns, strict=True)]


def _due_ns(load: Load, came_ns: Sequence[int]) -> list[int]:
    """Return when each query was due. The schedule begins where no query comes before it is due."""
    schedule = schedule_ns(load.seed, load.rate, len(came_ns))
    began = min((came - due for came, due in zip(came_ns, schedule, strict=True)), default=0)
    return [began + due for due in schedule]


def schedule_ns(seed: int, rate: float, count: int) -> list[int]:
    """Draw LoadGen's schedule of the scenario server: from the first query on, in nanoseconds."""
    draw = _mersenne_twister(seed)
    at, found = 0, []
    for _ in range(count):
        found.append(at)
        uniform = (draw.getrandbits(_WORD_BITS) + draw.getrandbits(_WORD_BITS) * 2**_WORD_BITS) / 2 ** (2 * _WORD_BITS)
        at += int(-1e9 * math.log(1 - uniform) / rate)
    return found


def _mersenne_twister(seed: int) -> random.Random:
    """Return C++'s std::mt19937 with this seed; Python's own seeding of the same generator is another one."""
    words = [seed % 2**_WORD_BITS]
    for place in range(1, _WORDS):
        words.append((1_812_433_253 * (words[-1] ^ (words[-1] >> 30)) + place) % 2**_WORD_BITS)
    made = random.Random()
    made.setstate((3, (*words, _WORDS), None))
    return made


def disagreement(tested: LoadResult, own: Histogram) -> str:
    """Say by which percentile our clock and LoadGen's log differ; nothing where they agree."""
    if own.name != LATENCY:
        return ""
    for percent in COMPARED:
        own_ns = own.percentile_ns(percent)
        if own_ns is None:
            continue
        ours_s, theirs_s = 1e-9 * own_ns, tested.percentile_s(percent)
        if abs(ours_s - theirs_s) > SHARE * max(ours_s, theirs_s) + WAKING_S:
            theirs, ours = say_seconds(theirs_s), say_seconds(ours_s)
            return f"clocks-disagree: p{percent:g} is {theirs} by LoadGen's log and {ours} by our own clock"
    if own.total and own.total != tested.count:
        return f"clocks-disagree: LoadGen's log has {tested.count:,} queries, and we answered {own.total:,}"
    return ""
