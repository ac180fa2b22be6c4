"""Reading one node's JSON: names of labels, counts of devices, whether pods may go there, and what speaks for a GPU in it.

Labels by NFD (node-feature-discovery), GFD (NVIDIA's gpu-feature-discovery, docs/gpu-feature-discovery of k8s-device-plugin) and
AMD's labeller; each may be missing, since each is a program that somebody has to install.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.matching import keeping_away, say_taint
from stackmark.kubernetes.shortage import holders_among

PCI_VENDORS = {"nvidia": "10de", "amd": "1002"}
NFD = "feature.node.kubernetes.io/"


@dataclass(frozen=True)
class Node:
    data: Json

    @property
    def name(self) -> str:
        return str(self.data["metadata"]["name"])

    @property
    def known(self) -> bool:
        """Whether its record could be read; else it is a name that somebody typed."""
        return "status" in self.data

    @cached_property
    def labels(self) -> Mapping[str, str]:
        return {key: str(value) for key, value in (self.data["metadata"].get("labels") or {}).items()}

    @cached_property
    def info(self) -> Mapping[str, str]:
        return {key: str(value) for key, value in (self._status.get("nodeInfo") or {}).items()}

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
        """None where no device plugin has ever registered it."""
        return _count((self._status.get("capacity") or {}).get(resource))

    def allocatable(self, resource: str) -> int:
        return _count((self._status.get("allocatable") or {}).get(resource)) or 0

    def others(self, resource: str) -> dict[str, int]:
        """Devices of the same domain under other names: MIG slices, shared GPUs."""
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
        """`pci-10de.present`, or by class and vendor `pci-0302_10de.present`: NFD has it both ways, by its configuration."""
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
        """Whether anything on the node's own record speaks for a GPU."""
        return bool(
            self.pci_labels(vendor)
            or self.capacity(resource)
            or self.others(resource)
            or self.labels.get(f"{vendor}.com/gpu.present") == "true"
            or self.number(f"{vendor}.com/gpu.count")
        )

    def driver_label(self) -> str | None:
        """As GFD writes it today, or as it did before."""
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
    """Who holds devices of a node, most first: `namespace/pod` and how many."""
    return [(f"{one.namespace}/{one.pod}", int(one.count)) for one in holders_among(pods, resource, node)]


def untolerated(taints: Sequence[Mapping[str, str]], tolerations: Sequence[Mapping[str, str]]) -> list[str]:
    """Taints that keep our pods away, as `key=value:Effect`."""
    return [say_taint(taint) for taint in keeping_away(map(dict, taints), [dict(one) for one in tolerations])]
