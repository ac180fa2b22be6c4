"""The means of stopping this cluster's parts: the one thing about a fault that differs from cluster to cluster.

A means says beforehand what it would do, with which rights, and what heals it; then it does it, and comes back when it is over.
Whatever it starts must end by itself, also when this program is killed in the middle. Ours (plugin_pod.py,
helper.py, script.py) and those of other packages are announced in the group `stackmark.cluster_means` (extensions.py), each a
class that is made from a `Setting`.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stackmark.cluster.faults.record import FaultTimes, Part
from stackmark.errors import SpecError, nearest_names
from stackmark.extensions import extensions
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.rights import Right

GROUP = "stackmark.cluster_means"
# By this variable a test cluster's means is named once for all commands.
VARIABLE = "STACKMARK_CLUSTER_MEANS"


@dataclass(frozen=True)
class Plan:
    """What would be done, one sentence each; what undoes it; and what that needs."""

    does: tuple[str, ...]
    heals: tuple[str, ...]
    rights: tuple[Right, ...] = ()
    # What a person should know before they say yes.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The target of a fault. `node` is where the part is; `mark` is in the name of every object created for it."""

    part: Part
    node: str
    seconds: float
    mark: str


@dataclass(frozen=True)
class Setting:
    """The settings of a means. `how` is what follows its name: `script:PATH`."""

    cluster: Cluster
    part: Part
    namespace: str
    image: str
    how: str = ""
    plugin_selector: str | None = None
    stop_command: str | None = None
    start_command: str | None = None
    distribution: str | None = None
    # The worker's container, from which a helper takes image, mounts and account; and the nodes as the API shows them.
    worker: Json = field(default_factory=dict)
    volumes: tuple[Json, ...] = ()
    nodes: tuple[Json, ...] = ()


class Means(Protocol):
    name: str
    # How long it takes from being told until the part is gone, at most: the workload trains that much longer.
    lead_s: float

    def plan(self, target: Target) -> Plan:
        """Plan the fault without changing anything. Raises SpecError or ClusterError where it cannot be done here."""

    def hurt(self, target: Target, heal: threading.Event) -> FaultTimes:
        """Stop the part, wait, start it again. Once `heal` is set it does so as soon as possible."""


def choose(text: str | None, part: Part) -> tuple[str, str]:
    """Choose the means' name and argument. By default the plugin's pod is deleted; all else takes a helper on the node."""
    if text is None:
        return ("plugin-pod" if part == "device-plugin" else "helper"), ""
    name, _, how = text.partition(":")
    makers = extensions(GROUP, type)
    if name not in makers.found:
        makers.require(name)
        known = list(makers.found)
        raise SpecError(
            f"unknown means {name!r}{nearest_names(name, known)}", hint=f"means: {', '.join(known)}; script:PATH"
        )
    return name, how


def make(text: str | None, setting: Setting) -> Means:
    name, how = choose(text, setting.part)
    made: Means = extensions(GROUP, type).found[name](replace(setting, how=how))
    return made


# --- What the parts are called on a node, by distribution: commands as data, which options may replace
#
# Starting must be harmless where the part runs already: it is ordered twice, by the helper and by its second guard.


CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
# Where a static pod's manifest waits while it is aside: on the same file system as /var/lib, and watched by no kubelet.
ASIDE = "/var/lib/stackmark-aside"
# All traffic but the node's own: IPv4 and, where the machine has it, IPv6; connections that are open die too.
_RULES = (("INPUT", "! -i lo"), ("OUTPUT", "! -o lo"), ("FORWARD", ""))
_MARK = "-m comment --comment stackmark-fault -j DROP"


@dataclass(frozen=True)
class Commands:
    stop: str
    start: str


@dataclass(frozen=True)
class Distribution:
    """Units of systemd on a worker node and on a server, and the path of the API server's manifest, if it is a static pod."""

    kubelet: str
    kubelet_on_server: str
    runtime: str | None
    manifest: str | None


DISTRIBUTIONS = {
    "kubeadm": Distribution("kubelet", "kubelet", None, "/etc/kubernetes/manifests/kube-apiserver.yaml"),
    "openshift": Distribution("kubelet", "kubelet", "crio", "/etc/kubernetes/manifests/kube-apiserver-pod.yaml"),
    # One process is kubelet, runtime's parent and, on a server, the API server.
    "k3s": Distribution("k3s-agent", "k3s", None, None),
    "rke2": Distribution(
        "rke2-agent", "rke2-server", None, "/var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml"
    ),
    "microk8s": Distribution(
        "snap.microk8s.daemon-kubelite",
        "snap.microk8s.daemon-kubelite",
        "snap.microk8s.daemon-containerd",
        None,
    ),
}


def distribution_of(node: Json, named: str | None) -> str:
    """Return the distribution by the kubelet's version and the node's labels; most others share kubeadm's names."""
    if named is not None:
        if named not in DISTRIBUTIONS:
            known = list(DISTRIBUTIONS)
            raise SpecError(
                f"unknown distribution {named!r}{nearest_names(named, known)}", hint=f"known: {', '.join(known)}"
            )
        return named
    version = str(_info(node).get("kubeletVersion", ""))
    labels = (node.get("metadata") or {}).get("labels") or {}
    for name in ("k3s", "rke2"):
        if f"+{name}" in version:
            return name
    if "node.openshift.io/os_id" in labels:
        return "openshift"
    return "microk8s" if any(key.startswith("microk8s.io/") for key in labels) else "kubeadm"


def commands_for(part: Part, node: Json, named: str | None = None) -> Commands:
    kind = distribution_of(node, named)
    units = DISTRIBUTIONS[kind]
    server = is_control_plane(node)
    kubelet = units.kubelet_on_server if server else units.kubelet
    if part == "kubelet":
        return _unit(kubelet)
    if part == "runtime":
        return _unit(units.runtime or (kubelet if kind in ("k3s", "rke2") else _runtime_of(node)))
    if part == "node-network":
        return _cut_off()
    if part == "api-server":
        return _moved(units.manifest) if units.manifest else _unit(units.kubelet_on_server)
    raise SpecError(
        f"stackmark does not know how to stop the {part} on this node",
        hint="set --stop-command and --start-command; --means plugin-pod deletes the device plugin's pod",
    )


def is_control_plane(node: Json) -> bool:
    labels = (node.get("metadata") or {}).get("labels") or {}
    return any(label in labels for label in CONTROL_PLANE_LABELS)


def control_planes(nodes: Sequence[Json]) -> list[str]:
    return [str(node["metadata"]["name"]) for node in nodes if is_control_plane(node)]


def _runtime_of(node: Json) -> str:
    """`containerd://1.7.2`, `cri-o://1.30.1`, `docker://…`"""
    name = str(_info(node).get("containerRuntimeVersion", "")).partition("://")[0]
    return {"cri-o": "crio", "docker": "docker"}.get(name, name or "containerd")


def _info(node: Json) -> Json:
    found: Json = (node.get("status") or {}).get("nodeInfo") or {}
    return found


def _unit(name: str) -> Commands:
    return Commands(f"systemctl stop {name}", f"systemctl start {name}")


def _moved(manifest: str) -> Commands:
    name = manifest.rpartition("/")[2]
    return Commands(
        f"mkdir -p {ASIDE} && mv -f {manifest} {ASIDE}/{name}",
        f"if [ -e {ASIDE}/{name} ]; then mv -f {ASIDE}/{name} {manifest}; fi",
    )


def _cut_off() -> Commands:
    stop, start = [], []
    for program in ("iptables", "ip6tables"):
        have = f"command -v {program} >/dev/null 2>&1"
        drop = " && ".join(f"{program} -w -I {chain} 1 {but} {_MARK}" for chain, but in _RULES)
        back = "; ".join(
            f"while {program} -w -D {chain} {but} {_MARK} 2>/dev/null; do :; done" for chain, but in _RULES
        )
        # A kernel without IPv6 refuses the second, which is then no failure.
        stop.append(
            f"{{ {have} && {drop}; }}" if program == "iptables" else f"{{ {have} && {drop} 2>/dev/null || true; }}"
        )
        start.append(f"if {have}; then {back}; fi")
    return Commands(" && ".join(stop), "; ".join(start))
