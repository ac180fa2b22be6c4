"""Count the free capacity of the cluster and size the tests: "many" is what fits, and only unused devices are used.

So that a check neither asks for what cannot be, nor takes from others what they hold. On a shared cluster only free devices are
asked for, and a case that fails because somebody took one meanwhile has not failed.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from stackmark.cluster.checks import programs
from stackmark.cluster.checks.work import SUITE_LABEL, CaseFailed, LeftOut, Work
from stackmark.errors import ClusterError, PlaceError, SpecError, Terminated
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.objects import has_ended, matches, quantity, requests, untolerated
from stackmark.kubernetes.why import ACTIVE, holders_among
from stackmark.places.pod.options import PodOptions
from stackmark.units import counted

# What a pod of a check takes, unless it was told: enough for a shell, and for Python where a case uses it.
CPUS, MEMORY, SHM = "0.05", "128MiB", "16MiB"


@dataclass(frozen=True)
class NodeCapacity:
    """A node that accepts pods, and its free devices. `devices` is the total, `free` what is available now."""

    node: str
    pods: int
    cpus: float
    memory_bytes: float
    devices: int
    free: int


def asks(pod: Json, resource: str) -> float:
    """Return how much of a resource a pod holds while it lives."""
    return requests(pod).get(resource, 0.0)


def holds(pod: Json) -> bool:
    """Return whether the pod still holds what it requested: it has a node, and has not ended."""
    return bool((pod.get("spec") or {}).get("nodeName")) and not has_ended(pod)


def node_capacities(nodes: Iterable[Json], pods: Iterable[Json], resource: str, wanted: Json) -> list[NodeCapacity]:
    """Return the nodes that would accept the pod `wanted`, by their taints and labels."""
    by_node: dict[str, list[Json]] = {}
    for pod in pods:
        if holds(pod):
            by_node.setdefault(pod["spec"]["nodeName"], []).append(pod)
    return [
        _capacity(node, by_node.get(node["metadata"]["name"], []), resource) for node in nodes if takes(node, wanted)
    ]


def _capacity(node: Json, pods: Sequence[Json], resource: str) -> NodeCapacity:
    allocatable = (node.get("status") or {}).get("allocatable") or {}

    def free(name: str) -> float:
        return quantity(allocatable.get(name, 0)) - sum(asks(pod, name) for pod in pods)

    return NodeCapacity(
        node=str(node["metadata"]["name"]),
        pods=max(0, int(quantity(allocatable.get("pods", 0))) - len(pods)),
        cpus=max(0.0, free("cpu")),
        memory_bytes=max(0.0, free("memory")),
        devices=int(quantity(allocatable.get(resource, 0))),
        free=max(0, int(free(resource))),
    )


def takes(node: Json, pod: Json) -> bool:
    """Return whether the node is ready, not cordoned, has what the pod needs and no taint that it does not tolerate."""
    known = Node(node)
    return known.ready and not known.cordoned and matches(node, pod) and not untolerated(node, pod)


def count_fitting(free: Sequence[NodeCapacity], pod: Json) -> int:
    """Return how many pods like this one fit."""
    cpus, memory = asks(pod, "cpu"), asks(pod, "memory")
    return sum(
        int(min(one.pods, one.cpus / cpus if cpus else one.pods, one.memory_bytes / memory if memory else one.pods))
        for one in free
    )


def left_by_quota(quotas: Iterable[Json], needs: Mapping[str, float]) -> int | None:
    """Return how many times `needs` (what one pod takes, by the quota's names) all quotas leave; None: no quota limits it."""
    left: list[int] = []
    for quota in quotas:
        status = quota.get("status") or {}
        used = status.get("used") or {}
        for name, hard in (status.get("hard") or {}).items():
            if needs.get(name):
                left.append(max(0, int((quantity(hard) - quantity(used.get(name, 0))) / needs[name])))
    return min(left) if left else None


def gpu_capacities(work: Work, at_least: int = 1) -> list[NodeCapacity]:
    """Return the nodes with devices, most free first. Skip the case where there are none, or fewer free than needed."""
    resource, asked = work.options.resource, work.options.gpu_count
    if work.options.dra:
        raise LeftOut("devices requested by claims (--dra) cannot be counted; these tests need a device plugin")
    if asked == 0:
        raise LeftOut("--gpus none was given")
    try:
        nodes = work.cluster.items("/api/v1/nodes")
        pods = work.cluster.items("/api/v1/pods", fieldSelector=ACTIVE)
    except ApiError as error:
        if error.status != 403:
            raise
        raise LeftOut(
            f"the number of free devices is unknown: {error.message}",
            hint="these tests need the right to list nodes and pods of the whole cluster",
        ) from error
    wanted = work.pod(work.request("room", programs.idle(), gpus=1))
    found = [one for one in node_capacities(nodes, pods, resource, wanted) if one.devices]
    if not found:
        raise LeftOut(_no_devices(nodes, resource))
    left = left_by_quota(_quotas(work), {f"requests.{resource}": 1})
    free = sum(one.free for one in found)
    if left is not None and left < at_least:
        raise LeftOut(f"the quota of the namespace {work.setup.namespace} leaves {left} {resource}")
    if sum(one.devices for one in found) < at_least:
        raise LeftOut(f"it needs {at_least} {resource}, but the nodes that accept our pods have {found[0].devices}")
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
    return f"{counted(len(has), 'node')} with {resource}, but none of them accepts our pods now: {why}"


def _holders(pods: Sequence[Json], resource: str) -> str:
    who = [f"{one.namespace}/{one.pod} has {one.count:.0f}" for one in holders_among(pods, resource)]
    more = f" and {len(who) - 3} more" if len(who) > 3 else ""
    return f"{', '.join(who[:3])}{more}" or "no pod holds them, but the kubelet offers none"


def most_devices(work: Work, capacities: Sequence[NodeCapacity]) -> int:
    """Return how many devices the tests may hold at once."""
    left = left_by_quota(_quotas(work), {f"requests.{work.options.resource}": 1})
    free = sum(one.free for one in capacities)
    return min(number for number in (free, left, work.options.gpu_count) if number is not None)


def count_of_gpu_pods(work: Work) -> int:
    """Return the number of pods for "many": one device each, as many as allowed."""
    allowed = most_devices(work, gpu_capacities(work, at_least=2))
    if allowed < 2:
        raise LeftOut(f"it needs at least two devices, but {allowed} may be used at once (--gpus, quota)")
    return max(2, min(work.many, allowed))


def fairly(do: Callable[[Work], str]) -> Callable[[Work], str]:
    """Skip a failed case where other pods took a device meanwhile."""

    def tried(work: Work) -> str:
        gpu_capacities(work, at_least=0)
        before = _held_by_others(work)
        try:
            return do(work)
        except CaseFailed as error:
            now = _held_by_others(work)
            if now > before:
                raise LeftOut(
                    f"other pods took {now - before} {work.options.resource} meanwhile: {error.message}"
                ) from error
            raise

    return tried


def _held_by_others(work: Work) -> int:
    pods = [one for one in work.others() if (one["metadata"].get("labels") or {}).get(SUITE_LABEL) != work.mark]
    return sum(int(one.count) for one in holders_among(pods, work.options.resource))


def sized(options: PodOptions, namespace: str) -> PodOptions:
    small = {"cpus": options.cpus or CPUS, "memory": options.memory or MEMORY, "shm": options.shm or SHM}
    return options.model_copy(update={"namespace": namespace, **small})


def fitting(work: Work, wanted: int, notice: Callable[[str], None]) -> int:
    """Return how many pods "many" means: as requested, but no more than fit."""
    most = wanted
    body = work.pod(work.request("room", programs.idle()))
    limits: dict[str, int] = {}
    nodes = work.nodes()
    if nodes:
        free = node_capacities(nodes, work.others(), work.options.resource, body)
        limits["the nodes have room for"] = count_fitting(free, body)
    with suppress(ApiError):
        cpus, memory = asks(body, "cpu"), asks(body, "memory")
        needs = {"pods": 1, "count/pods": 1, "cpu": cpus, "memory": memory, "requests.cpu": cpus, "requests.memory": memory,
                 "limits.cpu": cpus, "limits.memory": memory}  # fmt: skip
        left = left_by_quota(work.cluster.items(work.path("resourcequotas")), needs)
        if left is not None:
            limits["the namespace's quota leaves"] = left
    for why, count in limits.items():
        if count < most:
            notice(f"testing with {count} pods instead of {most}: {why} no more")
            most = count
    # One at least, and let the case say what is wrong.
    return max(1, most)


# --- A namespace of the check's own: made at its beginning, gone at its end, and found by its labels where it was not


ENFORCE = "pod-security.kubernetes.io/enforce"
Notice = Callable[[str], None]
# What belongs to a namespace, and so cannot be in one that was made a moment ago.
OF_A_NAMESPACE = ("pull_secret", "service_account", "queue", "network_attachment")

# A new namespace has no account for its pods for a fraction of a second, and refuses them until then.
ACCOUNT_WITHIN_S = 15.0
GONE_WITHIN_S = 60.0


@contextmanager
def namespace_for(cluster: Cluster, options: PodOptions, notice: Notice) -> Iterator[str]:
    """Return the named namespace, or create one that is deleted afterwards."""
    if options.namespace:
        yield options.namespace
        return
    for key in OF_A_NAMESPACE:
        if getattr(options, key):
            option = f"--{key.replace('_', '-')}"
            raise SpecError(
                f"{option} names an object of a namespace, but the tests create a new namespace", hint="add --namespace"
            )
    mark = f"check-{secrets.token_hex(4)}"
    # Folders of the host need a namespace that takes them, whatever the cluster's default is.
    level = {ENFORCE: "privileged"} if options.image is None or options.host_software == "yes" else {}
    refused = False
    try:
        try:
            made_namespace(cluster, mark, level)
        except ApiError as error:
            refused = True
            raise _refusal(cluster, error) from error
        yield names.object_name(mark)
    finally:
        if not refused:
            _remove(cluster, names.object_name(mark), notice)


def _refusal(cluster: Cluster, error: ApiError) -> ClusterError | PlaceError:
    if error.status != 403:
        return error
    return PlaceError(
        f"the tests cannot create a namespace: {error.message}",
        hint="use one in which you may create pods: --namespace NAME",
        command=f"kubectl --context {cluster.context} auth can-i create namespaces",
    )


def _remove(cluster: Cluster, name: str, notice: Notice) -> None:
    """However often it is interrupted: once more, and then it is said how it can be done later."""
    for _ in range(2):
        with suppress(KeyboardInterrupt, Terminated):
            try:
                if remove_namespace(cluster, name, wait_s=GONE_WITHIN_S):
                    return
                notice(f"the namespace {name} is still being deleted")
            except ClusterError as error:
                notice(f"the namespace {name} could not be removed: {error.message}; later: stackmark cluster clean")
            return


def made_namespace(cluster: Cluster, mark: str, labels: dict[str, str] | None = None) -> str:
    name = names.object_name(mark)
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {**names.labels("check", mark), **(labels or {})}},
    }
    cluster.create("/api/v1/namespaces", body)
    deadline = time.monotonic() + ACCOUNT_WITHIN_S
    with suppress(ClusterError):  # who may not look at it finds out by the first pod
        while not cluster.items(f"/api/v1/namespaces/{name}/serviceaccounts") and time.monotonic() < deadline:
            time.sleep(0.05)
    return name


def remove_namespace(cluster: Cluster, name: str, wait_s: float = 0.0) -> bool:
    """Remove a namespace and return whether it is gone; wait for that up to `wait_s`."""
    path = f"/api/v1/namespaces/{name}"
    cluster.delete(path)
    deadline = time.monotonic() + wait_s
    while True:
        left = cluster.items("/api/v1/namespaces", fieldSelector=f"metadata.name={name}")
        if not left or time.monotonic() >= deadline:
            return not left
        time.sleep(0.25)
