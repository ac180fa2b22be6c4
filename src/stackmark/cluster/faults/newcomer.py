"""How long a new pod takes to start on the node: once before the fault, and once when it is over.

It asks for a device where the node has one that nobody holds. The moment is the one in which the API shows it running, as a
person would see it: the kubelet's own times are whole seconds.
"""

import threading
import time
from contextlib import suppress

from stackmark.cluster.faults.record import Newcomer
from stackmark.errors import ClusterError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.manifest.build import pod, sleeping
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.why import holders_among
from stackmark.places.pod.setup import PodSetup

LOOK_S = 0.2
ANSWER_S = 3.0
# It sleeps until it is removed, and not for ever.
SLEEP_S = 600.0


def newcomer_request(setup: PodSetup, mark: str, gpus: int) -> PodRequest:
    """Ask for a pod with the worker's image, node and rights, and none of its work: only a place to start."""
    plain = {"cpus": None, "memory": None, "shm": "64m", "queue": None, "patch": None, "rdma": None, "dra": None}
    options = setup.options.model_copy(update=plain)
    command = sleeping(setup.python, SLEEP_S)
    return setup.request(mark, "fault", options=options, command=command, gpus=gpus, deadline_s=900)


def free_devices(cluster: Cluster, node: Json, resource: str) -> int:
    """Devices of the node that no pod holds; none where one may not see the others' pods."""
    name = node["metadata"]["name"]
    has = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    if has is None or not str(has).isdecimal():
        return 0
    try:
        pods = cluster.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
    except ApiError:
        return 0
    return int(has) - int(sum(one.count for one in holders_among(pods, resource, name)))


def start_one(cluster: Cluster, wanted: PodRequest, within_s: float, give_up: threading.Event) -> Newcomer:
    """Asks until it is accepted, looks until it runs, and removes it."""
    asked, deadline = time.time(), time.monotonic() + within_s
    path = f"/api/v1/namespaces/{wanted.namespace}/pods"
    name = names.object_name(wanted.mark)
    accepted: float | None = None
    why = ""
    try:
        while time.monotonic() < deadline and not give_up.is_set():
            try:
                if accepted is None:
                    cluster.create(path, pod(wanted))
                    accepted = time.time()
                found = cluster.get(f"{path}/{name}", timeout_s=ANSWER_S)
            except ClusterError as error:
                if isinstance(error, ApiError) and error.status == 409 and accepted is None:
                    accepted = time.time()  # the answer to our own request was lost on the way
                why = error.message
            else:
                if _runs(found):
                    return Newcomer(
                        gpus=wanted.gpus, asked_unix_s=asked, accepted_unix_s=accepted, running_unix_s=time.time()
                    )
                why = _why(found)
                if (found.get("status") or {}).get("phase") == "Failed":
                    break
            give_up.wait(LOOK_S)
        return Newcomer(gpus=wanted.gpus, asked_unix_s=asked, accepted_unix_s=accepted, why=why or "it was given up")
    finally:
        with suppress(ClusterError):  # it ends by itself, and is found by its label
            cluster.delete(f"{path}/{name}", grace_s=0)


def _runs(pod: Json) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return bool(statuses) and all("running" in (one.get("state") or {}) for one in statuses)


def _why(pod: Json) -> str:
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or (one.get("state") or {}).get("terminated") or {}
        if waiting:
            return str(waiting.get("message") or waiting.get("reason") or "")
    conditions = [one for one in status.get("conditions") or () if one.get("status") == "False"]
    said = str(conditions[0].get("message") or conditions[0].get("reason") or "") if conditions else ""
    return str(status.get("message") or said or status.get("phase") or "")
