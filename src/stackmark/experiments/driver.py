"""Identify the driver of a run, so that it can be decided later and elsewhere whether it is still alive.

A pid says nothing by itself: it is given again, it is another process's in another container, and a ledger may be shared by
many machines. So a row carries the machine, its boot, the pid namespace, and when the process began.
"""

import os
import platform

from pydantic import JsonValue

from stackmark.ledger.claims import Claim, Driver
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine import host as machine
from stackmark.machine.orphans import HOST_PID_NAMESPACE as HOST_PID_NAMESPACE
from stackmark.machine.orphans import driver_may_live, start_ticks
from stackmark.machine.orphans import pid_namespace as pid_namespace

# The kind of the error where the machine or the chip is another one than before: what was begun there must begin again here.
OTHER_CHIP = "other_chip"


def machine_name() -> str:
    """Return this machine's name in the ledger. One without an id (a container image) is known by its boot, which is unique."""
    return machine.machine_id() or f"boot {boot_name()}"


def boot_name() -> str:
    return machine.boot_id() or "unknown"


def handle() -> dict[str, JsonValue]:
    return {"driver_start_ticks": start_ticks(os.getpid()), "pid_namespace": pid_namespace()}


def may_live(row: RunRow) -> bool:
    """Return whether the process that drives a run of this machine may still live; true where it cannot be seen."""
    return driver_may_live(
        row.driver_pid,
        row.handle.get("driver_start_ticks"),
        same_boot=row.boot_id == boot_name(),
        namespace=row.handle.get("pid_namespace"),
        here=pid_namespace(),
    )


def claim(ledger: Ledger, experiment_id: str) -> Claim:
    """Claim an experiment for this process, for a `with`."""
    me = Driver(
        host=platform.node() or "an unnamed host",
        machine_id=machine_name(),
        boot_id=boot_name(),
        pid_namespace=pid_namespace(),
        driver_pid=os.getpid(),
        driver_start_ticks=start_ticks(os.getpid()),
    )
    return Claim(ledger, experiment_id, me, sees)


def sees(other: Driver) -> bool | None:
    """Return whether another driver lives; None where it is not visible: another machine, boot or container.

    Unlike in `may_live`, another boot says nothing: two clones of a virtual machine have one machine id.
    """
    here = (machine_name(), boot_name(), pid_namespace())
    if (other.machine_id, other.boot_id, other.pid_namespace) != here:
        return None
    return _is_there(other.driver_pid, other.driver_start_ticks)


def _is_there(pid: int, ticks: object) -> bool:
    now = start_ticks(pid)
    return now is not None and now == ticks
