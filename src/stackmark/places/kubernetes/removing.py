"""Removing what a run made, by its label."""

from collections.abc import Mapping
from contextlib import suppress

from pydantic import JsonValue

from stackmark.errors import StackmarkError
from stackmark.places.kubernetes import names
from stackmark.places.kubernetes.client import Cluster, connect


def remove(cluster: Cluster, namespace: str, mark: str, at_once: bool = False) -> int:
    """The Job, what it owns, and its pods; how many of them there were."""
    removed = 0
    for path in (f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/pods"):
        for one in cluster.items(path, labelSelector=f"{names.RUN_LABEL}={mark}"):
            removed += cluster.delete(f"{path}/{one['metadata']['name']}", grace_s=0 if at_once else None)
    return removed


def remove_left(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    """What a killed driver's run left in its cluster. One that cannot be reached now has its own TTL."""
    namespace = handle.get("namespace")
    if not isinstance(namespace, str) or not isinstance(handle.get("job"), str):
        return []
    context, kubeconfig = handle.get("context"), handle.get("kubeconfig")
    with suppress(StackmarkError):
        cluster = connect(
            str(context) if context and context != "in-cluster" else None,
            str(kubeconfig) if kubeconfig else None,
            namespace,
        )
        if remove(cluster, namespace, run_id):
            return ["a Job in the cluster"]
    return []
