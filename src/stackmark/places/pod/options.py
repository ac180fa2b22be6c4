"""What may be asked of a pod. Each field is a key of `--arm`; a value is kept as it was typed, since it is stored so.

A name that a container has too means the same here, with one difference that cannot be helped: a container is given GPUs by
name, a pod by number, since the scheduler and the device plugin choose which. What the API server would refuse in words of
its own is refused here with the key's name.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field

from stackmark.errors import SpecError
from stackmark.places.container.options import (
    PYTHON_HELP,
    REFERENCE,
    VARIABLES_HELP,
    MemoryAndVariables,
    Several,
    Typed,
    Variables,
    cpus_of,
)
from stackmark.places.place import PlaceOptions
from stackmark.spec import AUTO
from stackmark.units import parse_seconds

GPU_RESOURCE = "nvidia.com/gpu"
# No node has more devices of one kind, and the API server's own numbers are 64 bits wide.
MOST_DEVICES = 1024
LONGEST_DEADLINE_S = 30 * 86_400
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# A name in the cluster (DNS subdomain), one label of it, and the two halves of a label's or a resource's name.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_NAMESPACE = re.compile(_LABEL)
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED = re.compile(rf"((?=[^/]{{1,253}}/){_LABEL}(\.{_LABEL})*/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")
_ATTACHMENT = re.compile(rf"({_LABEL}/)?{_LABEL}(@[A-Za-z0-9._-]{{1,15}})?")


class PodOptions(MemoryAndVariables, PlaceOptions):
    """A pod's options."""

    PLAIN: ClassVar[frozenset[str]] = frozenset(
        {
            "node", "node_selector", "toleration", "gpus", "resource", "cpus", "memory", "shm", "pull", "queue", "dra", "rdma",
            "deadline", "wait",
        }
    )  # fmt: skip

    image: str | None = Field(
        default=None,
        description="run in this image, any that has Python 3.10 or newer and PyTorch; without it the host's own software "
        "is mounted, where the driver stands on the node",
    )
    python: str | None = Field(default=None, description=PYTHON_HELP)
    namespace: str | None = Field(default=None, description="the namespace; else the one of the context")
    context: str | None = Field(default=None, description="the context of the kubeconfig; else the current one")
    kubeconfig: str | None = Field(
        default=None, description="the kubeconfig's file; else $KUBECONFIG, ~/.kube/config or the pod's own account"
    )
    node: str | None = Field(default=None, description="run on the node of this name, and nowhere else")
    node_selector: Several = Field(default=(), description="only on nodes with this label: KEY=VALUE; may be repeated")
    toleration: Several = Field(
        default=(),
        description="also on nodes with this taint: KEY=VALUE:EFFECT, KEY:EFFECT or KEY; may be repeated",
    )
    gpus: Typed = Field(
        default=AUTO,
        description="how many GPUs: a number, or none; auto: one, unless the workload runs on the CPU",
    )
    resource: str = Field(
        default=GPU_RESOURCE, description="the resource that GPUs are asked by: amd.com/gpu, nvidia.com/mig-1g.10gb"
    )
    cpus: Typed | None = Field(
        default=None, description="CPU time, in CPUs: 2; a fraction (1.5) gets no CPUs of its own from a CPU manager"
    )
    memory: Typed | None = Field(default=None, description="memory limit, without swap: 16g")
    shm: Typed | None = Field(
        default=None, description="size of /dev/shm: 1g; else half of memory, or 8g; it counts as memory"
    )
    env: Variables = Field(default=(), description=VARIABLES_HELP)
    env_from_proxy: bool = Field(default=False, description="hand on the proxy variables of this environment")
    user: Typed | None = Field(
        default=None,
        description="who it runs as: UID[:GID], or image: as the image says; else 1001, or what OpenShift gives it",
    )
    pull: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="when the image is pulled: IfNotPresent, Always or Never"
    )
    pull_secret: Several = Field(default=(), description="a secret to pull the image with; may be repeated")
    runtime_class: str | None = Field(default=None, description="the runtime class, e.g. nvidia")
    service_account: str | None = Field(default=None, description="the service account that it runs under")
    priority_class: str | None = Field(default=None, description="the priority class")
    queue: str | None = Field(default=None, description="the local queue of Kueue that it waits in")
    dra: str | None = Field(
        default=None, description="ask for GPUs by a claim for this device class (DRA): gpu.nvidia.com"
    )
    rdma: str | None = Field(default=None, description="an RDMA resource: rdma/hca_shared_devices_a[=COUNT]")
    network_attachment: Several = Field(
        default=(), description="a further network (Multus): [NAMESPACE/]NAME[@INTERFACE]; may be repeated"
    )
    host_network: bool = Field(default=False, description="the node's own network")
    cap: Several = Field(default=(), description="a capability to add, e.g. IPC_LOCK; may be repeated")
    host_software: Literal["auto", "yes", "no"] = Field(
        default="auto", description="mount this host's own software, read-only: yes, no; auto: where no image is named"
    )
    openshift: bool = Field(default=False, description="for OpenShift: leave the UID to it")
    deadline: Typed | None = Field(
        default=None, description="the node ends the pod after this time, whoever still waits for it: 2h"
    )
    wait: Typed = Field(
        default="10min", description="how long a pod may wait for a node, a queue or its image before it is given up"
    )
    patch: str | None = Field(
        default=None, description="a file (YAML or JSON) that is merged into the Job before it is created"
    )

    def _checks(self) -> tuple[Callable[[], None], ...]:
        return (self._quantities, self._names, self._lists, self._fit_together)

    @property
    def has_own_files(self) -> bool:
        """Whether the pod runs an image without the host's folders in it."""
        return self.image is not None and self.host_software != "yes"

    # What the API server is told

    @property
    def gpu_count(self) -> int | None:
        """None for auto: then the workload decides."""
        return None if self.gpus == AUTO else _gpu_count(self.gpus)

    @property
    def cpu_count(self) -> Fraction | None:
        return None if self.cpus is None else Fraction(str(cpus_of(self.cpus)))

    @property
    def deadline_s(self) -> int | None:
        return None if self.deadline is None else _span_s("deadline", self.deadline)

    @property
    def wait_s(self) -> int:
        return _span_s("wait", self.wait)

    @property
    def labels_of_node(self) -> dict[str, str]:
        return dict(_node_label(text) for text in self.node_selector)

    @property
    def tolerations(self) -> tuple[dict[str, str], ...]:
        return tuple(_toleration(text) for text in self.toleration)

    def all_tolerations(self, with_gpus: bool) -> tuple[dict[str, str], ...]:
        """Return what a pod tolerates: the taint that NVIDIA's own manifests tolerate, the same for another vendor's resource
        where GPUs are asked for, and what was typed."""
        keys = dict.fromkeys((GPU_RESOURCE, self.resource) if with_gpus else (GPU_RESOURCE,))
        usual = tuple({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys)
        return usual + tuple(one for one in self.tolerations if one not in usual)

    @property
    def rdma_request(self) -> tuple[str, int] | None:
        return None if self.rdma is None else _resource_count("rdma", self.rdma)

    @property
    def uid_gid(self) -> tuple[int | None, int | None]:
        """Who it runs as, where a number was typed."""
        if self.user is None or self.user == "image":
            return None, None
        uid, _, gid = self.user.partition(":")
        return int(uid), int(gid) if gid else None

    # What cannot be

    def _quantities(self) -> None:
        _ = self.gpu_count, self.cpu_count, self.deadline_s, self.wait_s, self.rdma_request
        self._check_memory()

    def _names(self) -> None:
        if self.image is not None and not REFERENCE.fullmatch(self.image):
            raise SpecError(
                f"image: {self.image!r} is no name of an image", hint="write it like registry.example/stackmark:1"
            )
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise SpecError(f"namespace: {self.namespace!r} is no name of a namespace", hint="lower case, digits, -")
        for key, name in (
            ("node", self.node), ("runtime_class", self.runtime_class), ("service_account", self.service_account),
            ("priority_class", self.priority_class), ("queue", self.queue), ("dra", self.dra),
            *(("pull_secret", name) for name in self.pull_secret),
        ):  # fmt: skip
            if name is not None and not _NAME.fullmatch(name):
                raise SpecError(f"{key}: {name!r} is no name of an object", hint="lower case, digits, - and .")
        for key, path in (
            ("context", self.context), ("kubeconfig", self.kubeconfig), ("patch", self.patch), ("python", self.python),
        ):  # fmt: skip
            if path is not None and (not path.strip() or "\0" in path):
                raise SpecError(f"{key}: it is empty")
        if self.user not in (None, "image") and not _is_user(self.user or ""):
            raise SpecError(
                f"user: {self.user!r} is no number", hint="a pod knows users by number: 1001, 1001:0; or image"
            )

    def _lists(self) -> None:
        _ = self.variables, self.labels_of_node, self.tolerations
        _extended_resource("resource", self.resource)
        for name in self.cap:
            if not re.fullmatch(r"[A-Za-z_]+", name):
                raise SpecError(f"cap: {name!r} is no capability", hint="one at a time, like IPC_LOCK")
        for name in self.network_attachment:
            if not _ATTACHMENT.fullmatch(name):
                raise SpecError(
                    f"network_attachment: {name!r} is no network", hint="write it like NAME or NAMESPACE/NAME@net1"
                )

    def _fit_together(self) -> None:
        if self.host_software == "yes" and self.python is not None:
            raise SpecError("host_software and python do not go together: the host's own software has its own Python")
        if self.host_software == "yes" and self.openshift:
            raise SpecError(
                "host_software and openshift do not go together: restricted-v2 allows no folders of the host"
            )
        if self.openshift and self.uid_gid[0] is not None:
            raise SpecError(
                "user and openshift do not go together: OpenShift chooses the UID from the namespace's range"
            )
        if self.dra and self.resource != GPU_RESOURCE:
            raise SpecError("dra and resource do not go together: both say how GPUs are asked for")
        if self.rdma_request and self.rdma_request[0] == self.resource:
            raise SpecError(f"rdma and resource are both {self.resource}")


def _is_user(text: str) -> bool:
    """OpenShift's have ten digits: 1000730000."""
    return bool(re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", text)) and all(
        int(part) < 2**31 for part in text.split(":")
    )


def _gpu_count(text: str) -> int:
    if text == "none":
        return 0
    if text == "all":
        raise SpecError(
            "gpus: a pod asks for a number of GPUs, and cannot ask for all of a node", hint="write it like 1, or none"
        )
    if re.match(r"(GPU|MIG)-", text) or "," in text:
        raise SpecError(
            f"gpus: {text!r} names GPUs, and a pod cannot: it asks for a number, and the cluster chooses which",
            hint="write it like 1 or 2; the UUIDs that it got stand in the run's facts",
        )
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_DEVICES:
        raise SpecError(f"gpus: {text!r} is no number of GPUs", hint=f"write it like 1 or none; at most {MOST_DEVICES}")
    return int(text)


def _span_s(key: str, text: str) -> int:
    try:
        seconds = parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{key}: {error.message}", hint=error.hint) from error
    if not 1 <= seconds <= LONGEST_DEADLINE_S:
        raise SpecError(f"{key}: {text!r} is not between 1 s and 30 days")
    return round(seconds)


def _node_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not _QUALIFIED.fullmatch(key) or not _VALUE.fullmatch(value):
        raise SpecError(f"node_selector: {text!r} is no label", hint="write it like nvidia.com/gpu.product=NVIDIA-H200")
    return key, value


def _toleration(text: str) -> dict[str, str]:
    """`key=value:Effect`, `key:Effect`, `key=value`, `key`; without a value any, without an effect all of them."""
    rest, colon, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    hint = "write it like nodetype=gpu:NoSchedule, nodetype:NoSchedule or nodetype"
    if not _QUALIFIED.fullmatch(key) or not _VALUE.fullmatch(value):
        raise SpecError(f"toleration: {text!r} is no taint", hint=hint)
    if colon and effect not in EFFECTS:
        raise SpecError(f"toleration: {effect!r} is no effect of a taint; effects: {', '.join(EFFECTS)}", hint=hint)
    made = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**made, "effect": effect} if colon else made


def _resource_count(key: str, text: str) -> tuple[str, int]:
    name, equals, count = text.partition("=")
    _extended_resource(key, name)
    if equals and (not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= MOST_DEVICES):
        raise SpecError(f"{key}: {count!r} is no number of devices", hint="write it like rdma/hca_shared_devices_a=1")
    return name, int(count) if equals else 1


def _extended_resource(key: str, name: str) -> None:
    """A resource that a device plugin offers has a domain before its name; those without are Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    if not slash or not _QUALIFIED.fullmatch(name) or domain.endswith("kubernetes.io"):
        raise SpecError(f"{key}: {name!r} is no resource of a device plugin", hint="write it like nvidia.com/gpu")
