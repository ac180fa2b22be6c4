"""What happened to a pod or a Job, in the cluster's own words."""

from contextlib import suppress

from stackmark.errors import ClusterError
from stackmark.kubernetes.client import Cluster, Json


def events_of(cluster: Cluster, namespace: str, thing: Json) -> list[Json]:
    with suppress(ClusterError):  # one may not see them, or the server is away: the status alone then says why
        path = f"/api/v1/namespaces/{namespace}/events"
        return cluster.items(path, fieldSelector=f"involvedObject.uid={thing['metadata'].get('uid')}")
    return []
