"""Read the machine: its names (machine.py explains them), its kernel, and whether it is virtual."""

import hashlib
import hmac
import shutil
import subprocess
from pathlib import Path

from stackmark.machine.reading import ROOT, Facts, Reading, need, table, text

# --- Which machine this is, and which boot of it: two names that the driver and the worker both need
#
# `boot_id` is the kernel's, the same on the host and in every container and pod on it, and new after a reboot: two runs
# with one boot id ran on one machine. `machine_id` outlives a reboot, but belongs to the root file system, so a
# container has the image's or none. The raw machine id is confidential (machine-id(5)): what is stored is derived from
# it with a key of ours, as sd_id128_get_machine_app_specific() does, so it names the machine in our ledgers and nowhere
# else.


# Drawn once at random; another key would make every machine of every old ledger a new one.
APPLICATION_ID = bytes.fromhex("d561c8f92dcc42f3975efeb661bfee5d")


def boot_id(root: Path = ROOT) -> str | None:
    return _text(root / "proc/sys/kernel/random/boot_id")


def machine_id(root: Path = ROOT) -> str | None:
    """Return the machine's name in our ledgers, or None where it has none (most container images)."""
    raw = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
    try:
        key = bytes.fromhex(raw or "")
    except ValueError:
        return None  # "uninitialized", as images have it before their first boot
    return app_specific_id(key, APPLICATION_ID) if len(key) == 16 else None


def app_specific_id(machine: bytes, application: bytes) -> str:
    """Compute HMAC-SHA256 keyed with the machine id over the application's, cut to 128 bits and marked as a random UUID."""
    digest = bytearray(hmac.new(machine, application, hashlib.sha256).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x40
    digest[8] = (digest[8] & 0x3F) | 0x80
    return digest.hex()


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


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
    """Read the host. `detect_virt` is a program that knows virtualisation better than we do, if installed; None skips it."""
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
