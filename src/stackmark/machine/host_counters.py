"""Read what else the machine did during a run: the CPU time of the run itself, and that of all others.

Besides the counters of counters.py, which find errors and limits, these explain: a run whose neighbours were busy, or that
was taken off its CPU a thousand times, was slower for that. They flag nothing, they only become metrics; whether two arms
met different neighbours is for a verdict to say. In a container /proc shows the whole machine's load, which is what is wanted.
"""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from stackmark.machine import cgroup
from stackmark.machine.reading import ROOT, Metric, text

_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ = 1, 2, 3, 6, 7


@dataclass(frozen=True)
class HostCounters:
    """One reading. `run_s` is the CPU time of the run's own processes, `busy_s` that of all processes of the machine."""

    time_s: float
    run_s: float | None
    involuntary_switches: int | None
    load_1m: float | None
    busy_s: float | None


def read(root: Path = ROOT) -> HostCounters:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return HostCounters(
        time_s=time.monotonic(),
        run_s=_session_s(root),
        involuntary_switches=usage.ru_nivcsw,
        load_1m=_load_1m(root),
        busy_s=_busy_s(root),
    )


def read_of(process: str, root: Path = ROOT) -> HostCounters:
    """Read the counters of another process's control group: those of a container, from outside."""
    return HostCounters(
        time_s=time.monotonic(),
        run_s=cgroup.read_cpu_s(process, root),
        involuntary_switches=None,
        load_1m=_load_1m(root),
        busy_s=_busy_s(root),
    )


def between(before: HostCounters, after: HostCounters) -> list[Metric]:
    """Return what happened between two readings, without what either could not see."""
    elapsed_s = after.time_s - before.time_s
    found = []
    if before.involuntary_switches is not None and after.involuntary_switches is not None:
        switches = after.involuntary_switches - before.involuntary_switches
        found.append(Metric("involuntary_switches", switches, "times", False))
    used_s = after.run_s - before.run_s if before.run_s is not None and after.run_s is not None else None
    if used_s is not None:
        found.append(Metric("cpu_s", max(0.0, used_s), "s", False))
    if before.load_1m is not None:
        # Of the minute before: that of the minute after is mostly our own.
        found.append(Metric("load_1m", before.load_1m, "tasks", False))
    if used_s is not None and before.busy_s is not None and after.busy_s is not None and elapsed_s > 0:
        others = (after.busy_s - before.busy_s - used_s) / elapsed_s
        # Both are counted in ticks of 10 ms, and not at the same instant: a little below zero is zero.
        found.append(Metric("other_cpus", max(0.0, others), "CPUs", False))
    return found


def _load_1m(root: Path) -> float | None:
    try:
        return float((text(root / "proc/loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return None


def _busy_s(root: Path) -> float | None:
    """All CPUs' time at work since boot; waiting for a disk and what the hypervisor took are not work."""
    words = (text(root / "proc/stat") or "").partition("\n")[0].split()
    try:
        return sum(int(words[i]) for i in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ)) / os.sysconf("SC_CLK_TCK")
    except (ValueError, IndexError):
        return None


def _session_s(root: Path) -> float | None:
    """CPU time of this session: the worker, its data loaders, a user's program; and of those of ours that have ended."""
    session, ticks = str(os.getsid(0)), 0
    seen = False
    for entry in (root / "proc").iterdir():
        if not entry.name.isdigit():
            continue
        # The command's name stands in brackets and may hold anything; the state is the first field after it.
        fields = (text(entry / "stat") or "").rpartition(")")[2].split()
        if len(fields) > 14 and fields[3] == session:
            ticks += int(fields[11]) + int(fields[12])
            seen = True
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") + gone.ru_utime + gone.ru_stime if seen else None
