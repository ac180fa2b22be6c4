"""One pod of a sweep: what it is made of, and the container beside its worker that holds its device.

Which GPU a pod gets is the device plugin's choice. But a pod keeps its device while any of its containers lives: on a node with
several, each pod has a second container that only waits (`hold`), so that the next pod on that node gets another device. A pod
whose worker has ended and whose holder lives is a seat: the device is taken, and known by the facts that the worker told.
"""

import math
import time
from dataclasses import dataclass, field

from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.experiments.sweep.slots import Slot
from stackmark.kubernetes import names, objects
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.pods import Awaited
from stackmark.ledger.rows import Json
from stackmark.places.place import Outcome
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Task

SWEEP_LABEL = "stackmark.io/sweep"
HOLD = "hold"
# A Python that waits takes some 10 MiB; this is what it may take.
HOLD_LIMITS = {"cpu": "10m", "memory": "64Mi"}


@dataclass
class Flight(Awaited):
    """One pod on its way."""

    slot: Slot
    task: Task
    holds: bool
    block: int | None = None
    # In a repetition, the number of the slot that is suspected.
    suspect: int | None = None
    # 0 in the first pass; of a second pass, which run of each device it is.
    number: int = 0
    # 0 where it never was.
    launched_unix_s: float = 0.0
    # By the monotonic clock, also while the API server was away.
    launched: float = field(default_factory=time.monotonic)
    by_job: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Landed:
    """What a pod said, and what the cluster says of it."""

    flight: Flight
    lines: tuple[str, ...]
    outcome: Outcome


def job_of(
    flight: Flight, sweep_id: str, plan: SweepPlan, setup: PodSetup, *, limit_s: float, holding_s: float
) -> ApiObject:
    # Their sum, since the holder lives in the same pod.
    deadline_s = limit_s + setup.options.wait_s + (holding_s if flight.holds else 0.0)
    request = setup.request(
        flight.mark,
        "sweep",
        task=flight.task,
        node=flight.slot.node,
        gpus=plan.gpus,
        deadline_s=math.ceil(deadline_s) + 120,
    )
    made = build.job(request)
    template = made["spec"]["template"]
    for labelled in (made, template):
        labelled["metadata"].setdefault("labels", {})[SWEEP_LABEL] = sweep_id
    if flight.holds:
        template["spec"]["containers"].append(holder(template["spec"], setup.python, holding_s, asks=plan.holders_ask))
    return made


def holder(pod_spec: ApiObject, python: str, seconds: float, *, asks: bool = True) -> ApiObject:
    """The container that only waits: the worker's own image and folders, and none of its devices."""
    containers = pod_spec["containers"]
    # A user's patch may have named it otherwise.
    worker = next((one for one in containers if one["name"] == names.CONTAINER), containers[0])
    return build.sleeper(worker, HOLD, python, seconds, HOLD_LIMITS if asks else None)


def is_seat(flight: Flight) -> bool:
    """Whether its worker has ended and its holder has not."""
    if not flight.holds or flight.pod is None:
        return False
    return flight.phase == "ended" and bool(objects.state(flight.pod, "running", HOLD))


def handle_of(flight: Flight, setup: PodSetup) -> Json:
    """What the ledger keeps, to find the pod again."""
    made: Json = {
        "context": setup.cluster.context,
        "kubeconfig": setup.options.kubeconfig,
        "namespace": setup.namespace,
        "job": names.object_name(flight.mark),
        "image": setup.image,
        "software": "host" if setup.software else "image",
        "launched_unix_s": flight.launched_unix_s,
        "node": flight.slot.node,
        "node_boot_id": flight.slot.machine,
    }
    if flight.pod is not None:
        made |= {"pod": flight.pod["metadata"].get("name"), "pod_uid": flight.pod["metadata"].get("uid")}
    return made
