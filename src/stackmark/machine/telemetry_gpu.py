"""What the GPUs do at one moment, by short names: `gpu0.power_w`. NVIDIA's by its library, AMD's by the kernel's files.

What a chip or a driver cannot give is missing, number by number. Calls that are slow are made rarely: NVML measures PCIe traffic
over 20 ms, each direction by itself, while the caller waits.

Not tried on a GPU: the calls are those that counters.py makes at both ends of a run, and further ones of the same library.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stackmark.machine import amd
from stackmark.machine.nvml import CLOCK_MEMORY, CLOCK_SM, Device, NoDriver, Nvml, devices, session
from stackmark.machine.reading import MIB, ROOT, Json, number, text
from stackmark.machine.telemetry import Collector, Rates, Values

# NVML's fields: the memory's temperature, and what all NVLinks of a GPU carried, in KiB. Their numbers have not moved.
MEMORY_TEMPERATURE_FIELD, NVLINK_SENT_FIELD, NVLINK_RECEIVED_FIELD = 82, 138, 139
# A call that waits 20 ms in each direction: this often, whatever the rate of the others.
PCIE_EVERY_S = 5.0
PCIE_SENT, PCIE_RECEIVED = 0, 1
# One of these is there wherever NVIDIA's driver can be asked: the second is Windows' subsystem for Linux.
NVIDIA_NODES = ("dev/nvidiactl", "dev/dxg")


@dataclass
class NvidiaGpu:
    """One GPU of NVIDIA's."""

    nvml: Nvml
    device: Device
    rates: Rates
    _pcie_s: float = float("-inf")

    def facts(self) -> dict[str, Json]:
        return {"uuid": self.device.uuid, "name": self.nvml.word("nvmlDeviceGetName", self.device.handle)}

    def read(self) -> Values:
        nvml, handle, who = self.nvml, self.device.handle, f"gpu{self.device.index}"
        use = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        _, used = nvml.memory_bytes(handle)
        running = nvml.processes(handle)
        reasons = nvml.count("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = nvml.count("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        # One call for all of them.
        fields = nvml.fields(handle, (MEMORY_TEMPERATURE_FIELD, NVLINK_SENT_FIELD, NVLINK_RECEIVED_FIELD))
        told = {
            "use": _share(getattr(use, "gpu", None)),
            "memory_use": _share(getattr(use, "memory", None)),
            "memory_mib": None if used is None else used / MIB,
            "power_w": _thousandth(nvml.count("nvmlDeviceGetPowerUsage", handle)),
            "energy_j": _thousandth(nvml.count("nvmlDeviceGetTotalEnergyConsumption", handle)),
            "temperature_c": nvml.temperature_c(handle),
            "memory_temperature_c": fields.get(MEMORY_TEMPERATURE_FIELD),
            "clock_sm_mhz": nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
            "clock_memory_mhz": nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
            # The bits of `nvml.REASONS`.
            "reasons": reasons,
            "fan": _share(nvml.count("nvmlDeviceGetFanSpeed", handle)),
            "processes": None if running is None else len(running),
        }
        if nvml.lost:
            raise OSError(f"the GPU {self.device.uuid} does not answer any more: {nvml.lost}")
        found = {f"{who}.{name}": float(value) for name, value in told.items() if value is not None}
        now = time.monotonic()
        for name, field in (("sent", NVLINK_SENT_FIELD), ("received", NVLINK_RECEIVED_FIELD)):
            if field in fields:
                found |= self.rates(f"{who}.nvlink_{name}_mib_s", fields[field], now, 1024)
        return found | self._pcie(who, now)

    def _pcie(self, who: str, now_s: float) -> Values:
        if now_s - self._pcie_s < PCIE_EVERY_S:
            return {}
        self._pcie_s = now_s
        found: Values = {}
        for name, direction in (("sent", PCIE_SENT), ("received", PCIE_RECEIVED)):
            kib_s = self.nvml.count("nvmlDeviceGetPcieThroughput", self.device.handle, direction)
            if kib_s is not None:
                found[f"{who}.pcie_{name}_mib_s"] = kib_s / 1024
        if not found:
            self._pcie_s = float("inf")  # not on this GPU: it is not asked again
        return found


@dataclass
class AmdGpu:
    """One GPU of AMD's, by the files of the kernel's driver; not tried on one."""

    index: int
    folder: Path

    def facts(self) -> dict[str, Json]:
        return {"uuid": text(self.folder / "unique_id"), "name": text(self.folder / "product_name")}

    def read(self) -> Values:
        who, sensors = f"gpu{self.index}", amd.sensors(self.folder)
        busy, memory_busy = number(self.folder / "gpu_busy_percent"), number(self.folder / "mem_busy_percent")
        used = number(self.folder / "mem_info_vram_used")
        told = {
            "use": _share(busy),
            "memory_use": _share(memory_busy),
            "memory_mib": None if used is None else used / MIB,
            "power_w": sensors.get("power_w"),
            "temperature_c": sensors.get("temperature_edge_c", sensors.get("temperature_junction_c")),
            "memory_temperature_c": sensors.get("temperature_mem_c"),
            "clock_sm_mhz": amd.clock_mhz(text(self.folder / "pp_dpm_sclk")),
            "clock_memory_mhz": amd.clock_mhz(text(self.folder / "pp_dpm_mclk")),
        }
        return {f"{who}.{name}": float(value) for name, value in told.items() if isinstance(value, int | float)}


class Gpus:
    """All GPUs of this machine, in a `with`: NVML stays open between samples, since to open it takes milliseconds."""

    def __init__(self, module: object = None, root: Path = ROOT) -> None:
        self._module, self._root = module, root
        self._held = ExitStack()
        self.found: list[NvidiaGpu | AmdGpu] = []

    def __enter__(self) -> "Gpus":
        rates = Rates()
        self.found += [AmdGpu(index, folder) for index, folder in enumerate(amd.cards(self._root))]
        if self._module is None and not any((self._root / node).exists() for node in NVIDIA_NODES):
            return self  # NVML's module takes a tenth of a second to import, next to a run that may last one
        try:
            nvml = self._held.enter_context(session(self._module))
        except NoDriver:
            return self
        first = len(self.found)
        for device in devices(nvml):
            self.found.append(NvidiaGpu(nvml, Device(first + device.index, device.uuid, device.handle), rates))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def collectors(self) -> Iterator[tuple[str, Collector]]:
        for index, gpu in enumerate(self.found):
            yield f"gpu{index}", gpu.read

    def facts(self) -> dict[str, Json]:
        return {f"gpu{index}": gpu.facts() for index, gpu in enumerate(self.found)}


def _share(percent: object) -> float | None:
    return percent / 100 if isinstance(percent, int) else None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
