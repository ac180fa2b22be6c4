"""The request for a pod: plain data, of which the manifest is a pure function.

Whoever wants a pod translates its own options into this (places/pod/request.py does); nothing here knows of command lines,
workloads or the driver's machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.queues import QueueKind

# The pod's own folder to work in, new for each pod.
WORK_FOLDER = "/tmp"  # noqa: S108 - the pod's own
# How the names of volumes begin that were asked for by --mount.
MOUNT_VOLUME = "mount-"
# What Pod Security `restricted` forbids of them; claims are allowed.
FORBIDDEN_VOLUMES = {"hostPath": "a folder of the node (hostPath)", "nfs": "an NFS volume"}
# A volume and its mount in the worker's container.
VolumeMount = tuple[Json, Json]


@dataclass(frozen=True)
class MountedFiles:
    """Files that the worker's container reads from a ConfigMap, which is mounted as a folder."""

    folder: str
    # The ConfigMap's name; several pods may share one.
    name: str
    content: Mapping[str, bytes] = field(repr=False)


# Where the ranks of a group on several nodes find each other, in the first pod; torchrun's own choice.
MASTER_PORT = 29500


@dataclass(frozen=True)
class PodGroup:
    """Pods that make one run together, each on a node of its own."""

    pods: int
    ranks_each: int


@dataclass(frozen=True)
class PodRequest:
    """Everything that a pod is made from."""

    mark: str
    kind: names.Kind
    # Empty where whoever applies the manifest decides.
    namespace: str
    image: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Variables whose values come from a Secret of the namespace.
    secret_env: tuple[str, ...] = ()
    folder: str = WORK_FOLDER
    # None where the image or the cluster decides.
    uid: int | None = None
    gid: int | None = None
    # Whether folders of the node are mounted (`host_folders`), which the pod then must be able to read.
    host_software: bool = False
    host_folders: tuple[VolumeMount, ...] = ()
    selinux_type: str | None = None
    volumes: tuple[VolumeMount, ...] = ()
    # What the pod brings into an image that has nothing of ours.
    files: MountedFiles | None = None
    sidecars: tuple[Json, ...] = ()
    # Resources
    cpus: Fraction | None = None
    memory_bytes: int | None = None
    shm_bytes: int = 64 * 2**20
    gpus: int = 0
    resource: str = "nvidia.com/gpu"
    # GPUs by a claim for this device class (DRA), which the cluster serves under this version of its API.
    device_class: str | None = None
    claim_version: str = "v1"
    rdma: tuple[str, int] | None = None
    # Placement. A node is pinned by affinity, so that the scheduler still counts what the node has left.
    node: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tolerations: tuple[Mapping[str, str], ...] = ()
    queue: str | None = None
    queue_kind: QueueKind = "kueue"
    runtime_class: str | None = None
    service_account: str | None = None
    priority_class: str | None = None
    pull: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    host_network: bool = False
    networks: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    deadline_s: int = 3600
    # One pod of a run on several nodes is described; the Job makes all of them.
    group: PodGroup | None = None
    # Whether a driver waits for it: a manifest that is printed belongs to nobody.
    driven: bool = True
    # Merged into the object that is made (patch.py).
    patch: Json | None = None

    @property
    def kueue(self) -> str | None:
        """Return the queue of Kueue that the Job waits in."""
        return self.queue if self.queue_kind == "kueue" else None

    @property
    def volcano(self) -> str | None:
        """Return the queue of Volcano that the pods wait in."""
        return self.queue if self.queue_kind == "volcano" else None

    @property
    def by_claim(self) -> bool:
        return bool(self.device_class and self.gpus)


def forbidden_by_restricted(request: PodRequest) -> list[str]:
    """List what Pod Security `restricted`, and OpenShift's `restricted-v2`, will refuse, a sentence each."""
    said = []
    if request.host_software:
        said.append("the host's own software is mounted from the node (hostPath), which `restricted` forbids")
    for volume, mount in request.volumes:
        said += [
            f"{what} is mounted at {mount['mountPath']}, which `restricted` forbids: use a claim (--mount claim:NAME:DST)"
            for kind, what in FORBIDDEN_VOLUMES.items()
            if kind in volume
        ]
    if request.host_network:
        said.append("`restricted` forbids the node's network (hostNetwork)")
    added = [name.upper() for name in request.capabilities if name.upper() != "NET_BIND_SERVICE"]
    if added:
        said.append(f"more capabilities than `restricted` allows: {', '.join(added)}")
    if request.uid == 0:
        said.append("it runs as root (UID 0), which `restricted` forbids")
    return said
