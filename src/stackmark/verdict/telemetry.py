"""What the samples of a run say: each quantity over the measured part, what moved with the steps, how long a GPU waited.

A sample is a look at one moment, and what changes between two looks is not seen. So nothing is decided by samples alone: they say
when something was the case, and what went with it. Counters at both ends of the measured part stay the source of sums (CPU
time, energy, time under a clock limit).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median

import numpy as np

from stackmark.events import Event, Phase, Sample, Sampled, Steps
from stackmark.machine.nvml import REASONS, bare
from stackmark.model import JsonValue
from stackmark.units import say_percent, say_seconds

# Names that a stream may bring: 32 GPUs with 20 quantities each, and those of the host.
MOST_NAMES = 1000
# Of a run's series, for pictures; all samples are in the stream.
MOST_DRAWN = 200


@dataclass(frozen=True)
class Span:
    """One quantity over the measured part."""

    minimum: float
    mean: float
    maximum: float
    samples: int


@dataclass(frozen=True)
class Series:
    """One quantity over the whole run: seconds since the worker began, and the values."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Telemetry:
    """What was sampled next to one run, on the machine of its first rank."""

    hz: float
    # At the end of the run: long runs are thinned.
    interval_s: float
    # CPU time of the sampler, as a share of one CPU.
    cost_share: float
    # What `gpu0` stands for.
    gpus: Mapping[str, Mapping[str, JsonValue]]
    problems: tuple[str, ...]
    # The measured part; None where it did not begin, or end.
    begin_s: float | None
    end_s: float | None
    spans: Mapping[str, Span]
    series: Mapping[str, Series] = field(default_factory=dict, repr=False)
    # The GPU under test among `gpus`; "" on a CPU, and where it cannot be told.
    gpu: str = ""
    # What moved with the length of steps within the run: the correlation by name.
    with_steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpu_waited(self) -> float | None:
        """Return the share of the measured part in which the GPU under test had no kernel to run; None without such samples."""
        use = self.spans.get(f"{self.gpu}.use")
        return None if use is None else min(max(1.0 - use.mean, 0.0), 1.0)

    @property
    def others_on_gpu(self) -> float | None:
        """Return how many programs besides ours were on the GPU under test at once; None without such samples."""
        seen = self.spans.get(f"{self.gpu}.processes")
        return None if seen is None else max(0.0, seen.maximum - 1)


def read_telemetry(events: Sequence[Event], facts: Mapping[str, Mapping[str, JsonValue]]) -> Telemetry | None:
    """Read what was sampled next to a run; None where nothing was."""
    about = next((event for event in events if isinstance(event, Sampled)), None)
    if about is None:
        return None
    series = _series(event for event in events if isinstance(event, Sample) and event.rank == about.rank)
    series |= _others(series)
    begin_s, end_s = measured_part(events, about.rank)
    gpu = _under_test(about.gpus, facts.get("gpu", {}))
    return Telemetry(
        hz=about.hz,
        interval_s=about.interval_s,
        cost_share=about.cpu_s / about.elapsed_s if about.elapsed_s > 0 else 0.0,
        gpus=about.gpus,
        problems=tuple(about.problems),
        begin_s=begin_s,
        end_s=end_s,
        spans=_spans(series, begin_s, end_s),
        series={name: _thinned(one) for name, one in series.items()},
        gpu=gpu,
        with_steps=_with_steps(events, series, begin_s, about.rank, gpu),
    )


def _series(samples: Iterable[Sample]) -> dict[str, Series]:
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        if sample.at_s is None:
            continue
        for name, value in sample.values.items():
            if name in found or len(found) < MOST_NAMES:
                found.setdefault(name, []).append((sample.at_s, value))
    made = {}
    for name, points in sorted(found.items()):
        points.sort()
        made[name] = Series(tuple(at for at, _ in points), tuple(value for _, value in points))
    return made


def measured_part(events: Sequence[Event], rank: int) -> tuple[float | None, float | None]:
    """Return when the measured part of a rank began and ended; None for what did not happen."""
    begin_s = end_s = None
    for event in events:
        if isinstance(event, Phase) and event.phase == "measure" and event.rank == rank:
            if event.state == "begin":
                begin_s, end_s = event.t, None
            elif begin_s is not None and end_s is None:
                # A program in an image of its own starts some time after it was announced.
                end_s = event.t
                begin_s = max(begin_s, end_s - event.seconds) if event.seconds is not None else begin_s
    return begin_s, end_s


def _under_test(gpus: Mapping[str, Mapping[str, JsonValue]], facts: Mapping[str, JsonValue]) -> str:
    """Return the name of the GPU under test; of a MIG slice that of the GPU which it is cut from."""
    devices = facts.get("devices")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    if facts.get("under_test") is None:
        return ""
    wanted = {bare(str(one)) for one in (facts.get("under_test"), first.get("uuid")) if one}
    return next((name for name, gpu in gpus.items() if bare(str(gpu.get("uuid") or "")) in wanted), "")


def _spans(series: Mapping[str, Series], begin_s: float | None, end_s: float | None) -> dict[str, Span]:
    if begin_s is None or end_s is None:
        return {}
    found = {}
    for name, one in series.items():
        inside = [value for at, value in zip(one.at_s, one.values, strict=True) if begin_s <= at <= end_s]
        if inside:
            found[name] = Span(min(inside), fmean(inside), max(inside), len(inside))
    return found


def _thinned(one: Series) -> Series:
    every = -(-len(one.at_s) // MOST_DRAWN)
    return Series(one.at_s[::every], one.values[::every])


# --- What moved with the length of steps, within one run -------------------------------------------------------------------

# Intervals between two samples of which fewer say nothing; and how much steps must differ between them to have a cause.
LEAST_INTERVALS = 8
LEAST_MOVED = 0.01
# What may make steps longer or shorter: of the GPU under test, and of the host.
OF_GPU = {
    "clock_sm_mhz": "the GPU's clock",
    "clock_memory_mhz": "the clock of the GPU's memory",
    "temperature_c": "the GPU's temperature",
}
OF_HOST = {
    "cpu.clock_mhz": "the CPUs' clock",
    "cpu.others": "the CPUs that other programs used",
    "pressure.cpu": "the time in which a task waited for a CPU",
    "pressure.io": "the time in which a task waited for a disk",
    "pressure.memory": "the time in which a task waited for memory",
    "group.stopped": "the time in which the CPU quota stopped the run",
}


def _with_steps(
    events: Sequence[Event], series: Mapping[str, Series], begin_s: float | None, rank: int, gpu: str
) -> dict[str, float]:
    """Correlate the mean length of the steps between two samples with each quantity at the later one."""
    if begin_s is None:
        return {}
    steps = [
        seconds
        for event in events
        if isinstance(event, Steps) and event.phase == "measure" and event.rank == rank
        for seconds in event.step_s
    ]
    if len(steps) < LEAST_INTERVALS:
        return {}
    ends = [begin_s + at for at in accumulate(steps)]
    found = {}
    of_gpu = {f"{gpu}.{name}" for name in OF_GPU} if gpu else set()
    for name, one in series.items():
        if name not in of_gpu and name not in OF_HOST:
            continue
        lengths, values = [], []
        for before, at, value in zip(one.at_s, one.at_s[1:], one.values[1:], strict=False):
            first, last = bisect_left(ends, before), bisect_left(ends, at)
            if before >= begin_s and last > first:
                lengths.append(fmean(steps[first:last]))
                values.append(value)
        correlation = _correlation(lengths, values)
        if correlation is not None:
            found[name] = correlation
    return found


def _others(series: Mapping[str, Series]) -> dict[str, Series]:
    """What other programs used of the CPUs: what all used, less the run's own, where both were sampled at one moment."""
    busy, own = series.get("cpu.busy"), series.get("run.cpus")
    if busy is None or own is None:
        return {}
    mine = dict(zip(own.at_s, own.values, strict=True))
    points = [(at, max(0.0, value - mine[at])) for at, value in zip(busy.at_s, busy.values, strict=True) if at in mine]
    return {"cpu.others": Series(tuple(at for at, _ in points), tuple(value for _, value in points))}


def _correlation(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    if len(lengths) < LEAST_INTERVALS or not all(map(math.isfinite, (*lengths, *values))):
        return None
    x, y = np.asarray(lengths, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if float(y.std()) <= 1e-6 * max(1.0, float(np.abs(y).max())) or float(x.std()) < LEAST_MOVED * float(x.mean()):
        return None
    return float(np.corrcoef(x, y)[0, 1])


# How strong it must be, and in how many of the runs with the same sign, to be said.
STRONG = 0.6
MOST_OF_RUNS = 0.7


def moved_with_steps(runs: Sequence[Telemetry], label: str = "") -> list[str]:
    """Say what moved with the length of steps within most of the runs: an association with its numbers, and no proof."""
    words = {**OF_HOST, **{f"{one.gpu}.{name}": said for one in runs if one.gpu for name, said in OF_GPU.items()}}
    told = []
    for name, what in words.items():
        known = [value for one in runs if (value := one.with_steps.get(name)) is not None]
        if not known or len(known) < MOST_OF_RUNS * len(runs):
            continue
        strong = [
            value
            for value in known
            if abs(value) >= STRONG and math.copysign(1, value) == math.copysign(1, median(known))
        ]
        if len(strong) < MOST_OF_RUNS * len(known):
            continue
        spans = [one.spans[name] for one in runs if name in one.spans]
        reach = ""
        if spans:
            low, high = min(span.minimum for span in spans), max(span.maximum for span in spans)
            reach = f", from {_figure(name, low)} to {_figure(name, high)}"
        higher = "higher" if median(known) > 0 else "lower"
        who = f"{label}: " if label else ""
        told.append(
            f"{who}within the runs steps were longer where {what} was {higher}{reach} (correlation "
            f"{median(known):+.2f}, {len(strong)} of {len(runs)} runs): an association, not the verdict"
        )
    return told


# --- For comparisons, and in words -----------------------------------------------------------------------------------------


def covariates(found: Telemetry | None) -> dict[str, float]:
    """Return the means over the measured part that explain a rate, under the names of covariates (covariates.py)."""
    if found is None:
        return {}
    spans = found.spans
    of_gpu = {
        "clock_sm_mhz": "clock_sm_mhz",
        "clock_memory_mhz": "clock_memory_mhz",
        "temperature_c": "temperature_c",
        "memory_temperature_c": "memory_temperature_c",
    }
    told = {name: spans[f"{found.gpu}.{key}"].mean for name, key in of_gpu.items() if f"{found.gpu}.{key}" in spans}
    of_host = {
        "cpu_clock_mhz": "cpu.clock_mhz",
        "cpu_pressure_share": "pressure.cpu",
        "memory_pressure_share": "pressure.memory",
        "disk_pressure_share": "pressure.io",
    }
    told |= {name: spans[key].mean for name, key in of_host.items() if key in spans}
    if (waited := found.gpu_waited) is not None:
        told["gpu_waited_share"] = waited
    return told


def say_waited(runs: Sequence[Telemetry], data_share: float | None) -> str:
    """Say how long the GPU waited, the median over runs, and how much of it the loop waited for data; "" without a GPU."""
    known = [waited for one in runs if (waited := one.gpu_waited) is not None]
    if not known:
        return ""
    share = median(known)
    said = f"the GPU waited {say_percent(share, 0)} of the time"
    if data_share is None:
        return said
    return f"{said}; waiting for data took {say_percent(data_share, 0)}"


def reasons(bits: float) -> tuple[str, ...]:
    """Return why clocks were not higher, in words, from the bits of a sample."""
    return tuple(word for bit, word in REASONS.items() if int(bits) & bit) if 0 <= bits < 2**31 else ()


UNITS = {"mhz": "MHz", "c": "°C", "w": "W", "j": "J", "mib": "MiB", "cpus": "CPUs"}
SHARES = ("use", "memory_use", "fan", "stopped")


def unit_of(name: str) -> str:
    """Return the unit of a sampled quantity; "share" of one that is from 0 to 1."""
    key = name.partition(".")[2]
    if key.endswith("_mib_s"):
        return "MiB/s"
    if name.startswith(("pressure.", "group.pressure")) or key in SHARES:
        return "share"
    if key in ("busy", "wait_disk", "stolen", "others"):
        return "CPUs"
    return UNITS.get(key.rpartition("_")[2], "")


def _figure(name: str, value: float) -> str:
    unit = unit_of(name)
    if unit == "share":
        return say_percent(value, 0)
    return f"{value:,.4g} {unit}".strip()


def say_measured(found: Telemetry) -> str:
    """Say when the measured part was: `from 4.2 s to 34.3 s of 36.0 s`."""
    if found.begin_s is None or found.end_s is None:
        return "the measured part did not end"
    return f"measured from {say_seconds(found.begin_s)} to {say_seconds(found.end_s)}"
