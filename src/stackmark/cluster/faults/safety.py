"""Safety before a fault: which nodes allow it, what else it would affect, one fault at a time.

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
    """Choose the node to train on and to disturb: the named one, else the first that allows it. `only`: candidates."""
    named = [node for node in nodes if wanted in (None, node["metadata"]["name"])]
    if wanted is not None and not named:
        raise SpecError(f"the cluster has no node {wanted!r}", hint="see: kubectl get nodes")
    free = [node for node in named if allows(node)]
    if not free:
        which = wanted or str(nodes[0]["metadata"]["name"] if nodes else "NODE")
        raise SpecError(
            f"{f'the node {wanted} does not have' if wanted else 'no node has'} the label {ALLOWED}=true: "
            "stackmark injects faults only into nodes with it",
            hint=f"to allow it: {allow_command(which)}",
        )
    here = [node for node in free if only is None or node["metadata"]["name"] in only]
    if not here:
        raise SpecError(
            "without --image the pod runs this machine's software, but this machine is not a node that allows faults",
            hint=f"use --image, or allow this node: {allow_command(only[0]) if only else 'it is not a node of the cluster'}",
        )
    ready = [node for node in here if Node(node).ready]
    if not ready:
        raise ClusterError(f"{here[0]['metadata']['name']} is not ready, so a fault would show nothing")
    return ready[0]


def choose_control_plane(nodes: Sequence[Json], only_one_allowed: bool) -> str:
    """Choose one control plane that allows faults, for stopping its API server."""
    planes = control_planes(nodes)
    if not planes:
        raise SpecError(
            "no node has the label of a control plane, so the API server cannot be stopped on a node",
            hint="a managed control plane cannot be stopped from here; for a test cluster use --means script:PATH",
        )
    free = [name for name in planes if any(node["metadata"]["name"] == name and allows(node) for node in nodes)]
    if not free:
        raise SpecError(
            f"no control plane ({', '.join(planes)}) has the label {ALLOWED}=true",
            hint=f"to allow it: {allow_command(planes[0])}",
        )
    if len(planes) == 1 and not only_one_allowed:
        raise SpecError(
            f"{planes[0]} is the only control plane: without its API server the whole cluster stops for everyone, "
            "and only the node itself can heal it",
            hint="if you want this, add --only-control-plane",
        )
    return free[0]


def refuse_the_only_control_plane(target: Target, nodes: Sequence[Json]) -> None:
    if target.part not in ("api-server", "device-plugin") and control_planes(nodes) == [target.node]:
        raise SpecError(
            f"{target.node} is the only control plane: stopping its {target.part} may make the API unavailable for everyone",
            hint="choose a worker node: --node",
        )


def other_pods(cluster: Cluster, node: str) -> list[str]:
    """Return the other pods on that node, which the fault also affects."""
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
    """Lock the cluster: one fault at a time."""
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
            f"another fault is in progress: {spec.get('holderIdentity')} holds the lock until {ends:%H:%M:%S} UTC",
            hint=f"wait for it; if its owner has ended: kubectl -n {LOCK_NAMESPACE} delete lease {LOCK}",
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
