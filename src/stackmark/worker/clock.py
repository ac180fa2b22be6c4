"""Time the steps.

On a GPU there is one device event at each step *boundary*, so that the gaps in which the GPU waits for the host are
counted: they are what a container may cost. Nothing inside the loop waits for the device. On a CPU a boundary is a read
of the performance counter. The loop only writes into memory that was there before it began; a helper thread emits what
is complete, at most one event a second, by asking the device's events and never by waiting for them.
"""

import math
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from stackmark.worker.stream import STEPS_PER_EVENT, Emitter
from stackmark.workloads.workload import TimedSteps, Values

# How often the main thread looks whether the last event is complete: short against a run, long against a signal.
POLL_S = 0.0005
EMIT_EVERY_S = 1.0


class Marks(Protocol):
    """The boundaries of a sequence of steps."""

    tick_s: float

    def begin(self) -> None: ...
    def mark(self, boundary: int) -> None: ...
    def complete(self, enqueued: int) -> int:
        """Return how many of the enqueued boundaries the device has passed."""

    def seconds(self, first: int, last: int) -> list[float]:
        """Return the seconds between complete boundaries first … last."""

    def finish(self, boundary: int) -> None: ...


class CpuMarks:
    tick_s = max(time.get_clock_info("perf_counter").resolution, 1e-9)

    def __init__(self, steps: int) -> None:
        self._times = array("d", bytes(8 * (steps + 1)))

    def begin(self) -> None:
        self._times[0] = time.perf_counter()

    def mark(self, boundary: int) -> None:
        self._times[boundary] = time.perf_counter()

    def elapsed_s(self, boundary: int) -> float:
        return self._times[boundary] - self._times[0]

    def complete(self, enqueued: int) -> int:
        return enqueued

    def seconds(self, first: int, last: int) -> list[float]:
        times = self._times[first : last + 1]
        return [b - a for a, b in pairwise(times)]

    def finish(self, boundary: int) -> None:
        pass


class CudaMarks:
    tick_s = 0.5e-6  # the resolution of cudaEventElapsedTime, by CUDA's documentation

    def __init__(self, steps: int, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self._stream = torch.cuda.current_stream(self._device)
        self._events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        # CUDA makes an event when it is first recorded: that is done here, and not in the loop.
        for event in self._events:
            event.record(self._stream)

    def begin(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._events[0].record(self._stream)

    def mark(self, boundary: int) -> None:
        # With its stream named: to ask torch for the current one costs more than the record.
        self._events[boundary].record(self._stream)

    def complete(self, enqueued: int) -> int:
        # Events complete in order, so the first that is not is found by halving.
        low, high = -1, enqueued
        while low < high:
            middle = (low + high + 1) // 2
            if self._events[middle].query():
                low = middle
            else:
                high = middle - 1
        return max(low, 0)

    def seconds(self, first: int, last: int) -> list[float]:
        events = self._events
        return [events[i].elapsed_time(events[i + 1]) * 1e-3 for i in range(first, last)]

    def finish(self, boundary: int) -> None:
        last = self._events[boundary]
        while not last.query():
            time.sleep(POLL_S)
        self._torch.cuda.synchronize(self._device)


def marks_for(device: str, steps: int) -> Marks:
    return CpuMarks(steps) if device == "cpu" else CudaMarks(steps, device)


@dataclass
class Stretch:
    """A sequence of steps: what the loop wrote, and what the helper thread has emitted."""

    phase: str
    ready: TimedSteps
    steps: int
    marks: Marks
    first: int = 0
    done: int = 0
    emitted: int = 0
    wall_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    not_finite_at: int | None = None
    # Asked after each step where the length is not known beforehand; `steps` is then the most there can be.
    enough: Callable[[int], bool] | None = None
    _peeks: list[tuple[int, Callable[[], Values]]] = field(default_factory=list)
    _peeks_read: int = 0

    def run(self) -> None:
        """Run the measured loop. Everything it uses was made before it started."""
        step, mark, peek, enough = self.ready.step, self.marks.mark, self.ready.peek, self.enough
        due = self.ready.peek_every if peek else self.steps + 1
        self.marks.begin()
        begin = time.perf_counter()
        for i in range(self.steps):
            step()
            if peek and (i == 0 or (i + 1) % due == 0 or i + 1 == self.steps):
                self._peeks.append((i, peek()))
            mark(i + 1)
            self.done = i + 1
            if self.not_finite_at is not None or (enough and enough(i + 1)):
                break
        self.marks.finish(self.done)
        self.wall_s = time.perf_counter() - begin

    def emit(self, emitter: Emitter, everything: bool) -> None:
        """Emit steps that the device has passed: one event's worth, or everything when the loop is over."""
        complete = self.marks.complete(self.done)
        if not everything:
            complete = min(complete, self.emitted + STEPS_PER_EVENT)
        if complete <= self.emitted:
            return
        new = self.marks.seconds(self.emitted, complete)
        values = []
        while self._peeks_read < len(self._peeks) and self._peeks[self._peeks_read][0] < complete:
            index, fetch = self._peeks[self._peeks_read]
            read = fetch()
            if not math.isfinite(read.get("loss", 0.0)) and self.not_finite_at is None:
                self.not_finite_at = self.first + index
            values.append((self.first + index, read))
            self._peeks_read += 1
        emitter.steps(self.phase, self.first + self.emitted, new, values)
        self.step_s.extend(new)
        self.emitted = complete


def run_stretch(emitter: Emitter, ready: TimedSteps, phase: str, steps: int, first: int = 0) -> Stretch:
    """Run and times `steps` steps, emitting as they complete."""
    return run_out(emitter, Stretch(phase, ready, steps, marks_for(ready.device, steps), first))


def run_until(
    emitter: Emitter, ready: TimedSteps, phase: str, most: int, enough: Callable[[float, int], bool]
) -> Stretch:
    """Run and times steps on a CPU until it is enough, by the seconds passed and the steps done."""
    marks = CpuMarks(most)
    return run_out(emitter, Stretch(phase, ready, most, marks, enough=lambda done: enough(marks.elapsed_s(done), done)))


def run_out(emitter: Emitter, stretch: Stretch) -> Stretch:
    # The first step, every few, and the last.
    stretch.ready.reserve(stretch.steps // stretch.ready.peek_every + 2)
    emitter.rest()
    over = threading.Event()

    def help_out() -> None:
        while not over.wait(EMIT_EVERY_S):
            stretch.emit(emitter, everything=False)

    helper = threading.Thread(target=help_out, name="emitter", daemon=True)
    helper.start()
    try:
        stretch.run()
    finally:
        over.set()
        helper.join()
    stretch.emit(emitter, everything=True)
    return stretch
