"""Explain why a pod failed, or why it waits, and what to do next.

A failure has a kind, a cause from the pod's own status and events, and a hint: only what the worker cannot say itself, since a
worker that ends with a code of its own has said why in its last event. A pod that still waits has failed only where waiting
longer would not help.

Of a pod that waits, the scheduler says `0/2 nodes are available: 2 Insufficient nvidia.com/gpu`, which names neither the nodes
nor who is on them. Both are in the cluster's own lists, so the sum is done here; where one may not see them, the scheduler's
words stand. Nothing is asked here: all are functions of what was listed.
"""

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stackmark.failures import FOREIGN_PROGRAM, PlaceFailure, killed
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.events import latest, moment_s
from stackmark.kubernetes.names import CONTAINER
from stackmark.kubernetes.objects import (
    BASIC,
    matches,
    quantity,
    requests,
    say_amount,
    say_requirements,
    say_taint,
    untolerated,
)
from stackmark.kubernetes.refusals import refusal

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
# Reasons of a container whose image the kubelet will try to pull again.
_PULLS_AGAIN = ("ErrImagePull", "ImagePullBackOff")
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
# Of a large cluster: how many nodes and pods are named.
NODES_NAMED, PODS_NAMED = 4, 6
ACTIVE = "status.phase!=Succeeded,status.phase!=Failed"
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+[\w])")
_VOLUMES = re.compile(
    r"persistentvolume|persistent volumes? to bind|volume node affinity|resourceclaim|cannot allocate all claims",
    re.IGNORECASE,
)
_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" (not found|\w+)', re.IGNORECASE)
_UNBOUND = re.compile(r"unbound|persistent volumes? to bind", re.IGNORECASE)
_WRONG_HOST_PATH = re.compile(r"hostPath type check failed: (\S+) is (not a \w+)")
# What a preemption would bring says nothing to who waits.
_AFTERTHOUGHT = re.compile(r"[.,]? *(?:no new claims to deallocate[.,]? *)?preemption: ")
_SICK = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PRESSED = re.compile(r"node\.kubernetes\.io/(memory|disk|pid)-pressure")


def failure_of(
    pod: Json | None, events: Sequence[Json], *, gone: bool = False, container: str = CONTAINER
) -> PlaceFailure | None:
    """Explain a failure; None where it has not failed or reported why. `gone`: the pod was deleted; this is its last state."""
    if pod is None:
        return _deleted({}, events)
    ended = at.state(pod, "terminated", container)
    if ended.get("exitCode") == 0 and ended.get("reason") != "OOMKilled":
        return None
    for look in (_by_pod_reason, _by_disruption, _by_memory, _by_start, _by_volume, _by_waiting):
        found = look(pod, events, container)
        if found:
            return found
    leaving = at.metadata(pod).get("deletionTimestamp") and not at.state(pod, "running", container)
    if gone or leaving:
        return _disrupted(pod, events) or _deleted(pod, events)
    if at.status(pod).get("phase") == "Failed" and not ended:
        said = at.words(at.status(pod).get("message")) or at.words(at.status(pod).get("reason")) or "it gave no reason"
        return PlaceFailure("start_error", f"the pod failed before its container ran: {said}", at.describe(pod))
    number = int(ended.get("exitCode") or 0) - 128
    # SIGINT and SIGTERM the worker answers itself, with a last event and these codes.
    if 0 < number < signal.NSIG and number not in (signal.SIGINT, signal.SIGTERM):
        return killed(number, oom=False)
    return None


def job_refused(job: Json, events: Sequence[Json]) -> PlaceFailure | None:
    """Explain why an accepted Job gets no pod: a quota, Pod Security, a missing account. The Job's events say it."""
    said = latest(events, "FailedCreate")
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
    # One that still runs is on its way out; its end comes.
    return None if at.state(pod, "running", container) else _disrupted(pod, events)


def _disrupted(pod: Json, events: Sequence[Json]) -> PlaceFailure | None:
    target = at.condition(pod, "DisruptionTarget")
    kind = _DISRUPTIONS.get(str(target.get("reason"))) if target.get("status") == "True" else None
    if kind is None:
        return None
    return _SAY[kind](pod, at.words(target.get("message")) or str(target.get("reason")), events)


def _by_memory(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    if at.state(pod, "terminated", container).get("reason") != "OOMKilled":
        return None
    limit = ((at.container_spec(pod, container).get("resources") or {}).get("limits") or {}).get("memory")
    cause = f"its limit of {limit} was too low" if limit else "the node ran out of memory"
    return PlaceFailure(
        "out_of_host_memory",
        f"the kernel's OOM killer ended a process in the pod: {cause}",
        "raise --memory, or use a smaller --batch or fewer --data-workers; /dev/shm counts too (--shm)",
    )


def _by_start(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    ended, waiting = at.state(pod, "terminated", container), at.state(pod, "waiting", container)
    if FOREIGN_PROGRAM.search(str(ended.get("message") or "")):
        return _other_architecture(pod, container)
    said = ended if ended.get("reason") in _START_ERRORS else waiting if waiting.get("reason") in _START_ERRORS else {}
    if not said:
        return None
    message = at.words(said.get("message")) or at.words(latest(events, "Failed").get("message"))
    if FOREIGN_PROGRAM.search(message):
        return _other_architecture(pod, container)
    hint = (
        "check that the program is in the image and executable"
        if "exec" in message
        else "see the node's other messages"
    )
    if 'exec: "sh"' in message:
        hint = "the image has no shell to find its Python: give its path with --python PATH"
    return PlaceFailure("start_error", f"the container could not be started: {message}", f"{hint} ({at.describe(pod)})")


def _other_architecture(pod: Json, container: str) -> PlaceFailure:
    image, node = at.container_spec(pod, container).get("image"), at.spec(pod).get("nodeName")
    return PlaceFailure(
        "other_architecture",
        f"the image {image} is for a different architecture than the node {node}",
        "use an image for the node's architecture, or another node: --node-selector kubernetes.io/arch=…",
    )


def _by_volume(pod: Json, events: Sequence[Json], container: str) -> PlaceFailure | None:
    """A folder of the node that is not there, or is a file: the kubelet would ask again for ever."""
    told = str(latest(events, "FailedMount").get("message") or "") if at.state(pod, "waiting", container) else ""
    wrong = _WRONG_HOST_PATH.search(told)
    if wrong is None:
        return None
    return PlaceFailure(
        "bad_container_config",
        f"the node {at.spec(pod).get('nodeName')} cannot mount {wrong[1]}: it is {wrong[2]} there",
        "correct the path of --mount, or choose a node that has it: --node",
    )


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
        reason in _PULLS_AGAIN and _pull_is_hopeless(pod, events, message)
    ):
        return _image_pull(pod, events, container, message)
    return None


def unfinished_pull(pod: Json, events: Sequence[Json], container: str = CONTAINER) -> PlaceFailure | None:
    """Explain a pod that is given up while its node still tries to get the image; None where it does not."""
    waiting = at.state(pod, "waiting", container)
    if waiting.get("reason") not in _PULLS_AGAIN:
        return None
    return _image_pull(pod, events, container, at.words(waiting.get("message")))


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
    newest = max(told, key=moment_s).get("message") if told else None
    cause = at.words(_PULL_NOISE.sub("", str(newest or at.state(pod, "waiting", container).get("message") or message)))
    if "no match for platform" in cause:
        return _other_architecture(pod, container)
    if at.state(pod, "waiting", container).get("reason") == "ErrImageNeverPull":
        cause, hint = "it is not on the node, and --pull Never forbids pulling it", "load it there, or leave out --pull"
    elif at.state(pod, "waiting", container).get("reason") == "InvalidImageName":
        hint = "write --image as registry/name:tag, in lower case"
    elif _REFUSED_PULL.search(cause):
        hint = "the registry denies access: correct the name with --image, or use a secret that may pull it: --pull-secret NAME"
    elif _UNREACHED_PULL.search(cause):
        hint = "the node cannot reach the registry: use another with --image, or load the image on the nodes"
    else:
        # Some registries say "not found" of what they do not show to everybody.
        hint = "correct the name or the tag with --image; an image that is not public needs --pull-secret NAME"
    node = at.spec(pod).get("nodeName")
    return PlaceFailure(
        "image_pull", f"the node {node} cannot get the image {image}: {cause}", f"{hint} ({at.describe(pod)})"
    )


def _deleted(pod: Json, events: Sequence[Json]) -> PlaceFailure:
    """What is left to know of a pod that is gone: its events."""
    told = (
        ("preempted", latest(events, "Preempted", "Preempting")),
        ("evicted", latest(events, "Evicted")),
        ("node_lost", latest(events, "TaintManagerEviction", "NodeLost")),
    )
    for kind, event in told:
        if event:
            return _SAY[kind](pod, at.words(event.get("message")), events)
    named = f"the pod {at.name(pod)}" if pod else "the pod"
    return PlaceFailure(
        "deleted",
        f"{named} was deleted before it finished",
        "someone deleted it, its Job or its namespace; the cluster's audit log shows who",
    )


def _say_evicted(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    hint = "request what it needs, so that it is not evicted first: --memory; or use a less busy node: --node"
    if "EmptyDir" in cause or "emptyDir" in cause:
        hint = "the volume was too small: raise --shm"
    elif "ephemeral" in cause:
        hint = "it exceeded its ephemeral storage: write less, or request more ephemeral-storage with --patch"
    return PlaceFailure("evicted", f"the pod was evicted: {cause}", hint)


def _say_preempted(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    told = at.words(latest(events, "Preempted").get("message"))
    return PlaceFailure(
        "preempted",
        f"a pod of higher priority preempted the pod: {told or cause}",
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
        f"see its state: kubectl describe node {node}",
    )


def _say_refused(pod: Json, cause: str, events: Sequence[Json]) -> PlaceFailure:
    node, reason = at.spec(pod).get("nodeName"), at.status(pod).get("reason")
    hint = f"see what is free on the node: kubectl describe node {node}"
    if reason == "TopologyAffinityError":
        hint = "its topology policy requires one NUMA node for everything: request fewer --cpus or --gpus, or use another --node"
    elif reason == "UnexpectedAdmissionError":
        hint = f"its device plugin could not assign the devices; examine it: stackmark cluster doctor --node {node}"
    return PlaceFailure("refused_by_node", f"the node {node} refused the pod ({reason}): {cause}", hint)


_SAY: dict[str, Callable[[Json, str, Sequence[Json]], PlaceFailure]] = {
    "evicted": _say_evicted,
    "preempted": _say_preempted,
    "deadline": _say_deadline,
    "node_lost": _say_node_lost,
    "refused_by_node": _say_refused,
}


# Why a pod waits


@dataclass(frozen=True)
class Holder:
    """A pod that holds an amount of a resource."""

    pod: str
    namespace: str
    node: str
    count: float

    def __str__(self) -> str:
        return f"{self.pod} ({self.namespace})"


def holders_among(pods: Sequence[Json], resource: str, node: str | None = None) -> list[Holder]:
    """Return the running pods that request the resource, those with most of it first."""
    found = [
        Holder(at.name(pod), at.namespace(pod), str(at.spec(pod)["nodeName"]), count)
        for pod in pods
        if at.spec(pod).get("nodeName") and not at.has_ended(pod)
        if node is None or at.spec(pod)["nodeName"] == node
        if (count := requests(pod).get(resource, 0.0)) > 0
    ]
    return sorted(found, key=lambda one: (-one.count, one.namespace, one.pod))


def hopeless_sentence(pod: Json, nodes: Sequence[Json], events: Sequence[Json] = ()) -> str | None:
    """Explain why no node could ever accept the pod, even an empty one; None where one could, or it is unknown."""
    if at.spec(pod).get("nodeName") or not nodes or latest(events, "TriggeredScaleUp"):
        return None
    fitting = [node for node in nodes if matches(node, pod)]
    if not fitting:
        return f"no node of the cluster has {say_requirements(pod)}"
    asked = requests(pod)
    for resource, amount in asked.items():
        most = max(fitting, key=lambda node: _size(node, resource))
        has = _size(most, resource)
        # A device plugin that is away for a moment leaves its resource at 0: that is waited for.
        unknown = all(resource not in (at.status(node).get("capacity") or {}) for node in fitting)
        if amount > has and (has > 0 or unknown or resource in BASIC):
            among = f"node that has {say_requirements(pod)}" if len(fitting) < len(nodes) else "node"
            if unknown:
                return f"no {among} offers {resource}: its device plugin is not installed, or the name is wrong"
            largest = f"the largest, {at.name(most)}, has {say_amount(resource, has)}"
            return f"no {among} could ever give it {say_amount(resource, amount)}: {largest}"
    whole = [
        node for node in fitting if all(_size(node, one) >= amount for one, amount in asked.items() if one in BASIC)
    ]
    if not whole:
        together = " and ".join(say_amount(one, amount) for one, amount in asked.items() if one in BASIC)
        return f"no node has {together} together, though some nodes have each of them"
    return None


def waiting_sentence(
    pod: Json, events: Sequence[Json], nodes: Sequence[Json] = (), others: Sequence[Json] = (), job: Json | None = None
) -> str:
    """Explain why a pod does not run yet. `others` are all visible pods."""
    queue = (at.metadata(job or pod).get("labels") or {}).get(at.KUEUE_QUEUE)
    gates = [str(one.get("name")) for one in at.spec(pod).get("schedulingGates") or ()]
    if gates or at.spec(job or {}).get("suspend"):
        held = (
            f"the queue {queue} has not admitted it yet" if queue else f"it is held by {', '.join(gates) or 'its Job'}"
        )
        return f"{held} (kubectl -n {at.namespace(pod)} get workloads)" if queue else held
    if at.spec(pod).get("nodeName"):
        return _starting(pod, events)
    scheduled = at.condition(pod, "PodScheduled")
    told = str(scheduled.get("message") or latest(events, "FailedScheduling").get("message") or "")
    if _VOLUMES.search(told):
        return _claim_says(pod, told)
    if not nodes:
        return _scheduler_says(told)
    found = hopeless_sentence(pod, nodes, events) or _nodes_say(pod, told, nodes, others)
    return found or _scheduler_says(told)


def _claim_says(pod: Json, told: str) -> str:
    """Name the claim that a pod waits for, and what is wrong with it."""
    namespace, named = at.namespace(pod), _CLAIM.search(told)
    look = f"kubectl -n {namespace} get pvc"
    if named and named[2] == "not found":
        return f"the namespace {namespace} has no claim {named[1]} for a volume ({look})"
    if named:
        return f"the claim {named[1]} for a volume cannot be used ({look}); {_scheduler_says(told)}"
    mine = [(one.get("persistentVolumeClaim") or {}).get("claimName") for one in at.spec(pod).get("volumes") or ()]
    claims = [str(name) for name in mine if name]
    if claims and _UNBOUND.search(told):
        which = f"claim {claims[0]}" if len(claims) == 1 else f"claims {_listed(claims, PODS_NAMED)}"
        return f"no volume is bound yet to the {which} of the pod ({look}); {_scheduler_says(told)}"
    return f"a claim of the pod, for a volume or a device, does not exist or is not bound yet; {_scheduler_says(told)}"


def _nodes_say(pod: Json, told: str, nodes: Sequence[Json], others: Sequence[Json]) -> str:
    """For each reason that keeps the pod off a node, the nodes that have it."""
    fitting = [node for node in nodes if matches(node, pod)]
    kept: dict[str, list[str]] = {}
    open_: list[Json] = []
    for node in fitting:
        reason = _kept_off(node, pod)
        if reason:
            kept.setdefault(reason, []).append(at.name(node))
        else:
            open_.append(node)
    said = [_short(pod, told, open_, others)] if open_ else []
    said += [_kept_off_says(names, reason) for reason, names in kept.items()]
    left = len(nodes) - len(fitting)
    if left and any(said):
        said.append(f"{left} other node{'s' if left > 1 else ''} cannot run it without {say_requirements(pod)}")
    return "; ".join(one for one in said if one)


def _kept_off_says(names: Sequence[str], reason: str) -> str:
    verb, rest = reason.split(" ", 1)
    many = {"is": "are", "has": "have"}[verb]
    return f"{_listed(names, NODES_NAMED)} {verb if len(names) == 1 else many} {rest}"


def _kept_off(node: Json, pod: Json) -> str:
    """Why, beginning with `is` or `has`; empty where the node is open to it."""
    taints = untolerated(node, pod)
    if any(taint.get("key") in _SICK for taint in taints):
        return "is not ready"
    pressed = next((found for taint in taints if (found := _PRESSED.match(str(taint.get("key"))))), None)
    if pressed:
        return f"is short of {pressed[1]}"
    if at.spec(node).get("unschedulable"):
        return "is cordoned (kubectl uncordon NODE)"
    if taints:
        named = say_taint(taints[0])
        return f"has the taint {named}, which the pod does not tolerate (--toleration {named})"
    return ""


def _short(pod: Json, told: str, nodes: Sequence[Json], others: Sequence[Json]) -> str:
    """The resource of which no open node has enough left."""
    asked = requests(pod)
    named = [one for one in _INSUFFICIENT.findall(told) if one in asked]
    sums = {resource: {at.name(node): _free(node, resource, others) for node in nodes} for resource in asked}
    short = [one for one in asked if all(free < asked[one] for free in sums[one].values())]
    # What is rare first: a person who waits for a GPU is not helped by hearing of CPUs.
    order: Callable[[str], bool] = lambda resource: resource in BASIC  # noqa: E731
    ranked = sorted(dict.fromkeys([*short, *named]), key=order)
    if not ranked:
        return ""
    resource = ranked[0]
    head = f"no node has {say_amount(resource, asked[resource], free=True)}"
    details = [_node_says(node, resource, others) for node in nodes[:NODES_NAMED]]
    more = f"; {len(nodes) - NODES_NAMED} more nodes are equally full" if len(nodes) > NODES_NAMED else ""
    also = f"; there is also not enough {' or '.join(ranked[1:])}" if ranked[1:] else ""
    return f"{head}: {'; '.join(details)}{more}{also}"


def _node_says(node: Json, resource: str, others: Sequence[Json]) -> str:
    name, has = at.name(node), quantity((at.status(node).get("allocatable") or {}).get(resource))
    if has == 0 and resource not in BASIC:
        could = _size(node, resource)
        return f"{name} offers none now" + (f" of its {could:g}: its device plugin is unhealthy" if could else "")
    who = holders_among(others, resource, name)
    held = sum(one.count for one in who)
    if resource in BASIC:
        return f"{name} has {say_amount(resource, max(0.0, has - held))} of {say_amount(resource, has)} free"
    if not who:
        return f"{name} has {has:g}" + ("" if others else "; which pods hold them is unknown")
    pods = f"pod{'s' if len(who) > 1 else ''} {_listed([str(one) for one in who], PODS_NAMED)}"
    return f"{name} has {has:g}, {held:g} of them held by {pods}"


def _starting(pod: Json, events: Sequence[Json]) -> str:
    """It has its node, and its container is not there yet."""
    node = at.spec(pod).get("nodeName")
    waiting = at.state(pod, "waiting")
    if waiting.get("message"):
        return f"{node} says: {at.words(waiting.get('reason'))}: {at.words(waiting['message'])}"
    trouble = max((one for one in events if one.get("type") == "Warning"), key=moment_s, default=None)
    newest = max(events, key=moment_s, default={})
    if trouble is not None and moment_s(trouble) >= moment_s(newest) - 1:
        return f"{node} says: {at.words(trouble.get('message'))}"
    if newest.get("reason") == "Pulling":
        return f"{node} is pulling the image {at.container_spec(pod).get('image')}"
    return f"{node} is creating the container"


def _scheduler_says(told: str) -> str:
    first = _AFTERTHOUGHT.split(told)[0]
    return f"the scheduler says: {at.words(first)}" if first else "no scheduler has looked at it yet"


def _free(node: Json, resource: str, others: Sequence[Json]) -> float:
    has = quantity((at.status(node).get("allocatable") or {}).get(resource))
    if resource == "pods":
        return has - sum(1 for pod in others if at.spec(pod).get("nodeName") == at.name(node))
    return has - sum(one.count for one in holders_among(others, resource, at.name(node)))


def _size(node: Json, resource: str) -> float:
    """What it could have at most."""
    known: Mapping[str, object] = at.status(node).get("allocatable") or {}
    ever = quantity(known.get(resource))
    if resource in BASIC:
        return ever
    return max(ever, quantity((at.status(node).get("capacity") or {}).get(resource)))


def _listed(names: Sequence[str], most: int) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
