"""Work without a pause: calls for so many seconds, timed in samples, with the chip's state at the end.

The clock of a chip depends on what it did in the seconds before. So here, unlike in timing.py, nothing decides when enough
is known: the time is given, and what was called in it is what is measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.driver import Driver
from stackmark.workloads.op.impl.timing import call_round

# An interval of a median needs six samples; an event has room for some hundred and fifty.
LEAST_SAMPLES, MOST_SAMPLES = 6, 100
# Of the time of its threads; the rest is what an idle machine's own services take.
UNDISTURBED = 0.9
SM_CLOCK, GPU_TEMPERATURE = 1, 0  # numbers of the driver's ABI


@dataclass(frozen=True)
class Stretch:
    """So many seconds of work after so many of rest, so many times; of each the last share of the time is counted."""

    seconds: float
    rest_s: float = 0.0
    counted: float = 1.0
    times: int = 1


@dataclass(frozen=True)
class Sample:
    """Seconds of a call, and when its sample ended, from the beginning of the stretch."""

    call_s: float
    ended_s: float


@dataclass(frozen=True)
class Worked:
    """The seconds of a call in each counted sample, and what is to be said of the chip meanwhile."""

    call_s: list[float]
    notes: list[str]


def work(prepared: Prepared, stand: Stand, wanted: Stretch, each: int, look: "Look") -> Worked:
    """A rest, then work in samples of `each` calls; and again."""
    call_s: list[float] = []
    cpu_s = worked_s = 0.0
    for _ in range(wanted.times):
        wait(stand)
        time.sleep(wanted.rest_s)
        cpu_began, begin = time.process_time(), time.perf_counter()
        least = LEAST_SAMPLES / wanted.times / wanted.counted
        taken = samples(prepared, stand, wanted.seconds, least, each, look.now)
        cpu_s += time.process_time() - cpu_began
        worked_s += time.perf_counter() - begin
        call_s += counted_of(taken, wanted.counted)
    crowded = [] if stand.on_gpu else say_crowded(cpu_s / worked_s / torch.get_num_threads())
    return Worked(call_s, [*crowded, *look.notes()])


def counted_of(taken: list[Sample], share: float) -> list[float]:
    """Seconds of a call in the samples of the last share of the time."""
    counted_from = (1 - share) * taken[-1].ended_s
    return [sample.call_s for sample in taken if sample.ended_s > counted_from]


def say_crowded(share: float) -> list[str]:
    """Threads of a product are always at work or waiting for each other awake; what is missing, somebody else had."""
    if share >= UNDISTURBED:
        return []
    return [f"its threads had the CPU for {share:.0%} of the time: others were at work, and the limit lies higher"]


def samples(
    prepared: Prepared,
    stand: Stand,
    seconds: float,
    least: float,
    each: int,
    at_end: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """Samples for so long, and at least so many. `at_end` is called while a GPU is still at work on the last ones."""
    return (_on_gpu if stand.on_gpu else _on_cpu)(prepared, seconds, least, each, at_end)


def _on_gpu(prepared: Prepared, seconds: float, least: float, each: int, at_end: Callable[[], None]) -> list[Sample]:
    """The device always has the next two samples in its queue, so that it never waits for the host between them."""
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    ended_s = 0.0
    while ended_s < seconds or len(marks) <= least:
        call_round(prepared, each)
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        if len(marks) > 3:
            marks[-3].synchronize()
            ended_s = marks[0].elapsed_time(marks[-3]) / 1e3
    at_end()
    marks[-1].synchronize()
    return [
        Sample(before.elapsed_time(after) / 1e3 / each, marks[0].elapsed_time(after) / 1e3)
        for before, after in pairwise(marks)
    ]


def _on_cpu(prepared: Prepared, seconds: float, least: float, each: int, at_end: Callable[[], None]) -> list[Sample]:
    taken: list[Sample] = []
    begin = last = time.perf_counter()
    while last - begin < seconds or len(taken) < least:
        call_round(prepared, each)
        now = time.perf_counter()
        taken.append(Sample((now - last) / each, now - begin))
        last = now
    at_end()
    return taken


def wait(stand: Stand) -> None:
    if stand.on_gpu:
        torch.cuda.synchronize(stand.device)


class Look:
    """The GPU's clock, temperature and power at the end of a stretch, as the driver tells them."""

    def __init__(self, nvml: Driver | None, uuid: str) -> None:
        self._nvml = nvml
        self._gpu = nvml.gpu(uuid) if nvml and uuid else None
        self._seen = ""

    def now(self) -> None:
        if self._nvml is None or self._gpu is None:
            return
        mhz = self._nvml.count("nvmlDeviceGetClockInfo", self._gpu, SM_CLOCK)
        celsius = self._nvml.count("nvmlDeviceGetTemperatureV", self._gpu, GPU_TEMPERATURE)
        celsius = celsius or self._nvml.count("nvmlDeviceGetTemperature", self._gpu, GPU_TEMPERATURE)
        milliwatts = self._nvml.count("nvmlDeviceGetPowerUsage", self._gpu)
        parts = [f"{mhz} MHz" if mhz else "", f"{celsius} °C" if celsius else ""]
        parts.append(f"{milliwatts / 1000:.0f} W" if milliwatts else "")
        self._seen = ", ".join(filter(None, parts))

    def notes(self) -> list[str]:
        return [f"at its end {self._seen}"] if self._seen else []
