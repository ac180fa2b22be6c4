"""Which machine this is, and which boot of it: two names that the driver and the worker both need.

`boot_id` is the kernel's, the same on the host and in every container and pod on it, and new after a reboot: two runs with
one boot id ran on one machine. `machine_id` outlives a reboot, but belongs to the root file system, so a container has the
image's or none. The raw machine id is confidential (machine-id(5)): what is stored is derived from it with a key of ours,
as sd_id128_get_machine_app_specific() does, so it names the machine in our ledgers and nowhere else.
"""

import hashlib
import hmac
from pathlib import Path

# Drawn once at random; another key would make every machine of every old ledger a new one.
APPLICATION_ID = bytes.fromhex("d561c8f92dcc42f3975efeb661bfee5d")
ROOT = Path("/")


def boot_id(root: Path = ROOT) -> str | None:
    return _text(root / "proc/sys/kernel/random/boot_id")


def machine_id(root: Path = ROOT) -> str | None:
    """The machine's name in our ledgers, or None where it has none (most container images)."""
    raw = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
    try:
        key = bytes.fromhex(raw or "")
    except ValueError:
        return None  # "uninitialized", as images have it before their first boot
    return app_specific_id(key, APPLICATION_ID) if len(key) == 16 else None


def app_specific_id(machine: bytes, application: bytes) -> str:
    """HMAC-SHA256 keyed with the machine id over the application's, cut to 128 bits and marked as a random UUID."""
    digest = bytearray(hmac.new(machine, application, hashlib.sha256).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x40
    digest[8] = (digest[8] & 0x3F) | 0x80
    return digest.hex()


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
