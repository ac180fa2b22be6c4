"""What keeps this machine busy now, before anything of ours runs: CPUs, the programs that use them, and programs on the GPUs.

The sample is taken while this process sleeps and before a probe starts, so the load that it finds belongs to others. CPU time
of this process and of its children is subtracted all the same.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stackmark.machine.nvml import NoDriver, devices, session
from stackmark.machine.reading import ROOT, text

# CPU time is counted in ticks of 10 ms, so this tells 0.03 CPUs apart; longer would be noticed at every start.
LOOK_S = 0.3
# A program below this share of one CPU is not worth a name.
LEAST_CPUS = 0.05
PROGRAMS_NAMED = 2
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ = 1, 2, 3, 6, 7


@dataclass(frozen=True)
class Program:
    """A process by its name, and the CPUs that it used."""

    name: str
    cpus: float


@dataclass(frozen=True)
class Busy:
    """The CPUs of this machine that were busy, of how many, and the programs that used most of them, the busiest first."""

    cpus: float
    cores: int
    programs: tuple[Program, ...] = ()


@dataclass(frozen=True)
class BusyGpu:
    """A GPU on which programs compute, with their names where they can be seen from here."""

    index: int
    name: str
    programs: int
    names: tuple[str, ...] = ()


def look(seconds: float = LOOK_S, root: Path = ROOT) -> Busy | None:
    """Sample the CPUs for so long; None where /proc does not tell."""
    before, programs, began = _busy_ticks(root), dict(_programs(root)), time.monotonic()
    time.sleep(seconds)
    after, later, elapsed = _busy_ticks(root), dict(_programs(root)), time.monotonic() - began
    if before is None or after is None or elapsed <= 0:
        return None
    per_cpu = os.sysconf("SC_CLK_TCK") * elapsed
    ours = _family(later)
    own = sum(process.ticks - _ticks_of(programs.get(pid)) for pid, process in later.items() if pid in ours)
    used = [
        Program(process.name, (process.ticks - _ticks_of(programs.get(pid))) / per_cpu)
        for pid, process in later.items()
        if pid not in ours
    ]
    busiest = sorted((one for one in used if one.cpus >= LEAST_CPUS), key=lambda one: -one.cpus)
    return Busy(max(0.0, (after - before - own) / per_cpu), os.cpu_count() or 1, tuple(busiest[:PROGRAMS_NAMED]))


def busy_gpus(module: object = None, root: Path = ROOT) -> tuple[BusyGpu, ...]:
    """Return the GPUs that programs compute on; none where there is no driver to ask."""
    try:
        with session(module) as nvml:
            found = []
            for device in devices(nvml):
                listed = nvml.processes(device.handle) or []
                pids = [int(getattr(process, "pid", 0)) for process in listed]
                pids = [pid for pid in pids if pid != os.getpid()]
                names = [name for pid in pids if (name := text(root / f"proc/{pid}/comm"))]
                if pids:
                    chip = nvml.word("nvmlDeviceGetName", device.handle) or "GPU"
                    found.append(BusyGpu(device.index, chip, len(pids), tuple(dict.fromkeys(names))))
            return tuple(found)
    except NoDriver:
        return ()


@cache
def gpu_count() -> int:
    """Count the GPUs that the driver shows; 0 where there is no driver."""
    try:
        with session() as nvml:
            return sum(1 for _ in devices(nvml))
    except NoDriver:
        return 0


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    ticks: int


def _programs(root: Path) -> Iterator[tuple[int, _Process]]:
    for entry in (root / "proc").iterdir():
        if not entry.name.isdigit():
            continue
        # The command's name stands in brackets and may hold anything; the state is the first field after it.
        head, _, rest = (text(entry / "stat") or "").rpartition(")")
        fields = rest.split()
        if len(fields) > 13:
            name = head.partition("(")[2]
            yield int(entry.name), _Process(name, int(fields[1]), int(fields[11]) + int(fields[12]))


def _family(processes: dict[int, _Process]) -> set[int]:
    """Return this process and its descendants."""
    found, grown = {os.getpid()}, {os.getpid()}
    while grown:
        grown = {pid for pid, process in processes.items() if process.parent in grown} - found
        found |= grown
    return found


def _ticks_of(process: _Process | None) -> int:
    return process.ticks if process else 0


def _busy_ticks(root: Path) -> int | None:
    """Return the time that all CPUs were at work since boot; waiting for a disk is not work."""
    words = (text(root / "proc/stat") or "").partition("\n")[0].split()
    try:
        return sum(int(words[at]) for at in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    except (ValueError, IndexError):
        return None
