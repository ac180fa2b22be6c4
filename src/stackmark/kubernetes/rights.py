"""The rights that a run in a pod uses, written once: checked before anything is created, and shown as a Role in docs/pods.md."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stackmark.errors import PlaceError
from stackmark.kubernetes.client import Cluster, Json


@dataclass(frozen=True)
class Right:
    """One verb on one kind of object, in the namespace of the run."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        """As kubectl writes it: `create jobs.batch`, `get pods/log`."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{group}{part}"


# Every right that a run in a pod uses. To see nodes is not among them: where it is missing, the scheduler decides alone.
RUN_RIGHTS = (
    Right("create", "batch", "jobs"),
    # Why a Job has no pod.
    Right("get", "batch", "jobs"),
    # What a killed stackmark left in the namespace.
    Right("list", "batch", "jobs"),
    Right("delete", "batch", "jobs"),
    Right("get", "", "pods"),
    Right("list", "", "pods"),
    Right("delete", "", "pods"),
    Right("get", "", "pods", "log"),
    # A Job whose pods are refused (quota, Pod Security) says so nowhere else.
    Right("list", "", "events"),
)
# Only with --dra.
CLAIM_RIGHT = Right("create", "resource.k8s.io", "resourceclaimtemplates")


def may(cluster: Cluster, verb: str, group: str, resource: str, subresource: str, namespace: str | None) -> bool:
    """Ask the cluster whether this account may do something; without a namespace: in all of them."""
    asked: Json = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    asked |= {"namespace": namespace} if namespace else {}
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))


def missing_rights(cluster: Cluster, rights: Iterable[Right]) -> list[Right]:
    """Return those that the account does not have in the cluster's namespace."""
    asked = list(rights)

    def allowed(one: Right) -> bool:
        return may(cluster, one.verb, one.group, one.resource, one.subresource, cluster.namespace)

    # Asked side by side: from far away each answer takes a noticeable moment.
    with ThreadPoolExecutor(len(asked), thread_name_prefix="rights") as pool:
        return [right for right, yes in zip(asked, pool.map(allowed, asked), strict=True) if not yes]


def check_rights(cluster: Cluster, rights: Iterable[Right]) -> None:
    """Refuse before anything is created, and name every right that is missing."""
    missing = missing_rights(cluster, rights)
    if not missing:
        return
    first = missing[0]
    resource = f"{first.resource}{'.' + first.group if first.group else ''}"
    part = f" --subresource={first.subresource}" if first.subresource else ""
    raise PlaceError(
        f"the context {cluster.context} may not {', '.join(map(str, missing))} in the namespace {cluster.namespace}",
        hint="ask for the Role that docs/pods.md shows, or take a namespace in which you have these rights: --namespace",
        command=f"kubectl --context {cluster.context} auth can-i {first.verb} {resource}{part} -n {cluster.namespace}",
    )
