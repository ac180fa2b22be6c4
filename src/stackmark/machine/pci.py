"""Read GPUs on the PCI bus and their kernel drivers, with or without their libraries.

The kernel shows its bus and its modules to every container, also to one that was given no GPU: so a GPU that is in the machine
and cannot be used is told from one that is not there. Seen from a virtual machine it is the machine's own bus.
"""

from pathlib import Path

from stackmark.machine.reading import ROOT, Facts, Json, Reading, text

# By PCI-SIG's numbers. Intel's are left out: most of its display controllers are no accelerators.
VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
# Display controllers (VGA, 3D and others), and processing accelerators, as AMD's newer ones call themselves.
CLASSES = ("0x03", "0x12")
MODULES = ("nvidia", "nouveau", "amdgpu", "vfio_pci")
NODES = ("nvidia[0-9]*", "kfd", "dri/renderD*")
# More than any machine has; an event has room for no more.
MOST_GPUS = 32


def read(root: Path = ROOT) -> Reading:
    bus = root / "sys/bus/pci/devices"
    if not bus.is_dir():
        return Reading({"devices": None, "gpus": [], "modules": {}, "device_nodes": device_nodes(root)})
    folders = sorted(bus.iterdir())
    found = [_gpu(folder) for folder in folders if _is_gpu(folder)]
    gpus: list[Json] = [*found[:MOST_GPUS]]
    modules: Facts = {}
    for name in MODULES:
        folder = root / "sys/module" / name
        # A driver that was built into the kernel, or comes with it, has no version of its own.
        if folder.is_dir():
            modules[name] = text(folder / "version") or "the kernel's own"
    return Reading({"devices": len(folders), "gpus": gpus, "modules": modules, "device_nodes": device_nodes(root)})


def device_nodes(root: Path = ROOT) -> list[Json]:
    """Return the GPU nodes in /dev: what a container was given, of any vendor."""
    found = [path for pattern in NODES for path in sorted((root / "dev").glob(pattern))]
    return [f"/{path.relative_to(root)}" for path in found[:MOST_GPUS]]


def _is_gpu(folder: Path) -> bool:
    kind = text(folder / "class") or ""
    return text(folder / "vendor") in VENDORS and kind.startswith(CLASSES)


def _gpu(folder: Path) -> Facts:
    driver = folder / "driver"
    return {
        "address": folder.name,
        "vendor": VENDORS[text(folder / "vendor") or ""],
        "device": text(folder / "device"),
        "driver": driver.resolve().name if driver.is_symlink() else None,
    }
