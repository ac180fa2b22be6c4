"""What a sweep visits: the nodes of a cluster and the devices that each of them offers, as their status says.

A device is a slot here: the first, second … of a node. Which GPU that is, by its UUID, is known when a pod has run in it: a
classic device plugin cannot be asked.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stackmark.errors import ClusterError
from stackmark.kubernetes import objects
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.nodes import Node, untolerated
from stackmark.machine.identity import boot_id
from stackmark.places.pod.options import PodOptions
from stackmark.spec import Frozen

# Labels of NVIDIA's own discovery: whether one GPU is handed out several times over.
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"


class Slot(Frozen):
    """One device of a node, or the node itself where no GPU is asked for."""

    number: int
    node: str
    index: int = 0
    # The boot of the machine that the node is; nodes that share one disturb one another.
    machine: str = ""
    # Why it cannot be measured, as the node's status says.
    trouble: str = ""


@dataclass(frozen=True)
class Found:
    slots: list[Slot]
    # What a person should know of the nodes that were left out.
    notices: list[str]


def find_slots(nodes: Sequence[ApiObject], options: PodOptions, gpus: int) -> Found:
    """The slots of all nodes that such a pod may run on. Refused where there is none."""
    slots: list[Slot] = []
    notices: list[str] = []
    for node in sorted(map(Node, nodes), key=lambda one: _natural(one.name)):
        left_out = _left_out(node, options, gpus)
        if left_out:
            notices.append(f"{node.name} is left out: {left_out}")
        else:
            slots += _slots_of(node, options.resource, gpus)
    if not slots:
        raise ClusterError(
            "there is no node to sweep" + (f": {'; '.join(notices[:3])}" if notices else ""),
            hint="--nodes takes a label selector of nodes; --gpus 0 sweeps nodes by their CPUs",
            command="kubectl get nodes --show-labels",
        )
    return Found(numbered(slots), notices)


def numbered(slots: Iterable[Slot]) -> list[Slot]:
    return [slot.model_copy(update={"number": number}) for number, slot in enumerate(slots)]


def looked_again(slots: Sequence[Slot], nodes: Sequence[ApiObject], resource: str, gpus: int) -> list[Slot]:
    """The same slots, each with the trouble that it is in now: a node may have come back since, or gone."""
    now = {(one.node, one.index): one for node in map(Node, nodes) for one in _slots_of(node, resource, gpus)}
    gone = "the node is not in the cluster any more, or has fewer devices than before"
    return [
        slot.model_copy(update={"trouble": found.trouble if (found := now.get((slot.node, slot.index))) else gone})
        for slot in slots
    ]


def devices_by_node(slots: Iterable[Slot]) -> Counter[str]:
    """How many of them can be measured on each node."""
    return Counter(slot.node for slot in slots if not slot.trouble)


def is_here(slot: Slot) -> bool:
    """Whether the slot's node is this machine: the host's own software is nowhere else."""
    return slot.machine == boot_id()


def _natural(name: str) -> list[tuple[int, str]]:
    """node-2 before node-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _left_out(node: Node, options: PodOptions, gpus: int) -> str:
    """Why a node is not visited: no device of the kind, a taint, a label; nothing where it is."""
    if gpus and not node.capacity(options.resource):
        return f"it has no {options.resource}"
    missing = node.lacks(options.labels_of_node)
    if missing:
        return f"it has no label {missing[0]}"
    if options.node is not None and options.node != node.name:
        return f"--node names {options.node}"
    # Those of a node in trouble are the node controller's own: that is a row with its reason, not a node left out.
    taints = [taint for taint in node.taints if not taint["key"].startswith("node.kubernetes.io/")]
    keeping_off = untolerated(taints, options.all_tolerations(True))
    if keeping_off:
        return f"nothing tolerates its taint; take it with --toleration {keeping_off[0]}"
    shared = node.labels.get(SHARING, "none")
    if gpus and (shared != "none" or (node.number(REPLICAS) or 1) > 1):
        return f"it hands each GPU out several times ({shared}), and two runs on one tell nothing"
    return ""


def _slots_of(node: Node, resource: str, gpus: int) -> list[Slot]:
    # One that does not tell its boot (a simulated node) is taken for a machine of its own.
    machine = node.info.get("bootID") or f"node {node.name}"
    whole = _whole_trouble(node)
    if not gpus:
        return [Slot(number=0, node=node.name, machine=machine, trouble=whole)]
    there, offered = (node.capacity(resource) or 0) // gpus, node.allocatable(resource) // gpus
    unhealthy = (
        f"the device plugin offers {offered * gpus} of the node's {there * gpus} {resource}: the rest is unhealthy, "
        "or the plugin is down"
    )
    return [
        Slot(
            number=0,
            node=node.name,
            index=index,
            machine=machine,
            trouble=whole or ("" if index < offered else unhealthy),
        )
        for index in range(there)
    ]


def _whole_trouble(node: Node) -> str:
    """Why nothing at all can run there now."""
    if node.cordoned:
        return "the node is cordoned: it takes no new pods"
    ready = objects.condition(node.data, "Ready")
    if ready and ready.get("status") != "True":
        return f"the node is not ready: {ready.get('message') or ready.get('reason') or 'it does not say why'}"
    return ""
