"""Read small files of /proc and /sys, each of which may be missing.

A fact that is not there is `None`, not an exception: kernels, containers and permissions differ in which files they
show, and one unreadable file must not cost its whole subject. Only what a subject cannot do without is read with
`need`, which raises; the border in `facts/__init__.py` turns that into a sentence.

Every reader takes the file system's root as a parameter, so that the tree of a machine we do not have can stand in
for `/`. (One root, not one each for /proc and /sys: cgroup mounts may lie anywhere.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stackmark.model import JsonValue

Json = JsonValue
Facts = dict[str, Json]

ROOT = Path("/")
MIB = 1024 * 1024


class Reading(NamedTuple):
    """A collector's facts, and what it could not find out (whole sentences)."""

    facts: Facts
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A number measured in addition to a run's figure: by the machine, or by the workload itself."""

    name: str
    value: float
    unit: str
    higher_is_better: bool


def need(path: Path) -> str:
    """Return the text of a file; raise OSError where it is missing. Odd bytes are replaced: a fact is for reading."""
    return path.read_text(encoding="utf-8", errors="replace")


def text(path: Path) -> str | None:
    """Return the stripped text of a file, or None where it is missing, unreadable or empty."""
    try:
        return need(path).strip("\0 \n\t") or None
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the one integer in a file; None for `max`, text and absence."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def first_number(line: str | None) -> int | None:
    """Return the integer that a line starts with: `32768 kB` is 32768."""
    try:
        return int((line or "").split()[0])
    except (ValueError, IndexError):
        return None


def table(source: str | None, separator: str | None = ":") -> dict[str, str]:
    """Parse `key: value` lines (or `key value` with None) as a dict; the first of a repeated key wins."""
    found: dict[str, str] = {}
    for line in (source or "").splitlines():
        key, *value = line.split(separator, 1)
        if value:
            found.setdefault(key.strip(), value[0].strip())
    return found


def numbers(source: str | None) -> dict[str, int]:
    """Parse `key 123` lines, as in cpu.stat and memory.events."""
    return {key: int(value) for key, value in table(source, None).items() if value.isdecimal()}


def cpu_set(listed: str | None) -> frozenset[int]:
    """Parse the kernel's list format: `0-3,8` is {0, 1, 2, 3, 8}."""
    cpus: set[int] = set()
    for part in (listed or "").replace("\n", "").split(","):
        if part.strip():
            low, _, high = part.strip().partition("-")
            cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def told_cpus(text: object) -> set[int]:
    """Parse `0-3,8` as a worker told it, who may tell anything; empty where it is not such a list."""
    found: set[int] = set()
    for part in text.split(",") if isinstance(text, str) else []:
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not last) and len(first + last) < 12:
            found |= set(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return found


def cpu_list(cpus: Iterable[int]) -> str:
    """Format the inverse of `cpu_set`: {0, 1, 2, 3, 8} is `0-3,8`. Short, also on a server of 512 threads."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def mib(octets: int | float | None) -> float | None:
    """Return bytes as MiB, to a KiB."""
    return None if octets is None else round(octets / MIB, 3)


def scaled(value: int | None, divisor: float) -> float | None:
    """Scale kHz to MHz, mW to W, and the like."""
    return None if value is None else round(value / divisor, 3)
