"""Does the driver stand on a node of the cluster? A pod is compared with the bare host only there.

The kernel's boot id says it: it is the same on the host and in all its containers, and no two machines share one. The node's
own `machineID` is kept as the machine's name in the ledger, derived as the host's is, so that runs of a pod and of the host
on one machine are known as such.
"""

from contextlib import suppress
from dataclasses import dataclass

from stackmark.errors import ClusterError, PlaceError
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.machine import identity as machine

WHAT_WORKS = (
    "run stackmark on a node of the cluster; from elsewhere, arms in one place can be compared: "
    "--arm pod --arm pod,KEY=VALUE, which run on one node"
)


@dataclass(frozen=True)
class Node:
    name: str
    boot_id: str | None
    machine_id: str | None
    # Name and size of each image that it has, as it says itself: at most the 50 largest.
    images: tuple[tuple[str, int], ...] = ()
    # The container runtime and its version: `containerd://1.6.20`.
    runtime: str | None = None


def node_of(data: Json) -> Node:
    status = data.get("status") or {}
    info = status.get("nodeInfo") or {}
    raw = str(info.get("machineID") or "").replace("-", "")
    try:
        key = bytes.fromhex(raw)
    except ValueError:
        key = b""
    images = tuple(
        (str(name), int(image.get("sizeBytes") or 0))
        for image in status.get("images") or ()
        for name in image.get("names") or ()
    )
    return Node(
        name=str(data["metadata"]["name"]),
        boot_id=info.get("bootID") or None,
        machine_id=machine.app_specific_id(key, machine.APPLICATION_ID) if len(key) == 16 else None,
        images=images,
        runtime=info.get("containerRuntimeVersion") or None,
    )


def find_node(cluster: Cluster, name: str) -> Node | None:
    """The node of that name, or None where there is none or one may not look."""
    try:
        return node_of(cluster.get(f"/api/v1/nodes/{name}"))
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def runtime_of(cluster: Cluster, name: str | None) -> str | None:
    """Name the node's container runtime and its version; None where that cannot be read."""
    with suppress(ClusterError):
        node = find_node(cluster, name) if name else None
        return node.runtime if node else None
    return None


def is_missing(cluster: Cluster, name: str) -> bool:
    """Whether the cluster says that it has no such node. Who may not look goes on: the scheduler tells."""
    try:
        cluster.get(f"/api/v1/nodes/{name}")
    except ApiError as error:
        if error.status == 404:
            return True
        if error.status != 403:
            raise
    return False


def nodes_here(cluster: Cluster) -> list[Node]:
    """The nodes that are this machine: none or one, and more where a test cluster keeps several on one."""
    try:
        found = [node_of(data) for data in cluster.items("/api/v1/nodes")]
    except ApiError as error:
        if error.status == 403:
            return []
        raise
    boot = machine.boot_id()
    return [node for node in found if boot and node.boot_id == boot]


def this_node(cluster: Cluster, wanted: str | None, why: str) -> Node:
    """The node that this machine is; `why` says what it is needed for. Refused where it is none."""
    here = nodes_here(cluster)
    if wanted is not None:
        node = find_node(cluster, wanted)
        if node is None:
            raise PlaceError(
                f"the cluster has no node {wanted!r} that one may see",
                command=f"kubectl --context {cluster.context} get nodes",
            )
        if node.boot_id != machine.boot_id():
            raise PlaceError(f"{why}, and the node {wanted} is another machine than this one", hint=WHAT_WORKS)
        return node
    if not here:
        raise PlaceError(f"{why}, and this machine is no node of the cluster {cluster.server}", hint=WHAT_WORKS)
    return here[0]


def smallest_image(node: Node) -> str | None:
    """An image to put the host's folders into: one that is there already. The sandbox's own holds next to nothing."""
    named = [(size, name) for name, size in node.images if "@" not in name and "<none>" not in name]
    pause = [pair for pair in named if "pause" in pair[1].rpartition("/")[2]]
    return min(pause or named)[1] if named else None
