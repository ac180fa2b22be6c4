"""Read hardware counters before and after a run: errors during it, and what limited it.

METHOD.md: an error that happened during a run invalidates it; throttling flags it. Drawn here between errors that the
hardware could not repair (an XID, an uncorrectable bit, a memory row taken out of use, a GPU that stopped answering,
the kernel killing a process), which invalidate, and errors that it repaired in flight (a corrected bit, a replayed PCIe
packet), which changed no datum and cost microseconds: these are flagged with their number. To throw such a run away
would be a selection of runs without a cause in what was measured.

Every counter may be missing, on its own: then nothing is concluded from it. Time under a clock limit is taken from the
fields 74 to 79, in nanoseconds, whose numbers have not moved. The newer fields for the hardware's own slowdowns were
renumbered after driver 580 (251–253 became 269–271, which are power smoothing to the older one), so they are left
alone; those limits are seen in the clock reasons instead.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import sysconf
from pathlib import Path

from stackmark.machine import cgroup
from stackmark.machine.nvml import CLOCK_MEMORY, CLOCK_SM, NoDriver, Nvml, XidWatch, find, session
from stackmark.machine.reading import ROOT, Metric, cpu_set, mib, number, scaled, text
from stackmark.remarks import Remark
from stackmark.units import say_percent

__all__ = ["Counters", "CpuCounters", "Findings", "GpuCounters", "XidWatch", "Zone", "compare", "read"]

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
# NVML's fields for the nanoseconds under each limit, and what to call them.
LIMIT_FIELDS = {74: "power_cap", 75: "thermal", 76: "sync_boost", 77: "board_limit", 79: "reliability"}
# Below this share of the time a limit is named in the metrics only: a tenth of the 1 % that verdicts are given at.
SHARE_WORTH_A_FLAG = 0.001
# The energy counter is coarse (updates of 0.1 s): METHOD.md takes no energy from a shorter window.
ENERGY_WINDOW_S = 5.0

XIDS = {
    13: "a kernel faulted in the graphics engine",
    31: "a kernel accessed invalid memory",
    43: "the GPU stopped working for one process",
    45: "a process's work was cleaned up after an error",
    48: "an uncorrectable memory error",
    62: "the GPU's internal controller halted",
    63: "a memory row or page was taken out of use",
    64: "a memory row or page could not be taken out of use",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    92: "many corrected memory errors",
    94: "a memory error, contained in one process",
    95: "a memory error that was not contained",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
}


@dataclass(frozen=True)
class GpuCounters:
    """One GPU's counters. A value that this chip or driver cannot give is None, or missing in its table."""

    ecc_corrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    rows_remapped_correctable: int | None = None
    rows_remapped_uncorrectable: int | None = None
    row_remap_pending: int | None = None
    row_remap_failed: int | None = None
    pcie_replays: int | None = None
    limited_s: Mapping[str, float] = field(default_factory=dict)
    clock_reasons: tuple[str, ...] = ()
    energy_j: float | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    memory_used_mib: float | None = None
    # Programs that compute on it, this one among them.
    processes: int | None = None


@dataclass(frozen=True)
class Zone:
    """One RAPL energy counter, which starts again at zero after `range_uj`."""

    energy_uj: int
    range_uj: int


@dataclass(frozen=True)
class CpuCounters:
    """The host's counters. `quota_*` and `oom_kills` are the process's control group's, `steal_s` is the hypervisor's."""

    quota_stops: int | None = None
    quota_stopped_s: float | None = None
    oom_kills: int | None = None
    thermal_throttles: int | None = None
    steal_s: float | None = None
    energy: Mapping[str, Zone] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """One reading of all counters."""

    time_s: float = 0.0  # monotonic
    uuid: str | None = None
    gpu: GpuCounters | None = None
    gpu_problem: str | None = None
    xids: tuple[int, ...] | None = None  # all since the watch began
    xids_problem: str | None = None
    cpu: CpuCounters = field(default_factory=CpuCounters)


@dataclass(frozen=True)
class Findings:
    """Sentences that make a run invalid, sentences that flag it, numbers, and what is unknown."""

    invalid: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def named_metrics(self) -> list[Metric]:
        """Return the numbers with their units, which stand in their names, as people write them."""
        return [Metric(name, value, _unit(name), False) for name, value in self.metrics.items()]


_UNITS = {"j": "J", "w": "W", "c": "°C", "mhz": "MHz", "mib": "MiB"}


def _unit(name: str) -> str:
    if name == "other_gpu_processes":
        return "programs"
    ending = name.rpartition("_")[2]
    return _UNITS.get(ending, ending)


def read(uuid: str | None = None, watch: XidWatch | None = None, root: Path = ROOT, module: object = None) -> Counters:
    """Read all counters. `uuid` is the GPU under test, as torch or the driver writes it; None for a CPU."""
    gpu, problem = _read_gpu(uuid, module) if uuid is not None else (None, None)
    xids = watch.poll() if watch is not None else None
    return Counters(
        time_s=time.monotonic(),
        uuid=uuid,
        gpu=gpu,
        gpu_problem=problem,
        xids=xids,
        xids_problem=watch.problem if watch is not None else None,
        cpu=_read_cpu(root),
    )


def _read_gpu(uuid: str, module: object) -> tuple[GpuCounters | None, str | None]:
    try:
        with session(module) as nvml:
            device = find(nvml, uuid)
            if device is None:
                return None, nvml.lost or f"the GPU {uuid} is not among those the driver shows here"
            nvml.lost = None  # another GPU, which `find` passed on its way
            counters = _gpu_counters(nvml, device.handle)
            return (counters, None) if nvml.lost is None else (None, nvml.lost)
    except NoDriver as missing:
        return None, str(missing)


def _gpu_counters(nvml: Nvml, handle: object) -> GpuCounters:
    def ecc(kind: int, since: int) -> int | None:
        return nvml.count("nvmlDeviceGetTotalEccErrors", handle, kind, since)

    rows = nvml.several("nvmlDeviceGetRemappedRows", handle)
    correctable, uncorrectable, pending, failed = rows if len(rows) == 4 else (None, None, None, None)
    limited = nvml.fields(handle, tuple(LIMIT_FIELDS))
    return GpuCounters(
        ecc_corrected_volatile=ecc(CORRECTED, VOLATILE),
        ecc_corrected_aggregate=ecc(CORRECTED, AGGREGATE),
        ecc_uncorrected_volatile=ecc(UNCORRECTED, VOLATILE),
        ecc_uncorrected_aggregate=ecc(UNCORRECTED, AGGREGATE),
        rows_remapped_correctable=correctable,
        rows_remapped_uncorrectable=uncorrectable,
        row_remap_pending=pending,
        row_remap_failed=failed,
        pcie_replays=nvml.count("nvmlDeviceGetPcieReplayCounter", handle),
        limited_s={LIMIT_FIELDS[number]: nanoseconds / 1e9 for number, nanoseconds in limited.items()},
        clock_reasons=tuple(nvml.reasons(handle) or ()),
        energy_j=scaled(nvml.count("nvmlDeviceGetTotalEnergyConsumption", handle), 1000),
        power_w=scaled(nvml.count("nvmlDeviceGetPowerUsage", handle), 1000),
        temperature_c=nvml.temperature_c(handle),
        clock_sm_mhz=nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
        clock_memory_mhz=nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
        memory_used_mib=mib(nvml.memory_bytes(handle)[1]),
        processes=None if (running := nvml.processes(handle)) is None else len(running),
    )


def _read_cpu(root: Path) -> CpuCounters:
    try:
        throttled, kills = cgroup.read_throttled(root), cgroup.read_oom_kills(root)
    except (OSError, ValueError):
        throttled, kills = None, None  # the facts about the control group say why
    return CpuCounters(
        quota_stops=throttled.times if throttled else None,
        quota_stopped_s=throttled.seconds if throttled else None,
        oom_kills=kills,
        thermal_throttles=_thermal_throttles(root / "sys/devices/system/cpu"),
        steal_s=_steal_s(root),
        energy=_rapl(root / "sys/class/powercap"),
    )


def _thermal_throttles(base: Path) -> int | None:
    """Each core's count and each package's, once: every thread of a package shows the package's."""
    cores: list[int] = []
    packages: dict[str, int] = {}
    for cpu in sorted(cpu_set(text(base / "online"))):
        folder = base / f"cpu{cpu}"
        core = number(folder / "thermal_throttle/core_throttle_count")
        package = number(folder / "thermal_throttle/package_throttle_count")
        if core is not None:
            cores.append(core)
        if package is not None:
            packages[text(folder / "topology/physical_package_id") or "0"] = package
    return sum(cores) + sum(packages.values()) if cores or packages else None


def _steal_s(root: Path) -> float | None:
    """CPU time that the hypervisor gave to others while we wanted it: the eighth number of /proc/stat's first line."""
    words = (text(root / "proc/stat") or "").partition("\n")[0].split()
    return int(words[8]) / sysconf("SC_CLK_TCK") if len(words) > 8 and words[0] == "cpu" else None


def _rapl(base: Path) -> dict[str, Zone]:
    """Packages only: their parts (core, dram) are zones within zones. Root's alone to read since 2020."""
    zones = {}
    for folder in sorted(base.glob("intel-rapl:*")):
        name, energy = text(folder / "name"), number(folder / "energy_uj")
        if name is not None and name.startswith("package") and energy is not None:
            zones[name] = Zone(energy, number(folder / "max_energy_range_uj") or 0)
    return zones


# What a counter that rose means, by its name in GpuCounters.
BROKEN = {
    "ecc_uncorrected_volatile": "{n} uncorrectable memory error(s) on the GPU since the driver was loaded are new",
    "ecc_uncorrected_aggregate": "{n} uncorrectable memory error(s) in the GPU's lifetime count are new",
    "rows_remapped_correctable": "{n} memory row(s) of the GPU were remapped after corrected errors",
    "rows_remapped_uncorrectable": "{n} memory row(s) of the GPU were remapped after uncorrectable errors",
    "row_remap_pending": "a row of the GPU's memory now has to be remapped: reset the GPU before the next run",
    "row_remap_failed": "remapping a memory row failed: the GPU is due for replacement",
}
REPAIRED = {
    "ecc_corrected_volatile": "{n} memory error(s) on the GPU were corrected",
    "pcie_replays": "{n} PCIe packet(s) were resent: look at the slot, the riser or the cable",
}
STANDING = {
    "row_remap_pending": "a row of the GPU's memory had to be remapped before the run: reset the GPU",
    "row_remap_failed": "remapping a memory row had failed before the run: the GPU is due for replacement",
}
LIMITED = {
    "power_cap": "held down by the power limit, which is normal at full load but makes the limit part of the result",
    "thermal": "held down by temperature: look at cooling and neighbours",
    "sync_boost": "held down to match another GPU (sync boost)",
    "board_limit": "held down by the board's power delivery",
    "reliability": "held down by the reliable voltage",
}
SLOWDOWNS = ("hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "hardware power brake")


def compare(before: Counters, after: Counters) -> Findings:
    """Compare two readings of the same machine."""
    elapsed_s = after.time_s - before.time_s
    metrics: dict[str, float] = {"counters_elapsed_s": elapsed_s}
    notes: list[str] = []
    invalid = [*_errors(before, after)]
    flags = [*_gpu_flags(before.gpu, after.gpu, elapsed_s, metrics), *_cpu_flags(before, after, elapsed_s, metrics)]
    _energy(before, after, elapsed_s, metrics, notes)
    if before.uuid is not None and (after.xids is None or after.xids_problem):
        why = after.xids_problem or "watching did not start"
        notes.append(Remark(f"XIDs were not watched to the end: {why}", "xids-not-watched"))
    if before.uuid is not None and before.gpu is None:
        notes.append(Remark(f"the GPU's counters could not be read: {before.gpu_problem}", "gpu-not-read"))
    return Findings(tuple(invalid), tuple(flags), metrics, tuple(notes))


def _errors(before: Counters, after: Counters) -> Iterator[Remark]:
    for xid in (after.xids or ())[len(before.xids or ()) :]:
        meaning = XIDS.get(xid, "see NVIDIA’s list of XIDs")
        yield Remark(f"the driver reported XID {xid} during the run: {meaning}", "xid")
    if before.uuid != after.uuid:
        yield Remark(f"the GPU changed during the run, from {before.uuid} to {after.uuid}", "gpu-changed")
    elif before.gpu is not None and after.gpu is None:
        yield Remark(f"the GPU could not be read after the run: {after.gpu_problem}", "gpu-lost")
    elif before.gpu is not None and after.gpu is not None:
        for name, sentence in BROKEN.items():
            risen = _risen(before.gpu, after.gpu, name)
            if risen > 0:
                yield Remark(sentence.format(n=risen), _kind(name))
        if any(_risen(before.gpu, after.gpu, name) < 0 for name in ("ecc_uncorrected_volatile", "pcie_replays")):
            reset = "a counter of the GPU went back to zero: during the run the GPU was reset or its driver reloaded"
            yield Remark(reset, "gpu-reset")
    kills = (after.cpu.oom_kills or 0) - (before.cpu.oom_kills or 0) if before.cpu.oom_kills is not None else 0
    if kills > 0:
        yield Remark(f"the kernel killed {kills} process(es) of this control group because memory ran out", "oom-kills")


def _kind(counter: str) -> str:
    return counter.replace("_", "-")


def _risen(before: GpuCounters, after: GpuCounters, name: str) -> int:
    """By how much; 0 where either end could not be read."""
    first, last = getattr(before, name), getattr(after, name)
    return int(last - first) if first is not None and last is not None else 0


def _gpu_flags(
    before: GpuCounters | None, after: GpuCounters | None, elapsed_s: float, metrics: dict[str, float]
) -> Iterator[Remark]:
    if before is None or after is None:
        return
    for name, sentence in REPAIRED.items():
        risen = _risen(before, after, name)
        if risen > 0:
            metrics[name] = risen
            yield Remark(sentence.format(n=risen), _kind(name))
    for name, sentence in STANDING.items():
        if getattr(before, name):
            yield Remark(sentence, _kind(f"{name}_before"))
    for name in sorted(before.limited_s.keys() & after.limited_s.keys()):
        share = max(0.0, after.limited_s[name] - before.limited_s[name]) / elapsed_s if elapsed_s > 0 else 0.0
        metrics[f"limited_{name}_share"] = min(share, 1.0)
        if share >= SHARE_WORTH_A_FLAG:
            text = f"for {say_percent(min(share, 1.0), 1)} of the time the GPU's clocks were {LIMITED[name]}"
            yield Remark(text, _kind(f"limited_{name}"))
    for reason in after.clock_reasons:
        if reason in SLOWDOWNS:
            yield Remark(f"at the end of the run the GPU's clocks were held down: {reason}", "slowdown")
    if before.processes is not None and after.processes is not None:
        # Behind a PID namespace our own number is not in the driver's list, so it is counted and not looked for.
        metrics["other_gpu_processes"] = max(0, max(before.processes, after.processes) - 1)
    for when, counters in (("start", before), ("end", after)):
        for name in ("temperature_c", "clock_sm_mhz", "power_w"):
            value = getattr(counters, name)
            if value is not None:
                metrics[f"{name.rpartition('_')[0]}_{when}_{name.rpartition('_')[2]}"] = value


def _cpu_flags(before: Counters, after: Counters, elapsed_s: float, metrics: dict[str, float]) -> Iterator[Remark]:
    old, new = before.cpu, after.cpu
    if old.quota_stops is not None and new.quota_stops is not None:
        stops = new.quota_stops - old.quota_stops
        stopped_s = (new.quota_stopped_s or 0.0) - (old.quota_stopped_s or 0.0)
        metrics["cpu_quota_stops"], metrics["cpu_quota_stopped_s"] = stops, stopped_s
        if stops > 0:
            text = f"the CPU quota stopped this control group {stops} times, for {stopped_s:.3g} s: raise cpu.max"
            yield Remark(text, "cpu-quota")
    if old.thermal_throttles is not None and new.thermal_throttles is not None:
        throttles = new.thermal_throttles - old.thermal_throttles
        metrics["cpu_thermal_throttles"] = throttles
        if throttles > 0:
            text = f"the CPU slowed itself down {throttles} times because of heat: look at cooling"
            yield Remark(text, "cpu-heat")
    if old.steal_s is not None and new.steal_s is not None and elapsed_s > 0:
        stolen = (new.steal_s - old.steal_s) / elapsed_s
        metrics["cpu_stolen_cpus"] = stolen
        if stolen >= 0.01:  # a hundredth of one CPU: as much as a verdict's margin
            text = f"the hypervisor gave the time of {stolen:.2g} CPUs to other machines: the machine is shared"
            yield Remark(text, "cpu-stolen")


def _energy(before: Counters, after: Counters, elapsed_s: float, metrics: dict[str, float], notes: list[str]) -> None:
    used: dict[str, float] = {}
    if before.gpu and after.gpu and before.gpu.energy_j is not None and after.gpu.energy_j is not None:
        used["energy_j"] = after.gpu.energy_j - before.gpu.energy_j
    zones = before.cpu.energy.keys() & after.cpu.energy.keys()
    if zones:
        used["cpu_energy_j"] = sum(_zone_j(before.cpu.energy[name], after.cpu.energy[name]) for name in zones)
    if used and elapsed_s < ENERGY_WINDOW_S:
        text = f"energy is not reported for {elapsed_s:.1f} s: its counter needs {ENERGY_WINDOW_S:.0f} s or more"
        notes.append(Remark(text, "no-energy"))
    else:
        metrics.update({name: joules for name, joules in used.items() if joules >= 0})


def _zone_j(before: Zone, after: Zone) -> float:
    risen = after.energy_uj - before.energy_uj
    return (risen if risen >= 0 else risen + after.range_uj) / 1e6
