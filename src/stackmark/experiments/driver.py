"""Who drives a run: what the ledger must know to tell, later and elsewhere, whether the driver is still alive.

A pid says nothing by itself: it is given again, it is another process's in another container, and a ledger may be shared by
many machines. So a row carries the machine, its boot, the pid namespace, and when the process began.
"""

import os
import platform
import time
from pathlib import Path

from pydantic import JsonValue

from stackmark.ledger.claims import Claim, Driver
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine import host as machine
from stackmark.machine.orphans import HOST_PID_NAMESPACE as HOST_PID_NAMESPACE
from stackmark.machine.orphans import driver_may_live, start_ticks
from stackmark.machine.orphans import pid_namespace as pid_namespace

# Long enough for CPU time that is counted in ticks of 10 ms, short enough not to be noticed.
IDLE_S = 0.5


def idle_cpus(seconds: float = IDLE_S) -> float | None:
    """Measure how many CPUs are busy while we do nothing: what is usual on this machine before the first run."""
    before, began = _busy_s(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = _busy_s(), time.monotonic() - began
    return None if before is None or after is None else max(0.0, (after - before) / elapsed)


def _busy_s() -> float | None:
    """Return the time that all CPUs were at work since boot; waiting for a disk is not work."""
    try:
        user, nice, system, _idle, _wait, irq, softirq = Path("/proc/stat").read_text().split(None, 8)[1:8]
        return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def machine_name() -> str:
    """This machine in the ledger. One without an id (a container image) is known by its boot: nobody else has that."""
    return machine.machine_id() or f"boot {boot_name()}"


def boot_name() -> str:
    return machine.boot_id() or "unknown"


def handle() -> dict[str, JsonValue]:
    return {"driver_start_ticks": start_ticks(os.getpid()), "pid_namespace": pid_namespace()}


def may_live(row: RunRow) -> bool:
    """Whether the driver of a run of this machine may still be there. Where it cannot be seen from here, it may."""
    return driver_may_live(
        row.driver_pid,
        row.handle.get("driver_start_ticks"),
        same_boot=row.boot_id == boot_name(),
        namespace=row.handle.get("pid_namespace"),
        here=pid_namespace(),
    )


def claim(ledger: Ledger, experiment_id: str) -> Claim:
    """The claim of this process on an experiment, for a `with`."""
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
    """Whether another driver lives; None where it cannot be seen from here: another machine, boot or container.

    Unlike in `may_live`, another boot says nothing: two clones of a virtual machine have one machine id.
    """
    here = (machine_name(), boot_name(), pid_namespace())
    if (other.machine_id, other.boot_id, other.pid_namespace) != here:
        return None
    return _is_there(other.driver_pid, other.driver_start_ticks)


def _is_there(pid: int, ticks: object) -> bool:
    now = start_ticks(pid)
    return now is not None and now == ticks
