"""Read nodes: one node's JSON, which nodes there are, and which of them is this machine.

Labels by NFD (node-feature-discovery), GFD (NVIDIA's gpu-feature-discovery, docs/gpu-feature-discovery of k8s-device-plugin) and
AMD's labeller; each may be missing, since each is a program that somebody has to install.

A pod is compared with the bare host only where the driver runs on a node of the cluster. The kernel's boot id says it: it is the
same on the host and in all its containers, and no two machines share one. The node's own `machineID` is kept as the machine's
name in the ledger, derived as the host's is, so that runs of a pod and of the host on one machine are known as such.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from stackmark.errors import ClusterError, PlaceError
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.objects import keeping_away, say_taint
from stackmark.kubernetes.why import holders_among
from stackmark.machine import host as machine

PCI_VENDORS = {"nvidia": "10de", "amd": "1002"}
NFD = "feature.node.kubernetes.io/"
WHAT_WORKS = (
    "run stackmark on a node of the cluster; from elsewhere, only pods can be compared: "
    "--arm pod --arm pod,KEY=VALUE, which run on one node"
)


@dataclass(frozen=True)
class Node:
    data: Json

    @property
    def name(self) -> str:
        return str(self.data["metadata"]["name"])

    @property
    def known(self) -> bool:
        """Return whether its record could be read; else it is only a typed name."""
        return "status" in self.data

    @cached_property
    def labels(self) -> Mapping[str, str]:
        return {key: str(value) for key, value in (self.data["metadata"].get("labels") or {}).items()}

    @cached_property
    def info(self) -> Mapping[str, str]:
        return {key: str(value) for key, value in (self._status.get("nodeInfo") or {}).items()}

    @property
    def boot_id(self) -> str | None:
        return self.info.get("bootID") or None

    @property
    def is_this_machine(self) -> bool:
        return self.boot_id is not None and self.boot_id == machine.boot_id()

    @property
    def machine_id(self) -> str | None:
        """Return this machine's name in a ledger."""
        try:
            key = bytes.fromhex(self.info.get("machineID", "").replace("-", ""))
        except ValueError:
            return None
        return machine.app_specific_id(key, machine.APPLICATION_ID) if len(key) == 16 else None

    @property
    def runtime(self) -> str | None:
        """Return the container runtime and its version: `containerd://1.6.20`."""
        return self.info.get("containerRuntimeVersion") or None

    @property
    def images(self) -> list[tuple[str, int]]:
        """Name and size of each image that it has, as it says itself: at most the 50 largest."""
        return [
            (str(name), int(image.get("sizeBytes") or 0))
            for image in self._status.get("images") or ()
            for name in image.get("names") or ()
        ]

    @property
    def _status(self) -> Json:
        status: Json = self.data.get("status") or {}
        return status

    @property
    def conditions(self) -> list[Json]:
        return list(self._status.get("conditions") or ())

    @property
    def cordoned(self) -> bool:
        return bool((self.data.get("spec") or {}).get("unschedulable"))

    @property
    def taints(self) -> list[Mapping[str, str]]:
        return list((self.data.get("spec") or {}).get("taints") or ())

    @property
    def ready(self) -> bool:
        return any(one.get("type") == "Ready" and one.get("status") == "True" for one in self.conditions)

    def capacity(self, resource: str) -> int | None:
        """Return the capacity; None where no device plugin has ever registered it."""
        return _count((self._status.get("capacity") or {}).get(resource))

    def offers(self, resource: str) -> int | None:
        """Return how many devices are allocatable now; None where the node has never offered such a device."""
        return _count((self._status.get("allocatable") or {}).get(resource))

    def allocatable(self, resource: str) -> int:
        return self.offers(resource) or 0

    def free(self, resource: str, pods: Sequence[Json]) -> int:
        """Count the devices that none of these pods holds."""
        return self.allocatable(resource) - int(sum(one.count for one in holders_among(pods, resource, self.name)))

    def others(self, resource: str) -> dict[str, int]:
        """Return devices of the same domain under other names: MIG slices, shared GPUs."""
        domain = resource.partition("/")[0]
        return {
            name: count
            for name, value in (self._status.get("capacity") or {}).items()
            if name.startswith(f"{domain}/") and name != resource and (count := _count(value))
        }

    def lacks(self, wanted: Mapping[str, str]) -> list[str]:
        return [f"{key}={value}" for key, value in wanted.items() if self.labels.get(key) != value]

    def number(self, label: str) -> int | None:
        return _count(self.labels.get(label))

    def pci_labels(self, vendor: str) -> list[str]:
        """Return labels like `pci-10de.present`, or by class and vendor `pci-0302_10de.present`, as NFD is configured."""
        known = PCI_VENDORS.get(vendor)
        found = [
            key.removeprefix(NFD)
            for key, value in self.labels.items()
            if known and key.startswith(f"{NFD}pci-") and key.endswith(".present") and f"{known}." in key
            and value == "true"
        ]  # fmt: skip
        if vendor == "amd" and self.labels.get(f"{NFD}amd-gpu") == "true":
            found.append("amd-gpu")
        return found

    @property
    def has_nfd(self) -> bool:
        return any(key.startswith(NFD) for key in self.labels)

    def says_gpu(self, vendor: str, resource: str) -> bool:
        """Return whether the node's record indicates a GPU."""
        return bool(
            self.pci_labels(vendor)
            or self.capacity(resource)
            or self.others(resource)
            or self.labels.get(f"{vendor}.com/gpu.present") == "true"
            or self.number(f"{vendor}.com/gpu.count")
        )

    def driver_label(self) -> str | None:
        """Return the driver's label as GFD writes it today, or as it did before."""
        full = self.labels.get("nvidia.com/cuda.driver-version.full")
        if full:
            return full
        parts = [self.labels.get(f"nvidia.com/cuda.driver.{part}") for part in ("major", "minor", "rev")]
        return ".".join(part for part in parts if part) or self.labels.get("amd.com/gpu.driver-version")


def _count(value: object) -> int | None:
    """Devices are counted in whole numbers; the API server writes large ones with a suffix (`1k`)."""
    text = str(value) if value is not None else ""
    if text.endswith("k") and text[:-1].isdecimal():
        return int(text[:-1]) * 1000
    return int(text) if text.isdecimal() else None


def holders(pods: Sequence[Json], node: str, resource: str) -> list[tuple[str, int]]:
    """Return which pods hold devices of a node, most first: `namespace/pod` and how many."""
    return [(f"{one.namespace}/{one.pod}", int(one.count)) for one in holders_among(pods, resource, node)]


def untolerated(taints: Sequence[Mapping[str, str]], tolerations: Sequence[Mapping[str, str]]) -> list[str]:
    """Return taints that repel our pods, as `key=value:Effect`."""
    return [say_taint(taint) for taint in keeping_away(map(dict, taints), [dict(one) for one in tolerations])]


# Asking the cluster


def find_node(cluster: Cluster, name: str) -> Node | None:
    """Return the node of that name, or None where it does not exist or you may not look."""
    try:
        return Node(cluster.get(f"/api/v1/nodes/{name}"))
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def runtime_of(cluster: Cluster, name: str | None) -> str | None:
    """Name the node's container runtime and its version; None where that cannot be read."""
    with suppress(ClusterError):
        node = find_node(cluster, name) if name else None
        return node.runtime if node else None
    return None


def is_missing(cluster: Cluster, name: str) -> bool:
    """Return whether the cluster says that it has no such node. Without the right to look, the scheduler will tell."""
    try:
        cluster.get(f"/api/v1/nodes/{name}")
    except ApiError as error:
        if error.status == 404:
            return True
        if error.status != 403:
            raise
    return False


def nodes_here(cluster: Cluster) -> list[Node]:
    """Return the nodes that are this machine: none or one, and more where a test cluster runs several on one."""
    try:
        found = [Node(data) for data in cluster.items("/api/v1/nodes")]
    except ApiError as error:
        if error.status == 403:
            return []
        raise
    return [node for node in found if node.is_this_machine]


def this_node(cluster: Cluster, wanted: str | None, why: str) -> Node:
    """Return the node that this machine is; refuse where it is not a node. `why` says what it is needed for."""
    here = nodes_here(cluster)
    if wanted is not None:
        node = find_node(cluster, wanted)
        if node is None:
            raise PlaceError(
                f"the cluster has no node {wanted!r}, or you may not see it",
                command=f"kubectl --context {cluster.context} get nodes",
            )
        if not node.is_this_machine:
            raise PlaceError(f"{why}, but the node {wanted} is not this machine", hint=WHAT_WORKS)
        return node
    if not here:
        raise PlaceError(f"{why}, but this machine is not a node of the cluster {cluster.server}", hint=WHAT_WORKS)
    return here[0]


def smallest_image(node: Node) -> str | None:
    """Return an image to mount the host's folders into: one that is already there. The sandbox's own is nearly empty."""
    named = [(size, name) for name, size in node.images if "@" not in name and "<none>" not in name]
    pause = [pair for pair in named if "pause" in pair[1].rpartition("/")[2]]
    return min(pause or named)[1] if named else None
