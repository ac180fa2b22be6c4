"""Compare the facts of several arms: each leaf by its path, its value in words.

A subject may hold lists of devices and tables of nodes. They are compared leaf by leaf (`devices.0.power_limit_w`), since
"the devices differ" helps nobody. A list of plain values is one leaf, and its order says nothing: flags and clock reasons
are sets that JSON has no word for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.units import MIB, say_size
from stackmark.verdict.examined import Facts

# Deeper than any collector nests; a foreign stream may be anything.
DEEPEST = 6
# A value is part of a line; the whole of it is in `stackmark show RUN --json`.
LONGEST = 120
# What the end of a key says of its value. The longer endings come first: `_mhz` before `_hz`.
UNITS = (("_mhz", "MHz"), ("_percent", "%"), ("_cpus", "CPUs"), ("_w", "W"), ("_c", "°C"), ("_s", "s"), ("_j", "J"))


def differing(arms: Sequence[Facts]) -> Iterator[tuple[str, str, tuple[JsonValue, ...]]]:
    """Return subject, path and each arm's value of every leaf that differs between arms, in the arms' order.

    A subject that an arm does not have at all says nothing about that arm: its run ended before it was read, or its worker
    was an older one.
    """
    if len(arms) < 2:
        return
    for subject in _in_order(arms):
        if not all(arm.get(subject) for arm in arms):
            continue
        tables = [dict(_leaves(arm[subject])) for arm in arms]
        for path in _in_order(tables):
            values = tuple(table.get(path) for table in tables)
            if any(_comparable(value) != _comparable(values[0]) for value in values[1:]):
                yield subject, path, values


def _in_order(tables: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _leaves(value: JsonValue, path: str = "", depth: int = 0) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict) and value and depth < DEEPEST:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value) and depth < DEEPEST:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}" if path else str(index), depth + 1)
    else:
        yield path, value


def _comparable(value: JsonValue) -> str:
    """2 and 2.0 are one value (`cpus_usable` is the one or the other); `true` and 1 are not. An empty list is no value."""
    if value is None or value == [] or value == {}:
        return "null"
    if isinstance(value, list):
        return json.dumps(sorted(_comparable(item) for item in value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return json.dumps(value, sort_keys=True)


def say_value(key: str, value: JsonValue, none_says: str = "unknown") -> str:
    """Format a value for people; the key's name tells the unit."""
    if value is None:
        return none_says
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key, value)
    if isinstance(value, list):
        return _cut(" ".join(item if isinstance(item, str) else json.dumps(item) for item in value)) or "none"
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _number(key: str, value: int | float) -> str:
    last = key.rpartition(".")[2]
    if last == "cudnn" and isinstance(value, int):
        return say_cudnn(value)
    if last.endswith("_mib"):
        return say_size(value * MIB)
    unit = next((unit for ending, unit in UNITS if last.endswith(ending)), "")
    if unit == "CPUs" and value == 1:
        unit = "CPU"
    return f"{value:g} {unit}".strip() if isinstance(value, float) else f"{value} {unit}".strip()


def say_cudnn(number: int) -> str:
    """Format cuDNN's one number: 8902 was 8.9.2, and since version 9 it has two digits more: 91900 is 9.19.0."""
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# --- The stack that a run ran on, in the words of whoever upgrades it: driver, firmware, kernel, versions
#
# A check names these first, and two series with the same of them are of one side. It is a short list on purpose:
# everything else that differs is ranked by explain.py, and what changes by itself (a commit of our own checkout, a free
# package) must not make every night a side of its own.


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
    """Return what is known on both sides and differs."""
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
