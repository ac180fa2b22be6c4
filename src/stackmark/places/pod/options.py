"""The options of a pod. Each field is a key of `--arm`; a value is kept as typed, because it is stored so.

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
from stackmark.kubernetes.manifest.request import WORK_FOLDER
from stackmark.kubernetes.names import DNS_LABEL, OBJECT_NAME
from stackmark.places.bundle import FOLDER
from stackmark.places.container.options import (
    PYTHON_HELP,
    REFERENCE,
    MemoryAndVariables,
    Typed,
    cpus_of,
)
from stackmark.places.mounts import MOUNT, Mount, read_mounts
from stackmark.places.place import PlaceOptions, Several
from stackmark.places.variables import BIND_HELP, VARIABLES_HELP, Bind, Variables
from stackmark.ranks import MOST_LOCAL_RANKS
from stackmark.spec import AUTO
from stackmark.units import parse_seconds

GPU_RESOURCE = "nvidia.com/gpu"
# No node has more devices of one kind, and the API server's own numbers are 64 bits wide.
MOST_DEVICES = 1024
LONGEST_DEADLINE_S = 30 * 86_400
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# A namespace's name, and the two halves of a label's or a resource's name.
_LABEL = DNS_LABEL
_NAMESPACE = re.compile(_LABEL)
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED = re.compile(rf"((?=[^/]{{1,253}}/){_LABEL}(\.{_LABEL})*/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")
_ATTACHMENT = re.compile(rf"({_LABEL}/)?{_LABEL}(@[A-Za-z0-9._-]{{1,15}})?")


class PodOptions(MemoryAndVariables, PlaceOptions):
    """A pod's options."""

    PLAIN: ClassVar[frozenset[str]] = frozenset(
        {
            "node", "node_selector", "toleration", "gpus", "ranks_per_node", "resource", "cpus", "memory", "shm", "pull", "queue",
            "dra", "rdma", "deadline", "wait", "log_format", "bind",
        }
    )  # fmt: skip

    image: str | None = Field(
        default=None,
        description="run in this image, any with Python 3.10 or newer and PyTorch; without it the host's own software "
        "is mounted, if the node is where stackmark runs",
    )
    python: str | None = Field(default=None, description=PYTHON_HELP)
    namespace: str | None = Field(default=None, description="namespace; default: the context's")
    context: str | None = Field(default=None, description="context of the kubeconfig; default: the current one")
    kubeconfig: str | None = Field(
        default=None, description="kubeconfig file; default: $KUBECONFIG, ~/.kube/config or the pod's own account"
    )
    node: str | None = Field(default=None, description="run only on the node of this name")
    node_selector: Several = Field(
        default=(), description="run only on nodes with this label: KEY=VALUE; may be repeated"
    )
    toleration: Several = Field(
        default=(),
        description="tolerate this taint: KEY=VALUE:EFFECT, KEY:EFFECT or KEY; may be repeated",
    )
    gpus: Typed = Field(
        default=AUTO,
        description="number of GPUs, or none; auto: one, unless the workload runs on the CPU",
    )
    ranks_per_node: Typed | None = Field(
        default=None, description="how many ranks each node gets; default: all on one node"
    )
    resource: str = Field(
        default=GPU_RESOURCE, description="resource name of the GPUs: amd.com/gpu, nvidia.com/mig-1g.10gb"
    )
    cpus: Typed | None = Field(
        default=None,
        description="CPU time limit, in CPUs: 2; with a fraction (1.5) a CPU manager assigns no exclusive CPUs",
    )
    bind: Bind = Field(default="none", description=BIND_HELP)
    memory: Typed | None = Field(default=None, description="memory limit, without swap: 16g")
    shm: Typed | None = Field(
        default=None, description="size of /dev/shm: 1g; default: half of memory, or 8g; it counts as memory"
    )
    mount: Several = MOUNT
    env: Variables = Field(default=(), description=VARIABLES_HELP)
    env_from_proxy: bool = Field(default=False, description="pass on the proxy variables of this environment")
    user: Typed | None = Field(
        default=None,
        description="user to run as: UID[:GID], or image: the image's user; default: 1001, or what OpenShift assigns",
    )
    pull: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="when to pull the image: IfNotPresent, Always or Never"
    )
    pull_secret: Several = Field(default=(), description="secret to pull the image with; may be repeated")
    runtime_class: str | None = Field(default=None, description="runtime class, e.g. nvidia")
    service_account: str | None = Field(default=None, description="service account of the pod")
    priority_class: str | None = Field(default=None, description="priority class of the pod")
    queue: str | None = Field(
        default=None, description="queue of Kueue or Volcano to wait in, whichever the cluster has"
    )
    dra: str | None = Field(
        default=None, description="request GPUs by a claim for this device class (DRA): gpu.nvidia.com"
    )
    rdma: str | None = Field(default=None, description="RDMA resource: rdma/hca_shared_devices_a[=COUNT]")
    network_attachment: Several = Field(
        default=(), description="additional network (Multus): [NAMESPACE/]NAME[@INTERFACE]; may be repeated"
    )
    host_network: bool = Field(default=False, description="use the node's network")
    cap: Several = Field(default=(), description="capability to add, e.g. IPC_LOCK; may be repeated")
    host_software: Literal["auto", "yes", "no"] = Field(
        default="auto", description="mount this host's software, read-only: yes, no; auto: if no image is given"
    )
    openshift: bool = Field(default=False, description="for OpenShift: let it choose the UID")
    deadline: Typed | None = Field(default=None, description="the node ends the pod after this time in any case: 2h")
    wait: Typed = Field(default="10min", description="how long a pod may wait for a node, a queue or its image")
    log_format: Literal["text", "tf-cnn", "events"] = Field(
        default="text",
        description="lines for people in the pod's log, next to the events: text; tf-cnn: the table of tf_cnn_benchmarks; "
        "events: none",
    )
    patch: str | None = Field(
        default=None, description="file (YAML or JSON) to merge into the Job before it is created"
    )

    def _checks(self) -> tuple[Callable[[], None], ...]:
        return (self._quantities, self._names, self._lists, self._fit_together)

    @property
    def has_own_files(self) -> bool:
        """Return whether the pod runs an image without the host's folders in it."""
        return self.image is not None and self.host_software != "yes"

    # What the API server is told

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return read_mounts(self.mount, (FOLDER,) if self.has_own_files else (), (WORK_FOLDER,))

    @property
    def gpu_count(self) -> int | None:
        """Return the number of GPUs; None for auto: then the workload decides."""
        return None if self.gpus == AUTO else _gpu_count(self.gpus)

    @property
    def ranks_each(self) -> int | None:
        """Return how many ranks each node gets; None: all are on one."""
        return None if self.ranks_per_node is None else _ranks_each(self.ranks_per_node)

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
        """Return the user and group to run as, where numbers were given."""
        if self.user is None or self.user == "image":
            return None, None
        uid, _, gid = self.user.partition(":")
        return int(uid), int(gid) if gid else None

    # What cannot be

    def _quantities(self) -> None:
        _ = self.gpu_count, self.ranks_each, self.cpu_count, self.deadline_s, self.wait_s, self.rdma_request
        self._check_memory()

    def _names(self) -> None:
        if self.image is not None and not REFERENCE.fullmatch(self.image):
            raise SpecError(
                f"image: {self.image!r} is not the name of an image", hint="write it like registry.example/stackmark:1"
            )
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise SpecError(
                f"namespace: {self.namespace!r} is not the name of a namespace", hint="use lower case, digits and -"
            )
        for key, name in (
            ("node", self.node), ("runtime_class", self.runtime_class), ("service_account", self.service_account),
            ("priority_class", self.priority_class), ("queue", self.queue), ("dra", self.dra),
            *(("pull_secret", name) for name in self.pull_secret),
        ):  # fmt: skip
            if name is not None and not OBJECT_NAME.fullmatch(name):
                raise SpecError(f"{key}: {name!r} is not the name of an object", hint="use lower case, digits, - and .")
        for key, path in (
            ("context", self.context), ("kubeconfig", self.kubeconfig), ("patch", self.patch), ("python", self.python),
        ):  # fmt: skip
            if path is not None and (not path.strip() or "\0" in path):
                raise SpecError(f"{key} must not be empty")
        if self.user not in (None, "image") and not _is_user(self.user or ""):
            raise SpecError(f"user: {self.user!r} is not a number", hint="write it like 1001 or 1001:0, or image")

    def _lists(self) -> None:
        _ = self.mounts, self.variables, self.labels_of_node, self.tolerations
        _extended_resource("resource", self.resource)
        for name in self.cap:
            if not re.fullmatch(r"[A-Za-z_]+", name):
                raise SpecError(f"cap: {name!r} is not a capability", hint="one at a time, like IPC_LOCK")
        for name in self.network_attachment:
            if not _ATTACHMENT.fullmatch(name):
                raise SpecError(
                    f"network_attachment: {name!r} is not a network", hint="write it like NAME or NAMESPACE/NAME@net1"
                )

    def _fit_together(self) -> None:
        if self.host_software == "yes" and self.python is not None:
            raise SpecError("host_software and python cannot be combined: the host's software has its own Python")
        if self.host_software == "yes" and self.openshift:
            raise SpecError(
                "host_software and openshift cannot be combined: restricted-v2 allows no folders of the host"
            )
        if self.openshift and self.uid_gid[0] is not None:
            raise SpecError(
                "user and openshift cannot be combined: OpenShift chooses the UID from the namespace's range"
            )
        if self.dra and self.resource != GPU_RESOURCE:
            raise SpecError("dra and resource cannot be combined: both set how GPUs are requested")
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
            "gpus: a pod requests a number of GPUs and cannot request all of a node", hint="write it like 1, or none"
        )
    if re.match(r"(GPU|MIG)-", text) or "," in text:
        raise SpecError(
            f"gpus: {text!r} names GPUs, but a pod requests a number, and the cluster chooses which",
            hint="write it like 1 or 2; the run's facts show the UUIDs that it got",
        )
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_DEVICES:
        raise SpecError(
            f"gpus: {text!r} is not a number of GPUs", hint=f"write it like 1 or none; at most {MOST_DEVICES}"
        )
    return int(text)


def _ranks_each(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_LOCAL_RANKS:
        raise SpecError(f"ranks_per_node must be a number from 1 to {MOST_LOCAL_RANKS}, got {text!r}")
    return int(text)


def _span_s(key: str, text: str) -> int:
    try:
        seconds = parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{key}: {error.message}", hint=error.hint) from error
    if not 1 <= seconds <= LONGEST_DEADLINE_S:
        raise SpecError(f"{key} must be between 1 s and 30 days, got {text!r}")
    return round(seconds)


def _node_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not _QUALIFIED.fullmatch(key) or not _VALUE.fullmatch(value):
        raise SpecError(
            f"node_selector: {text!r} is not a label", hint="write it like nvidia.com/gpu.product=NVIDIA-H200"
        )
    return key, value


def _toleration(text: str) -> dict[str, str]:
    """`key=value:Effect`, `key:Effect`, `key=value`, `key`; without a value any, without an effect all of them."""
    rest, colon, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    hint = "write it like nodetype=gpu:NoSchedule, nodetype:NoSchedule or nodetype"
    if not _QUALIFIED.fullmatch(key) or not _VALUE.fullmatch(value):
        raise SpecError(f"toleration: {text!r} is not a taint", hint=hint)
    if colon and effect not in EFFECTS:
        raise SpecError(f"toleration: {effect!r} is not an effect of a taint; effects: {', '.join(EFFECTS)}", hint=hint)
    made = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**made, "effect": effect} if colon else made


def _resource_count(key: str, text: str) -> tuple[str, int]:
    name, equals, count = text.partition("=")
    _extended_resource(key, name)
    if equals and (not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= MOST_DEVICES):
        raise SpecError(
            f"{key}: {count!r} is not a number of devices", hint="write it like rdma/hca_shared_devices_a=1"
        )
    return name, int(count) if equals else 1


def _extended_resource(key: str, name: str) -> None:
    """A resource that a device plugin offers has a domain before its name; those without are Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    if not slash or not _QUALIFIED.fullmatch(name) or domain.endswith("kubernetes.io"):
        raise SpecError(f"{key}: {name!r} is not a resource of a device plugin", hint="write it like nvidia.com/gpu")
