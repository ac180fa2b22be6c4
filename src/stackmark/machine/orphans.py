"""Find what a run left behind: every process of a run carries the run's id in its environment.

A process group is ended as a group, but a child may have left it (a compiler's helper, a daemon), and after kill -9 of the
driver nobody ended anything. The mark in the environment is inherited by all of them, unless one was given another
environment on purpose. The place looks for it at the end of a run, an orphaned worker when it goes, and the next command.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK_VARIABLE = "STACKMARK_RUN"
# Of a user's own program, within its run: what it leaves behind is ended, and the worker and its like are not.
COMMAND_VARIABLE = "STACKMARK_COMMAND"
PROC = Path("/proc")
# A process that does not go within this time hangs in the kernel.
KILL_WAIT_S = 2.0
# The kernel's number of the first pid namespace, the host's own, on every Linux (PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = 0xEFFFFFFC


def marked(mark: str, variable: str = MARK_VARIABLE) -> list[int]:
    """Return the processes of a run. Only our own can be read, and only our own can be ours.

    Not process 1: where it carries the mark, it is a container's first, which no signal of ours ends from inside, and which
    goes with the worker anyway.
    """
    wanted = f"{variable}={mark}".encode()
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in (1, os.getpid()):
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def started_by_us(mark: str) -> set[int]:
    """Return the processes of a run, and all descendants of this process: also those that were given another environment."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
    found = set(marked(mark)) if mark else set()
    grown = {os.getpid()}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown}
        found |= grown
    return found


def end_marked(mark: str, variable: str = MARK_VARIABLE) -> int:
    """Kill what is left of a run, and says how many processes that were."""
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_WAIT_S
    # Again and again: between a look and a kill a process may have had a child.
    while (left := marked(mark, variable)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended.add(pid)
        time.sleep(0.01)
    return len(ended)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since boot: with the pid, a name that is never reused. None: it is dead."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets too.
    state, *fields = text.rpartition(")")[2].split()
    # A zombie is dead, though nobody has asked after it yet: as process 1 of a container may never do.
    return None if state in ("Z", "X") else int(fields[18])


def handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal; True where that cannot be read.

    The kernel drops signals without a handler that are sent to process 1 of a container, from inside and outside, except
    SIGKILL.
    """
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return True


def pid_namespace() -> int | None:
    """Return the kernel's number of the pid namespace that this process is in."""
    try:
        return os.stat(PROC / "self/ns/pid").st_ino
    except OSError:
        return None


def driver_may_live(pid: int, ticks: object, *, same_boot: bool, namespace: object, here: int | None = None) -> bool:
    """Tell whether a process of this machine may still be there; one that cannot be seen from here may.

    `namespace` is the pid namespace in which it has that pid, `here` ours.
    """
    here = pid_namespace() if here is None else here
    if not same_boot:
        # A restart ends everything on a host. Two containers of one image may share an id and be on two hosts.
        return not (namespace == HOST_PID_NAMESPACE == here)
    if namespace != here:
        return True
    began = start_ticks(pid)
    return began is not None and began == ticks
