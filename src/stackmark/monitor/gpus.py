"""GPU readings for the exporter, by the functions that runs are read with (machine/), plus how busy each GPU is.

The labels `gpu` and `UUID` are spelled as DCGM's exporter spells them, so that series of both can be joined. Not tried on
a GPU: the tests use a driver that answers as recorded.
"""

import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from stackmark.machine import counters, pci
from stackmark.machine.counters import GpuCounters
from stackmark.machine.nvml import CLOCK_SM, REASONS, Device, NoDriver, Nvml, XidWatch, devices, session

# A GPU answers in milliseconds; one that hangs does not keep the ledger's results from a scrape.
AGE_S, WAIT_S = 1.0, 3.0
# Where DCGM's exporter listens by default.
DCGM_PORT = 9400
DCGM_MARK = b"DCGM_FI_DEV_"
_MIB = float(2**20)
_MHZ = 1e6


@dataclass(frozen=True)
class GpuReading:
    """One GPU. `up` is False for one that was seen since the start and does not answer now."""

    index: int
    uuid: str
    name: str
    pci_address: str
    up: bool
    counters: GpuCounters | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    power_limit_w: float | None = None
    clock_sm_max_mhz: int | None = None
    margin_c: int | None = None
    # None where XIDs cannot be watched.
    xids: Counter[int] | None = None


@dataclass(frozen=True)
class GpusReading:
    """All GPUs of this machine. Without a driver there are none, and `problem` says why."""

    gpus: tuple[GpuReading, ...] = ()
    # What the kernel shows on its bus, or what was seen since the start: the larger.
    expected: int = 0
    driver: str = ""
    problem: str = ""

    @property
    def present(self) -> int:
        return sum(one.up for one in self.gpus)


@dataclass
class _WatchedGpu:
    device: Device
    name: str
    pci_address: str
    watch: XidWatch


class GpuWatch:
    """Reads all GPUs again and again. The library stays open between readings: to open it takes seconds on some machines."""

    def __init__(self, expected: int | None = None, module: object = None) -> None:
        self._expected = expected
        self._module = module
        self._held = ExitStack()
        self._nvml: Nvml | None = None
        self._known: dict[str, _WatchedGpu] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def read(self) -> GpusReading:
        on_bus = sum(isinstance(one, dict) and one.get("vendor") == "nvidia" for one in _on_bus())
        expected = self._expected if self._expected is not None else max(on_bus, len(self._known))
        if self._nvml is None:
            try:
                self._nvml = self._held.enter_context(session(self._module))
            except NoDriver as missing:
                return GpusReading((), expected, problem=str(missing))
        nvml = self._nvml
        nvml.lost = None
        shown = {device.uuid: device for device in devices(nvml)}
        for uuid, device in shown.items():
            if uuid not in self._known:
                self._known[uuid] = self._meet(nvml, device)
        expected = self._expected if self._expected is not None else max(on_bus, len(self._known))
        found = tuple(self._one(nvml, known, shown) for known in self._known.values())
        return GpusReading(found, expected, nvml.word("nvmlSystemGetDriverVersion") or "")

    def _meet(self, nvml: Nvml, device: Device) -> _WatchedGpu:
        info = nvml.ask("nvmlDeviceGetPciInfo_v3", device.handle)
        bus = getattr(info, "busId", None)
        address = bus.decode(errors="replace") if isinstance(bus, bytes) else bus if isinstance(bus, str) else ""
        watch = self._held.enter_context(XidWatch(device.uuid, self._module))
        return _WatchedGpu(device, nvml.word("nvmlDeviceGetName", device.handle) or "", address, watch)

    def _one(self, nvml: Nvml, known: _WatchedGpu, shown: dict[str, Device]) -> GpuReading:
        device = shown.get(known.device.uuid)
        seen = counters.read(known.device.uuid, known.watch, module=self._module)
        xids = None if seen.xids is None else Counter(seen.xids)
        if device is None or seen.gpu is None:
            return GpuReading(known.device.index, known.device.uuid, known.name, known.pci_address, False, xids=xids)
        handle = device.handle
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        limit = nvml.count("nvmlDeviceGetEnforcedPowerLimit", handle)
        return GpuReading(
            index=device.index,
            uuid=device.uuid,
            name=known.name,
            pci_address=known.pci_address,
            up=True,
            counters=seen.gpu,
            memory_total_bytes=nvml.memory_bytes(handle)[0],
            utilization=_share(getattr(rates, "gpu", None)),
            memory_utilization=_share(getattr(rates, "memory", None)),
            power_limit_w=None if limit is None else limit / 1000,
            clock_sm_max_mhz=nvml.count("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
            margin_c=nvml.count("nvmlDeviceGetMarginTemperature", handle),
            xids=xids,
        )


def _on_bus() -> list[object]:
    found = pci.read().facts.get("gpus")
    return list(found) if isinstance(found, list) else []


def _share(percent: object) -> float | None:
    return percent / 100 if isinstance(percent, int) else None


def dcgm_answers(port: int, timeout_s: float = 1.0) -> bool:
    """Tell whether DCGM's exporter answers on a port of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as answer:
            return DCGM_MARK in answer.read(1 << 16)
    except (OSError, ValueError, urllib.error.URLError):
        return False


# --- metrics

GPU = ("gpu", "UUID")
# Metric, help, and the value of a reading; None is not exported.
_GAUGES: dict[str, tuple[str, Callable[[GpuReading, GpuCounters], float | None]]] = {
    "stackmark_gpu_power_watts": ("Power drawn now, as the driver averages it.", lambda one, seen: seen.power_w),
    "stackmark_gpu_power_limit_watts": ("Enforced power limit.", lambda one, seen: one.power_limit_w),
    "stackmark_gpu_temperature_celsius": ("Temperature of the GPU.", lambda one, seen: seen.temperature_c),
    "stackmark_gpu_temperature_margin_celsius": (
        "Distance to the slowdown temperature.",
        lambda one, seen: one.margin_c,
    ),
    "stackmark_gpu_memory_bytes": ("Size of the memory.", lambda one, seen: one.memory_total_bytes),
    "stackmark_gpu_memory_used_bytes": (
        "Memory in use.",
        lambda one, seen: None if seen.memory_used_mib is None else seen.memory_used_mib * _MIB,
    ),
    "stackmark_gpu_utilization_ratio": (
        "Share of time in which a kernel ran, 0 to 1.",
        lambda one, seen: one.utilization,
    ),
    "stackmark_gpu_memory_utilization_ratio": (
        "Share of time in which memory was read or written, 0 to 1.",
        lambda one, seen: one.memory_utilization,
    ),
    "stackmark_gpu_clock_sm_max_hertz": (
        "Highest clock of the multiprocessors.",
        lambda one, seen: None if one.clock_sm_max_mhz is None else one.clock_sm_max_mhz * _MHZ,
    ),
    "stackmark_gpu_processes": ("Programs that compute on it.", lambda one, seen: seen.processes),
    "stackmark_gpu_row_remap_pending": (
        "1 where a memory row waits for a reset to be remapped.",
        lambda one, seen: seen.row_remap_pending,
    ),
    "stackmark_gpu_row_remap_failed": (
        "1 where a memory row could not be remapped: the GPU is due for replacement.",
        lambda one, seen: seen.row_remap_failed,
    ),
}


def gpu_metrics(reading: GpusReading) -> Iterator[Metric]:
    """Yield the series of all GPUs."""
    yield GaugeMetricFamily("stackmark_gpus", "GPUs that answer.", value=reading.present)
    text = "GPUs that should answer: as --expect-gpus says, else those on the bus or seen since the start."
    yield GaugeMetricFamily("stackmark_gpus_expected", text, value=reading.expected)
    if not reading.gpus:
        return
    info = InfoMetricFamily("stackmark_gpu", "What a GPU is.", labels=GPU)
    up = GaugeMetricFamily("stackmark_gpu_up", "1 where the GPU answers, 0 where it no longer does.", labels=GPU)
    for one in reading.gpus:
        about = {"model_name": one.name, "pci_bus_id": one.pci_address, "driver": reading.driver}
        info.add_metric(_labels(one), about)
        up.add_metric(_labels(one), float(one.up))
    yield from (info, up)
    alive = [(one, one.counters) for one in reading.gpus if one.counters is not None]
    for name, (text, value) in _GAUGES.items():
        family = GaugeMetricFamily(name, text, labels=GPU)
        for one, seen in alive:
            if (number := value(one, seen)) is not None:
                family.add_metric(_labels(one), float(number))
        yield family
    yield from _clocks(alive)
    yield from _totals(alive)
    yield _xids(reading.gpus)


def _clocks(alive: Iterable[tuple[GpuReading, GpuCounters]]) -> Iterator[Metric]:
    clocks = GaugeMetricFamily("stackmark_gpu_clock_hertz", "Clock now.", labels=(*GPU, "clock"))
    limited = GaugeMetricFamily(
        "stackmark_gpu_clock_limited", "1 for each reason why the clocks are not higher now.", labels=(*GPU, "reason")
    )
    for one, seen in alive:
        for clock, mhz in (("sm", seen.clock_sm_mhz), ("memory", seen.clock_memory_mhz)):
            if mhz is not None:
                clocks.add_metric([*_labels(one), clock], mhz * _MHZ)
        for reason in REASONS.values():
            limited.add_metric([*_labels(one), reason], float(reason in seen.clock_reasons))
    yield from (clocks, limited)


def _totals(alive: Iterable[tuple[GpuReading, GpuCounters]]) -> Iterator[Metric]:
    energy = CounterMetricFamily("stackmark_gpu_energy_joules", "Energy since the driver was loaded.", labels=GPU)
    limited = CounterMetricFamily(
        "stackmark_gpu_clock_limited_seconds", "Time under each limit of the clocks.", labels=(*GPU, "reason")
    )
    ecc = CounterMetricFamily(
        "stackmark_gpu_ecc_errors", "Memory errors since the driver was loaded.", labels=(*GPU, "kind")
    )
    rows = CounterMetricFamily(
        "stackmark_gpu_rows_remapped", "Memory rows taken out of use, by the errors that led to it.",
        labels=(*GPU, "kind"),
    )  # fmt: skip
    replays = CounterMetricFamily("stackmark_gpu_pcie_replays", "PCIe packets that were sent again.", labels=GPU)
    for one, seen in alive:
        labels = _labels(one)
        _count(energy, labels, seen.energy_j)
        for reason, seconds in seen.limited_s.items():
            _count(limited, [*labels, reason], seconds)
        _count(ecc, [*labels, "corrected"], seen.ecc_corrected_volatile)
        _count(ecc, [*labels, "uncorrected"], seen.ecc_uncorrected_volatile)
        _count(rows, [*labels, "corrected"], seen.rows_remapped_correctable)
        _count(rows, [*labels, "uncorrected"], seen.rows_remapped_uncorrectable)
        _count(replays, labels, seen.pcie_replays)
    yield from (energy, limited, ecc, rows, replays)


def _xids(gpus: Iterable[GpuReading]) -> Metric:
    """Of each XID that the driver's table names there is a series from the start: `increase()` sees no first value."""
    family = CounterMetricFamily(
        "stackmark_gpu_xid_errors", "XIDs (the driver's error numbers) since the exporter began.", labels=(*GPU, "xid")
    )
    for one in gpus:
        if one.xids is not None:
            for xid in sorted({*counters.XIDS, *one.xids}):
                family.add_metric([*_labels(one), str(xid)], one.xids[xid])
    return family


def _count(family: CounterMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _labels(one: GpuReading) -> list[str]:
    return [str(one.index), one.uuid]
