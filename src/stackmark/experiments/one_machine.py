"""The same machine and the same chip for arms of which one is a pod: where a pod runs, a scheduler decides.

A pod beside a host or a container: the driver must stand on the node, and the pod is pinned to it. Pods alone: all are pinned
to the node that the first of them was given. A classic device plugin cannot be asked for a GPU, so the pod is probed first, and
the other arms are given the GPU that it got, by its UUID. What is decided here is stored in the design: `resume` keeps it.
"""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from stackmark.errors import ClusterError
from stackmark.experiments.arms import ArmRequest
from stackmark.experiments.placing import find_kind, find_place
from stackmark.experiments.probing import Resolved
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.verify import chip_for_others

WHY = "a pod is compared with a host or a container on one machine only"


def leading(arms: Sequence[ArmRequest]) -> int:
    """Which arm is probed first: one whose chip is chosen elsewhere, or else the first."""
    return next((number for number, arm in enumerate(arms) if find_kind(arm.place).leads), 0)


def beside_the_driver(arms: Sequence[ArmRequest], watcher: Watcher) -> list[ArmRequest]:
    """Pods that have a host or a container beside them are pinned to this machine; refused where it is no node."""
    if all(find_kind(arm.place).leads for arm in arms) or not any(find_kind(arm.place).leads for arm in arms):
        return list(arms)
    return [_pinned_here(arm, watcher) if find_kind(arm.place).leads else arm for arm in arms]


def _pinned_here(arm: ArmRequest, watcher: Watcher) -> ArmRequest:
    from stackmark.kubernetes.nodes import nodes_here, this_node
    from stackmark.kubernetes.refusals import explained
    from stackmark.places.pod.place import PodPlace

    place = find_place(arm.place, arm.place_options)
    if not isinstance(place, PodPlace):
        return arm  # another package's place knows where it runs
    setup = place.prepare()
    typed = arm.place_options.get("node")
    wanted = setup.node or (str(typed) if typed else None)
    try:
        node = this_node(setup.cluster, wanted, WHY)
        here = [one.name for one in nodes_here(setup.cluster)]
    except ClusterError as error:
        raise explained(error, "the nodes are looked at") from error
    if len(here) > 1 and not typed:
        watcher.notice(f"{' and '.join(here)} are all this machine: {arm.label} runs on {node.name}")
    return replace(arm, place_options={**arm.place_options, "node": node.name})


def following(arms: Sequence[ArmRequest], lead: int, resolved: Resolved) -> list[ArmRequest]:
    """All arms where the leading one was: its node for the other pods, its GPU for those that can be told which.

    The node is the one that the cluster gave it. Its GPU only the worker knows: its word is held to be a UUID and no more.
    """
    if not find_kind(arms[lead].place).leads:
        return list(arms)
    node, chip = resolved.handle.get("node"), chip_for_others(resolved.facts)
    followed = []
    for arm in arms:
        added: dict[str, JsonValue] = {}
        if find_kind(arm.place).leads:
            added = {"node": node} if node else {}
        elif chip and "device" not in arm.typed and "gpus" in find_kind(arm.place).options.model_fields:
            added = {"gpus": chip}
        followed.append(replace(arm, place_options={**added, **arm.place_options}))
    return followed
