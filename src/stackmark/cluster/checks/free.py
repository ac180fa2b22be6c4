"""Which devices nobody has: on a shared cluster only those are asked for, and who takes one meanwhile is no fault of it."""

from collections.abc import Callable, Sequence

from stackmark.cluster.checks import programs, room
from stackmark.cluster.checks.case import CaseFailed, LeftOut
from stackmark.cluster.checks.work import SUITE_LABEL, Work
from stackmark.kubernetes.client import ApiError, Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.why import ACTIVE, holders_among
from stackmark.units import counted


def gpu_rooms(work: Work, at_least: int = 1) -> list[room.Room]:
    """The nodes with devices, those with most free first. Left out where there are none, or fewer free than needed."""
    resource, asked = work.options.resource, work.options.gpu_count
    if work.options.dra:
        raise LeftOut("devices by claims (--dra) cannot be counted; these cases ask a device plugin")
    if asked == 0:
        raise LeftOut("no GPUs were wanted: --gpus none")
    try:
        nodes = work.cluster.items("/api/v1/nodes")
        pods = work.cluster.items("/api/v1/pods", fieldSelector=ACTIVE)
    except ApiError as error:
        if error.status != 403:
            raise
        raise LeftOut(
            f"it cannot be known which devices are free: {error.message}",
            hint="these cases need the right to list nodes and pods of the whole cluster",
        ) from error
    wanted = work.pod(work.request("room", programs.idle(), gpus=1))
    found = [one for one in room.rooms(nodes, pods, resource, wanted) if one.devices]
    if not found:
        raise LeftOut(_no_devices(nodes, resource))
    left = room.left_by_quota(_quotas(work), {f"requests.{resource}": 1})
    free = sum(one.free for one in found)
    if left is not None and left < at_least:
        raise LeftOut(f"the quota of the namespace {work.setup.namespace} leaves {left} {resource}")
    if sum(one.devices for one in found) < at_least:
        raise LeftOut(f"it needs {at_least} {resource}, and the nodes that take our pods have {found[0].devices}")
    if free < at_least:
        raise LeftOut(f"{free} of {sum(one.devices for one in found)} {resource} are free: {_holders(pods, resource)}")
    return sorted(found, key=lambda one: (-one.free, one.node))


def _quotas(work: Work) -> list[Json]:
    try:
        return work.cluster.items(work.path("resourcequotas"))
    except ApiError:
        return []  # then a refusal will say it


def _no_devices(nodes: Sequence[Json], resource: str) -> str:
    has = [one for one in nodes if Node(one).capacity(resource)]
    if not has:
        return f"no node has {resource}"
    why = "not ready, cordoned, tainted, other labels, or nothing allocatable"
    return f"{counted(len(has), 'node')} with {resource}, and none of them takes our pods now: {why}"


def _holders(pods: Sequence[Json], resource: str) -> str:
    who = [f"{one.namespace}/{one.pod} has {one.count:.0f}" for one in holders_among(pods, resource)]
    more = f" and {len(who) - 3} more" if len(who) > 3 else ""
    return f"{', '.join(who[:3])}{more}" or "nobody holds them, and the kubelet offers none"


def most_devices(work: Work, rooms: Sequence[room.Room]) -> int:
    """How many the checks may hold at once."""
    left = room.left_by_quota(_quotas(work), {f"requests.{work.options.resource}": 1})
    free = sum(one.free for one in rooms)
    return min(number for number in (free, left, work.options.gpu_count) if number is not None)


def count_of_gpu_pods(work: Work) -> int:
    """For "many": one device each, as many as there may be."""
    allowed = most_devices(work, gpu_rooms(work, at_least=2))
    if allowed < 2:
        raise LeftOut(f"many are two at least, and {allowed} may be held at once (--gpus, quota)")
    return max(2, min(work.many, allowed))


def fairly(do: Callable[[Work], str]) -> Callable[[Work], str]:
    """A case that fails because somebody else took a device meanwhile has not failed."""

    def tried(work: Work) -> str:
        gpu_rooms(work, at_least=0)
        before = _held_by_others(work)
        try:
            return do(work)
        except CaseFailed as error:
            now = _held_by_others(work)
            if now > before:
                raise LeftOut(
                    f"others took {now - before} {work.options.resource} meanwhile: {error.message}"
                ) from error
            raise

    return tried


def _held_by_others(work: Work) -> int:
    pods = [one for one in work.others() if (one["metadata"].get("labels") or {}).get(SUITE_LABEL) != work.mark]
    return sum(int(one.count) for one in holders_among(pods, work.options.resource))
