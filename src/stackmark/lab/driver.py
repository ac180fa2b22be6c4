"""Who drives a run: what the ledger must know to tell, later and elsewhere, whether the driver is still alive.

A pid says nothing by itself: it is given again, it is another process's in another container, and a ledger may be shared by
many machines. So a row carries the machine, its boot, the pid namespace, and when the process began.
"""

import os

from pydantic import JsonValue

from stackmark import machine
from stackmark.ledger.rows import RunRow
from stackmark.strays import start_ticks

# The kernel's number of the first pid namespace, the host's own, on every Linux (PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = 0xEFFFFFFC


def machine_name() -> str:
    """This machine in the ledger. One without an id (a container image) is known by its boot: nobody else has that."""
    return machine.machine_id() or f"boot {boot_name()}"


def boot_name() -> str:
    return machine.boot_id() or "unknown"


def handle() -> dict[str, JsonValue]:
    return {"driver_start_ticks": start_ticks(os.getpid()), "pid_namespace": pid_namespace()}


def pid_namespace() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def may_live(row: RunRow) -> bool:
    """Whether the driver of a run of this machine may still be there. Where it cannot be seen from here, it may."""
    where = row.handle.get("pid_namespace")
    if row.boot_id != boot_name():
        # A restart ends everything on a host. Two containers of one image may share an id and be on two hosts.
        return not (where == HOST_PID_NAMESPACE == pid_namespace())
    if where != pid_namespace():
        return True
    ticks = start_ticks(row.driver_pid)
    return ticks is not None and ticks == row.handle.get("driver_start_ticks")
