"""Before anything is hurt: who may be, who else would be, one at a time.

Only nodes that carry the opt-in label are touched. The lock is a Lease with a holder and an end of its own, so that a driver
that was killed blocks nobody for longer than its fault could have taken.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from stackmark.cluster.faults.means import Target, control_planes
from stackmark.errors import ClusterError, SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.objects import has_ended
from stackmark.kubernetes.rights import Right

ALLOWED = "stackmark.io/allow-faults"
LOCK = "stackmark-fault"
# The lock is the cluster's, so it lies where every cluster has a namespace.
LOCK_NAMESPACE = "default"
# After so long without a heartbeat of its node the default tolerations end, and every pod of it is evicted.
EVICTION_S = 300.0
_MICRO = "%Y-%m-%dT%H:%M:%S.%fZ"


def allow_command(node: str) -> str:
    return f"kubectl label node {node} {ALLOWED}=true"


def allows(node: Json) -> bool:
    return ((node.get("metadata") or {}).get("labels") or {}).get(ALLOWED) == "true"


def choose_node(nodes: Sequence[Json], wanted: str | None, only: Sequence[str] | None = None) -> Json:
    """The node to train on, and to hurt: the one that was named, else the first that may be. `only`: those it can be."""
    named = [node for node in nodes if wanted in (None, node["metadata"]["name"])]
    if wanted is not None and not named:
        raise SpecError(f"the cluster has no node {wanted!r}", hint="see: kubectl get nodes")
    free = [node for node in named if allows(node)]
    if not free:
        which = wanted or str(nodes[0]["metadata"]["name"] if nodes else "NODE")
        raise SpecError(
            f"{f'the node {wanted} does not carry' if wanted else 'no node carries'} the label {ALLOWED}=true: "
            "only nodes that do are hurt",
            hint=f"to allow it: {allow_command(which)}",
        )
    here = [node for node in free if only is None or node["metadata"]["name"] in only]
    if not here:
        raise SpecError(
            "without --image the pod runs this machine's own software, and no node that may be hurt is this machine",
            hint=f"give --image, or allow this one: {allow_command(only[0]) if only else 'it is no node of the cluster'}",
        )
    ready = [node for node in here if Node(node).ready]
    if not ready:
        raise ClusterError(f"{here[0]['metadata']['name']} is not ready, and nothing would be learned from hurting it")
    return ready[0]


def choose_control_plane(nodes: Sequence[Json], only_one_allowed: bool) -> str:
    """Where the API server is stopped through a node: one control plane that may be hurt."""
    planes = control_planes(nodes)
    if not planes:
        raise SpecError(
            "no node is a control plane by its labels: the API server cannot be reached through one",
            hint="a managed control plane cannot be stopped from here; a test cluster takes --means script:PATH",
        )
    free = [name for name in planes if any(node["metadata"]["name"] == name and allows(node) for node in nodes)]
    if not free:
        raise SpecError(
            f"no control plane ({', '.join(planes)}) carries the label {ALLOWED}=true",
            hint=f"to allow it: {allow_command(planes[0])}",
        )
    if len(planes) == 1 and not only_one_allowed:
        raise SpecError(
            f"{planes[0]} is the only control plane: without its API server the whole cluster stands still for everybody, "
            "and only the node itself can heal it",
            hint="if that is what you want to see, say so: --only-control-plane",
        )
    return free[0]


def refuse_the_only_control_plane(target: Target, nodes: Sequence[Json]) -> None:
    if target.part not in ("api-server", "device-plugin") and control_planes(nodes) == [target.node]:
        raise SpecError(
            f"{target.node} is the only control plane: to stop its {target.part} may take the API away from everybody",
            hint="hurt a worker node: --node",
        )


def beside(cluster: Cluster, node: str) -> list[str]:
    """Who else runs on that node, and is hurt with it."""
    try:
        pods = cluster.items("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
    except ApiError as error:
        if error.status == 403:
            return []  # one may not see them
        raise
    return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods if not has_ended(pod)]


LOCK_RIGHTS = (
    Right("create", "coordination.k8s.io", "leases", namespace=LOCK_NAMESPACE),
    Right("delete", "coordination.k8s.io", "leases", namespace=LOCK_NAMESPACE),
)


@contextmanager
def locked(cluster: Cluster, holder: str, seconds: float) -> Iterator[None]:
    """One fault at a time in a cluster."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{LOCK_NAMESPACE}/leases"
    body = _lease(holder, seconds)
    try:
        cluster.create(path, body)
    except ApiError as error:
        if error.status != 409:
            raise
        _take_over(cluster, f"{path}/{LOCK}", body)
    try:
        yield
    finally:
        # The API server may be what was hurt: then the lease ends by itself.
        with suppress(ClusterError):
            held = cluster.get(f"{path}/{LOCK}", timeout_s=5)
            if (held.get("spec") or {}).get("holderIdentity") == body["spec"]["holderIdentity"]:
                cluster.delete(f"{path}/{LOCK}")


def _lease(holder: str, seconds: float) -> Json:
    now = datetime.now(UTC).strftime(_MICRO)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LOCK, "namespace": LOCK_NAMESPACE, "labels": names.labels("fault", holder)},
        "spec": {
            "holderIdentity": f"{socket.gethostname()}:{os.getpid()}:{holder}",
            "leaseDurationSeconds": max(1, round(seconds)),
            "acquireTime": now,
            "renewTime": now,
        },
    }


def _take_over(cluster: Cluster, path: str, body: Json) -> None:
    held = cluster.get(path)
    spec = held.get("spec") or {}
    ends = _ends(spec)
    if ends is not None and ends > datetime.now(UTC):
        raise ClusterError(
            f"another fault is under way: {spec.get('holderIdentity')} holds the lock until {ends:%H:%M:%S} UTC",
            hint=f"wait for it; if nobody is there any more: kubectl -n {LOCK_NAMESPACE} delete lease {LOCK}",
        )
    version = (held.get("metadata") or {}).get("resourceVersion")
    cluster.patch(
        path, {"metadata": {"resourceVersion": version, "labels": body["metadata"]["labels"]}, "spec": body["spec"]}
    )


def _ends(spec: Json) -> datetime | None:
    try:
        begun = datetime.fromisoformat(str(spec.get("renewTime") or spec.get("acquireTime")))
        return begun + timedelta(seconds=float(spec.get("leaseDurationSeconds") or 0))
    except ValueError:
        return None
