"""What the doctor saw: plain data, so that every judgement can be made again on a recorded cluster.

Objects of the API are kept as they came; what one may not read, or the cluster does not have, is None with its reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.rights import Right

Facts = Mapping[str, Mapping[str, JsonValue]]
Several = list[Json] | None
# How the trouble of a namespace begins that is not there: it can be made.
NO_NAMESPACE = "the cluster has no namespace"


@dataclass(frozen=True)
class RightReview:
    """Whether one has a right. Without one that is `needed` no pod of ours runs; the rest is for looking only."""

    right: Right
    needed: bool = True
    # What cannot be told without it.
    loses: str = ""
    allowed: bool | None = None


@dataclass(frozen=True)
class Wish:
    """What was asked: how many of which resource a pod gets, and what our pods tolerate."""

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
        """`nvidia`, `amd`, or the resource's own domain."""
        domain = self.resource.partition("/")[0]
        return {"nvidia.com": "nvidia", "amd.com": "amd"}.get(domain, domain)


@dataclass(frozen=True)
class Look:
    """What a worker in a pod said, or why there was none. `allocated` are the devices' ids where the cluster tells them."""

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
    """How the checked vector add went."""

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
        """What its pods told: the node's bus and modules are the same for all of them."""
        return tuple(look.facts for look in (self.with_gpus, self.plain) if look and look.facts)


@dataclass(frozen=True)
class ClusterView:
    """The cluster's side."""

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
