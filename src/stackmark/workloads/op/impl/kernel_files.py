"""What the kernel's files say of this machine: its NUMA nodes, their CPUs, near which a GPU hangs, and where pages lie."""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path("/")


def nodes(root: Path = ROOT, allowed: frozenset[int] | None = None) -> dict[int, frozenset[int]]:
    """The NUMA nodes that have CPUs on which this process may run, with those CPUs; one node 0 where the kernel shows none."""
    may = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    found = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        if cpus := read_cpus(read_text(folder / "cpulist")) & may:
            found[int(folder.name[4:])] = cpus
    return found or {0: may}


def near_node(address: str, among: Mapping[int, frozenset[int]], root: Path = ROOT) -> int:
    """The node that a GPU hangs on; the first, where the kernel does not know (-1) or we may not run there."""
    node = read_number(read_text(root / "sys/bus/pci/devices" / (address or "none") / "numa_node"))
    return node if node is not None and node in among else min(among)


def read_cpus(text: str) -> frozenset[int]:
    """`0-3,8` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def pages_by_node(start: int, root: Path = ROOT) -> dict[int, int]:
    """Where the pages of the mapping that holds this address lie, as far as the kernel tells."""
    best: tuple[int, str] | None = None
    for line in read_text(root / "proc/self/numa_maps").splitlines():
        begin = int(line.partition(" ")[0], 16)
        if begin <= start and (best is None or begin > best[0]):
            best = begin, line
    words = best[1].split() if best else []
    counts = (word.partition("=") for word in words if word.startswith("N") and "=" in word)
    return {int(name[1:]): int(value) for name, _, value in counts if name[1:].isdigit() and value.isdigit()}


def read_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
