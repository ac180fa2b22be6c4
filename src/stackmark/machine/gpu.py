"""Read NVIDIA GPUs, as the driver's library shows them here.

The device under test comes first and in full. The others are told in a line each: they explain it (shared power,
shared bus, a neighbour at work), and sixteen full records would not fit into one event. A rank tells its own in full.

Torch's `cuda:0` is not the driver's GPU 0: CUDA_VISIBLE_DEVICES renumbers, and CUDA orders by speed where the driver
orders by bus address. Only the UUID is common to both, so the worker gives it; without one the device is named only
where it cannot be another.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stackmark.machine import amd
from stackmark.machine.nvml import CLOCK_MEMORY, CLOCK_SM, Device, NoDriver, Nvml, bare, devices, find, session
from stackmark.machine.reading import ROOT, Facts, Json, Reading, mib, number, scaled, text

VIRTUALISATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper"}
ARCHITECTURES |= {10: "Blackwell", 13: "Rubin"}
MAX_NVLINKS = 36


def read(
    device: str | None = None,
    uuid: str | None = None,
    root: Path = ROOT,
    module: object = None,
    environ: Mapping[str, str] | None = None,
) -> Reading:
    """Read the GPUs. `module` replaces pynvml in tests of hardware that is not there."""
    try:
        with session(module) as nvml:
            return _read(nvml, device, uuid, root, os.environ if environ is None else environ)
    except NoDriver as missing:
        return Reading({"under_test": None, "devices": [], "device_nodes": device_nodes(root)}, (str(missing),))


def _read(nvml: Nvml, device: str | None, uuid: str | None, root: Path, environ: Mapping[str, str]) -> Reading:
    shown = devices(nvml)
    first, problems = under_test(nvml, shown, device, uuid, environ)
    told = first or (shown[0] if shown else None)
    records: list[Json] = [_full(nvml, told, root)] if told else []
    records += [_brief(nvml, other) for other in shown if told is None or other.uuid != told.uuid]
    if not shown:
        problems = (*problems, "the NVIDIA driver is installed but shows no GPU: try `nvidia-smi` and `dmesg`")
    cuda = nvml.count("nvmlSystemGetCudaDriverVersion_v2") or nvml.count("nvmlSystemGetCudaDriverVersion")
    facts: Facts = {
        "driver": nvml.word("nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "count": len(shown),
        "under_test": (first.slice_uuid or first.uuid) if first else None,
        "devices": records,
        "device_nodes": device_nodes(root),
    }
    return Reading(facts, problems)


def device_nodes(root: Path = ROOT) -> list[Json]:
    """Return the GPUs' nodes: what a container was given, whether or not its software can use it."""
    names = [path.name for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal()]
    return [f"/dev/{name}" for name in sorted(names, key=lambda name: int(name[6:]))]


def not_here(names: Sequence[str], root: Path = ROOT, module: object = None) -> tuple[list[str], int]:
    """Return those of these numbers and UUIDs that no GPU of this machine has, and how many GPUs there are.

    CUDA takes a number that no GPU has without a word, shows no GPU at all, and a worker then measures the CPU.
    """
    try:
        with session(module) as nvml:
            shown = devices(nvml)
            return [name for name in names if not _is_shown(nvml, shown, name.strip())], len(shown)
    except NoDriver:
        # An AMD GPU, or one whose driver does not answer: which UUID it has is not known.
        cards = amd.read(root).facts.get("devices")
        count = len(device_nodes(root)) or (len(cards) if isinstance(cards, list) else 0)
        return [name for name in names if not count or (name.strip().isdecimal() and int(name) >= count)], count


def _is_shown(nvml: Nvml, shown: list[Device], name: str) -> bool:
    if name.isdecimal():
        return int(name) < len(shown)
    return find(nvml, name) is not None or any(bare(gpu.uuid).startswith(bare(name)) for gpu in shown)


def under_test(
    nvml: Nvml, shown: list[Device], device: str | None, uuid: str | None, environ: Mapping[str, str]
) -> tuple[Device | None, tuple[str, ...]]:
    """Return the GPU that torch means by `device`, and what is doubtful about that."""
    if uuid is not None:
        found = find(nvml, uuid)
        if found is None:
            return None, (f"the GPU under test ({uuid}) is not among the {len(shown)} that the driver shows here",)
        return found, ()
    if device is None or not device.startswith("cuda") or not shown:
        return None, ()
    ordinal = int(device.partition(":")[2] or 0)
    listed = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    entry = listed[ordinal] if ordinal < len(listed) else str(ordinal)
    if not entry.isdecimal():
        named = [gpu for gpu in shown if bare(gpu.uuid).startswith(bare(entry))]
        exact = named[0] if len(named) == 1 else find(nvml, entry)
        return exact, () if exact else (f"CUDA_VISIBLE_DEVICES names {entry}, which the driver does not show here",)
    certain = len(shown) == 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if certain and int(entry) < len(shown):
        return shown[int(entry)], ()
    return None, (f"it is unknown which of {len(shown)} GPUs {device} is: set CUDA_DEVICE_ORDER=PCI_BUS_ID",)


def _brief(nvml: Nvml, device: Device) -> Facts:
    handle = device.handle
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": nvml.word("nvmlDeviceGetName", handle),
        "memory_used_mib": mib(nvml.memory_bytes(handle)[1]),
        "power_w": scaled(nvml.count("nvmlDeviceGetPowerUsage", handle), 1000),
        "temperature_c": nvml.temperature_c(handle),
        "clock_sm_mhz": nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
    }


def _full(nvml: Nvml, device: Device, root: Path) -> Facts:
    handle = device.handle
    reasons = nvml.reasons(handle)
    return {
        **_brief(nvml, device),
        **_identity(nvml, handle),
        **_power_and_clocks(nvml, handle),
        "clock_reasons": None if reasons is None else list(reasons),
        **_modes(nvml, handle),
        **_bus(nvml, handle, root),
        **_processes(nvml, handle),
        "mig_device": _slice(nvml, device),
    }


def _identity(nvml: Nvml, handle: object) -> Facts:
    capability = nvml.several("nvmlDeviceGetCudaComputeCapability", handle)
    architecture = nvml.count("nvmlDeviceGetArchitecture", handle)
    return {
        "architecture": ARCHITECTURES.get(architecture, str(architecture)) if architecture is not None else None,
        "compute_capability": ".".join(map(str, capability)) or None,
        "memory_total_mib": mib(nvml.memory_bytes(handle)[0]),
        "vbios": nvml.word("nvmlDeviceGetVbiosVersion", handle),
        "cuda_cores": nvml.count("nvmlDeviceGetNumGpuCores", handle),
    }


def _power_and_clocks(nvml: Nvml, handle: object) -> Facts:
    enforced = nvml.count("nvmlDeviceGetEnforcedPowerLimit", handle)
    least, most = nvml.several("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
    return {
        "power_limit_w": scaled(enforced or nvml.count("nvmlDeviceGetPowerManagementLimit", handle), 1000),
        "power_limit_default_w": scaled(nvml.count("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1000),
        "power_limit_min_w": scaled(least, 1000),
        "power_limit_max_w": scaled(most, 1000),
        "clock_memory_mhz": nvml.count("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
        "clock_sm_max_mhz": nvml.count("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
        "clock_memory_max_mhz": nvml.count("nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEMORY),
        "application_clock_sm_mhz": nvml.count("nvmlDeviceGetApplicationsClock", handle, CLOCK_SM),
        "application_clock_memory_mhz": nvml.count("nvmlDeviceGetApplicationsClock", handle, CLOCK_MEMORY),
        "temperature_margin_c": nvml.count("nvmlDeviceGetMarginTemperature", handle),
        "performance_state": nvml.count("nvmlDeviceGetPerformanceState", handle),
    }


def _modes(nvml: Nvml, handle: object) -> Facts:
    ecc = nvml.several("nvmlDeviceGetEccMode", handle)
    mig = nvml.several("nvmlDeviceGetMigMode", handle)
    persistence = nvml.count("nvmlDeviceGetPersistenceMode", handle)
    virtual = nvml.count("nvmlDeviceGetVirtualizationMode", handle)
    compute = nvml.count("nvmlDeviceGetComputeMode", handle)
    return {
        "ecc": bool(ecc[0]) if ecc else None,
        "mig": bool(mig[0]) if mig else None,
        "persistence_mode": bool(persistence) if persistence is not None else None,
        "virtualisation": VIRTUALISATION.get(virtual, str(virtual)) if virtual is not None else None,
        "compute_mode": COMPUTE_MODES.get(compute, str(compute)) if compute is not None else None,
    }


def _bus(nvml: Nvml, handle: object, root: Path) -> Facts:
    """PCIe and NVLink, and what is near: the kernel's files know that better than the library (and without it)."""
    address = _address(nvml.ask("nvmlDeviceGetPciInfo_v3", handle) or nvml.ask("nvmlDeviceGetPciInfo", handle))
    folder = root / "sys/bus/pci/devices" / (address or "none")
    node = number(folder / "numa_node")
    return {
        "pci_address": address,
        "pcie_generation": nvml.count("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": nvml.count("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.count("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.count("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "numa_node": node if node is not None and node >= 0 else None,  # the kernel writes -1 for "unknown"
        "near_cpus": text(folder / "local_cpulist"),
        "nvlinks_active": _nvlinks(nvml, handle),
    }


def node_of_gpu(
    device: str, environ: Mapping[str, str], root: Path = ROOT, module: object = None
) -> tuple[int | None, str]:
    """Return the NUMA node that torch's `cuda:1` is attached to, and why that is not known; neither for the CPU.

    Among GPUs of one model CUDA's order is that of the bus, as the driver's is.
    """
    if not device.startswith("cuda"):
        return None, ""
    unknown = f"the NUMA node of {device} is unknown"
    try:
        with session(module) as nvml:
            shown = devices(nvml)
            alike = len({nvml.word("nvmlDeviceGetName", one.handle) for one in shown}) == 1
            ordered = {**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if alike else environ
            found, problems = under_test(nvml, shown, device, None, ordered)
            if found is None:
                return None, f"{unknown}: {problems[0] if problems else 'the driver shows no GPU'}"
            node = _bus(nvml, found.handle, root)["numa_node"]
    except NoDriver as missing:
        return None, f"{unknown}: {missing}"
    return (node, "") if isinstance(node, int) else (None, f"{unknown}: the kernel does not report it")


def _address(info: object) -> str | None:
    """The library pads the domain to eight digits; the kernel has four."""
    bus = getattr(info, "busId", None)
    bus = bus.decode() if isinstance(bus, bytes) else bus
    return bus.lower()[-12:] if isinstance(bus, str) and bus else None


def _nvlinks(nvml: Nvml, handle: object) -> int | None:
    states = []
    for link in range(MAX_NVLINKS):
        state = nvml.count("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:  # past the last link, or no links at all
            break
        states.append(state)
    return sum(states) if states else None


def _processes(nvml: Nvml, handle: object) -> Facts:
    """How many use it and how much they hold: never who. Behind a PID namespace our own number is not in the list."""
    running = nvml.processes(handle)
    if running is None:
        return {"processes": None, "processes_besides_us": None, "processes_memory_mib": None}
    held = [getattr(process, "usedGpuMemory", None) or 0 for process in running]
    others = [process for process in running if getattr(process, "pid", None) != os.getpid()]
    return {
        "processes": len(running),
        "processes_besides_us": len(others),
        "processes_memory_mib": mib(sum(held)),
    }


def _slice(nvml: Nvml, device: Device) -> Facts | None:
    if device.slice_handle is None:
        return None
    total, used = nvml.memory_bytes(device.slice_handle)
    return {
        "uuid": device.slice_uuid,
        "name": nvml.word("nvmlDeviceGetName", device.slice_handle),
        "memory_total_mib": mib(total),
        "memory_used_mib": mib(used),
    }
