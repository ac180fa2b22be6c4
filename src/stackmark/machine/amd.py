"""Read AMD GPUs from the kernel's own files: facts need no library of AMD's.

Read as the amdgpu driver documents them (kernel.org, "GPU Power/Thermal Controls and Monitoring"); tried only on a tree
written by hand after that page, since we have no such card.
"""

import re
from pathlib import Path

from stackmark.machine.reading import ROOT, Facts, Json, Reading, mib, number, scaled, table, text

VENDOR = "0x1002"
CARD = re.compile(r"card\d+")  # not card0-DP-1, which is a socket of card0
STATE = re.compile(r"^\d+:\s*(\d+)\s*mhz\s*(\*?)", re.IGNORECASE | re.MULTILINE)


def read(root: Path = ROOT) -> Reading:
    records: list[Json] = [_card(card) for card in cards(root)]
    version = text(root / "sys/module/amdgpu/version")  # only drivers from outside the kernel have one
    return Reading({"driver": version, "devices": records})


def cards(root: Path = ROOT) -> list[Path]:
    """Return the folders of AMD's cards, in the kernel's order."""
    folders = [path for path in (root / "sys/class/drm").glob("card*") if CARD.fullmatch(path.name)]
    found = [path / "device" for path in sorted(folders, key=lambda path: int(path.name[4:]))]
    return [card for card in found if text(card / "vendor") == VENDOR]


def clock_mhz(states: str | None) -> int | None:
    """Return the clock of the state that is marked as the present one."""
    return next((int(mhz) for mhz, star in STATE.findall(states or "") if star), None)


def sensors(card: Path) -> Facts:
    """Return power and temperatures of a card now."""
    return _sensors(card / "hwmon")


def _card(folder: Path) -> Facts:
    node = number(folder / "numa_node")
    facts: Facts = {
        "card": folder.parent.name,
        "name": text(folder / "product_name"),
        "device_id": text(folder / "device"),
        "uuid": text(folder / "unique_id"),
        "vbios": text(folder / "vbios_version"),
        "pci_address": table(text(folder / "uevent"), "=").get("PCI_SLOT_NAME"),
        "memory_total_mib": mib(number(folder / "mem_info_vram_total")),
        "memory_used_mib": mib(number(folder / "mem_info_vram_used")),
        "busy_percent": number(folder / "gpu_busy_percent"),
        **_clocks(text(folder / "pp_dpm_sclk"), "clock"),
        **_clocks(text(folder / "pp_dpm_mclk"), "clock_memory"),
        "performance_level": text(folder / "power_dpm_force_performance_level"),
        "compute_partition": text(folder / "current_compute_partition"),
        "memory_partition": text(folder / "current_memory_partition"),
        "pcie_speed": text(folder / "current_link_speed"),
        "pcie_speed_max": text(folder / "max_link_speed"),
        "pcie_width": number(folder / "current_link_width"),
        "pcie_width_max": number(folder / "max_link_width"),
        "numa_node": node if node is not None and node >= 0 else None,
        "near_cpus": text(folder / "local_cpulist"),
    }
    facts.update(_sensors(folder / "hwmon"))
    return facts


def _clocks(states: str | None, name: str) -> Facts:
    """`1: 1700Mhz *`: the star marks the state it is in now."""
    found = STATE.findall(states or "")
    now = [int(mhz) for mhz, star in found if star]
    return {
        f"{name}_mhz": now[0] if now else None,
        f"{name}_max_mhz": max((int(mhz) for mhz, _ in found), default=None),
    }


def _sensors(folder: Path) -> Facts:
    """Power in microwatts, temperatures in thousandths of a degree, each sensor with its label."""
    monitor = next(iter(sorted(folder.glob("hwmon*"))), folder)
    now = number(monitor / "power1_average")
    facts: Facts = {
        "power_w": scaled(now if now is not None else number(monitor / "power1_input"), 1e6),
        "power_limit_w": scaled(number(monitor / "power1_cap"), 1e6),
        "power_limit_default_w": scaled(number(monitor / "power1_cap_default"), 1e6),
        "power_limit_max_w": scaled(number(monitor / "power1_cap_max"), 1e6),
    }
    for sensor in sorted(monitor.glob("temp*_input")):
        label = text(monitor / sensor.name.replace("_input", "_label")) or sensor.name.partition("_")[0]
        facts[f"temperature_{label}_c"] = scaled(number(sensor), 1000)
    return facts
