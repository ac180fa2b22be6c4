"""How a pod failed, in a kind, a cause from its own status and events, and what to do next.

Only what the worker cannot say itself: a worker that ends with a code of its own has said why in its last event. A pod that
still waits has failed only where waiting longer would not help; why it waits otherwise is shortage.py's business.
"""

import re
import signal
import time
from collections.abc import Callable, Sequence

from stackmark.failures import PlaceFailure, killed
from stackmark.kubernetes import podjson as at
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.names import CONTAINER
from stackmark.kubernetes.trouble import refusal

# The kubelet tries again after 10, 20, 40 … s. Who cannot see events waits for the second failure by the clock.
PULL_TRIES, PULL_PATIENCE_S = 2, 60.0
_HOPELESS_PULL = re.compile(
    r"not ?found|manifest unknown|name unknown|denied|unauthorized|forbidden|\b40[134]\b|invalid reference|no match for platform",
    re.IGNORECASE,
)
# What stands before the cause, and names the image three times.
_PULL_NOISE = re.compile(
    r"^(?:(?:Failed to pull image|failed to pull and unpack image|failed to resolve (?:reference|image)|Back-off pulling image)"
    r' "[^"]*":? ?|ErrImagePull: |rpc error: code = \w+ desc = )+'
)
_REFUSED_PULL = re.compile(r"denied|unauthorized|forbidden|authenti|\b40[13]\b", re.IGNORECASE)
_UNREACHED_PULL = re.compile(r"no such host|timeout|refused|unreachable|x509|TLS|lookup |proxyconnect", re.IGNORECASE)
_START_ERRORS = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError", "PostStartHookError")
# Why a pod was to go, by the reason of its condition DisruptionTarget.
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}
_KINDS = {
    "Evicted": "evicted",
    "DeadlineExceeded": "deadline",
    "NodeLost": "node_lost",
    "Shutdown": "node_lost",
    "NodeShutdown": "node_lost",
    "Terminated": "node_lost",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "UnexpectedAdmissionError": "refused_by_node",
    "TopologyAffinityError": "refused_by_node",
    "NodeAffinity": "refused_by_node",
    "NodePorts": "refused_by_node",
    "PodFeatureUnsupported": "refused_by_node",
}


def failure_of(
    pod: Json | None, events: Sequence[Json], *, gone: bool = False, container: str = CONTAINER
) -> PlaceFailure | None:
    """None where it has not failed, or has said itself why. `gone`: the pod is not there any more, and this is its last state."""
    if pod is None:
        return _deleted({}, events)
    ended = at.state(pod, "terminated", container)
    if ended.get("exitCode") == 0 and ended.get("reason") != "OOMKilled":
        return None
    for look in (_by_pod_reason, _by_disruption, _by_memory, _by_start, _by_waiting):
        found = look(pod, events, container)
        if found:
            return found
    leaving = at.metadata(pod).get("deletionTimestamp") and not at.state(pod, "running", container)
    if gone or leaving:
        return _deleted(pod, events)
    if at.status(pod).get("phase") == "Failed" and not ended:
        said = at.words(at.status(pod).get("message")) or at.words(at.status(pod).get("reason")) or "it gave no reason"
        return PlaceFailure("start_error", f"the pod failed before its container ran: {said}", at.describe(pod))
    number = int(ended.get("exitCode") or 0) - 128
    # SIGINT and SIGTERM the worker answers itself, with a last event and these codes.
    if 0 < number < signal.NSIG and number not in (signal.SIGINT, signal.SIGTERM):
        return killed(number, oom=False)
    return None


def job_refused(job: Json, events: Sequence[Json]) -> PlaceFailure | None:
    """Why a Job that was accepted gets no pod: a quota, Pod Security, a missing account. The Job's own events say it."""
    said = at.latest(events, "FailedCreate")
    if not said:
        return None
    message = str(said.get("message") or "").removeprefix("Error creating: ")
    known = refusal(message, at.namespace(job))
    return PlaceFailure(known.kind, f"the Job's pod was refused: {known.cause}", known.hint)


def _by_pod_reason(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    reason = str(at.status(pod).get("reason") or "")
    kind = _KINDS.get(reason) or ("refused_by_node" if reason.startswith("OutOf") else None)
    return _SAY[kind](pod, at.words(at.status(pod).get("message")) or reason, events) if kind else None


def _by_disruption(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    target = at.condition(pod, "DisruptionTarget")
    kind = _DISRUPTIONS.get(str(target.get("reason"))) if target.get("status") == "True" else None
    if kind is None or at.state(pod, "running", container):
        return None  # it is on its way out; its end comes
    return _SAY[kind](pod, at.words(target.get("message")) or str(target.get("reason")), events)


def _by_memory(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    if at.state(pod, "terminated", container).get("reason") != "OOMKilled":
        return None
    limit = ((at.container_spec(pod, container).get("resources") or {}).get("limits") or {}).get("memory")
    cause = f"its limit of {limit} was too low" if limit else "the node has no more"
    return PlaceFailure(
        "out_of_host_memory",
        f"the kernel's OOM killer struck in the pod: {cause}",
        "raise --memory, or take a smaller --batch or fewer --data-workers; what is in /dev/shm counts too (--shm)",
    )


def _by_start(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    ended, waiting = at.state(pod, "terminated", container), at.state(pod, "waiting", container)
    said = ended if ended.get("reason") in _START_ERRORS else waiting if waiting.get("reason") in _START_ERRORS else {}
    if not said:
        return None
    message = at.words(said.get("message")) or at.words(at.latest(events, "Failed").get("message"))
    hint = "is the program in the image, and may it be run?" if "exec" in message else "see what else the node says"
    return PlaceFailure("start_error", f"the container could not be started: {message}", f"{hint} ({at.describe(pod)})")


def _by_waiting(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    waiting = at.state(pod, "waiting", container)
    reason, message = str(waiting.get("reason") or ""), at.words(waiting.get("message"))
    if reason == "CreateContainerConfigError":
        return PlaceFailure(
            "bad_container_config",
            f"the container's settings cannot be met: {message}",
            f"create what it names in the namespace {at.namespace(pod)}, or leave it out",
        )
    if reason in ("InvalidImageName", "ErrImageNeverPull") or (
        reason in ("ErrImagePull", "ImagePullBackOff") and _pull_is_hopeless(pod, events, message)
    ):
        return _image_pull(pod, events, container, message)
    return None


def _pull_is_hopeless(pod: Json, events: Sequence[Json], message: str) -> bool:
    failures = [one for one in events if one.get("reason") == "Failed" and "pull" in str(one.get("message")).lower()]
    if any(_HOPELESS_PULL.search(text) for text in (message, *(str(one.get("message")) for one in failures))):
        return True
    tries = sum(int(one.get("count") or 1) for one in failures if "Failed to pull" in str(one.get("message")))
    placed = at.unix_s(at.condition(pod, "PodScheduled").get("lastTransitionTime"))
    return tries >= PULL_TRIES or (not events and placed is not None and time.time() - placed > PULL_PATIENCE_S)


def _image_pull(pod: Json, events: Sequence[Json], container: str, message: str) -> PlaceFailure:
    image = str(at.container_spec(pod, container).get("image") or "")
    told = [one for one in events if one.get("reason") == "Failed" and image in str(one.get("message"))]
    latest = max(told, key=at.moment_s).get("message") if told else None
    cause = at.words(_PULL_NOISE.sub("", str(latest or at.state(pod, "waiting", container).get("message") or message)))
    if at.state(pod, "waiting", container).get("reason") == "ErrImageNeverPull":
        cause, hint = "it is not on the node, and --pull Never forbids to get it", "load it there, or leave --pull out"
    elif at.state(pod, "waiting", container).get("reason") == "InvalidImageName":
        hint = "write it as registry/name:tag, in lower case"
    elif _REFUSED_PULL.search(cause):
        hint = "the registry refuses: is the name right, and does it need --pull-secret NAME?"
    elif _UNREACHED_PULL.search(cause):
        hint = "the node cannot reach the registry: name another with --image, or load the image on the nodes"
    else:
        hint = "is the name right, tag and all?"
    node = at.spec(pod).get("nodeName")
    return PlaceFailure(
        "image_pull", f"the node {node} cannot get the image {image}: {cause}", f"{hint} ({at.describe(pod)})"
    )


def _deleted(pod: Json, events: Sequence[Json]) -> PlaceFailure:
    """What is left to know of a pod that is gone: its events."""
    told = (
        ("preempted", at.latest(events, "Preempted", "Preempting")),
        ("evicted", at.latest(events, "Evicted")),
        ("node_lost", at.latest(events, "TaintManagerEviction", "NodeLost")),
    )
    for kind, event in told:
        if event:
            return _SAY[kind](pod, at.words(event.get("message")), events)
    named = f"the pod {at.name(pod)}" if pod else "the pod"
    return PlaceFailure(
        "deleted",
        f"{named} was deleted before its work was done",
        "somebody removed it, or its Job or namespace; the audit log of the cluster knows who",
    )


def _say_evicted(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    hint = "ask for what it needs, so that it is not the first to go: --memory; or take a node with less on it: --node"
    if "EmptyDir" in cause or "emptyDir" in cause:
        hint = "the volume was too small for what was written to it: raise --shm"
    elif "ephemeral" in cause:
        hint = "it wrote more to its own disk than it may: write less, or ask for ephemeral-storage with --patch"
    return PlaceFailure("evicted", f"the pod was evicted: {cause}", hint)


def _say_preempted(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    told = at.words(at.latest(events, "Preempted").get("message"))
    return PlaceFailure(
        "preempted",
        f"the pod had to make room for one of higher priority: {told or cause}",
        "run it when the cluster is less busy, or with a higher --priority-class (kubectl get priorityclasses)",
    )


def _say_deadline(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    limit = at.spec(pod).get("activeDeadlineSeconds")
    return PlaceFailure(
        "deadline",
        f"the pod took longer than its deadline{f' of {limit} s' if limit else ''}",
        "raise --time-limit or --deadline",
    )


def _say_node_lost(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    node = at.spec(pod).get("nodeName") or "of the pod"
    return PlaceFailure(
        "node_lost",
        f"the node {node} was lost, or left the cluster, while the pod was on it: {cause}",
        f"see what it says: kubectl describe node {node}",
    )


def _say_refused(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    node, reason = at.spec(pod).get("nodeName"), at.status(pod).get("reason")
    hint = f"see what the node has left: kubectl describe node {node}"
    if reason == "TopologyAffinityError":
        hint = "its topology policy wants all on one NUMA node: ask for fewer --cpus or --gpus, or take another --node"
    elif reason == "UnexpectedAdmissionError":
        hint = f"its device plugin could not give the devices: is it healthy? stackmark cluster doctor --node {node}"
    return PlaceFailure("refused_by_node", f"the node {node} refused the pod ({reason}): {cause}", hint)


_SAY: dict[str, Callable[[Json, str, Sequence[Json]], PlaceFailure]] = {
    "evicted": _say_evicted,
    "preempted": _say_preempted,
    "deadline": _say_deadline,
    "node_lost": _say_node_lost,
    "refused_by_node": _say_refused,
}
