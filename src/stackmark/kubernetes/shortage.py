"""Why a pod waits, and who holds what it waits for.

The scheduler says `0/2 nodes are available: 2 Insufficient nvidia.com/gpu`, which names neither the nodes nor who is on them.
Both are in the cluster's own lists, so the sum is done here; where one may not see them, the scheduler's words stand.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stackmark.kubernetes import podjson as at
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.matching import matches, say_taint, untolerated, wanted
from stackmark.kubernetes.quantities import BASIC, quantity, requests, say

# Of a large cluster: how many nodes and pods are named.
NODES_NAMED, PODS_NAMED = 4, 6
ACTIVE = "status.phase!=Succeeded,status.phase!=Failed"
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+[\w])")
_VOLUMES = re.compile(
    r"persistentvolumeclaim|PersistentVolume|volume node affinity|resourceclaim|cannot allocate all claims",
    re.IGNORECASE,
)
# What a preemption would bring says nothing to who waits.
_AFTERTHOUGHT = re.compile(r"[.,]? *(?:no new claims to deallocate[.,]? *)?preemption: ")
_SICK = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PRESSED = re.compile(r"node\.kubernetes\.io/(memory|disk|pid)-pressure")


@dataclass(frozen=True)
class Holder:
    """A pod that has so much of a resource."""

    pod: str
    namespace: str
    node: str
    count: float

    def __str__(self) -> str:
        return f"{self.pod} ({self.namespace})"


def holders(cluster: Cluster, resource: str, node: str | None = None) -> list[Holder]:
    """Who holds devices, of those one may see: all pods, or those of the own namespace."""
    where = f",spec.nodeName={node}" if node else ""
    try:
        pods = cluster.items("/api/v1/pods", fieldSelector=ACTIVE + where)
    except ApiError as error:
        if error.status != 403:
            raise
        pods = cluster.items(f"/api/v1/namespaces/{cluster.namespace}/pods", fieldSelector=ACTIVE + where)
    return holders_among(pods, resource, node)


def holders_among(pods: Sequence[Json], resource: str, node: str | None = None) -> list[Holder]:
    """The pods with a node and not at their end that ask for the resource; those with most of it first."""
    found = [
        Holder(at.name(pod), at.namespace(pod), str(at.spec(pod)["nodeName"]), count)
        for pod in pods
        if at.spec(pod).get("nodeName") and at.status(pod).get("phase") not in ("Succeeded", "Failed")
        if node is None or at.spec(pod)["nodeName"] == node
        if (count := requests(pod).get(resource, 0.0)) > 0
    ]
    return sorted(found, key=lambda one: (-one.count, one.namespace, one.pod))


def hopeless_sentence(pod: Json, nodes: Sequence[Json], events: Sequence[Json] = ()) -> str | None:
    """Why no node of the cluster could ever take the pod, even if all others went; None where one could, or nobody knows."""
    if at.spec(pod).get("nodeName") or not nodes or at.latest(events, "TriggeredScaleUp"):
        return None
    fitting = [node for node in nodes if matches(node, pod)]
    if not fitting:
        return f"no node of the cluster has {wanted(pod)}"
    asked = requests(pod)
    for resource, amount in asked.items():
        most = max(fitting, key=lambda node: _size(node, resource))
        has = _size(most, resource)
        # A device plugin that is away for a moment leaves its resource at 0: that is waited for.
        unknown = all(resource not in (at.status(node).get("capacity") or {}) for node in fitting)
        if amount > has and (has > 0 or unknown or resource in BASIC):
            among = f"node that has {wanted(pod)}" if len(fitting) < len(nodes) else "node"
            if unknown:
                return f"no {among} offers {resource}: its device plugin was never there, or the name is another"
            largest = f"the largest, {at.name(most)}, has {say(resource, has)}"
            return f"no {among} could ever give it {say(resource, amount)}: {largest}"
    whole = [
        node for node in fitting if all(_size(node, one) >= amount for one, amount in asked.items() if one in BASIC)
    ]
    if not whole:
        together = " and ".join(say(one, amount) for one, amount in asked.items() if one in BASIC)
        return f"no node has {together} at once, though some have the one and some the other"
    return None


def waiting_sentence(
    pod: Json, events: Sequence[Json], nodes: Sequence[Json] = (), others: Sequence[Json] = (), job: Json | None = None
) -> str:
    """Why a pod does not run yet. `others` are all pods that one may see."""
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
    told = str(scheduled.get("message") or at.latest(events, "FailedScheduling").get("message") or "")
    if _VOLUMES.search(told):
        return f"a claim of it, for a volume or a device, is not there or not bound yet; {_scheduler_says(told)}"
    if not nodes:
        return _scheduler_says(told)
    found = hopeless_sentence(pod, nodes, events) or _nodes_say(pod, told, nodes, others)
    return found or _scheduler_says(told)


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
        said.append(f"{left} other node{'s' if left > 1 else ''} cannot be it, for want of {wanted(pod)}")
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
    head = f"no node has {say(resource, asked[resource], free=True)}"
    details = [_node_says(node, resource, others) for node in nodes[:NODES_NAMED]]
    more = f"; and {len(nodes) - NODES_NAMED} more nodes are as full" if len(nodes) > NODES_NAMED else ""
    also = f"; nor enough {' or '.join(ranked[1:])}" if ranked[1:] else ""
    return f"{head}: {'; '.join(details)}{more}{also}"


def _node_says(node: Json, resource: str, others: Sequence[Json]) -> str:
    name, has = at.name(node), quantity((at.status(node).get("allocatable") or {}).get(resource))
    if has == 0 and resource not in BASIC:
        could = _size(node, resource)
        return f"{name} offers none now" + (f" of its {could:g}: its device plugin is not well" if could else "")
    who = holders_among(others, resource, name)
    if resource in BASIC:
        return f"{name} has {say(resource, max(0.0, has - sum(one.count for one in who)))} of {say(resource, has)} free"
    held = sum(one.count for one in who)
    if not who:
        return f"{name} has {has:g}" + ("" if others else ", and who holds them cannot be seen")
    pods = f"pod{'s' if len(who) > 1 else ''} {_listed([str(one) for one in who], PODS_NAMED)}"
    return f"{name} has {has:g}, {held:g} of them held by {pods}"


def _starting(pod: Json, events: Sequence[Json]) -> str:
    """It has its node, and its container is not there yet."""
    node = at.spec(pod).get("nodeName")
    waiting = at.state(pod, "waiting")
    if waiting.get("message"):
        return f"{node} says: {at.words(waiting.get('reason'))}: {at.words(waiting['message'])}"
    trouble = max((one for one in events if one.get("type") == "Warning"), key=at.moment_s, default=None)
    newest = max(events, key=at.moment_s, default={})
    if trouble is not None and at.moment_s(trouble) >= at.moment_s(newest) - 1:
        return f"{node} says: {at.words(trouble.get('message'))}"
    if newest.get("reason") == "Pulling":
        return f"{node} pulls the image {at.container_spec(pod).get('image')}"
    return f"{node} makes the container"


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
