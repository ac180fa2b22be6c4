"""What a machine does at one moment, by short names: CPU time, load, pressure, memory, network, disks; the container's too.

A collector reads a few files and returns numbers; what the kernel counts since boot becomes a rate over the time since the last
reading. One that cannot be read says why, once, and is left out from then on: a sample costs no more than what it brings.
Nothing here walks over all processes of the machine, which would take longer than all the rest.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from stackmark.machine import cgroup
from stackmark.machine.reading import MIB, ROOT, first_number, need, number, numbers, table, text

Values = dict[str, float]
Collector = Callable[[], Values]

_USER, _NICE, _SYSTEM, _IDLE, _WAIT, _IRQ, _SOFTIRQ, _STEAL = 1, 2, 3, 4, 5, 6, 7, 8
_SECTOR_BYTES = 512
# Clocks of this many CPUs are read: a file each, and all of a server are much alike.
CLOCKS_READ = 8
# Devices that only pass on to others what they are given: they would be counted twice.
PASSING_ON = ("loop", "ram", "dm-", "md", "zram")


class Rates:
    """Turns what only rises into rates: the difference to the last reading, by the time between."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def __call__(self, name: str, total: float, at_s: float, scale: float = 1.0) -> Values:
        """Return `{name: rate}`, or nothing at the first reading and where a counter began again."""
        before = self._last.get(name)
        self._last[name] = (total, at_s)
        if before is None or at_s <= before[1] or total < before[0]:
            return {}
        return {name: (total - before[0]) / (at_s - before[1]) / scale}


class Telemetry:
    """Collectors of one machine, which fail one by one. `problems` has a sentence for each that was left out."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = dict(collectors)
        self.problems: dict[str, str] = {}

    def read(self) -> Values:
        found: Values = {}
        for name, collect in list(self._collectors.items()):
            try:
                found |= {key: round(value, 4) for key, value in collect().items()}
            except (OSError, ValueError, LookupError, ArithmeticError) as error:
                del self._collectors[name]
                kind = "" if isinstance(error, OSError) and error.errno is None else f"{type(error).__name__}: "
                self.problems[name] = f"{name} is not sampled: {kind}{error}"
        return found


def host(pid: int, root: Path = ROOT) -> dict[str, Collector]:
    """Return the collectors of the machine, and of a process: its children, its control group, its network."""
    rates = Rates()
    return {
        "cpu": lambda: _cpu(root, rates),
        "clock": lambda: _clocks(root),
        "run": lambda: _run(pid, root, rates),
        "pressure": lambda: _pressure(root / "proc/pressure", "pressure", rates),
        "memory": lambda: _memory(root),
        "network": lambda: _network(pid, root, rates),
        "disk": lambda: _disks(root, rates),
        "group": _group(pid, root, rates),
    }


def _cpu(root: Path, rates: Rates) -> Values:
    now = time.monotonic()
    words = need(root / "proc/stat").partition("\n")[0].split()
    ticks = os.sysconf("SC_CLK_TCK")
    busy = sum(int(words[at]) for at in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    found = {
        **rates("cpu.busy", busy, now, ticks),
        **rates("cpu.wait_disk", int(words[_WAIT]), now, ticks),
        **(rates("cpu.stolen", int(words[_STEAL]), now, ticks) if len(words) > _STEAL else {}),
    }
    return {**found, "cpu.load_1m": float(need(root / "proc/loadavg").split()[0])}


def _clocks(root: Path) -> Values:
    """The mean clock of a few CPUs that this process may run on. A virtual machine does not say it."""
    cpus = sorted(os.sched_getaffinity(0))
    step = max(1, len(cpus) // CLOCKS_READ)
    files = [root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus[::step][:CLOCKS_READ]]
    found = [khz for file in files if (khz := number(file)) is not None]
    if not found:
        raise OSError("the kernel shows no clock of the CPUs here")
    return {"cpu.clock_mhz": sum(found) / len(found) / 1000}


def _run(pid: int, root: Path, rates: Rates) -> Values:
    """CPU time and memory of the worker with its children: those that live, and those that it has waited for."""
    ticks, pages, seen = 0, 0, 0
    for process in _tree(pid, root):
        stat = text(root / f"proc/{process}/stat")
        fields = (stat or "").rpartition(")")[2].split()
        if len(fields) > 21:
            seen += 1
            ticks += sum(int(fields[at]) for at in (11, 12, 13, 14))
            pages += int(fields[21])
    if not seen:
        return {}  # it has ended
    found = rates("run.cpus", ticks / os.sysconf("SC_CLK_TCK"), time.monotonic())
    return {**found, "run.memory_mib": pages * os.sysconf("SC_PAGE_SIZE") / MIB, "run.processes": seen}


def _tree(pid: int, root: Path) -> Iterator[int]:
    """The process and its descendants, but for this one: what samples is not what is measured."""
    waiting, seen = [pid], 0
    while waiting and seen < 1000:
        one = waiting.pop()
        if one == os.getpid():
            continue
        seen += 1
        yield one
        # Of the main thread; a child that another thread started is found where that is the one that waits for it.
        with suppress(OSError):
            for thread in [one] if one != pid else _threads(one, root):
                listed = text(root / f"proc/{one}/task/{thread}/children")
                waiting += [int(word) for word in (listed or "").split()]


def _threads(pid: int, root: Path) -> list[int]:
    """The worker's threads, where they are few: a framework may have a hundred, each a file to read."""
    found = [int(entry) for entry in os.listdir(root / f"proc/{pid}/task")]
    return found if len(found) <= 64 else [pid]


def _pressure(folder: Path, name: str, rates: Rates, ending: str = "") -> Values:
    """The share of the time in which some task waited, and (memory, disk) in which all of them did."""
    found: Values = {}
    now = time.monotonic()
    for what in ("cpu", "memory", "io"):
        for line in need(folder / f"{what}{ending}").splitlines():
            kind, *words = line.split()
            total = next((word for word in words if word.startswith("total=")), "")
            if kind == "some" or what != "cpu":
                key = f"{name}.{what}" if kind == "some" else f"{name}.{what}_all"
                found |= rates(key, int(total.removeprefix("total=")), now, 1e6)
    return {key: min(value, 1.0) for key, value in found.items()}


def _memory(root: Path) -> Values:
    told = table(need(root / "proc/meminfo"))
    kib = {key: first_number(told.get(key)) for key in ("MemTotal", "MemAvailable", "Cached", "SwapTotal", "SwapFree")}
    total, available = kib["MemTotal"], kib["MemAvailable"]
    if total is None or available is None:
        raise OSError("/proc/meminfo says nothing of MemTotal and MemAvailable")
    found = {"memory.used_mib": (total - available) / 1024, "memory.cached_mib": (kib["Cached"] or 0) / 1024}
    if kib["SwapTotal"]:
        found["memory.swap_mib"] = (kib["SwapTotal"] - (kib["SwapFree"] or 0)) / 1024
    return found


def _network(pid: int, root: Path, rates: Rates) -> Values:
    """All devices but the loopback: in a container those of its own network."""
    received = sent = 0
    now = time.monotonic()
    told = text(root / f"proc/{pid}/net/dev")
    if told is None:
        return {}  # the process has ended
    for line in told.splitlines()[2:]:
        device, _, rest = line.partition(":")
        words = rest.split()
        if device.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return {
        **rates("network.received_mib_s", received, now, MIB),
        **rates("network.sent_mib_s", sent, now, MIB),
    }


def _disks(root: Path, rates: Rates) -> Values:
    read = written = 0
    now = time.monotonic()
    for line in need(root / "proc/diskstats").splitlines():
        words = line.split()
        # A partition's numbers are in its disk's, which has a folder of its own here.
        if len(words) > 9 and not words[2].startswith(PASSING_ON) and (root / "sys/block" / words[2]).exists():
            read += int(words[5])
            written += int(words[9])
    return {
        **rates("disk.read_mib_s", read * _SECTOR_BYTES, now, MIB),
        **rates("disk.written_mib_s", written * _SECTOR_BYTES, now, MIB),
    }


def _group(pid: int, root: Path, rates: Rates) -> Collector:
    """A process's own control group: of a container or a pod that is what it may use and what stopped it."""
    folders: dict[str, tuple[int, list[Path]]] = {}

    def collect() -> Values:
        if not folders:
            for name in ("cpu", "memory", "io"):
                folders[name] = cgroup.levels(name, root, str(pid))
        found: Values = {}
        now = time.monotonic()
        _, path = folders["cpu"]
        stats = [numbers(text(folder / "cpu.stat")) for folder in path]
        if stats and "usage_usec" in stats[0]:
            found |= rates("group.cpus", stats[0]["usage_usec"], now, 1e6)
        counted = [stat for stat in stats if "nr_throttled" in stat]
        if counted:
            stopped = sum(stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9 for stat in counted)
            found |= rates("group.stopped", stopped, now)
        _, path = folders["memory"]
        if path:
            used = number(path[0] / "memory.current")
            used = number(path[0] / "memory.usage_in_bytes") if used is None else used
            if used is not None:
                found["group.memory_mib"] = used / MIB
        version, path = folders["cpu"]
        if version == 2 and path and (path[0] / "cpu.pressure").exists():
            found |= _pressure(path[0], "group.pressure", rates, ".pressure")
        return found

    return collect
