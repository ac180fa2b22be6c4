"""Warm-up until rate and clock stand still, then the measured stretch: how many steps, and when to begin."""

import math
import time
from collections.abc import Callable
from statistics import median

from stackmark import events
from stackmark.spec import Params
from stackmark.worker.clock import Stretch, run_stretch, run_until
from stackmark.worker.stream import Emitter
from stackmark.workloads.workload import TimedSteps

# Two successive chunks of about a second whose rates differ by less than this stand still; so do their clocks.
STILL = 0.01
CHUNK_S = 1.0
# Where --seconds would take fewer than `at_least_steps`, it is stretched, but not past this.
STRETCH_LIMIT = 3.0
# 100,000 boundaries are ten seconds of 0.1 ms steps and a megabyte of events; shorter steps measure for less time.
MOST_STEPS = 100_000


def warm_up(emitter: Emitter, ready: TimedSteps, params: Params, clock_mhz: Callable[[], float | None]) -> float:
    """Runs until nothing changes any more, or the time is up. Gives the step seconds of the last chunk."""
    emitter(events.Phase, phase="warm-up", state="begin", expected_s=params.warmup_seconds)
    begin = time.perf_counter()
    chunk = run_stretch(emitter, ready, "warm-up", max(1, params.warmup_steps))
    ready.check()
    # The first steps may be slow: the chunk length goes by the last of them.
    step_s = max(median(chunk.step_s[len(chunk.step_s) // 2 :]), chunk.marks.tick_s)
    spent, steps, still = chunk.wall_s, chunk.steps, params.warmup_seconds == 0
    rate, clock = 1 / step_s, clock_mhz()
    while spent < params.warmup_seconds:
        count = max(2, math.ceil(CHUNK_S / step_s))
        chunk = run_stretch(emitter, ready, "warm-up", count, first=steps)
        if chunk.not_finite_at is not None:
            ready.check()
            break
        spent, steps = spent + chunk.wall_s, steps + count
        step_s = max(chunk.wall_s / count, chunk.marks.tick_s)
        last_rate, last_clock, rate, clock = rate, clock, 1 / step_s, clock_mhz()
        if _stands(last_rate, rate) and _stands(last_clock, clock):
            still = True
            break
    moved = f"rate and clock were not seen to stand still within {STILL:.0%} in {spent:.3g} s of warm-up"
    seconds = round(time.perf_counter() - begin, 6)
    emitter(events.Phase, phase="warm-up", state="end", seconds=seconds, note="" if still else moved)
    return step_s


def _stands(before: float | None, after: float | None) -> bool:
    return not before or not after or abs(after / before - 1) <= STILL


def steps_to_measure(params: Params, step_s: float) -> int:
    """How many steps the measured part has, from the step time that warm-up ended with."""
    if params.steps:
        return params.steps
    wanted = max(math.ceil(params.seconds / step_s), params.at_least_steps)
    longest = math.ceil(STRETCH_LIMIT * params.seconds / step_s)
    return max(1, min(wanted, longest, MOST_STEPS))


def long_enough(params: Params, elapsed_s: float, done: int) -> bool:
    """The same rule for a clock that can be read as it goes."""
    if elapsed_s >= STRETCH_LIMIT * params.seconds:
        return True
    return elapsed_s >= params.seconds and done >= params.at_least_steps


def measure(emitter: Emitter, ready: TimedSteps, params: Params, step_s: float) -> Stretch:
    """The measured part.

    A GPU runs behind the loop, so its number of steps is fixed beforehand, by the step time that warm-up ended with. A CPU's
    clock is read at each boundary: its length goes by that clock, since on a busy machine what warm-up foretold is soon wrong.
    """
    steps = steps_to_measure(params, step_s)
    emitter(events.Phase, phase="measure", state="begin", expected_s=round(steps * step_s, 3), expected_steps=steps)
    if ready.device == "cpu" and not params.steps:
        stretch = run_until(
            emitter, ready, "measure", MOST_STEPS, lambda elapsed_s, done: long_enough(params, elapsed_s, done)
        )
    else:
        stretch = run_stretch(emitter, ready, "measure", steps)
    emitter(events.Phase, phase="measure", state="end", seconds=round(stretch.wall_s, 6))
    return stretch
