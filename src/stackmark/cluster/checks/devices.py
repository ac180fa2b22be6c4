"""Devices: a pod gets those it asked for and no others, more than there are wait, and what was held comes back.

What a container sees of its devices has up to three witnesses: the driver's own tool (`nvidia-smi -L`), device nodes, and the
variable that the device plugin sets. Which of them speak depends on the plugin and the runtime (CDI sets no variable, MIG's nodes
are those of its parent), so each that speaks must agree, and one must. The cases that fill a node up take the one with the fewest
free: on a shared cluster that is the least that shows it.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.cluster.checks import programs, room
from stackmark.cluster.checks.room import gpu_rooms, most_devices
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
    """What a container sees, by each witness; empty where it says nothing."""

    told: frozenset[str]
    nodes: frozenset[str]
    variable: frozenset[str]

    @property
    def by_witness(self) -> dict[str, frozenset[str]]:
        pairs = {"nvidia-smi": self.told, "device nodes": self.nodes, "NVIDIA_VISIBLE_DEVICES": self.variable}
        return {name: found for name, found in pairs.items() if found}

    @property
    def names(self) -> frozenset[str]:
        """The devices by the best name that they have."""
        return self.told or self.variable or self.nodes


def seen_in(text: str) -> VisibleDevices:
    """From what `programs.devices` printed."""
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
    """What does not agree with the number that was asked for; nothing where all does."""
    for witness, found in seen.by_witness.items():
        if len(found) != asked:
            return f"{witness} shows {counted(len(found), 'device')} ({', '.join(sorted(found))}), and {asked} were asked for"
    if asked and not seen.by_witness:
        return "no witness shows a device: no device node, no NVIDIA_VISIBLE_DEVICES, no nvidia-smi"
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
    """For one device, and for two where a node has them free."""
    rooms = gpu_rooms(work)
    said = []
    for asked in range(1, min(2, rooms[0].free, most_devices(work, rooms)) + 1):
        group = work.start(f"asks-{asked}", 1, programs.idle(), gpus=asked, keep=False)
        seen = look_inside(work, group.pods[0], asked)
        said.append(f"asked for {asked}, sees {', '.join(sorted(seen.names))}")
        work.delete(group.pods)
    return "; ".join(said)


def different_devices(work: Work) -> str:
    group = work.group("gpu-many")
    nodes = {name: node_of(pod) for name, pod in work.pods().items()}
    found = each(group.pods, lambda name: (nodes[name], look_inside(work, name, group.gpus).names))
    twice = shared(found)
    if twice:
        raise CaseFailed(
            f"{', '.join(twice)} was given to more than one pod",
            hint="is it shared (time-slicing, MPS)? see: stackmark cluster doctor",
        )
    listed = sorted(one for _, names in found for one in names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"{len(group.pods)} pods with one device each, all different: {', '.join(listed[:8])}{more}"


def shared(found: Sequence[tuple[str, frozenset[str]]]) -> list[str]:
    """Devices that stand in more than one pod; a device node is another one on another node."""
    all_of = [(node, one) for node, names in found for one in names]
    return sorted({one for node, one in all_of if all_of.count((node, one)) > 1})


def cpu_beside_gpu(work: Work) -> str:
    """On the nodes where pods with devices run: those without run too, and see none."""
    if "gpu-many" not in work.groups:
        gpu_rooms(work)
    group = work.groups.get("gpu-many") or work.start("gpu-beside", 1, programs.idle(), gpus=1, keep=False)
    at = {node_of(pod) for name, pod in work.pods().items() if name in group.pods}
    wanted = work.pod(work.request("room", programs.idle()))
    nodes = sorted(
        one["metadata"]["name"] for one in work.nodes() if one["metadata"]["name"] in at and room.takes(one, wanted)
    )
    if not nodes:
        raise LeftOut(f"the nodes with devices ({', '.join(sorted(at))}) keep pods without them off, by a taint")
    cpu = work.start("beside", max(2, min(work.many, 2 * len(nodes))), programs.idle(), nodes=nodes, keep=False)
    each(cpu.pods, lambda name: look_inside(work, name, 0))
    each(group.pods, lambda name: look_inside(work, name, group.gpus))
    where = ", ".join(nodes)
    return f"{len(cpu.pods)} pods without a device beside {len(group.pods)} with one on {where}: they see none"


def more_than_any_node(work: Work) -> str:
    """It waits, it is said why, and it can be removed."""
    rooms = gpu_rooms(work, at_least=0)
    resource, asked = work.options.resource, max(one.devices for one in rooms) + 1
    (name,) = work.create([work.pod(work.request("too-many", programs.idle(), gpus=asked))])
    pod = work.wait([name], lambda pod: bool(unschedulable(pod)) or runs(pod), "wait", early=False)[name]
    if runs(pod):
        raise CaseFailed(f"it asked for {asked} {resource}, no node has more than {asked - 1}, and it runs")
    said = unschedulable(pod)
    if f"Insufficient {resource}" not in said:
        raise CaseFailed(f"it waits, but not for {resource}: {said}")
    sentence = work.why(pod)
    work.delete([name])
    return f"asked for {asked}: {sentence}"


def unschedulable(pod: Json | None) -> str:
    """The scheduler's own words on why it has no node; nothing where it said none."""
    for one in ((pod or {}).get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False" and one.get("reason") == "Unschedulable":
            return str(one.get("message") or "Unschedulable")
    return ""


def more_than_are_free(work: Work) -> str:
    """On one node, one pod more than it has devices: it waits, and runs once another has ended."""
    at, most = _fewest_free(work)
    if at.free > most:
        raise LeftOut(f"it would take all {at.free} free devices of {at.node}, and no more than {most} may be held")
    bodies = [work.pod(work.request(f"surplus-{i}", programs.idle(), gpus=1, node=at.node)) for i in range(at.free + 1)]
    made = work.create(bodies)
    seen = work.wait(made, lambda pod: runs(pod) or bool(unschedulable(pod)), "run or wait")
    running, waiting = [name for name in made if runs(seen[name])], [name for name in made if not runs(seen[name])]
    if not waiting or not running:
        raise CaseFailed(
            f"{len(running)} of {len(made)} pods run, and {at.node} had {at.free} free {work.options.resource}"
        )
    found = each(running, lambda name: (at.node, look_inside(work, name, 1).names))
    if shared(found):
        raise CaseFailed(f"{', '.join(shared(found))} was given to more than one pod")
    sentence = work.why(seen[waiting[0]])
    began = time.monotonic()
    work.delete(running[:1])
    work.wait(waiting[:1], runs, "run")
    seconds = time.monotonic() - began
    after = f"{len(waiting)} waited, and ran {seconds:.1f} s after another was deleted"
    return (
        f"{len(made)} pods on {at.node} with {at.free} free: {len(running)} ran, {after}; while it waited: {sentence}"
    )


def devices_return(work: Work) -> str:
    """All that a node has free, held, given back, and held again by another pod."""
    at, most = _fewest_free(work)
    count = min(at.free, most)
    first = work.start("holds", 1, programs.idle(), gpus=count, nodes=[at.node], keep=False)
    had = look_inside(work, first.pods[0], count).names
    during = _room_of(work, at.node)
    if during.free > at.free - count:
        raise CaseFailed(f"{at.node} has {during.free} free while a pod holds {count}; it had {at.free} before")
    work.delete(first.pods)
    while (after := _room_of(work, at.node)).free < at.free and work.left_s:
        work.pause()
    if after.devices != at.devices:
        raise CaseFailed(
            f"{at.node} had {at.devices} allocatable {work.options.resource}, and has {after.devices} since a pod was deleted"
        )
    again = work.start("holds-again", 1, programs.idle(), gpus=count, nodes=[at.node], keep=False)
    has = look_inside(work, again.pods[0], count).names
    same = "the same" if had == has else f"first {', '.join(sorted(had))}, then {', '.join(sorted(has))}"
    return f"{at.node}: {at.free} free, {during.free} while {count} were held, {after.free} after; a new pod ran with {same}"


def _fewest_free(work: Work) -> tuple[room.Room, int]:
    """The node that has the fewest free, of those that have any, and how many devices the checks may hold."""
    rooms = [one for one in gpu_rooms(work) if one.free]
    return min(rooms, key=lambda one: (one.free, one.node)), most_devices(work, rooms)


def _room_of(work: Work, node: str) -> room.Room:
    found = [one for one in gpu_rooms(work, at_least=0) if one.node == node]
    if not found:
        raise CaseFailed(f"{node} has no {work.options.resource} any more, or is not ready")
    return found[0]
