"""Devices: a pod gets those it asked for and no others, more than there are wait, and what was held comes back.

The cases that fill a node up take the one with the fewest free: on a shared cluster that is the least that shows it.
"""

import time
from collections.abc import Sequence

from stackmark.cluster.checks import programs, room
from stackmark.cluster.checks.case import CaseFailed, LeftOut
from stackmark.cluster.checks.free import gpu_rooms, most_devices
from stackmark.cluster.checks.seeing import look_inside
from stackmark.cluster.checks.work import Work, node_of, runs
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.pods import each


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
