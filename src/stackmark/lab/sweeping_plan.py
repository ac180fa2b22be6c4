"""What a sweep visits: the nodes of a cluster and the devices that each of them offers, as their status says.

A device is a slot here: the first, second … of a node. Which GPU that is, by its UUID, is known when a pod has run in it: a
classic device plugin cannot be asked. All of it is decided once and stored with the experiment, so that `resume` visits the
same slots.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.errors import ClusterError, SpecError
from stackmark.ledger.rows import Json
from stackmark.places.kubernetes.client import Json as ApiObject
from stackmark.places.kubernetes.options import GPU_RESOURCE, PodOptions
from stackmark.places.kubernetes.quantities import quantity, say
from stackmark.spec import Frozen, Spec
from stackmark.units import MIB

# Labels of NVIDIA's own discovery: whether one GPU is handed out several times over.
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"
# Taints that keep a pod off a node.
KEEPS_OFF = ("NoSchedule", "NoExecute")
MARGIN = 0.01
# Blocks of a repetition, each one run of the suspected device and one of a good one. Four make two AB and two BA.
CONFIRM_BLOCKS = 4


class Slot(Frozen):
    """One device of a node, or the node itself where no GPU is asked for."""

    number: int
    node: str
    index: int = 0
    # The boot of the machine that the node is; nodes that share one disturb one another.
    machine: str = ""
    # Why it cannot be measured, as the node's status says.
    trouble: str = ""


class SweepPlan(Frozen):
    """The whole of a sweep, as it is stored."""

    design: Literal["sweep"] = "sweep"
    spec: Spec
    choices: dict[str, str] = {}
    place_options: Json = {}
    # GPUs of a run; 0: the node is the device.
    gpus: int
    slots: list[Slot]
    margin: float = MARGIN
    confirm_blocks: int = CONFIRM_BLOCKS
    # How many pods at once, in all and on one machine; None: as many as there is room for.
    at_once: int | None = None
    per_machine: int | None = None
    # Whether the containers that hold a device ask for CPU and memory of their own.
    holders_ask: bool = True

    def devices_of(self, node: str) -> int:
        """How many of them the node hands out."""
        return sum(1 for slot in self.slots if slot.node == node and not slot.trouble)


@dataclass(frozen=True)
class Found:
    slots: list[Slot]
    # What a person should know of the nodes that were left out.
    notices: list[str]


def find_slots(nodes: Sequence[ApiObject], options: PodOptions, gpus: int) -> Found:
    """The slots of all nodes that such a pod may run on. Refused where there is none."""
    slots: list[Slot] = []
    notices: list[str] = []
    for node in sorted(nodes, key=lambda one: _natural(str(one["metadata"]["name"]))):
        left_out = _left_out(node, options, gpus)
        if left_out:
            notices.append(left_out)
        else:
            slots += _slots_of(node, options.resource, gpus)
    if not slots:
        raise ClusterError(
            "there is no node to sweep" + (f": {'; '.join(notices[:3])}" if notices else ""),
            hint="--nodes takes a label selector of nodes; --gpus 0 sweeps nodes by their CPUs",
            command="kubectl get nodes --show-labels",
        )
    numbered = [slot.model_copy(update={"number": number}) for number, slot in enumerate(slots)]
    return Found(numbered, notices)


def looked_again(slots: Sequence[Slot], nodes: Sequence[ApiObject], resource: str, gpus: int) -> list[Slot]:
    """The same slots, each with the trouble that it is in now: a node may have come back since, or gone."""
    now = {(one.node, one.index): one for node in nodes for one in _slots_of(node, resource, gpus)}
    gone = "the node is not in the cluster any more, or has fewer devices than before"
    return [
        slot.model_copy(update={"trouble": found.trouble if (found := now.get((slot.node, slot.index))) else gone})
        for slot in slots
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """node-2 before node-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _left_out(node: ApiObject, options: PodOptions, gpus: int) -> str:
    """Why a node is not visited: no device of the kind, a taint, a label; nothing where it is."""
    name = node["metadata"]["name"]
    labels = node["metadata"].get("labels") or {}
    if gpus and not _count(node, "capacity", options.resource):
        return f"{name} is left out: it has no {options.resource}"
    missing = [f"{key}={value}" for key, value in options.labels_of_node.items() if labels.get(key) != value]
    if missing:
        return f"{name} is left out: it has no label {missing[0]}"
    if options.node is not None and options.node != name:
        return f"{name} is left out: --node names {options.node}"
    tolerated = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}, *options.tolerations]
    tolerated += [{"key": options.resource, "operator": "Exists", "effect": "NoSchedule"}]
    for taint in (node.get("spec") or {}).get("taints") or ():
        # Those of a node in trouble are the node controller's own: that is a row with its reason, not a node left out.
        keeps_off = taint.get("effect") in KEEPS_OFF and not taint["key"].startswith("node.kubernetes.io/")
        if keeps_off and not any(_tolerates(one, taint) for one in tolerated):
            said = f"{taint['key']}{'=' + taint['value'] if taint.get('value') else ''}:{taint['effect']}"
            return f"{name} is left out: nothing tolerates its taint; take it with --toleration {said}"
    if gpus and (labels.get(SHARING, "none") != "none" or _number(labels.get(REPLICAS, "1")) > 1):
        shared = labels.get(SHARING, "none")
        return f"{name} is left out: it hands each GPU out several times ({shared}), and two runs on one tell nothing"
    return ""


def _tolerates(toleration: Mapping[str, str], taint: ApiObject) -> bool:
    if toleration.get("key") != taint["key"] or toleration.get("effect") not in (None, taint.get("effect")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == (taint.get("value") or "")


def _slots_of(node: ApiObject, resource: str, gpus: int) -> list[Slot]:
    name, machine = str(node["metadata"]["name"]), _machine(node)
    whole = _whole_trouble(node)
    if not gpus:
        return [Slot(number=0, node=name, machine=machine, trouble=whole)]
    there, offered = (_count(node, what, resource) // gpus for what in ("capacity", "allocatable"))
    if not there:
        return []
    unhealthy = (
        f"the device plugin offers {offered * gpus} of the node's {there * gpus} {resource}: the rest is unhealthy, "
        "or the plugin is down"
    )
    return [
        Slot(number=0, node=name, index=index, machine=machine, trouble=whole or ("" if index < offered else unhealthy))
        for index in range(there)
    ]


def _machine(node: ApiObject) -> str:
    """Its boot; a node that does not tell (a simulated one) is taken for a machine of its own."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("bootID") or f"node {node['metadata']['name']}")


def _whole_trouble(node: ApiObject) -> str:
    """Why nothing at all can run there now."""
    if (node.get("spec") or {}).get("unschedulable"):
        return "the node is cordoned: it takes no new pods"
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((one for one in conditions if one.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        return f"the node is not ready: {ready.get('message') or ready.get('reason') or 'it does not say why'}"
    return ""


def _count(node: ApiObject, what: str, resource: str) -> int:
    return _number(((node.get("status") or {}).get(what) or {}).get(resource, "0"))


def _number(text: object) -> int:
    """A count of devices is a whole number; whatever else stands there counts for none."""
    return int(str(text)) if str(text).isdecimal() else 0


def holders_ask(
    nodes: Sequence[ApiObject], slots: Sequence[Slot], options: PodOptions, holder: Mapping[str, str]
) -> bool:
    """Whether there is room for a holder's own requests beside the pods that hold all devices of a node.

    A pod whose worker has ended still has all that it asked for, as long as it holds its device. So all pods of a node must fit
    beside one another: refused where they do not. Without requests of its holder a pod is not of the class Guaranteed."""
    asked: dict[str, float] = {}
    if options.cpu_count is not None:
        asked["cpu"] = float(options.cpu_count)
    if options.memory_bytes is not None:
        asked["memory"] = float(options.memory_bytes)
    counts = Counter(slot.node for slot in slots if not slot.trouble)
    fits = True
    for node in nodes:
        name = str(node["metadata"]["name"])
        if counts[name] < 2:
            continue
        for what, each in asked.items():
            there = quantity(((node.get("status") or {}).get("allocatable") or {}).get(what, "0"))
            if counts[name] * each > there:
                most = f"{int(there / counts[name])}" if what == "cpu" else f"{int(there / counts[name] // MIB)}m"
                raise SpecError(
                    f"{counts[name]} pods of {say(what, each)} do not fit on {name}, which has {say(what, there)}: each holds "
                    "its device until all of the node were measured",
                    hint=f"ask for less: --{'cpus' if what == 'cpu' else what} {most}",
                )
            fits = fits and counts[name] * (each + quantity(holder[what])) <= there
    return fits


def at_once(slots: Sequence[Slot], typed: int | None, one_a_node: bool) -> tuple[int | None, int | None, str]:
    """How many pods at once, in all and on one machine, and the sentence that says it."""
    nodes: dict[str, set[str]] = {}
    for slot in slots:
        nodes.setdefault(slot.machine, set()).add(slot.node)
    shared = {machine: len(names) for machine, names in nodes.items() if len(names) > 1}
    most = max(Counter(slot.node for slot in slots).values())
    if typed is not None:
        return typed, 1 if one_a_node else None, f"at most {typed} at once, as asked"
    if shared:
        share = f"{sum(shared.values())} nodes share {_machines(len(shared))}"
        return None, 1, f"one at a time on each machine: {share}, where runs at once would disturb one another"
    if one_a_node:
        return None, 1, "one device of each node at a time, as asked"
    beside = ", also the devices of one node" if most > 1 else ""
    return None, None, f"as many at once as the cluster takes{beside}: each node is a machine of its own"


def _machines(count: int) -> str:
    return "one machine" if count == 1 else f"{count} machines"
