"""How much room the cluster has: pure functions over the JSON of nodes, pods and quotas.

So that a check neither asks for what cannot be, nor takes from others what they hold: "many" is what fits, devices are those
that nobody has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.objects import has_ended, matches, quantity, requests, untolerated


@dataclass(frozen=True)
class Room:
    """A node that takes pods, and what nobody has of it. `devices` is what it has in all, `free` what can be had now."""

    node: str
    pods: int
    cpus: float
    memory_bytes: float
    devices: int
    free: int


def asks(pod: Json, resource: str) -> float:
    """What a pod holds of a resource while it lives."""
    return requests(pod).get(resource, 0.0)


def holds(pod: Json) -> bool:
    """Whether it still has what it asked for: it has a node, and has not ended."""
    return bool((pod.get("spec") or {}).get("nodeName")) and not has_ended(pod)


def rooms(nodes: Iterable[Json], pods: Iterable[Json], resource: str, wanted: Json) -> list[Room]:
    """The nodes that would take the pod `wanted`, by their taints and labels."""
    by_node: dict[str, list[Json]] = {}
    for pod in pods:
        if holds(pod):
            by_node.setdefault(pod["spec"]["nodeName"], []).append(pod)
    return [_room(node, by_node.get(node["metadata"]["name"], []), resource) for node in nodes if takes(node, wanted)]


def _room(node: Json, pods: Sequence[Json], resource: str) -> Room:
    allocatable = (node.get("status") or {}).get("allocatable") or {}

    def free(name: str) -> float:
        return quantity(allocatable.get(name, 0)) - sum(asks(pod, name) for pod in pods)

    return Room(
        node=str(node["metadata"]["name"]),
        pods=max(0, int(quantity(allocatable.get("pods", 0))) - len(pods)),
        cpus=max(0.0, free("cpu")),
        memory_bytes=max(0.0, free("memory")),
        devices=int(quantity(allocatable.get(resource, 0))),
        free=max(0, int(free(resource))),
    )


def takes(node: Json, pod: Json) -> bool:
    """Ready, not cordoned, with what the pod wants of a node and without a taint that it does not tolerate."""
    known = Node(node)
    return known.ready and not known.cordoned and matches(node, pod) and not untolerated(node, pod)


def fitting(free: Sequence[Room], pod: Json) -> int:
    """How many pods like this one there is room for."""
    cpus, memory = asks(pod, "cpu"), asks(pod, "memory")
    return sum(
        int(min(one.pods, one.cpus / cpus if cpus else one.pods, one.memory_bytes / memory if memory else one.pods))
        for one in free
    )


def left_by_quota(quotas: Iterable[Json], needs: Mapping[str, float]) -> int | None:
    """How many times `needs` (what one pod takes, by the quota's names) is left by all quotas; None: none limits it."""
    left: list[int] = []
    for quota in quotas:
        status = quota.get("status") or {}
        used = status.get("used") or {}
        for name, hard in (status.get("hard") or {}).items():
            if needs.get(name):
                left.append(max(0, int((quantity(hard) - quantity(used.get(name, 0))) / needs[name])))
    return min(left) if left else None
