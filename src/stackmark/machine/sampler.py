"""The sampler: a process next to the worker that reads the machine's state a few times a second.

A process and not a thread, because a thread would take Python's lock from the loop that is measured. It keeps what it read in its
own memory and writes it when its standard input ends, so the worker does nothing for it while it measures. On a machine without
an idle CPU a sample comes late, and says when it was taken. A low priority was tried: it takes as much from the workload, since a
reading needs its CPU time anyway, and on a busy machine a run waited seconds for its samples.

What it keeps is bounded: past MOST_SAMPLES every second sample is dropped and the interval doubles. A run of ten minutes is kept
whole at 2 Hz, one of a day has a sample every minute and a half or so.
"""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stackmark.machine.software import bundle_file
from stackmark.machine.telemetry import Telemetry, Values, host
from stackmark.machine.telemetry_gpu import Gpus

MOST_SAMPLES = 1200
# How long a sampler may take to write what it has; a machine that is busy to the last CPU runs it late.
ANSWER_S = 10.0
# How long it outlives its parent at most, where a process that the parent forked holds its standard input open.
ORPHAN_S = 2.0
# Of a name and its number with all that JSON puts around them: this many fit into an event.
NAMES_PER_EVENT = 150
_RUN = (
    "import sys; sys.path[0] = sys.argv[1]; from stackmark.machine.sampler import main; "
    "main(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))"
)


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


def main(pid: int, hz: float, parent: int) -> None:
    """Sample until standard input ends, then write what was read: a line about it, and a line for each sample.

    Without its parent it ends and writes nothing: nobody reads it.
    """
    began_s = time.monotonic()
    with Gpus() as gpus:
        telemetry = Telemetry({**host(pid), **dict(gpus.collectors())})
        samples = sample(telemetry, hz, lambda wait_s: _is_over(wait_s, parent))
        about: dict[str, Any] = {
            "gpus": gpus.facts(),
            "hz": hz,
            "interval_s": samples.interval_s,
            "samples_all": samples.all,
            "cpu_s": round(time.process_time(), 3),
            "elapsed_s": round(time.monotonic() - began_s, 3),
            "problems": list(telemetry.problems.values()),
        }
    if os.getppid() != parent:
        return
    out = sys.stdout
    out.write(json.dumps(about) + "\n")
    for at_s, values in samples.taken:
        out.write(json.dumps([round(at_s, 3), values]) + "\n")
    out.flush()


def _is_over(wait_s: float, parent: int) -> bool:
    """Wait, and tell whether standard input or the parent ended meanwhile."""
    until_s = time.monotonic() + wait_s
    while True:
        left_s = until_s - time.monotonic()
        ready, _, _ = select.select([0], [], [], max(0.0, min(left_s, ORPHAN_S)))
        if (ready and not os.read(0, 4096)) or os.getppid() != parent:
            return True
        if left_s <= ORPHAN_S:
            return False


# --- The sampler from the side of the process that starts it ---------------------------------------------------------------


class Sampler:
    """A running sampler of the machine, and of one process with its children. Raises OSError where it cannot be started."""

    def __init__(self, pid: int, hz: float) -> None:
        self._process = subprocess.Popen(
            _command(pid, hz), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def finish(self) -> tuple[dict[str, Any], list[tuple[float, Values]]]:
        """End it; return what it says about itself, and the samples with their times by the monotonic clock.

        Raises ValueError where it does not answer, or not what a sampler answers.
        """
        try:
            out, _ = self._process.communicate(timeout=ANSWER_S)
            lines = [json.loads(line) for line in out.decode().splitlines()]
            if not lines:
                raise ValueError(f"the sampler ended with code {self._process.returncode}")
            return lines[0], [(float(at_s), _finite(values)) for at_s, values in lines[1:]]
        except (OSError, TypeError, LookupError, AttributeError, subprocess.SubprocessError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        finally:
            with suppress(OSError):
                self._process.kill()
            self._process.wait()


def pieces(samples: Iterable[tuple[float, Values]]) -> Iterator[tuple[float, Values]]:
    """Cut samples of many GPUs so that each piece fits into an event."""
    for at_s, values in samples:
        named = list(values.items())
        for first in range(0, len(named), NAMES_PER_EVENT):
            yield at_s, dict(named[first : first + NAMES_PER_EVENT])


def _finite(values: Values) -> Values:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _command(pid: int, hz: float) -> list[str]:
    """Return the command of the sampler, from where our own code is: never with the working folder on the path."""
    arguments = str(pid), str(hz), str(os.getpid())
    bundle = bundle_file()
    if bundle:
        return [sys.executable, "-c", _RUN, str(bundle), *arguments]
    return [sys.executable, "-P", "-m", "stackmark.machine.sampler", *arguments]


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
