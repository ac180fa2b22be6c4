"""Time one call: take samples until the median is known to 1 %, at least ten, up to a time limit.

On a GPU a sample is one round of calls over all sets of operands, recorded once as a CUDA graph and replayed, between two device
events; so the time is the device's, and not that of a Python loop that cannot enqueue a five-microsecond kernel every five
microseconds. What cannot be recorded is launched one by one, and the row says so. One round goes ahead of the first event,
so that the device is never found waiting. On a CPU a sample is as many calls in a row as a clock reads well.

Warm-up ends when two chunks of samples differ by less than 1 %, or with half of the row's time. On a GPU it takes 0.15 s at the
least: under full load a chip stands still at its highest clock first, for 40 to 80 ms on an H200, until its power limit takes
hold and it stands still again, at a rate that is 15 % lower. A row that is timed on that edge has another time in each process.
The first call, in which libraries search for an algorithm, compile and load, is timed apart (rows.py).
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from stackmark.machine.nvml import Nvml
from stackmark.medians import median_of
from stackmark.units import counted, say_percent
from stackmark.workloads.impl.links import gpu_of
from stackmark.workloads.op.impl.bench import Prepared, Stand

WANTED = 0.01
LEAST_SAMPLES = 10
# However little time there is: one sample has no middle.
FEWEST_SAMPLES = 3
# More would not fit into an event, and a median of 200 samples is known to a sixth of their spread.
MOST_SAMPLES = 200
CHUNK = 10
STEADY = 0.01
# A sample lasts at least so long: a thousand ticks of a device event (0.5 µs), many of a CPU's clock and its interrupts.
SAMPLE_S = {"cuda": 500e-6, "cpu": 2e-3}
WARM_UP_S = {"cuda": 0.15, "cpu": 0.01}
# How often the number of calls in a sample is put right; what is short is tried several times each, for it may have waited
# for a core.
ESTIMATES, CHEAP_S = 4, 0.05
# A graph with more launches takes longer to record than to time.
MOST_CALLS_A_SAMPLE = 4096


@dataclass(frozen=True)
class Timed:
    call_s: list[float]
    calls_each: int
    launched: Literal["eager", "graph"]
    # Whether the wanted precision was reached in time.
    known: bool


def time_rounds(rounds: "Rounds", device: torch.device, seconds: float, check: Callable[[], None]) -> Timed:
    """Take samples until the median is known. `check` is called between chunks, and waits for the device."""
    begin = time.perf_counter()
    _warm_up(rounds, device, seconds / 2)
    samples: list[float] = []
    begin_timed = time.perf_counter()
    while True:
        samples += rounds.samples(_fitting(rounds, seconds))
        known = len(samples) >= LEAST_SAMPLES and median_of(samples).half_width <= WANTED
        now = time.perf_counter()
        spent = now - begin_timed >= seconds or now - begin >= 2 * seconds
        if known or len(samples) + CHUNK > MOST_SAMPLES or (spent and len(samples) >= FEWEST_SAMPLES):
            break
        if len(samples) % (5 * CHUNK) == 0:
            check()
    check()
    return Timed(samples, rounds.calls, rounds.launched, known)


def _fitting(rounds: "Rounds", seconds: float) -> int:
    """How many samples fit into the time: of a call that takes longer than a tenth of it, fewer than a chunk."""
    return max(1, min(CHUNK, math.ceil(seconds / rounds.sample_s)))


def _warm_up(rounds: "Rounds", device: torch.device, most_s: float) -> None:
    begin = time.perf_counter()
    least = WARM_UP_S[device.type]
    last = math.inf
    while (spent := time.perf_counter() - begin) < most_s:
        now = median_of(rounds.samples(max(1, min(CHUNK, int(most_s / 4 / rounds.sample_s))))).value
        rounds.sample_s = now * rounds.calls
        if spent >= least and abs(now / last - 1) <= STEADY:
            return
        last = now


class Rounds(ABC):
    """A way to take samples: `calls` calls each; `sample_s` is about how long one takes."""

    def __init__(self, calls: int, sample_s: float, launched: Literal["eager", "graph"]) -> None:
        self.calls, self.sample_s, self.launched = calls, max(sample_s, 1e-9), launched

    @abstractmethod
    def samples(self, count: int) -> list[float]:
        """Return the seconds of a call in this many samples."""

    @abstractmethod
    def once(self, sets: Sequence[int]) -> None:
        """Call these sets as they are timed, or all where they are recorded together; waits for nothing."""


class _CpuRounds(Rounds):
    def __init__(self, prepared: Prepared, calls: int, call_s: float) -> None:
        super().__init__(calls, calls * call_s, "eager")
        self._call, self._copies, self._next = prepared.call, prepared.copies, 0

    def samples(self, count: int) -> list[float]:
        call, copies, at = self._call, self._copies, self._next
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            for _ in range(self.calls):
                call(at)
                at = at + 1 if at + 1 < copies else 0
            found.append((time.perf_counter() - begin) / self.calls)
        self._next = at
        return found

    def once(self, sets: Sequence[int]) -> None:
        for number in sets:
            self._call(number)


def make_rounds(prepared: Prepared, device: torch.device) -> Rounds:
    """Decide how the calls of a problem are launched, by about how long one takes."""
    return _gpu_rounds(prepared, device) if device.type == "cuda" else _cpu_rounds(prepared)


def _cpu_rounds(prepared: Prepared) -> Rounds:
    """As many calls in a row as make a sample; tried again, since on a busy machine a first try may have been interrupted."""
    rounds = _CpuRounds(prepared, 1, 0.0)
    for _ in range(ESTIMATES):
        taken = rounds.samples(1)
        if taken[0] * rounds.calls < CHEAP_S:
            taken += rounds.samples(3)
        call_s = max(min(taken), 1e-7)
        calls = _calls(SAMPLE_S["cpu"], call_s)
        if calls <= rounds.calls:
            break
        rounds = _CpuRounds(prepared, calls, call_s)
    rounds.sample_s = rounds.calls * call_s
    return rounds


class _GpuRounds(Rounds):
    """`enqueue` puts one round of calls on the current stream."""

    def __init__(
        self, enqueue: Callable[[], None], calls: int, round_s: float, launched: Literal["eager", "graph"]
    ) -> None:
        super().__init__(calls, round_s, launched)
        self._enqueue = enqueue

    def once(self, sets: Sequence[int]) -> None:
        self._enqueue()

    def samples(self, count: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        self._enqueue()
        marks[0].record()
        for mark in marks[1:]:
            self._enqueue()
            mark.record()
        marks[-1].synchronize()
        return [marks[i].elapsed_time(marks[i + 1]) / 1e3 / self.calls for i in range(count)]


def _gpu_rounds(prepared: Prepared, device: torch.device) -> Rounds:
    """A round covers every set as often as the next: else a few sets would be used again and again, and be in the cache."""
    call_s = _seconds_of_a_round(lambda: call_round(prepared, prepared.copies), prepared.copies)
    rounds = max(1, min(round(_calls(SAMPLE_S["cuda"], call_s) / prepared.copies), MOST_CALLS_A_SAMPLE))
    calls = prepared.copies * rounds
    launched: Literal["eager", "graph"] = "eager"
    enqueue: Callable[[], None] = lambda: call_round(prepared, calls)  # noqa: E731
    if prepared.graph:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            call_round(
                prepared, prepared.copies
            )  # whatever is set up per stream (a library's workspace) is set up here
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph, stream=side):
            call_round(prepared, calls)
        enqueue, launched = graph.replay, "graph"
        enqueue()
        # Python launched the first estimate, which of short calls is several times what the device takes.
        call_s = _seconds_of_a_round(enqueue, calls)
    return _GpuRounds(enqueue, calls, calls * call_s, launched)


def _seconds_of_a_round(enqueue: Callable[[], None], calls: int) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    enqueue()
    after.record()
    after.synchronize()
    return float(max(before.elapsed_time(after) / 1e3 / calls, 1e-7))


def say_unknown(call_s: Sequence[float], seconds: float) -> str:
    """Say why a row's median is not known as precisely as wanted."""
    median, count = median_of(call_s), counted(len(call_s), "sample")
    if median.low is None or median.high is None:
        said = f"without an interval ({count})"
    elif median.half_width <= WANTED:
        said = f"only {count}, {LEAST_SAMPLES} are needed"
    elif median.half_width < 1:
        said = f"known to {say_percent(median.half_width, 1)} ({count})"
    else:
        said = f"its interval reaches {median.high / median.value:.2g} times the median ({count})"
    return f"not known to {say_percent(WANTED, 0)} in {seconds:.2g} s: {said}"


def call_round(prepared: Prepared, calls: int) -> None:
    """Make this many calls, cycling through the sets."""
    for number in range(calls):
        prepared.call(number % prepared.copies)


def first_call_s(prepared: Prepared, device: torch.device) -> float:
    """Return the seconds of the very first call, to its end."""
    begin = time.perf_counter()
    prepared.call(0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _calls(sample_s: float, call_s: float) -> int:
    return max(1, min(math.ceil(sample_s / call_s), MOST_CALLS_A_SAMPLE))


# --- a stretch of work ------------------------------------------------------------------------------------------------
#
# Work without a pause: calls for this many seconds, timed in samples, with the chip's state at the end.
#
# The clock of a chip depends on what it did in the seconds before. So here, unlike in timing.py, nothing decides when enough
# is known: the time is given, and what was called in it is what is measured.


# An interval of a median needs six samples; an event has room for some hundred and fifty.
STRETCH_LEAST_SAMPLES, STRETCH_MOST_SAMPLES = 6, 100
# Of the time of its threads; the rest is what an idle machine's own services take.
UNDISTURBED = 0.9
SM_CLOCK = 1  # a number of the driver's ABI


@dataclass(frozen=True)
class Stretch:
    """Seconds of work after seconds of rest, repeated; the last share of each time is counted."""

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
    """The seconds of a call in each counted sample, and remarks about the chip meanwhile."""

    call_s: list[float]
    notes: list[str]


def work(prepared: Prepared, stand: Stand, wanted: Stretch, each: int, look: "Look") -> Worked:
    """Rest, then work in samples of `each` calls; and again."""
    call_s: list[float] = []
    cpu_s = worked_s = 0.0
    for _ in range(wanted.times):
        wait(stand)
        time.sleep(wanted.rest_s)
        cpu_began, begin = time.process_time(), time.perf_counter()
        least = STRETCH_LEAST_SAMPLES / wanted.times / wanted.counted
        taken = samples(prepared, stand, wanted.seconds, least, each, look.now)
        cpu_s += time.process_time() - cpu_began
        worked_s += time.perf_counter() - begin
        call_s += counted_of(taken, wanted.counted)
    crowded = [] if stand.on_gpu else say_crowded(cpu_s / worked_s / torch.get_num_threads())
    return Worked(call_s, [*crowded, *look.notes()])


def counted_of(taken: list[Sample], share: float) -> list[float]:
    """Return the seconds of a call in the samples of the last share of the time."""
    counted_from = (1 - share) * taken[-1].ended_s
    return [sample.call_s for sample in taken if sample.ended_s > counted_from]


def say_crowded(share: float) -> list[str]:
    """Flag missing CPU time: a product's threads always compute or spin, so other programs used the rest."""
    if share >= UNDISTURBED:
        return []
    return [
        f"its threads had the CPU for {say_percent(share, 0)} of the time: other programs were running, the limit is higher"
    ]


def samples(
    prepared: Prepared,
    stand: Stand,
    seconds: float,
    least: float,
    each: int,
    at_end: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """Take samples for this long, and at least this many. `at_end` is called while a GPU is still working on the last ones."""
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
    """The GPU's clock, temperature and power at the end of a measurement, from the driver."""

    def __init__(self, nvml: Nvml | None, uuid: str) -> None:
        self._nvml = nvml
        self._gpu = gpu_of(nvml, uuid) if uuid else None
        self._seen = ""

    def now(self) -> None:
        if self._nvml is None or self._gpu is None:
            return
        mhz = self._nvml.count("nvmlDeviceGetClockInfo", self._gpu, SM_CLOCK)
        celsius = self._nvml.temperature_c(self._gpu)
        milliwatts = self._nvml.count("nvmlDeviceGetPowerUsage", self._gpu)
        parts = [f"{mhz} MHz" if mhz else "", f"{celsius} °C" if celsius else ""]
        parts.append(f"{milliwatts / 1000:.0f} W" if milliwatts else "")
        self._seen = ", ".join(filter(None, parts))

    def notes(self) -> list[str]:
        return [f"at its end {self._seen}"] if self._seen else []
