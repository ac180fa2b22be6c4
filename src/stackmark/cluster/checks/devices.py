"""Test devices: a pod gets those it requested and no others, pods for more than exist wait, and released devices are free again.

What a container sees of its devices has up to three witnesses: the driver's own tool (`nvidia-smi -L`), device nodes, and the
variable that the device plugin sets. Which of them speak depends on the plugin and the runtime (CDI sets no variable, MIG's nodes
are those of its parent), so each that speaks must agree, and one must. The cases that fill a node up take the one with the fewest
free: on a shared cluster that is the least that shows it.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.cluster.checks import capacity, programs
from stackmark.cluster.checks.capacity import gpu_capacities, most_devices
from stackmark.cluster.checks.work import CaseFailed, LeftOut, Work, node_of, runs
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.pods import each
from stackmark.units import counted

_NODE = re.compile(r"/dev/(?:nvidia\d+|standin-gpu\d+)")
_RENDER_NODE = re.compile(r"/dev/dri/renderD\d+")
_UUID = re.compile(r"(?:GPU|MIG)-[\w.-]+")
_TOLD = re.compile(r"^\s*(GPU|MIG)\b.*\(UUID: ([\w.-]+)\)")


@dataclass(frozen=True)
class VisibleDevices:
    """The devices that a container sees, by source; empty where a source shows none."""

    told: frozenset[str]
    nodes: frozenset[str]
    variable: frozenset[str]

    @property
    def by_witness(self) -> dict[str, frozenset[str]]:
        pairs = {"nvidia-smi": self.told, "device nodes": self.nodes, "NVIDIA_VISIBLE_DEVICES": self.variable}
        return {name: found for name, found in pairs.items() if found}

    @property
    def names(self) -> frozenset[str]:
        """Return the devices by the best available name."""
        return self.told or self.variable or self.nodes


def seen_in(text: str) -> VisibleDevices:
    """Parse what `programs.devices` printed."""
    told: dict[str, set[str]] = {"GPU": set(), "MIG": set()}
    nodes: set[str] = set()
    render: set[str] = set()
    variable: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if found := _TOLD.match(line):
            told[found[1]].add(found[2])
        elif words[:1] == ["node"] and len(words) == 2:
            nodes |= {words[1]} if _NODE.fullmatch(words[1]) else set()
            render |= {words[1]} if _RENDER_NODE.fullmatch(words[1]) else set()
        elif words[:2] == ["env", "NVIDIA_VISIBLE_DEVICES"] and len(words) == 3:
            variable |= {one for one in words[2].split(",") if _UUID.fullmatch(one)}
    sliced = bool(told["MIG"]) or any(one.startswith("MIG-") for one in variable)
    # A slice comes with its parent's node; where there are none of NVIDIA's, AMD's and Intel's devices are render nodes.
    return VisibleDevices(
        frozenset(told["MIG"] or told["GPU"]),
        frozenset() if sliced else frozenset(nodes or render),
        frozenset(variable),
    )


def wrong_count(seen: VisibleDevices, asked: int) -> str:
    """Return what does not agree with the requested number; None where everything does."""
    for witness, found in seen.by_witness.items():
        if len(found) != asked:
            return f"{witness} shows {counted(len(found), 'device')} ({', '.join(sorted(found))}), but {asked} were requested"
    if asked and not seen.by_witness:
        return "no device is visible: no device node, no NVIDIA_VISIBLE_DEVICES, no nvidia-smi"
    return ""


def look_inside(work: Work, pod: str, asked: int) -> VisibleDevices:
    done = work.execute(pod, programs.devices())
    seen = seen_in(done.out)
    wrong = wrong_count(seen, asked)
    if wrong:
        raise CaseFailed(
            f"in {pod}: {wrong}",
            hint="see the device plugin's deviceListStrategy and the runtime's settings: stackmark cluster doctor",
            command=work.by_hand("exec", pod, "--", "sh", "-c", "'env; ls /dev'"),
        )
    return seen


def exactly_its_devices(work: Work) -> str:
    """Test one device, and two where a node has them free."""
    capacities = gpu_capacities(work)
    said = []
    for asked in range(1, min(2, capacities[0].free, most_devices(work, capacities)) + 1):
        group = work.start(f"asks-{asked}", 1, programs.idle(), gpus=asked, keep=False)
        seen = look_inside(work, group.pods[0], asked)
        said.append(f"requested {asked}, sees {', '.join(sorted(seen.names))}")
        work.delete(group.pods)
    return "; ".join(said)


def different_devices(work: Work) -> str:
    group = work.group("gpu-many")
    nodes = {name: node_of(pod) for name, pod in work.pods().items()}
    found = each(group.pods, lambda name: (nodes[name], look_inside(work, name, group.gpus).names))
    twice = shared(found)
    if twice:
        raise CaseFailed(
            f"{', '.join(twice)} was assigned to more than one pod",
            hint="is it shared (time-slicing, MPS)? see: stackmark cluster doctor",
        )
    listed = sorted(one for _, names in found for one in names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"{len(group.pods)} pods with one device each, all different: {', '.join(listed[:8])}{more}"


def shared(found: Sequence[tuple[str, frozenset[str]]]) -> list[str]:
    """Return devices that appear in more than one pod; device nodes are distinct on each node."""
    all_of = [(node, one) for node, names in found for one in names]
    return sorted({one for node, one in all_of if all_of.count((node, one)) > 1})


def cpu_next_to_gpu(work: Work) -> str:
    """Test that pods without devices run on the nodes with devices, and see none."""
    if "gpu-many" not in work.groups:
        gpu_capacities(work)
    group = work.groups.get("gpu-many") or work.start("gpu-neighbour", 1, programs.idle(), gpus=1, keep=False)
    at = {node_of(pod) for name, pod in work.pods().items() if name in group.pods}
    wanted = work.pod(work.request("room", programs.idle()))
    nodes = sorted(
        one["metadata"]["name"] for one in work.nodes() if one["metadata"]["name"] in at and capacity.takes(one, wanted)
    )
    if not nodes:
        raise LeftOut(f"the nodes with devices ({', '.join(sorted(at))}) repel pods without devices by a taint")
    cpu = work.start("neighbour", max(2, min(work.many, 2 * len(nodes))), programs.idle(), nodes=nodes, keep=False)
    each(cpu.pods, lambda name: look_inside(work, name, 0))
    each(group.pods, lambda name: look_inside(work, name, group.gpus))
    where = ", ".join(nodes)
    return f"{len(cpu.pods)} pods without a device next to {len(group.pods)} with one on {where}: they see no device"


def more_than_any_node(work: Work) -> str:
    """Test that the pod waits, that the reason is reported, and that it can be removed."""
    capacities = gpu_capacities(work, at_least=0)
    resource, asked = work.options.resource, max(one.devices for one in capacities) + 1
    (name,) = work.create([work.pod(work.request("too-many", programs.idle(), gpus=asked))])
    pod = work.wait([name], lambda pod: bool(unschedulable(pod)) or runs(pod), "wait", early=False)[name]
    if runs(pod):
        raise CaseFailed(f"it runs although it requested {asked} {resource} and no node has more than {asked - 1}")
    said = unschedulable(pod)
    if f"Insufficient {resource}" not in said:
        raise CaseFailed(f"it waits, but not for {resource}: {said}")
    sentence = work.why(pod)
    work.delete([name])
    return f"requested {asked}: {sentence}"


def unschedulable(pod: Json | None) -> str:
    """Return the scheduler's own words on why it has no node; empty where it gave none."""
    for one in ((pod or {}).get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False" and one.get("reason") == "Unschedulable":
            return str(one.get("message") or "Unschedulable")
    return ""


def more_than_are_free(work: Work) -> str:
    """Test that on one node one pod more than it has devices waits, and runs once another has ended."""
    at, most = _fewest_free(work)
    if at.free > most:
        raise LeftOut(f"it would need all {at.free} free devices of {at.node}, but at most {most} may be used")
    bodies = [work.pod(work.request(f"surplus-{i}", programs.idle(), gpus=1, node=at.node)) for i in range(at.free + 1)]
    made = work.create(bodies)
    seen = work.wait(made, lambda pod: runs(pod) or bool(unschedulable(pod)), "run or wait")
    running, waiting = [name for name in made if runs(seen[name])], [name for name in made if not runs(seen[name])]
    if not waiting or not running:
        raise CaseFailed(
            f"{len(running)} of {len(made)} pods run, but {at.node} had {at.free} free {work.options.resource}"
        )
    found = each(running, lambda name: (at.node, look_inside(work, name, 1).names))
    if shared(found):
        raise CaseFailed(f"{', '.join(shared(found))} was assigned to more than one pod")
    sentence = work.why(seen[waiting[0]])
    began = time.monotonic()
    work.delete(running[:1])
    work.wait(waiting[:1], runs, "run")
    seconds = time.monotonic() - began
    after = f"{len(waiting)} waited and ran {seconds:.1f} s after another was deleted"
    return f"{len(made)} pods on {at.node} with {at.free} free: {len(running)} ran, {after}; while waiting: {sentence}"


def devices_return(work: Work) -> str:
    """Test that devices of a deleted pod are free again and that another pod can use them."""
    at, most = _fewest_free(work)
    count = min(at.free, most)
    first = work.start("holds", 1, programs.idle(), gpus=count, nodes=[at.node], keep=False)
    had = look_inside(work, first.pods[0], count).names
    during = _capacity_of(work, at.node)
    if during.free > at.free - count:
        raise CaseFailed(f"{at.node} has {during.free} free while a pod holds {count}; it had {at.free} before")
    work.delete(first.pods)
    while (after := _capacity_of(work, at.node)).free < at.free and work.left_s:
        work.pause()
    if after.devices != at.devices:
        raise CaseFailed(
            f"{at.node} had {at.devices} allocatable {work.options.resource}, but has {after.devices} after a pod was deleted"
        )
    again = work.start("holds-again", 1, programs.idle(), gpus=count, nodes=[at.node], keep=False)
    has = look_inside(work, again.pods[0], count).names
    same = "the same" if had == has else f"first {', '.join(sorted(had))}, then {', '.join(sorted(has))}"
    return f"{at.node}: {at.free} free, {during.free} while {count} were held, {after.free} after; a new pod ran with {same}"


def _fewest_free(work: Work) -> tuple[capacity.NodeCapacity, int]:
    """The node that has the fewest free, of those that have any, and how many devices the checks may hold."""
    capacities = [one for one in gpu_capacities(work) if one.free]
    return min(capacities, key=lambda one: (one.free, one.node)), most_devices(work, capacities)


def _capacity_of(work: Work, node: str) -> capacity.NodeCapacity:
    found = [one for one in gpu_capacities(work, at_least=0) if one.node == node]
    if not found:
        raise CaseFailed(f"{node} no longer has {work.options.resource}, or is not ready")
    return found[0]
