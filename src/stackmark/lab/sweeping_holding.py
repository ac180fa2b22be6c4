"""A pod of a sweep on its way, and the container beside its worker that holds its device.

Which GPU a pod gets is the device plugin's choice. But a pod keeps its device while any of its containers lives: on a node with
several, each pod has a second container that only waits (`hold`), so that the next pod on that node gets another device. A pod
whose worker has ended and whose holder lives is a seat: the device is taken, and known by the facts that the worker told.
"""

import copy
import math
import time
from dataclasses import dataclass, field

from stackmark.lab.sweeping_plan import Slot
from stackmark.machine import boot_id
from stackmark.places.kubernetes import names, podjson, podstatus
from stackmark.places.kubernetes.client import Json as ApiObject
from stackmark.places.place import Outcome
from stackmark.spec import Task

HOLD = "hold"
# Ends when it is asked to; as process 1 it would not, without a handler.
HOLDING = (
    "import signal, sys; [signal.signal(n, lambda *_: sys.exit(0)) for n in (2, 15)]; signal.alarm({s}); signal.pause()"
)
# A Python that waits takes some 10 MiB; this is what it may take.
HOLD_LIMITS = {"cpu": "10m", "memory": "64Mi"}


@dataclass
class Flight:
    """One pod on its way."""

    mark: str
    slot: Slot
    task: Task
    holds: bool
    # A run of the ledger, or only a seat.
    measured: bool = True
    block: int | None = None
    # In a repetition, the number of the slot that is suspected.
    suspect: int | None = None
    launched_unix_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    runs_since: float | None = None
    stuck_looked: float = 0.0
    pod: ApiObject | None = None


@dataclass(frozen=True)
class Landed:
    """What a pod said, and what the cluster says of it."""

    flight: Flight
    lines: tuple[str, ...]
    outcome: Outcome


def holder(pod_spec: ApiObject, python: str, seconds: float, *, asks: bool = True) -> ApiObject:
    """The container that only waits: the worker's own image and folders, and none of its devices."""
    containers = pod_spec["containers"]
    # A user's patch may have named it otherwise.
    worker = next((one for one in containers if one["name"] == names.CONTAINER), containers[0])
    kept = ("image", "imagePullPolicy", "securityContext", "volumeMounts", "workingDir")
    made: ApiObject = {"name": HOLD, **{key: copy.deepcopy(worker[key]) for key in kept if key in worker}}
    made["command"] = [python, "-S", "-c", HOLDING.format(s=math.ceil(seconds))]
    if asks:
        # Requests equal limits here too, or the pod would lose its class.
        made["resources"] = {"requests": dict(HOLD_LIMITS), "limits": dict(HOLD_LIMITS)}
    return made


def is_seat(flight: Flight) -> bool:
    """Whether its worker has ended and its holder has not."""
    if not flight.holds or flight.pod is None:
        return False
    return podstatus.phase_of(flight.pod) == "ended" and bool(podjson.state(flight.pod, "running", HOLD))


def is_here(slot: Slot) -> bool:
    """Whether the slot's node is this machine: the host's own software is nowhere else."""
    return slot.machine == boot_id()
