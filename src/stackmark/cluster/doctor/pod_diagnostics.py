"""Diagnose pods: a pod that the scheduler placed sees exactly the GPUs that it was assigned, and they compute correctly.

What was given out is known by the pod's own status where the kubelet tells it (KEP-4680), by the variable that NVIDIA's device
plugin sets (`NVIDIA_VISIBLE_DEVICES`, its default strategy), or by the number alone; what is seen is what the driver shows in
the pod. More than was given is a failure and no remark: a workload takes the first it sees, which may be somebody else's.
"""

import re

from pydantic import JsonValue

from stackmark.cluster.doctor.device_diagnostics import device_nodes, driver_in, free, say_holders
from stackmark.cluster.doctor.evidence import ClusterView, Facts, Look, NodeVisit, Wish
from stackmark.cluster.doctor.results import Finding, Result, failure, judged, skipped, taking, unknown, warning
from stackmark.kubernetes.nodes import Node

# What a runtime gives a container that has no volume there.
SMALL_SHM_MIB = 64
_ID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/._-]+")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Failures of a vector add that say something of the image, and nothing of the GPU.
OF_THE_IMAGE = ("missing_package",)


def pod(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit) -> Result:
    command = (
        f"stackmark manifest check/vector-add --image IMAGE --node {node.name} --gpus {wish.gpus or 'none'}"
        f" | {seen.kubectl} -n {seen.namespace} create -f -"
    )
    look = visit.with_gpus if wish.gpus else visit.plain
    if look is None and visit.plain is not None and visit.plain.trouble:
        look = visit.plain  # none with GPUs was sent, and not even one without could run
    if look is None:
        return judged("pod", node.name, visit.why_not or "no pod was sent", command, _of_pods(visit), well="skipped")
    if look.facts is None:
        finding = Finding(look.kind or "no-pod", "failed", look.trouble, (look.hint,) if look.hint else ())
        return taking(judged("pod", node.name, "no pod ran there", command, [finding]), look.seconds)
    about = _of_pods(visit)
    if not wish.gpus:
        return taking(judged("pod", node.name, "a pod ran there; no GPU was requested", command, about), look.seconds)
    ids = given(look)
    shown = shown_gpus(look.facts, wish.vendor)
    if driver_in(look, wish.vendor) is None:
        result = _by_variable(node, wish, ids, command, about)
    else:
        findings = [*_differences(wish, ids, shown), *about]
        names = ", ".join(shown[:4]) + (" …" if len(shown) > 4 else "")
        result = judged("pod", node.name, f"requested {wish.gpus}, sees {len(shown)}: {names}", command, findings)
    return taking(result, look.seconds)


def vector_add(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, below: Result) -> Result:
    """Diagnose the vector add. `below` is the pod's diagnostic."""
    device = "cuda:0" if wish.gpus else "cpu"
    command = f"stackmark run check/vector-add --on pod --node {node.name} --device {device} --runs 1"
    addition = visit.addition
    if addition is None:
        return skipped("vector-add", node.name, _why_not_added(wish, visit, below), command)
    if addition.kind in OF_THE_IMAGE:
        said = f"{addition.trouble}: the image cannot run it; use one with PyTorch: stackmark image"
        return taking(unknown("vector-add", node.name, said, command), addition.seconds)
    if addition.trouble:
        finding = Finding(
            addition.kind or "failed", "failed", addition.trouble, (addition.hint,) if addition.hint else ()
        )
        return taking(judged("vector-add", node.name, "some sums are wrong", command, [finding]), addition.seconds)
    where = f" on {addition.devices} devices" if addition.devices > 1 else ""
    evidence = f"{addition.checked:,} sums{where} equal the host's; {addition.figure}"
    return taking(judged("vector-add", node.name, evidence, command), addition.seconds)


def _why_not_added(wish: Wish, visit: NodeVisit, below: Result) -> str:
    if below.status in ("failed", "skipped"):
        return "the pod's diagnostic failed" if below.status == "failed" else below.evidence
    if wish.gpus and driver_in(visit.with_gpus, wish.vendor) is None:
        return "no driver answers in the pod"
    return visit.why_not or "it was not run"


def why_no_pod(node: Node, seen: ClusterView, wish: Wish) -> str | None:
    """Return why a pod with GPUs need not be sent, or None: one that would wait for ever shows nothing."""
    if not wish.gpus or not node.known:
        return None
    if not wish.dra and not node.capacity(wish.resource):
        return f"the node offers no {wish.resource}"
    can = node.allocatable(wish.resource)
    if not wish.dra and can < wish.gpus:
        return f"{can} {wish.resource} are allocatable, but {wish.gpus} are requested"
    left = free(node, seen, wish)
    if left is not None and left < wish.gpus:
        return f"{max(0, left)} of {can} are free; the others are used by {say_holders(seen, node.name, wish.resource)}"
    return None


def given(look: Look) -> tuple[str, ...] | None:
    """Return the ids that the pod was assigned, or None where only their number is known (CDI does not name them)."""
    if look.allocated is not None:
        return tuple(one.partition("::")[0] for one in look.allocated)
    listed = (look.facts or {}).get("environment", {}).get("NVIDIA_VISIBLE_DEVICES")
    ids = [one.strip().partition("::")[0] for one in str(listed or "").split(",")]
    return tuple(ids) if ids and all(_ID.fullmatch(one) for one in ids) else None


def shown_gpus(facts: Facts, vendor: str) -> list[str]:
    """Return UUIDs as the driver shows them, a slice as one. AMD's cards are in /sys for every pod: what counts is /dev."""
    if vendor == "amd":
        return [node for node in device_nodes(facts) if "renderD" in node]
    listed = facts.get("gpu", {}).get("devices")
    records: list[dict[str, JsonValue]] = (
        [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    )
    return [_name(record) for record in records]


def _name(record: dict[str, JsonValue]) -> str:
    part = record.get("mig_device")
    if isinstance(part, dict) and part.get("uuid"):
        return str(part["uuid"])
    return str(record.get("uuid") or record.get("index"))


def _differences(wish: Wish, ids: tuple[str, ...] | None, shown: list[str]) -> list[Finding]:
    if len(shown) < wish.gpus:
        return [
            failure(
                "fewer-seen",
                f"the pod was assigned {wish.gpus} GPUs, but the driver shows {len(shown)}",
                ("the logs of the device plugin and the runtime show which is missing",),
            )
        ]
    beyond = sorted(set(shown) - set(ids)) if ids and _are_uuids(ids) else []
    if len(shown) > wish.gpus or beyond:
        seen = f"; not assigned to it: {', '.join(beyond[:4])}" if beyond else ""
        return [
            failure(
                "more-seen",
                f"the pod was assigned {wish.gpus} GPUs, but sees {len(shown)}{seen}",
                (
                    "the image or the pod sets NVIDIA_VISIBLE_DEVICES=all, or is privileged; otherwise let the device plugin pass"
                    " devices in by itself: --set deviceListStrategy=volume-mounts, or cdi-cri",
                ),
            )
        ]
    return []


def _are_uuids(ids: tuple[str, ...]) -> bool:
    """Whether they are what the driver calls them. A plugin may have names of its own, and a MIG slice has its GPU's UUID too."""
    return all(_UUID.fullmatch(one) for one in ids)


def _by_variable(node: Node, wish: Wish, ids: tuple[str, ...] | None, command: str, about: list[Finding]) -> Result:
    """Without a driver in the pod only what the device plugin wrote into its environment can be counted."""
    if ids is None:
        evidence = "no driver in the pod, and nothing shows which GPUs it was assigned"
        return judged("pod", node.name, evidence, command, about, well="unknown")
    named = f"NVIDIA_VISIBLE_DEVICES={','.join(ids[:4])}{' …' if len(ids) > 4 else ''}"
    if len(ids) != wish.gpus:
        finding = failure("wrong-count", f"the pod requested {wish.gpus} GPUs, but was assigned {len(ids)}: {named}")
        return judged("pod", node.name, named, command, [finding, *about])
    evidence = f"assigned {len(ids)} of {wish.gpus} requested ({named}); no driver in the pod confirms it"
    return judged("pod", node.name, evidence, command, about, well="unknown")


def _of_pods(visit: NodeVisit) -> list[Finding]:
    """What a pod must know of the node that it is on, as one that asked for nothing saw it."""
    if visit.plain is None or not visit.plain.facts:
        return []
    findings = []
    shm = visit.plain.facts.get("limits", {}).get("shm_mib")
    if isinstance(shm, int | float) and shm <= SMALL_SHM_MIB:
        what = f"a plain pod has {shm:g} MiB of shared memory: data loaders and NCCL fail with so little"
        shm_advice = (
            "ours have a volume at /dev/shm; give every training pod one: emptyDir {medium: Memory, sizeLimit: 8Gi}"
        )
        findings.append(warning("small-shm", what, (shm_advice,), "in a pod: df -h /dev/shm"))
    uninvited = device_nodes(visit.plain.facts)
    if uninvited:
        what = f"a pod that requested no GPU sees {', '.join(uninvited[:4])}: any pod can use another pod's GPU"
        do = (
            "let the device plugin pass devices in by itself: --set deviceListStrategy=volume-mounts, or cdi-cri",
            "and forbid the variable: $ sudo nvidia-ctk config --in-place --set"
            " accept-nvidia-visible-devices-envvar-when-unprivileged=false",
        )
        findings.append(warning("seen-without-asking", what, do, "in a pod without a GPU: ls /dev/nvidia* /dev/dri"))
    return findings
