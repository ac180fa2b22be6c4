"""The machine: its names (machine.py says what they mean), its kernel, and whether it is a machine at all."""

import shutil
import subprocess
from pathlib import Path

from stackmark.machine.identity import boot_id, machine_id
from stackmark.machine.reading import ROOT, Facts, Reading, need, table, text

# What hypervisors write into the firmware tables. `Amazon EC2` is there on bare metal too, which is why the CPU's
# hypervisor flag is asked first.
HYPERVISORS = {
    "QEMU": "qemu",
    "KVM": "kvm",
    "VMware": "vmware",
    "Xen": "xen",
    "innotek": "virtualbox",
    "Microsoft": "hyper-v",
    "Amazon EC2": "amazon",
    "Google": "google",
    "OpenStack": "openstack",
    "Alibaba": "alibaba",
    "DigitalOcean": "digitalocean",
    "Hetzner": "hetzner",
    "Parallels": "parallels",
}
DETECT_VIRT_SECONDS = 2.0


def read(root: Path = ROOT, detect_virt: str | None = "systemd-detect-virt") -> Reading:
    """`detect_virt` is the program that knows better than we do, where it is installed; None does without it."""
    kernel = root / "proc/sys/kernel"
    load = (text(root / "proc/loadavg") or "").split()
    release = _os_release(root)
    facts: Facts = {
        "hostname": text(kernel / "hostname"),
        "machine_id": machine_id(root),
        "boot_id": boot_id(root),
        "kernel": need(kernel / "osrelease").strip(),
        "kernel_version": text(kernel / "version"),
        "architecture": text(kernel / "arch"),
        "distribution": release.get("PRETTY_NAME") or release.get("NAME"),
        "uptime_s": float((text(root / "proc/uptime") or "0").split()[0]),
        "load_1m": float(load[0]) if load else None,
        "load_5m": float(load[1]) if load else None,
        "load_15m": float(load[2]) if load else None,
        "transparent_hugepages": _chosen(text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "clocksource": text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }
    facts.update(_virtualisation(root, detect_virt))
    return Reading(facts)


def _os_release(root: Path) -> dict[str, str]:
    source = text(root / "etc/os-release") or text(root / "usr/lib/os-release")
    return {key: value.strip("\"'") for key, value in table(source, "=").items()}


def _chosen(options: str | None) -> str | None:
    """`always [madvise] never` is `madvise`."""
    if options and "[" in options:
        return options.partition("[")[2].partition("]")[0]
    return options


def _virtualisation(root: Path, detect_virt: str | None) -> Facts:
    vendor = text(root / "sys/class/dmi/id/sys_vendor")
    product = text(root / "sys/class/dmi/id/product_name")
    info = table(text(root / "proc/cpuinfo"))
    # Only x86 has the flag; elsewhere its absence says nothing.
    flagged = "hypervisor" in info["flags"].split() if "flags" in info else None
    said = _detected(detect_virt) if detect_virt else None
    if said is None:
        marks = f"{vendor} {product} {text(root / 'sys/hypervisor/type') or ''}"
        named = next((name for mark, name in HYPERVISORS.items() if mark.lower() in marks.lower()), None)
        if flagged is False:
            said = "none"
        elif flagged:
            said = named or "unknown hypervisor"
        else:
            said = named
    return {"virtualisation": said, "hypervisor_flag": flagged, "dmi_vendor": vendor, "dmi_product": product}


def _detected(program: str) -> str | None:
    """`kvm`, or `none`; None where the program is not installed or does not answer."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, "--vm"],
            capture_output=True,
            text=True,
            timeout=DETECT_VIRT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
