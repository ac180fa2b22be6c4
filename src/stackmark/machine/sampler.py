"""The sampler: a process next to the worker that reads the machine's state a few times a second.

A process and not a thread, because a thread would take Python's lock from the loop that is measured. It keeps what it read in its
own memory and writes it when its standard input ends, so the worker does nothing for it while it measures. Its priority is low:
on a machine without an idle CPU a sample comes late, and says when it was taken.

What it keeps is bounded: past MOST_SAMPLES every second sample is dropped and the interval doubles. A run of ten minutes is kept
whole at 2 Hz, one of a day has a sample every minute and a half or so.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stackmark.machine.telemetry import Telemetry, Values, host
from stackmark.machine.telemetry_gpu import Gpus

MOST_SAMPLES = 1200
# The lowest priority but one that still runs where all CPUs are busy.
NICE = 10


@dataclass
class Samples:
    """Samples with their times, thinned where they become too many."""

    interval_s: float
    taken: list[tuple[float, Values]] = field(default_factory=list)
    all: int = 0

    @property
    def last_s(self) -> float:
        return self.taken[-1][0] if self.taken else -float("inf")

    def add(self, at_s: float, values: Values) -> None:
        self.taken.append((at_s, values))
        self.all += 1
        if len(self.taken) > MOST_SAMPLES:
            self.taken = self.taken[::2]
            self.interval_s *= 2


def sample(telemetry: Telemetry, hz: float, over: Callable[[float], bool]) -> Samples:
    """Sample until `over(seconds)`, which waits for so long, says that it is time to end."""
    samples = Samples(1 / hz)
    next_s = time.monotonic()
    while True:
        values = telemetry.read()
        if values:
            samples.add(time.monotonic(), values)
        # What was missed on a busy machine is not made up for.
        next_s = max(next_s + samples.interval_s, time.monotonic())
        if over(max(0.0, next_s - time.monotonic())):
            # A rate over a moment is mostly the clock's own grain.
            if time.monotonic() - samples.last_s >= samples.interval_s / 2:
                samples.add(time.monotonic(), telemetry.read())
            return samples


def main(pid: int, hz: float) -> None:
    """Sample until standard input ends, then write what was read: a line about it, and a line for each sample."""
    os.nice(NICE)
    began_s = time.monotonic()
    with Gpus() as gpus:
        telemetry = Telemetry({**host(pid), **dict(gpus.collectors())})
        samples = sample(telemetry, hz, _input_ended)
        about: dict[str, Any] = {
            "gpus": gpus.facts(),
            "hz": hz,
            "interval_s": samples.interval_s,
            "samples_all": samples.all,
            "cpu_s": round(time.process_time(), 3),
            "elapsed_s": round(time.monotonic() - began_s, 3),
            "problems": list(telemetry.problems.values()),
        }
    out = sys.stdout
    out.write(json.dumps(about) + "\n")
    for at_s, values in samples.taken:
        out.write(json.dumps([round(at_s, 3), values]) + "\n")
    out.flush()


def _input_ended(wait_s: float) -> bool:
    ready, _, _ = select.select([0], [], [], wait_s)
    return bool(ready) and not os.read(0, 4096)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
