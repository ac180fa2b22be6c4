"""Kubernetes' own quantities (`500m`, `8Gi`, `2`), and what pods ask for and hold of them."""

import re
from collections.abc import Iterable

from stackmark.kubernetes import podjson as at
from stackmark.kubernetes.client import Json
from stackmark.units import say_size

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[KMGTPE]i?)?")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3} | {
    f"{letter}{binary}": float(1024**power if binary else 1000**power)
    for power, letter in enumerate("KMGTPE", start=1)
    for binary in ("", "i")
}
_IN_BYTES = ("memory", "ephemeral-storage", "storage")
# Of these a node has always some; others come from a device plugin, which may be away for a moment.
BASIC = ("cpu", "memory", "ephemeral-storage", "pods")


def quantity(text: object) -> float:
    """A quantity as a number; 0 where it is none."""
    match = _QUANTITY.fullmatch(str(text).strip())
    try:
        return float(match[1]) * _FACTORS.get(match[2] or "", 1.0) if match else 0.0
    except ValueError:
        return 0.0


def requests(pod: Json) -> dict[str, float]:
    """What the scheduler counts: the containers together, or the most that an init container wants."""
    held: dict[str, float] = {}
    _add(held, at.spec(pod).get("containers") or ())
    beside: dict[str, float] = {}
    most: dict[str, float] = {}
    for one in at.spec(pod).get("initContainers") or ():
        # Those that are told to stay run beside all that come after them.
        now = dict(beside)
        _add(now, [one])
        most = {name: max(most.get(name, 0.0), now.get(name, 0.0)) for name in {*most, *now}}
        if one.get("restartPolicy") == "Always":
            beside = now
            _add(held, [one])
    held = {name: max(held.get(name, 0.0), most.get(name, 0.0)) for name in {**held, **most}}
    for name, asked in (at.spec(pod).get("overhead") or {}).items():
        held[name] = held.get(name, 0.0) + quantity(asked)
    return {name: asked for name, asked in held.items() if asked > 0}


def say(resource: str, amount: float, free: bool = False) -> str:
    """`2 nvidia.com/gpu`, `62.7 GiB of memory`, `1.5 CPUs`."""
    word = "free " if free else ""
    if resource == "cpu":
        return f"{amount:g} {word}CPU{'' if amount == 1 else 's'}"
    if resource in _IN_BYTES:
        return f"{say_size(amount)} of {word}{resource.replace('-', ' ')}"
    return f"{amount:g} {word}{resource}"


def _asked(container: Json) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in asked.items()}


def _add(held: dict[str, float], containers: Iterable[Json]) -> None:
    for one in containers:
        for name, asked in _asked(one).items():
            held[name] = held.get(name, 0.0) + asked
