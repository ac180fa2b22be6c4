"""May one do something in the cluster? Everybody may ask that of themselves."""

from stackmark.places.kubernetes.client import Cluster, Json


def may(cluster: Cluster, verb: str, group: str, resource: str, subresource: str, namespace: str | None) -> bool:
    """Without a namespace: in all of them."""
    asked: Json = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    asked |= {"namespace": namespace} if namespace else {}
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))
