"""The stack that a run ran on, in the words of whoever upgrades it: driver, firmware, kernel, versions.

A check names these first, and two series with the same of them are of one side. It is a short list on purpose: everything
else that differs is ranked by explain.py, and what changes by itself (a commit of our own checkout, a free package) must not
make every night a side of its own.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.verdict.examined import Facts
from stackmark.verdict.fact_values import say_value

# In the order in which a person asks.
STACK = {
    "gpu.driver": "NVIDIA driver",
    "gpu_amd.driver": "AMD driver",
    "gpu.devices.0.vbios": "GPU firmware",
    "gpu_amd.devices.0.vbios": "GPU firmware",
    "gpu.devices.0.power_limit_w": "GPU power limit",
    "gpu.devices.0.ecc": "GPU error correction",
    "host.kernel": "kernel",
    "host.distribution": "distribution",
    "cpu.microcode": "CPU microcode",
    "cpu.governor": "CPU governor",
    "software.python": "Python",
    "software.torch": "PyTorch",
    "software.cuda": "CUDA",
    "software.hip": "ROCm",
    "software.cudnn": "cuDNN",
    "software.nccl": "NCCL",
    "software.triton": "Triton",
    "software.numpy": "NumPy",
    "software.libc": "C library",
    "container.engine_version": "container engine",
    "container.image_digest": "container image",
    "stackmark.version": "stackmark",
}
# Here no value means that it is not installed; elsewhere, that nobody could see it.
INSTALLED = "software"
# The image in which the host's own software runs is made on the spot, and each making has a digest of its own.
IMAGE, OWN_IMAGE = "container.image_digest", "image"


@dataclass(frozen=True)
class StackChange:
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what} {self.before} → {self.after}"


def stack_changes(before: Facts, after: Facts) -> tuple[StackChange, ...]:
    """What is known on both sides and not the same."""
    found = []
    for path, what in STACK.items():
        subject, _, key = path.partition(".")
        if not before.get(subject) or not after.get(subject):
            continue
        if path == IMAGE and after[subject].get("software") != OWN_IMAGE:
            continue
        old, new = _leaf(before[subject], key), _leaf(after[subject], key)
        if old != new and (subject == INSTALLED or (old is not None and new is not None)):
            said = [say_value(key, value, "none") for value in (old, new)]
            found.append(StackChange(what, said[0], said[1]))
    return tuple(found)


def _leaf(value: JsonValue, path: str) -> JsonValue:
    """A value by its path (`devices.0.vbios`); None where there is none."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
