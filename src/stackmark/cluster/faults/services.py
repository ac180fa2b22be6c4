"""What the parts are called on a node, by distribution: commands as data, which options may replace.

Starting must be harmless where the part runs already: it is ordered twice, by the helper and by its second guard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.cluster.faults.record import Part
from stackmark.errors import SpecError, nearest_names
from stackmark.kubernetes.client import Json

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
    """Units of systemd on a worker node and on a server, and where the API server's manifest lies, if it is a static pod."""

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
    """By the kubelet's version and the node's labels; kubeadm's names are those that most others share."""
    if named is not None:
        if named not in DISTRIBUTIONS:
            known = list(DISTRIBUTIONS)
            raise SpecError(
                f"there is no distribution {named!r}{nearest_names(named, known)}", hint=f"known: {', '.join(known)}"
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
        f"what stops the {part} on a node is not known",
        hint="say it: --stop-command and --start-command; the device plugin's pod is deleted by --means plugin-pod",
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
