"""Delete the device plugin's pod whenever its DaemonSet creates it again: the least privileged way to stop it.

Nothing has to be healed: the DaemonSet does it by itself the moment nobody deletes any more, also when this program was killed.
"""

import threading
import time

from stackmark.cluster.faults.means import Plan, Setting, Target
from stackmark.cluster.faults.record import FaultTimes
from stackmark.errors import ClusterError, SpecError
from stackmark.kubernetes.client import Json, Unreachable
from stackmark.kubernetes.rights import Right

# Labels that the vendors' manifests and charts give their plugins' pods.
SELECTORS = (
    "app=nvidia-device-plugin-daemonset",
    "app.kubernetes.io/name=nvidia-device-plugin",
    "name=nvidia-device-plugin-ds",
    "k8s-app=nvidia-gpu-device-plugin",
    "app=nvidia-device-plugin",
    "name=amdgpu-dp-ds",
    "app.kubernetes.io/name=amd-gpu-device-plugin",
    "app=intel-gpu-plugin",
)
IMAGES = ("k8s-device-plugin", "nvidia-gpu-device-plugin", "intel-gpu-plugin", "rocm/k8s-device-plugin")
LOOK_S = 1.0


class PluginPod:
    name = "plugin-pod"
    lead_s = 2.0

    def __init__(self, setting: Setting) -> None:
        self._cluster, self._selector = setting.cluster, setting.plugin_selector

    def plan(self, target: Target) -> Plan:
        if target.part != "device-plugin":
            raise SpecError(
                f"--means plugin-pod deletes the device plugin's pod and cannot stop the {target.part}",
                hint="leave out --means, or use --means helper",
            )
        found = self._pods(target.node)
        if not found:
            raise ClusterError(
                f"no pod of a device plugin was found on {target.node}",
                hint="set its label: --plugin-selector app=my-device-plugin; a plugin that is not a pod needs --means helper "
                "with --stop-command and --start-command",
                command=f"kubectl get pods -A --field-selector spec.nodeName={target.node}",
            )
        orphans = [name_of(pod) for pod in found if not _comes_back(pod)]
        if orphans:
            raise ClusterError(
                f"{orphans[0]} belongs to no DaemonSet: nothing would start it again",
                hint="use a plugin that a DaemonSet runs, or --means helper with commands",
            )
        spaces = sorted({pod["metadata"]["namespace"] for pod in found})
        return Plan(
            does=(
                f"deletes {', '.join(name_of(pod) for pod in found)} on {target.node}, and again whenever it is back, "
                f"for {target.seconds:g} s",
            ),
            heals=("its DaemonSet starts it again as soon as it is no longer deleted",),
            rights=(
                Right("list", "", "pods", namespace=None),
                *(Right("delete", "", "pods", namespace=space) for space in spaces),
            ),
        )

    def hurt(self, target: Target, heal: threading.Event) -> FaultTimes:
        began, deleted = time.time(), []
        deadline = time.monotonic() + target.seconds
        while True:
            try:
                for pod in self._pods(target.node):
                    if "deletionTimestamp" not in pod["metadata"]:
                        meta = pod["metadata"]
                        self._cluster.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", grace_s=0)
                        deleted.append(name_of(pod))
            except Unreachable:
                pass  # it is not the API server that was to be hurt; the next look will tell
            if heal.wait(min(LOOK_S, max(0.0, deadline - time.monotonic()))) or time.monotonic() >= deadline:
                break
        return FaultTimes(
            begun_unix_s=began, over_unix_s=time.time(), said=(f"deleted: {', '.join(deleted) or 'none'}",)
        )

    def _pods(self, node: str) -> list[Json]:
        on_node = f"spec.nodeName={node}"
        found = self._cluster.items("/api/v1/pods", labelSelector=self._selector, fieldSelector=on_node)
        return [pod for pod in found if self._selector or _is_plugin(pod)]


def name_of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _is_plugin(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    by_label = any(labels.get(key) == value for key, _, value in (text.partition("=") for text in SELECTORS))
    images = [str(one.get("image")) for one in (pod.get("spec") or {}).get("containers") or ()]
    return by_label or any(name in image for image in images for name in IMAGES)


def _comes_back(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") in ("DaemonSet", "ReplicaSet", "StatefulSet") for owner in owners)
