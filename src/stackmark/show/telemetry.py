"""What was sampled next to runs, in words and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from stackmark.show.safe import safe_line
from stackmark.show.terminal import Line
from stackmark.units import say_percent
from stackmark.verdict.telemetry import Span, Telemetry, reasons, say_measured, say_waited, unit_of

# Of the host, in the order in which they are shown; of each GPU those below.
OF_HOST = (
    ("cpu.busy", "CPUs at work"),
    ("run.cpus", "CPUs of the run"),
    ("cpu.others", "CPUs of other programs"),
    ("cpu.clock_mhz", "clock of the CPUs"),
    ("pressure.cpu", "waited for a CPU"),
    ("pressure.io", "waited for a disk"),
    ("pressure.memory", "waited for memory"),
    ("group.stopped", "stopped by the CPU quota"),
    ("memory.used_mib", "memory of the machine"),
    ("run.memory_mib", "memory of the run"),
    ("disk.read_mib_s", "read from disks"),
    ("disk.written_mib_s", "written to disks"),
    ("network.received_mib_s", "received"),
    ("network.sent_mib_s", "sent"),
)
OF_GPU = (
    ("use", "use"),
    ("memory_use", "use of the memory"),
    ("power_w", "power"),
    ("temperature_c", "temperature"),
    ("memory_temperature_c", "temperature of the memory"),
    ("clock_sm_mhz", "clock"),
    ("clock_memory_mhz", "clock of the memory"),
    ("memory_mib", "memory"),
    ("pcie_received_mib_s", "received over PCIe"),
    ("pcie_sent_mib_s", "sent over PCIe"),
    ("nvlink_received_mib_s", "received over NVLink"),
    ("nvlink_sent_mib_s", "sent over NVLink"),
    ("fan", "fan"),
)
# Further GPUs than the one under test are counted.
MOST_GPUS = 8


def telemetry_json(found: Telemetry) -> dict[str, Any]:
    """Return the summary of a run's samples: each quantity over the measured part. The samples are in `export --samples`."""
    return {
        "hz": found.hz,
        "interval_s": found.interval_s,
        "sampler_cpu_share": round(found.cost_share, 6),
        "measured_s": None if found.begin_s is None or found.end_s is None else [found.begin_s, found.end_s],
        "gpus": {name: dict(gpu) for name, gpu in found.gpus.items()},
        "gpu": found.gpu or None,
        "gpu_waited_share": found.gpu_waited,
        "quantities": {name: _span_json(name, span) for name, span in found.spans.items() if not _is_bits(name)},
        "clock_reasons": sorted(_reasons(found)),
        "moved_with_step_time": dict(found.with_steps),
        "problems": list(found.problems),
    }


def _span_json(name: str, span: Span) -> dict[str, Any]:
    return {"unit": unit_of(name), "min": span.minimum, "mean": span.mean, "max": span.maximum, "samples": span.samples}


def _is_bits(name: str) -> bool:
    return name.endswith(".reasons")


def _reasons(found: Telemetry) -> set[str]:
    """Why the clocks of the GPU under test were not higher at a moment of the measured part."""
    bits = found.series.get(f"{found.gpu}.reasons")
    if bits is None or found.begin_s is None or found.end_s is None:
        return set()
    inside = {
        value for at, value in zip(bits.at_s, bits.values, strict=True) if found.begin_s <= at <= found.end_s
    }  # fmt: skip
    return {word for value in inside for word in reasons(value)}


def telemetry_lines(found: Telemetry) -> list[Line]:
    """Return the lines about one run's samples: each quantity with its mean, and from where to where it went."""
    told = [f"{found.hz:g} times a second, {say_measured(found)}"]
    told += _lines(found.spans, "", OF_HOST) if found.spans else ["no sample was taken in the measured part"]
    lines: list[Line] = [("sampled", "\n".join(told))]
    names = sorted(found.gpus, key=lambda name: (name != found.gpu, name))
    for name in names[:MOST_GPUS]:
        about = safe_line(str(found.gpus[name].get("name") or "GPU"))
        mine = _lines(found.spans, f"{name}.", OF_GPU)
        if name == found.gpu and (why := sorted(_reasons(found))):
            mine.append(f"clock reasons: {', '.join(why)}")
        if mine:
            lines.append((name, "\n".join([about + (", under test" if name == found.gpu else ""), *mine])))
    return lines


def _lines(spans: Mapping[str, Span], before: str, wanted: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f"{words}: {say_value(before + name, span.mean)}{_reach(before + name, span)}"
        for name, words in wanted
        if (span := spans.get(before + name)) is not None
    ]


def _reach(name: str, span: Span) -> str:
    low, high = say_value(name, span.minimum), say_value(name, span.maximum)
    return "" if low == high else f", from {low} to {high}"


def say_value(name: str, value: float) -> str:
    """Format a sampled quantity with its unit."""
    unit = unit_of(name)
    if unit == "share":
        return say_percent(value, 0)
    if unit == "MiB" and value >= 10_240:
        return f"{value / 1024:,.1f} GiB"
    return f"{value:,.{2 if abs(value) < 10 else 0}f} {unit}".strip()


def waited_line(runs: Sequence[Telemetry], data_share: float | None) -> list[Line]:
    """Return the headline of a GPU that waited; nothing where none was sampled."""
    said = say_waited(runs, data_share)
    return [("GPU", said)] if said else []
