"""Queues of a cluster: which controller has them, and why one of Kueue's has not admitted a Job yet.

Kueue takes a suspended Job with its label, and lets it go when its turn has come. Volcano is a scheduler of its own: its pods are
there at once, and wait together until there is room for as many as their annotation says.
"""

from contextlib import suppress
from typing import Literal
from urllib.parse import quote

from stackmark.errors import ClusterError
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import ApiError, Cluster, Json

QueueKind = Literal["kueue", "volcano"]
KUEUE, VOLCANO = "kueue.x-k8s.io", "scheduling.volcano.sh"
# Kueue's own note of a Job, whose conditions say what it waits for.
_OF_JOB = f"{KUEUE}/job-uid"
_WAITS = ("QuotaReserved", "Admitted")


def queue_kind(cluster: Cluster) -> QueueKind:
    """Return whose queues the cluster has; Kueue's where it has both, or does not say."""
    if _serves(cluster, KUEUE) is None and _serves(cluster, VOLCANO) is not None:
        return "volcano"
    return "kueue"


def held_sentence(cluster: Cluster, job: Json) -> str:
    """Say what a suspended Job waits for, in the words of its queue where they can be read."""
    queue = (at.metadata(job).get("labels") or {}).get(at.KUEUE_QUEUE)
    if not queue:
        return "the Job is suspended: its queue has not admitted it yet"
    said = ""
    with suppress(ClusterError):
        said = _words_of_kueue(cluster, job)
    look = f"kubectl -n {at.namespace(job)} get workloads"
    return f"the queue {queue} has not admitted the Job yet{f': {said}' if said else ''} ({look})"


def _words_of_kueue(cluster: Cluster, job: Json) -> str:
    version = _serves(cluster, KUEUE)
    if version is None:
        return ""
    path = f"/apis/{version}/namespaces/{quote(at.namespace(job), safe='')}/workloads"
    for workload in cluster.items(path, labelSelector=f"{_OF_JOB}={at.metadata(job).get('uid')}"):
        for kind in _WAITS:
            found = at.condition(workload, kind)
            if found.get("status") == "False" and found.get("message"):
                return at.words(found["message"])
    return ""


def _serves(cluster: Cluster, group: str) -> str | None:
    """Return the group with the version that is preferred; None where it is not served."""
    try:
        found = cluster.get(f"/apis/{group}")
    except ApiError:
        return None
    return str((found.get("preferredVersion") or {}).get("groupVersion") or "") or None
