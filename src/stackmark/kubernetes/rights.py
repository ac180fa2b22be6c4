"""Rights in a cluster: those that a run in a pod needs, written once (docs/pods.md shows them as a Role), and how to ask
for them before anything is created."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from stackmark.errors import PlaceError
from stackmark.kubernetes.client import Cluster, Json

# The namespace that one works in.
OWN = ""
# Asked side by side: from far away each answer takes a noticeable moment.
AT_ONCE = 16


@dataclass(frozen=True)
class Right:
    """One verb on one kind of object; in the current namespace, in a named one, or (None) in the whole cluster."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = OWN

    @property
    def name(self) -> str:
        """Return the name as kubectl writes it: `jobs.batch`, `pods/log`."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.resource}{group}{part}"

    def __str__(self) -> str:
        return f"{self.verb} {self.name}{f' in {self.namespace}' if self.namespace else ''}"

    def within(self, namespace: str) -> "Right":
        """Name the namespace that one works in."""
        return replace(self, namespace=namespace) if self.namespace == OWN else self


# Every right that a run in a pod uses. To see nodes is not among them: where it is missing, the scheduler decides alone.
RUN_RIGHTS = (
    Right("create", "batch", "jobs"),
    # A Job waits for its ConfigMap, and is let go then; the ConfigMap is the worker, and goes with the Job.
    Right("patch", "batch", "jobs"),
    Right("create", "", "configmaps"),
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
# Only where a Job waits for objects of its own: a worker that is sent to an image, or a claim.
HELD_JOB_RIGHT = Right("patch", "batch", "jobs")
WORKER_RIGHTS = (HELD_JOB_RIGHT, Right("create", "", "configmaps"))
# Only for a run on several nodes, whose pods find each other by name. The Service goes with its Job.
SERVICE_RIGHT = Right("create", "", "services")
# Only with --dra.
CLAIM_RIGHT = Right("create", "resource.k8s.io", "resourceclaimtemplates")


def may(cluster: Cluster, right: Right) -> bool:
    """Ask the cluster whether this account has a right."""
    namespace = cluster.namespace if right.namespace == OWN else right.namespace
    asked: Json = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        **({"namespace": namespace} if namespace else {}),
    }
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))


def missing_rights(cluster: Cluster, rights: Iterable[Right]) -> list[Right]:
    """Return those that the account does not have."""
    asked = list(rights)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rights") as pool:
        answers = pool.map(lambda right: may(cluster, right), asked)
        return [right for right, yes in zip(asked, answers, strict=True) if not yes]


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
        hint="ask for the Role in docs/pods.md, or use a namespace where you have these rights: --namespace",
        command=f"kubectl --context {cluster.context} auth can-i {first.verb} {resource}{part} -n {cluster.namespace}",
    )
