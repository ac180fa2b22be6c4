"""The plan of a sweep: which slots it visits, and how. It is decided once and stored, so that `resume` visits the same slots.

A slot is the first, second … device of a node, as the node's status offers them, or the node itself where no GPU is asked for.
Which GPU a slot is, by its UUID, is known when a pod has run in it: a classic device plugin cannot be asked.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from stackmark.errors import ClusterError, SpecError
from stackmark.experiments.kinds import SWEEP, require
from stackmark.frozen import Frozen
from stackmark.kubernetes import objects
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.nodes import Node, untolerated
from stackmark.kubernetes.objects import quantity, say_amount
from stackmark.ledger.rows import Experiment, Json
from stackmark.ledger.trouble import unreadable_design
from stackmark.machine.host import boot_id
from stackmark.places.pod.options import PodOptions
from stackmark.spec import Spec, explain
from stackmark.units import MIB
from stackmark.verdict.cohorts import MOST_UNASKED
from stackmark.verdict.swept import Blocks

# Labels of NVIDIA's own discovery: whether one GPU is handed out several times over.
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"
MARGIN = 0.01
# Blocks of a repetition, each one run of the suspected device and one of a good one. Four make two AB and two BA.
CONFIRM_BLOCKS = 4
# Up to this many where the spread of repeated runs says that four would not decide.
MOST_CONFIRM_BLOCKS = 12
# Runs of each device more where the first pass leaves something open (verdict/cohorts.py).
MORE_RUNS = 3
# A run without a limit of its own: its measured seconds, some times over, and this for its set-up.
LIMIT_TIMES, LIMIT_SETUP_S = 5.0, 900.0


class Slot(Frozen):
    """One device of a node, or the node itself where no GPU is requested."""

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
    """Find the slots of all nodes that such a pod may run on; refuse where there are none."""
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
    """Return the same slots, each with its present trouble: a node may have come back or left since."""
    now = {(one.node, one.index): one for node in map(Node, nodes) for one in _slots_of(node, resource, gpus)}
    gone = "the node has left the cluster, or has fewer devices than before"
    return [
        slot.model_copy(update={"trouble": found.trouble if (found := now.get((slot.node, slot.index))) else gone})
        for slot in slots
    ]


def devices_by_node(slots: Iterable[Slot]) -> Counter[str]:
    """Return how many devices can be measured on each node."""
    return Counter(slot.node for slot in slots if not slot.trouble)


def is_here(slot: Slot) -> bool:
    """Return whether the slot's node is this machine: the host's own software is nowhere else."""
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
        return f"its taint is not tolerated; add --toleration {keeping_off[0]}"
    shared = node.labels.get(SHARING, "none")
    if gpus and (shared != "none" or (node.number(REPLICAS) or 1) > 1):
        return f"it shares each GPU between several pods ({shared}), which would disturb each other"
    return ""


def _slots_of(node: Node, resource: str, gpus: int) -> list[Slot]:
    # One that does not tell its boot (a simulated node) is taken for a machine of its own.
    machine = node.info.get("bootID") or f"node {node.name}"
    whole = _whole_trouble(node)
    if not gpus:
        return [Slot(number=0, node=node.name, machine=machine, trouble=whole)]
    there, offered = (node.capacity(resource) or 0) // gpus, node.allocatable(resource) // gpus
    unhealthy = (
        f"the device plugin offers {offered * gpus} of the node's {there * gpus} {resource}: the others are unhealthy, "
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
        return "the node is cordoned: it accepts no new pods"
    ready = objects.condition(node.data, "Ready")
    if ready and ready.get("status") != "True":
        return f"the node is not ready: {ready.get('message') or ready.get('reason') or 'it does not say why'}"
    return ""


class SweepPlan(Frozen):
    """The whole plan of a sweep, as stored."""

    design: Literal["sweep"] = "sweep"
    spec: Spec
    choices: dict[str, str] = {}
    place_options: Json = {}
    # GPUs of a run; 0: the node is the device.
    gpus: int
    slots: list[Slot]
    margin: float = MARGIN
    confirm_blocks: int = CONFIRM_BLOCKS
    # Up to this many blocks where repeated runs ask for more; a sweep that was stored without it keeps its number.
    most_confirm_blocks: int | None = None
    # Runs of each device more where the first pass leaves something open; 0 in sweeps of before there was a second pass.
    more_runs: int = 0
    # Whether they were asked for: then cohorts of any size are run again.
    more_runs_asked: bool = False
    # How many pods at once, in all and on one machine; None: as many as there is room for.
    at_once: int | None = None
    per_machine: int | None = None
    # Whether the containers that hold a device ask for CPU and memory of their own.
    holders_ask: bool = True

    @property
    def blocks(self) -> Blocks:
        """Return how many blocks confirm a suspicion."""
        return Blocks(self.confirm_blocks, self.most_confirm_blocks or self.confirm_blocks)

    @property
    def most_unasked(self) -> int | None:
        """Return the size of the largest cohort whose devices are all run again; None for any size."""
        return None if self.more_runs_asked else MOST_UNASKED


def plan_of(experiment: Experiment) -> SweepPlan:
    require(experiment, SWEEP)
    try:
        plan = SweepPlan.model_validate(experiment.design)
        PodOptions.model_validate(plan.place_options)
    except ValidationError as error:
        raise unreadable_design(experiment.id, explain(error)) from error
    return plan


def limit_of(plan: SweepPlan) -> float:
    spans = [plan.spec.params.get(name) for name in ("seconds", "warmup_seconds", "timeout")]
    return LIMIT_SETUP_S + LIMIT_TIMES * sum(float(span) for span in spans if isinstance(span, int | float))


def holders_ask(
    nodes: Sequence[ApiObject], slots: Sequence[Slot], options: PodOptions, holder: Mapping[str, str]
) -> bool:
    """Return whether the holders' own requests fit next to the pods that hold all devices of a node.

    A pod whose worker has ended still has all that it asked for, as long as it holds its device. So all pods of a node must fit
    next to each other: refused where they do not. Without requests of its holder a pod is not of the class Guaranteed."""
    asked: dict[str, float] = {}
    if options.cpu_count is not None:
        asked["cpu"] = float(options.cpu_count)
    if options.memory_bytes is not None:
        asked["memory"] = float(options.memory_bytes)
    counts = devices_by_node(slots)
    fits = True
    for node in nodes:
        name = objects.name(node)
        if counts[name] < 2:
            continue
        for what, each in asked.items():
            there = quantity((objects.status(node).get("allocatable") or {}).get(what, "0"))
            if counts[name] * each > there:
                most = f"{int(there / counts[name])}" if what == "cpu" else f"{int(there / counts[name] // MIB)}m"
                raise SpecError(
                    f"{counts[name]} pods of {say_amount(what, each)} do not fit on {name}, which has {say_amount(what, there)}: "
                    "each holds its device until all devices of the node are measured",
                    hint=f"use a smaller --{'cpus' if what == 'cpu' else what} {most}",
                )
            fits = fits and counts[name] * (each + quantity(holder[what])) <= there
    return fits


def at_once(slots: Sequence[Slot], typed: int | None, one_a_node: bool) -> tuple[int | None, int | None, str]:
    """Return how many pods run at once, in all and on one machine, and the sentence that says it."""
    nodes: dict[str, set[str]] = {}
    for slot in slots:
        nodes.setdefault(slot.machine, set()).add(slot.node)
    shared = [len(names) for names in nodes.values() if len(names) > 1]
    if typed is not None:
        return typed, 1 if one_a_node else None, f"at most {typed} at once, as requested"
    if shared:
        machines = "one machine" if len(shared) == 1 else f"{len(shared)} machines"
        share = f"{sum(shared)} nodes share {machines}"
        return None, 1, f"one at a time on each machine: {share}, so runs at the same time would disturb each other"
    if one_a_node:
        return None, 1, "one device of each node at a time, as requested"
    most = max(Counter(slot.node for slot in slots).values())
    also = ", also the devices of one node" if most > 1 else ""
    return None, None, f"as many at once as the cluster allows{also}: each node is a separate machine"


def at_once_sentence(plan: SweepPlan) -> str:
    return at_once(plan.slots, plan.at_once, plan.at_once is None and plan.per_machine == 1)[2]
