"""How large a check is: pods that take next to nothing, and no more of them than there is room for."""

from collections.abc import Callable
from contextlib import suppress

from stackmark.cluster.checks import programs, room
from stackmark.cluster.checks.work import Work
from stackmark.kubernetes.client import ApiError
from stackmark.places.pod.options import PodOptions

# What a pod of a check takes, unless it was told: enough for a shell, and for Python where a case uses it.
CPUS, MEMORY, SHM = "0.05", "128MiB", "16MiB"


def sized(options: PodOptions, namespace: str) -> PodOptions:
    small = {"cpus": options.cpus or CPUS, "memory": options.memory or MEMORY, "shm": options.shm or SHM}
    return options.model_copy(update={"namespace": namespace, **small})


def fitting(work: Work, wanted: int, notice: Callable[[str], None]) -> int:
    """How many are many: as asked, but no more than there is room for."""
    most = wanted
    body = work.pod(work.request("room", programs.idle()))
    limits: dict[str, int] = {}
    nodes = work.nodes()
    if nodes:
        free = room.rooms(nodes, work.others(), work.options.resource, body)
        limits["the nodes have room for"] = room.fitting(free, body)
    with suppress(ApiError):
        cpus, memory = room.asks(body, "cpu"), room.asks(body, "memory")
        needs = {"pods": 1, "count/pods": 1, "cpu": cpus, "memory": memory, "requests.cpu": cpus, "requests.memory": memory,
                 "limits.cpu": cpus, "limits.memory": memory}  # fmt: skip
        left = room.left_by_quota(work.cluster.items(work.path("resourcequotas")), needs)
        if left is not None:
            limits["the namespace's quota leaves"] = left
    for why, count in limits.items():
        if count < most:
            notice(f"many are {count}, not {most}: {why} no more")
            most = count
    # One at least, and let the case say what is wrong.
    return max(1, most)
