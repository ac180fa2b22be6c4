"""Read what the control groups allow this process: version 1, version 2, and both at once (hybrid).

A limit may stand at any level between the process's group and the root that is visible from here; a Kubernetes pod's
stands one above its container's. So each limit is read along the whole path, and the tightest wins. What is above the
visible root (a cgroup namespace hides it) cannot be known from inside.

Where a controller is mounted is taken from mountinfo, not assumed: without a cgroup namespace, a container's path in
/proc/self/cgroup is the host's, while its mount shows only its own part of the tree.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stackmark.machine.reading import (
    ROOT,
    Facts,
    Reading,
    cpu_list,
    cpu_set,
    mib,
    need,
    number,
    numbers,
    scaled,
    text,
)

# Version 1 writes "no limit" as the largest number of pages; nobody has an exbibyte.
NO_LIMIT_BYTES = 2**60
SELF = "self"


class Mount(NamedTuple):
    version: int
    controllers: frozenset[str]
    root: str  # the part of the tree that is mounted there
    point: Path


class Throttled(NamedTuple):
    """Sums over the levels of the path, so that a later sum minus an earlier one is what happened between."""

    times: int
    seconds: float


def read(root: Path = ROOT, process: str = SELF) -> Reading:
    """Read the limits of this process, or of another one of this machine by its number: of a container, from outside."""
    own = memberships(root, process)
    throttled = read_throttled(root, process)
    cpus = cpuset(root, process)
    facts: Facts = {
        "version": version(root),
        "path": own.get("") if own.get("", "/") != "/" else own.get("memory") or own.get("cpu") or own.get(""),
        "cpu_limit_cpus": cpu_limit_cpus(root, process),
        "cpuset": cpu_list(cpus) if cpus else None,
        "cpuset_cpus": len(cpus) or None,
        "memory_limit_mib": mib(
            _least(root, process, "memory", {2: _plain("memory.max"), 1: _plain("memory.limit_in_bytes")})
        ),
        "memory_high_mib": mib(_least(root, process, "memory", {2: _plain("memory.high")})),
        "memory_now_mib": mib(_first(root, process, "memory", {2: "memory.current", 1: "memory.usage_in_bytes"})),
        "swap_limit_mib": mib(_least(root, process, "memory", {2: _plain("memory.swap.max"), 1: _swap_v1})),
        "pids_limit": _least(root, process, "pids", {2: _plain("pids.max"), 1: _plain("pids.max")}),
        "throttled_times": throttled.times if throttled else None,
        "throttled_s": round(throttled.seconds, 6) if throttled else None,
        "oom_kills": read_oom_kills(root, process),
    }
    return Reading(facts)


def processes_of_pod(uid: str, root: Path = ROOT) -> set[int]:
    """Return the processes of a pod on this machine. Their control groups name its UID, systemd's with underscores."""
    names = {uid, uid.replace("-", "_")} if uid else set()
    found = set()
    for group in (root / "proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):  # the process has ended
            if any(name in group.read_text(errors="replace") for name in names):
                found.add(int(group.parent.name))
    return found


def memberships(root: Path = ROOT, process: str = SELF) -> dict[str, str]:
    """Return the path by controller; the empty name is version 2's single hierarchy."""
    paths: dict[str, str] = {}
    for line in need(root / "proc" / process / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def mounts(root: Path = ROOT) -> list[Mount]:
    found = []
    for line in (text(root / "proc/self/mountinfo") or "").splitlines():
        place, _, kind = line.partition(" - ")
        kind_words = kind.split()
        if not kind_words or kind_words[0] not in ("cgroup", "cgroup2"):
            continue
        words = place.split()
        options = kind_words[-1].split(",")
        found.append(
            Mount(
                version=2 if kind_words[0] == "cgroup2" else 1,
                controllers=frozenset(options),
                root=words[3],
                point=root / words[4].lstrip("/"),
            )
        )
    return found


def version(root: Path = ROOT) -> str:
    versions = {mount.version for mount in mounts(root)}
    return {frozenset({1}): "v1", frozenset({2}): "v2", frozenset({1, 2}): "hybrid"}.get(frozenset(versions), "none")


def levels(controller: str, root: Path = ROOT, process: str = SELF) -> tuple[int, list[Path]]:
    """Return the version that governs a controller, and the folders from the process's own group up to the mount.

    In a hybrid set-up a controller belongs to version 1 where it is mounted there, else to version 2.
    """
    own = memberships(root, process)
    everything = mounts(root)
    first = next((m for m in everything if m.version == 1 and controller in m.controllers), None)
    if first is not None and controller in own:
        return 1, _upward(first, own[controller])
    unified = next((m for m in everything if m.version == 2), None)
    if unified is not None and "" in own:
        return 2, _upward(unified, own[""])
    return 0, []


def cpu_limit_cpus(root: Path = ROOT, process: str = SELF) -> float | None:
    """Return the CPU time allowed, in CPUs: 150000 µs in every 100000 µs are 1.5."""
    return _least(root, process, "cpu", {2: _quota_v2, 1: _quota_v1})


def cpuset(root: Path = ROOT, process: str = SELF) -> frozenset[int]:
    """Return the CPUs this group may run on; empty where there is no such controller."""
    _, path = levels("cpuset", root, process)
    for folder in path:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpus = cpu_set(text(folder / name))
            if cpus:
                return cpus
    return frozenset()


def read_throttled(root: Path = ROOT, process: str = SELF) -> Throttled | None:
    """Return how often and for how long a CPU quota on the path stopped its group. None without a cpu controller."""
    _, path = levels("cpu", root, process)
    stats = [numbers(text(folder / "cpu.stat")) for folder in path]
    counted = [stat for stat in stats if "nr_throttled" in stat]
    if not counted:
        return None
    # Version 2 counts microseconds, version 1 nanoseconds.
    seconds = sum(stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9 for stat in counted)
    return Throttled(sum(stat["nr_throttled"] for stat in counted), seconds)


def read_oom_kills(root: Path = ROOT, process: str = SELF) -> int | None:
    """Return how many processes of this group the kernel killed because memory ran out. Version 2's counter includes children."""
    _, path = levels("memory", root, process)
    for folder in path[:1]:
        for name in ("memory.events", "memory.oom_control"):
            kills = numbers(text(folder / name)).get("oom_kill")
            if kills is not None:
                return kills
    return None


def read_cpu_s(process: str, root: Path = ROOT) -> float | None:
    """Return the CPU time that the group of a process has used, with that of its processes that have ended."""
    which, path = levels("cpuacct", root, process)
    if not path:
        return None
    if which == 1:
        used_ns = number(path[0] / "cpuacct.usage")
        return None if used_ns is None else used_ns / 1e9
    used_us = numbers(text(path[0] / "cpu.stat")).get("usage_usec")
    return None if used_us is None else used_us / 1e6


def _upward(mount: Mount, path: str) -> list[Path]:
    inside = PurePosixPath(path)
    if inside.is_relative_to(mount.root):
        inside = inside.relative_to(mount.root)
    parts = [part for part in inside.parts if part not in ("/", "..")]
    folders = [mount.point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    # A path of the host's that this mount does not show leaves the mount itself, which then is our own group.
    return [folder for folder in folders if folder.is_dir()]


_Reader = Callable[[Path], float | int | None]


def _least(root: Path, process: str, controller: str, readers: dict[int, _Reader]) -> int | float | None:
    """The tightest limit on the path, or None where none is set."""
    which, path = levels(controller, root, process)
    if which not in readers:
        return None
    return min(_set(readers[which](folder) for folder in path), default=None)


def _first(root: Path, process: str, controller: str, names: dict[int, str]) -> int | None:
    which, path = levels(controller, root, process)
    return number(path[0] / names[which]) if path and which in names else None


def _set(values: Iterable[int | float | None]) -> list[int | float]:
    return [value for value in values if value is not None and 0 <= value < NO_LIMIT_BYTES]


def _plain(name: str) -> _Reader:
    return lambda folder: number(folder / name)


def _quota_v2(folder: Path) -> float | None:
    words = (text(folder / "cpu.max") or "max").split()
    return None if words[0] == "max" else scaled(int(words[0]), int(words[1]))


def _quota_v1(folder: Path) -> float | None:
    quota, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    return scaled(quota, period) if quota is not None and quota > 0 and period else None


def _swap_v1(folder: Path) -> int | None:
    """Version 1 limits memory and swap together."""
    both, memory = number(folder / "memory.memsw.limit_in_bytes"), number(folder / "memory.limit_in_bytes")
    return both - memory if both is not None and memory is not None and both < NO_LIMIT_BYTES else None
