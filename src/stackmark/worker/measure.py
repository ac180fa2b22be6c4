"""Warm up until rate and clock settle, then measure: how many steps, and when to start."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

from stackmark import events
from stackmark.spec import Params
from stackmark.units import say_percent
from stackmark.worker.clock import Stretch, run_stretch, run_until
from stackmark.worker.stream import Emitter
from stackmark.workloads.workload import TimedSteps

if TYPE_CHECKING:
    from typing_extensions import Self

# Two successive chunks of about a second whose rates differ by less than this stand still; so do their clocks.
STILL = 0.01
CHUNK_S = 1.0
# Where --seconds would take fewer than `at_least_steps`, it is stretched, but not past this.
STRETCH_LIMIT = 3.0
# 100,000 boundaries are ten seconds of 0.1 ms steps and a megabyte of events; shorter steps measure for less time.
MOST_STEPS = 100_000


def warm_up(emitter: Emitter, ready: TimedSteps, params: Params, clock_mhz: Callable[[], float | None]) -> float:
    """Run until rate and clock settle, or the time is up. Return the step seconds of the last chunk."""
    # Ranks decide by the same numbers, those of the slowest: else one of them would do a step more than the others.
    agreed = ready.together.most if ready.together else _as_they_are
    emitter(events.Phase, phase="warm-up", state="begin", expected_s=params.warmup_seconds)
    begin = time.perf_counter()
    chunk = run_stretch(emitter, ready, "warm-up", max(1, params.warmup_steps))
    ready.check()
    # The first steps may be slow: the chunk length goes by the last of them.
    step_s = max(median(chunk.step_s[len(chunk.step_s) // 2 :]), chunk.marks.tick_s)
    step_s, spent = agreed(step_s, chunk.wall_s)
    steps, still = chunk.steps, params.warmup_seconds == 0
    rate, clock = 1 / step_s, clock_mhz()
    while spent < params.warmup_seconds:
        count = max(2, math.ceil(CHUNK_S / step_s))
        chunk = run_stretch(emitter, ready, "warm-up", count, first=steps)
        if chunk.not_finite_at is not None:
            ready.check()
        last_clock, clock = clock, clock_mhz()
        wall_s, moves, broken = agreed(
            chunk.wall_s, float(not _stands(last_clock, clock)), float(chunk.not_finite_at is not None)
        )
        if broken:
            break
        spent, steps = spent + wall_s, steps + count
        step_s = max(wall_s / count, chunk.marks.tick_s)
        last_rate, rate = rate, 1 / step_s
        if _stands(last_rate, rate) and not moves:
            still = True
            break
    moved = f"rate and clock did not settle within {say_percent(STILL, 0)} in {spent:.3g} s of warm-up"
    seconds = round(time.perf_counter() - begin, 6)
    emitter(events.Phase, phase="warm-up", state="end", seconds=seconds, note="" if still else moved)
    return step_s


def _as_they_are(*numbers: float) -> list[float]:
    return list(numbers)


def _stands(before: float | None, after: float | None) -> bool:
    return not before or not after or abs(after / before - 1) <= STILL


def steps_to_measure(params: Params, step_s: float) -> int:
    """Return how many steps the measured part has, from the step time that warm-up ended with."""
    if params.steps:
        return params.steps
    wanted = max(math.ceil(params.seconds / step_s), params.at_least_steps)
    longest = math.ceil(STRETCH_LIMIT * params.seconds / step_s)
    return max(1, min(wanted, longest, MOST_STEPS))


def long_enough(params: Params, elapsed_s: float, done: int) -> bool:
    """Return whether the measured part is long enough, for a clock that can be read at any time."""
    if elapsed_s >= STRETCH_LIMIT * params.seconds:
        return True
    return elapsed_s >= params.seconds and done >= params.at_least_steps


def measure(emitter: Emitter, ready: TimedSteps, params: Params, step_s: float) -> Stretch:
    """Measure the steps.

    A GPU runs behind the loop, so its number of steps is fixed beforehand, by the step time that warm-up ended with; so is that
    of several ranks, which do the same number. A CPU's clock is read at each boundary: its length goes by that clock, since on a
    busy machine what warm-up foretold is soon wrong.
    """
    steps = steps_to_measure(params, step_s)
    emitter(events.Phase, phase="measure", state="begin", expected_s=round(steps * step_s, 3), expected_steps=steps)
    if ready.device == "cpu" and not params.steps and ready.together is None:
        stretch = run_until(
            emitter, ready, "measure", MOST_STEPS, lambda elapsed_s, done: long_enough(params, elapsed_s, done)
        )
    else:
        stretch = run_stretch(emitter, ready, "measure", steps)
    emitter(events.Phase, phase="measure", state="end", seconds=round(stretch.wall_s, 6))
    return stretch


# --- Notice that the whole worker stood still while it measured: stopped by a signal, frozen with its machine, suspended
#
# A thread sleeps for a quarter of a second at a time and looks how long that took. Four short wake-ups a second cost a
# loop less than 0.01 % of its time. A beat that comes late by a second or more has two explanations: nobody in this
# process could run, or a thread of ours held Python's lock. The process's own CPU time tells them apart: it stands
# still in the first case only. A machine that is merely busy delays a thread by milliseconds.
#
# Where steps are timed, one of them must have grown by about the same time, which also says how long it was to a
# millisecond. Suspension is seen otherwise: the clock that steps are timed by does not run meanwhile, another one does.


BEAT_S = 0.25
LATE_S = 1.0
# Of a late beat: how much CPU time we may have used besides what we used in a usual beat, as a share of the delay.
BUSY_SHARE = 0.1
# A pause is in the steps where one of them is longer than the usual by this share of it.
AGREES_SHARE = 0.5


@dataclass
class Heartbeat:
    """Watches the process from a separate thread while it is used in a `with`."""

    # Seconds that each late beat was late by.
    late_s: list[float] = field(default_factory=list)
    suspended_s: float = 0.0

    def __enter__(self) -> "Self":
        self._over = threading.Event()
        self._suspended_before_s = _suspended_s()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.suspended_s = max(0.0, _suspended_s() - self._suspended_before_s)

    def _beat(self) -> None:
        usual_cpu_s = 0.0
        before_s, before_cpu_s = time.monotonic(), time.process_time()
        while not self._over.wait(BEAT_S):
            now_s, now_cpu_s = time.monotonic(), time.process_time()
            late_s, cpu_s = now_s - before_s - BEAT_S, now_cpu_s - before_cpu_s
            if late_s < LATE_S:
                usual_cpu_s = cpu_s
            elif cpu_s <= 2 * usual_cpu_s + BUSY_SHARE * late_s:
                self.late_s.append(late_s)
            before_s, before_cpu_s = now_s, now_cpu_s

    def flags(self, step_s: Sequence[float] | None = None) -> list[str]:
        """Say what was noticed. `step_s` are the measured steps where there are several."""
        found = []
        pauses = self.late_s if step_s is None else _in_steps(self.late_s, step_s)
        if pauses:
            often = f" in {len(pauses)} pauses" if len(pauses) > 1 else ""
            found.append(
                f"paused: the worker was paused for {sum(pauses):.1f} s{often} during the measurement: it was stopped (SIGSTOP), "
                "or its machine was frozen"
            )
        if self.suspended_s >= LATE_S:
            found.append(f"paused: the machine was suspended for {self.suspended_s:.1f} s during the measurement")
        return found


def _in_steps(late_s: Sequence[float], step_s: Sequence[float]) -> list[float]:
    """Return the pauses that are in the steps too, each as long as its step grew."""
    if not step_s:
        return []
    usual_s = median(step_s)
    grown_s = sorted((step - usual_s for step in step_s), reverse=True)
    longest_first = sorted(late_s, reverse=True)
    return [grown for late, grown in zip(longest_first, grown_s, strict=False) if grown >= AGREES_SHARE * late]


def _suspended_s() -> float:
    """How long the machine was suspended since it booted; zero where the system does not tell."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
