"""The doctor's evidence: plain data, so that every judgement can be repeated on a recorded cluster.

Objects of the API are kept as they came; what one may not read, or the cluster does not have, is None with its reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import JsonValue

from stackmark.errors import ClusterError
from stackmark.kubernetes.client import ApiError, Cluster, Json, Unreachable
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.rights import RUN_RIGHTS, Right, missing_rights
from stackmark.kubernetes.why import ACTIVE

Facts = Mapping[str, Mapping[str, JsonValue]]
Several = list[Json] | None
# How the trouble of a namespace begins that is not there: it can be made.
NO_NAMESPACE = "the cluster has no namespace"


@dataclass(frozen=True)
class RightReview:
    """Whether the user has a right. Without a `needed` one stackmark cannot run pods; the others are only for reading."""

    right: Right
    needed: bool = True
    # What cannot be told without it.
    loses: str = ""
    allowed: bool | None = None


@dataclass(frozen=True)
class Wish:
    """The request: how many of which resource a pod gets, and what our pods tolerate."""

    gpus: int = 1
    resource: str = "nvidia.com/gpu"
    dra: str | None = None
    runtime_class: str | None = None
    tolerations: tuple[Mapping[str, str], ...] = ()
    # Labels that a node must have, or our pods do not go there.
    labels: Mapping[str, str] = field(default_factory=dict)
    # Nodes that were named: they are expected to have a GPU, whatever the others have.
    named: tuple[str, ...] = ()

    @property
    def vendor(self) -> str:
        """Return `nvidia`, `amd`, or the resource's own domain."""
        domain = self.resource.partition("/")[0]
        return {"nvidia.com": "nvidia", "amd.com": "amd"}.get(domain, domain)


@dataclass(frozen=True)
class Look:
    """A worker's facts from a pod, or why there are none. `allocated` are the devices' ids where the cluster shows them."""

    facts: Facts | None = None
    trouble: str = ""
    hint: str = ""
    kind: str = ""
    # How many GPUs it asked for, and CPUs of its own: a whole number of them where it did.
    gpus: int = 0
    cpus: int | None = None
    allocated: tuple[str, ...] | None = None
    pod: str = ""
    seconds: float = 0.0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addition:
    """The result of the verified vector add."""

    figure: str = ""
    checked: int = 0
    devices: int = 0
    kind: str = ""
    trouble: str = ""
    hint: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class NodeVisit:
    """What pods on one node saw. None: no pod was sent, and `why_not` says why."""

    # A pod that asked for no GPU and had no volume for /dev/shm: what every plain pod gets.
    plain: Look | None = None
    with_gpus: Look | None = None
    addition: Addition | None = None
    why_not: str = ""

    @property
    def told(self) -> tuple[Facts, ...]:
        """Return what its pods reported: the node's bus and modules are the same for all of them."""
        return tuple(look.facts for look in (self.with_gpus, self.plain) if look and look.facts)


@dataclass(frozen=True)
class ClusterView:
    """What the API server shows about the cluster."""

    context: str
    server: str
    namespace: str
    version: str = ""
    user: str = ""
    trouble: str = ""
    trouble_hint: str = ""
    namespace_trouble: str = ""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    rights: tuple[RightReview, ...] = ()
    nodes: Several = None
    pods: Several = None
    daemonsets: Several = None
    runtime_classes: Several = None
    device_classes: Several = None
    slices: Several = None
    quotas: Several = None
    # The kubelet's own configuration, by node.
    kubelets: Mapping[str, Json] = field(default_factory=dict)
    groups: Sequence[str] = ()

    @property
    def openshift(self) -> bool:
        return any(group.endswith("openshift.io") for group in self.groups)

    @property
    def kubectl(self) -> str:
        return f"{'oc' if self.openshift else 'kubectl'} --context {self.context}"


# --- Ask the API server for all that the diagnostics are judged by. It only reads, and what it may not read is None


# Reading a kubelet's configuration goes through the API server to each node: of this many nodes at most.
MOST_KUBELETS = 50
KUBELET_S = 5.0
Answer = TypeVar("Answer")
RIGHTS: tuple[RightReview, ...] = (
    *(RightReview(right) for right in RUN_RIGHTS),
    RightReview(Right("list", "", "nodes", namespace=None), needed=False,
                loses="only a node named with --node can be examined"),
    RightReview(Right("get", "", "nodes", "proxy", namespace=None), needed=False,
                loses="the kubelet's CPU and topology policies are inferred from what a pod gets"),
    RightReview(Right("list", "", "pods", namespace=None), needed=False, loses="which pods hold the GPUs is unknown"),
    RightReview(Right("list", "apps", "daemonsets", namespace=None), needed=False,
                loses="the device plugin is only known by its resource"),
)  # fmt: skip


def gather(cluster: Cluster, named: Sequence[str] = ()) -> ClusterView:
    """Gather the evidence. `named` are the requested nodes; without them all are examined."""
    seen = ClusterView(context=cluster.context, server=cluster.server, namespace=cluster.namespace)
    try:
        version = cluster.version
        groups = [str(group["name"]) for group in cluster.get("/apis").get("groups") or ()]
    except ApiError as error:
        return replace(seen, trouble=_refused(error), trouble_hint=_hint(error))
    except ClusterError as error:
        return replace(seen, trouble=error.message, trouble_hint=error.hint or "")
    try:
        return _all(cluster, replace(seen, version=version, groups=tuple(groups)), named)
    except Unreachable as error:
        return replace(seen, version=version, trouble=error.message, trouble_hint=error.hint or "")


def _all(cluster: Cluster, seen: ClusterView, named: Sequence[str]) -> ClusterView:
    inside = f"/namespaces/{cluster.namespace}"
    nodes = _nodes(cluster, named)
    claims = "resource.k8s.io" in seen.groups
    trouble, labels = _namespace(cluster)
    return replace(
        seen,
        user=_user(cluster),
        namespace_trouble=trouble,
        namespace_labels=labels,
        rights=_rights(cluster),
        nodes=nodes,
        pods=_items(cluster, "/api/v1/pods", ACTIVE),
        daemonsets=_items(cluster, "/apis/apps/v1/daemonsets"),
        runtime_classes=_items(cluster, "/apis/node.k8s.io/v1/runtimeclasses"),
        device_classes=_items(cluster, "/apis/resource.k8s.io/v1/deviceclasses") if claims else None,
        slices=_items(cluster, "/apis/resource.k8s.io/v1/resourceslices") if claims else None,
        quotas=_items(cluster, f"/api/v1{inside}/resourcequotas"),
        kubelets=_kubelets(cluster, nodes, named),
    )


def _nodes(cluster: Cluster, named: Sequence[str]) -> Several:
    """All; or where one may not list them, those that were named and one may get."""
    listed = _items(cluster, "/api/v1/nodes")
    if listed is not None or not named:
        return listed
    found = [one for name in named if (one := _node(cluster, name)) is not None]
    return found or None


def _node(cluster: Cluster, name: str) -> Json | None:
    return _tried(lambda: cluster.get(f"/api/v1/nodes/{name}"))


def _kubelets(cluster: Cluster, nodes: Several, named: Sequence[str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    # One that is not ready would only be waited for.
    names = [node.name for node in map(Node, nodes or ()) if node.ready]
    for name in [one for one in names if not named or one in named][:MOST_KUBELETS]:
        try:
            answer = cluster.get(f"/api/v1/nodes/{name}/proxy/configz", timeout_s=KUBELET_S)
            found[name] = answer.get("kubeletconfig") or {}
        except ApiError as error:
            if error.status == 403:
                return found  # the same for all of them
        except Unreachable:
            continue  # that one does not answer
    return found


def _user(cluster: Cluster) -> str:
    """Since 1.28 everybody may ask who they are."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = _tried(lambda: cluster.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review))
    return str((((answer or {}).get("status") or {}).get("userInfo") or {}).get("username") or "")


def _rights(cluster: Cluster) -> tuple[RightReview, ...]:
    """Ask for all at once; where the API server does not say what one may do, none is known."""
    missing = _tried(lambda: missing_rights(cluster, [one.right for one in RIGHTS]))
    return tuple(replace(one, allowed=None if missing is None else one.right not in missing) for one in RIGHTS)


def _namespace(cluster: Cluster) -> tuple[str, dict[str, str]]:
    try:
        found = cluster.get(f"/api/v1/namespaces/{cluster.namespace}")
    except ApiError as error:
        return (f"{NO_NAMESPACE} {cluster.namespace}" if error.status == 404 else ""), {}
    labels = {key: str(value) for key, value in (found["metadata"].get("labels") or {}).items()}
    ending = (found.get("status") or {}).get("phase") == "Terminating"
    return (f"the namespace {cluster.namespace} is being deleted" if ending else ""), labels


def _items(cluster: Cluster, path: str, selector: str | None = None) -> Several:
    return _tried(lambda: cluster.items(path, fieldSelector=selector))


def _tried(ask: Callable[[], Answer]) -> Answer | None:
    """What one may not ask, or the cluster does not have, is None; a server that is gone is not."""
    try:
        return ask()
    except ApiError:
        return None


def _refused(error: ApiError) -> str:
    if error.status == 401:
        return f"the API server does not accept your credentials: {error.message}"
    return f"the API server answered with HTTP {error.status}: {error.message}"


def _hint(error: ApiError) -> str:
    return "log in again: the token or certificate of the kubeconfig is no longer valid" if error.status == 401 else ""
