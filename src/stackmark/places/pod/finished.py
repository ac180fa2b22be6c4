"""Collect ended pods that no process waited for: those of printed manifests, mostly canaries. Find them by their labels and
read them once more from the beginning. The pods of a run on several nodes are read together."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from pydantic import JsonValue

from stackmark.errors import ClusterError, PlaceError, SpecError
from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.kubernetes import names, status
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.nodes import Node, find_node
from stackmark.kubernetes.objects import quantity
from stackmark.kubernetes.pods import cut_short, failure_of_pod, index_of
from stackmark.places.place import Handle
from stackmark.places.pod.options import GPU_RESOURCE
from stackmark.places.pod.request import mount_texts
from stackmark.places.pod.run import no_python
from stackmark.ranks import NODE_RANKS_VARIABLE
from stackmark.spec import SPEC_VARIABLE, Task, read_task

# What a manifest was printed for and no driver waits for.
SELECTOR = f"{names.SELECTOR},{names.KIND_LABEL} in (canary,run),!{names.DRIVER_LABEL}"


@dataclass(frozen=True)
class Pods:
    """The pods that have ended, oldest first, and the number that have not. Of a run on several nodes the first pod stands for
    all of them, and they end together."""

    ended: tuple[Json, ...]
    unfinished: int
    # The other pods of a run on several nodes, by the UID of the first.
    mates: Mapping[str, Sequence[Json]]


@dataclass
class FinishedPod:
    """A pod's output, and its status."""

    pod: Json
    events: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    # Why the log is not whole; empty where it is.
    missing: str = ""
    failure: PlaceFailure | None = None
    exit_code: int | None = None

    @property
    def name(self) -> str:
        return at.name(self.pod)

    @property
    def uid(self) -> str:
        return str(at.metadata(self.pod).get("uid") or "")

    @property
    def mark(self) -> str:
        """Return the manifest that it came from."""
        return str((at.metadata(self.pod).get("labels") or {}).get(names.RUN_LABEL) or "")


def find_pods(cluster: Cluster) -> Pods:
    found = cluster.items(f"/api/v1/namespaces/{quote(cluster.namespace)}/pods", labelSelector=SELECTOR)
    runs: dict[str, list[Json]] = {}
    for pod in sorted(found, key=lambda pod: index_of(pod) or 0):
        owner = next((str(one.get("uid")) for one in at.metadata(pod).get("ownerReferences") or ()), "")
        runs.setdefault(owner if index_of(pod) is not None else str(at.metadata(pod)["uid"]), []).append(pod)
    over = [pods for pods in runs.values() if all(status.phase_of(pod) in ("ended", "gone") for pod in pods)]
    over.sort(key=lambda pods: str(at.metadata(pods[0]).get("creationTimestamp")))
    mates = {str(at.metadata(first)["uid"]): others for first, *others in over if others}
    return Pods(tuple(pods[0] for pods in over), len(found) - sum(map(len, over)), mates)


def read_pods(cluster: Cluster, pod: Json, mates: Sequence[Json] = ()) -> FinishedPod:
    """Read the pod of a run, or several of them as one: their ranks' events have numbers of their own."""
    told = read_pod(cluster, pod)
    for mate in mates:
        other = read_pod(cluster, mate)
        told.events += other.events
        told.others += other.others
        told.missing = told.missing or other.missing
        told.failure = told.failure or other.failure
        told.exit_code = told.exit_code or other.exit_code
    return told


def read_pod(cluster: Cluster, pod: Json) -> FinishedPod:
    told = FinishedPod(pod, exit_code=status.exit_code(pod))
    uid = str(at.metadata(pod).get("uid") or "")
    log = PodLog(cluster, at.namespace(pod), at.name(pod), uid=uid)
    try:
        end = log.read(told.events.append, told.others.append)
        told.missing = "" if end.complete else end.why or "it is incomplete"
    except PlaceError as error:
        told.missing = error.message
    told.failure = failure_of_pod(cluster, pod) or no_python(pod)
    task = task_of(pod)
    if told.failure is None and not told.missing and task is not None:
        told.failure = cut_short(cluster, pod, Closing.of(task, told.events, _ranks_of(pod)))
    return told


def task_of(pod: Json) -> Task | None:
    """Return the worker's task, from the manifest."""
    variables = _worker(pod).get("env") or ()
    text = next((one.get("value") for one in variables if one.get("name") == SPEC_VARIABLE), None)
    try:
        return read_task(str(text).replace("$$", "$")) if text else None
    except SpecError:
        return None


def _ranks_of(pod: Json) -> int | None:
    """How many of a run's ranks are in this pod; None where all are."""
    text = next((one.get("value") for one in _worker(pod).get("env") or () if one["name"] == NODE_RANKS_VARIABLE), None)
    return int(text) if text and text.isdecimal() else None


def options_of(pod: Json) -> dict[str, JsonValue]:
    """Return the pod's options as `--on pod` would have them, as far as the pod still shows them."""
    container = _worker(pod)
    limits = (container.get("resources") or {}).get("limits") or {}
    found: dict[str, JsonValue] = {"image": container.get("image")}
    if devices := [name for name in limits if name.endswith("/gpu") or "/mig-" in name]:
        found |= {"gpus": str(limits[devices[0]])} | ({"resource": devices[0]} if devices[0] != GPU_RESOURCE else {})
    if each := _ranks_of(pod):
        found["ranks_per_node"] = str(each)
    if "cpu" in limits:
        found["cpus"] = f"{quantity(limits['cpu']):g}"
    if "memory" in limits:
        found["memory"] = str(round(quantity(limits["memory"])))
    if mounts := mount_texts(at.spec(pod), container):
        found["mount"] = [*mounts]
    return found


def _worker(pod: Json) -> Json:
    containers: list[Json] = at.spec(pod).get("containers") or []
    return next((one for one in containers if one.get("name") == names.CONTAINER), {})


def handle_of(cluster: Cluster, told: FinishedPod, nodes: dict[str, Node | None]) -> Handle:
    """Return the handle as a run that was waited for has it; `nodes` caches earlier answers."""
    pod = told.pod
    name = at.spec(pod).get("nodeName")
    if name and name not in nodes:
        nodes[name] = None
        with suppress(ClusterError):
            nodes[name] = find_node(cluster, name)
    node = nodes.get(name) if name else None
    owners = at.metadata(pod).get("ownerReferences") or ()
    job = next((str(one.get("name")) for one in owners if one.get("kind") == "Job"), None)
    times = status.timeline(pod, [], _job(cluster, pod, job) if job else None)
    return {
        "context": cluster.context,
        "namespace": at.namespace(pod),
        "job": job,
        "manifest": told.mark,
        "pod": told.name,
        "pod_uid": told.uid,
        "node": name,
        "node_boot_id": node.boot_id if node else None,
        "node_machine_id": node.machine_id if node else None,
        "image": options_of(pod).get("image"),
        "image_id": status.image_id(pod),
        "launched_unix_s": times.created,
        "queue_s": times.queue_s,
        "start_s": times.start_s,
        "run_s": times.run_s,
        "restarts": status.restarts(pod),
        "log": {"complete": not told.missing and (told.failure is None or told.failure.kind != LOG_INCOMPLETE)},
    }


def _job(cluster: Cluster, pod: Json, name: str) -> Json | None:
    """The Job of a pod; None where it is gone, or one may not look."""
    with suppress(ClusterError):
        return cluster.get(f"/apis/batch/v1/namespaces/{quote(at.namespace(pod))}/jobs/{quote(name)}")
    return None
