"""Read memory, and how it is spread over NUMA nodes."""

import os
import re
from pathlib import Path

from stackmark.machine.reading import (
    ROOT,
    Facts,
    Json,
    Reading,
    cpu_set,
    first_number,
    need,
    number,
    scaled,
    table,
    text,
)

KIB_PER_MIB = 1024


def read(root: Path = ROOT) -> Reading:
    info = table(need(root / "proc/meminfo"))

    def of(key: str) -> float | None:
        return scaled(first_number(info.get(key)), KIB_PER_MIB)

    return Reading(
        {
            "total_mib": of("MemTotal"),
            "available_mib": of("MemAvailable"),
            "swap_total_mib": of("SwapTotal"),
            "swap_free_mib": of("SwapFree"),
            "hugepages_total": first_number(info.get("HugePages_Total")),
            "hugepages_free": first_number(info.get("HugePages_Free")),
            "hugepage_mib": of("Hugepagesize"),
            "swappiness": number(root / "proc/sys/vm/swappiness"),
        }
    )


def read_numa(root: Path = ROOT) -> Reading:
    """Read the nodes by number, each with its CPUs, its memory, and its distances to all nodes (10 is itself)."""
    nodes: dict[str, Json] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        nodes[folder.name[4:]] = _node(folder)
    facts: Facts = {
        "nodes": len(nodes),
        "balancing": number(root / "proc/sys/kernel/numa_balancing"),
        "node": nodes,
    }
    problems = () if nodes else ("the kernel shows no NUMA nodes: near and far memory cannot be distinguished",)
    return Reading(facts, problems)


def nodes(root: Path = ROOT, allowed: frozenset[int] | None = None) -> dict[int, frozenset[int]]:
    """Return the NUMA nodes whose CPUs this process may use, with those CPUs; one node 0 where the kernel shows none."""
    may = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    found = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        if cpus := cpu_set(text(folder / "cpulist")) & may:
            found[int(folder.name[4:])] = cpus
    return found or {0: may}


def _node(folder: Path) -> Facts:
    # "Node 0 MemTotal:       65536 kB"
    info = table(re.sub(r"(?m)^Node \d+ +", "", text(folder / "meminfo") or ""))
    return {
        "cpus": text(folder / "cpulist") or "",
        "memory_mib": scaled(first_number(info.get("MemTotal")), KIB_PER_MIB),
        "free_mib": scaled(first_number(info.get("MemFree")), KIB_PER_MIB),
        "distance": [int(word) for word in (text(folder / "distance") or "").split()],
    }
