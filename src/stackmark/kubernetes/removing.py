"""Removing what a run created: by its name, which is known, so that nothing needs to be listed."""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from pydantic import JsonValue

from stackmark.errors import ClusterError, StackmarkError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Cluster, connect

# Jobs that a driver waits for, and that mean nothing without it.
_DRIVEN = f"{names.SELECTOR},{names.DRIVER_LABEL},{names.KIND_LABEL} in (run,probe,sweep,doctor)"


def remove(cluster: Cluster, namespace: str, mark: str, at_once: bool = False) -> int:
    """Delete the Job and its pods; return how many of them there were."""
    grace_s = 0 if at_once else None
    inside = f"namespaces/{quote(namespace, safe='')}"
    removed = int(cluster.delete(f"/apis/batch/v1/{inside}/jobs/{names.object_name(mark)}", grace_s=grace_s))
    # The cluster removes a Job's pods with it, in its own time; these go now.
    with suppress(ClusterError):
        pods = f"/api/v1/{inside}/pods"
        for one in cluster.items(pods, labelSelector=f"{names.RUN_LABEL}={mark}"):
            removed += cluster.delete(f"{pods}/{one['metadata']['name']}", grace_s=grace_s)
    return removed


def remove_of_dead_drivers(cluster: Cluster, namespace: str) -> int:
    """Delete the Jobs in the namespace whose driver could be seen from here if it lived; return how many there were."""
    jobs = cluster.items(f"/apis/batch/v1/namespaces/{namespace}/jobs", labelSelector=_DRIVEN)
    living = names.living_drivers() if jobs else set()
    count = 0
    for job in jobs:
        meta = job["metadata"]
        labels: Mapping[str, str] = meta.get("labels") or {}
        mark = labels.get(names.RUN_LABEL, "")
        if meta.get("deletionTimestamp") or not names.is_mark(mark) or meta.get("name") != names.object_name(mark):
            continue
        if names.is_dead(labels.get(names.DRIVER_LABEL, ""), living):
            count += bool(remove(cluster, namespace, mark, at_once=True))
    return count


def remove_left(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    """Delete what a killed driver's run left in its cluster, as the ledger has it. Where the cluster does not answer now, the
    note of the Job stays for a later command, and the Job has its own TTL."""
    namespace = handle.get("namespace")
    if not isinstance(namespace, str) or not isinstance(handle.get("job"), str) or not names.is_mark(run_id):
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
