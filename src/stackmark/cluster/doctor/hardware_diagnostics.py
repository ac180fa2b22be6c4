"""Diagnose a node's hardware and software: the GPU on the bus, its driver, the runtime that hands it into a container.

What a pod saw counts more than a label: labels are left by programs that may have stopped. A pod sees the kernel's bus and
modules also where it was given no GPU, which is what tells a missing driver from a runtime that does not hand it in.
"""

from pydantic import JsonValue

from stackmark.cluster.doctor import advice
from stackmark.cluster.doctor.evidence import ClusterView, Facts, Look, NodeVisit, Wish
from stackmark.cluster.doctor.results import Finding, Result, failure, judged, skipped, unknown, warning
from stackmark.kubernetes.nodes import PCI_VENDORS, Node

# A driver of the kernel that takes the GPU and is of no use for computing, with what to do.
OTHER_DRIVERS = {
    "nouveau": (
        "the GPU is held by nouveau, which does not compute",
        ("$ printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
         "then build the initial ram disk anew (update-initramfs -u, or dracut --force) and reboot"),
    ),
    "vfio-pci": ("the GPU is held by vfio-pci, for virtual machines", ("unbind it, or look for GPUs in the virtual machines",)),
}  # fmt: skip
KERNEL_MODULES = {"nvidia": "nvidia", "amd": "amdgpu"}
# https://github.com/containerd/containerd/blob/main/docs/cri/config.md: CDI since 1.7, on by default since 2.0
CDI_SINCE, CDI_ON_SINCE = (1, 7), (2, 0)


def pci(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, expected: bool) -> Result:
    vendor, called = wish.vendor, wish.vendor.upper() if wish.vendor in ("nvidia", "amd") else wish.vendor
    command = (
        f"{seen.kubectl} get node {node.name} -o json | grep pci-; on the node: lspci -d {PCI_VENDORS.get(vendor, '')}:"
    )
    if vendor not in PCI_VENDORS:
        return unknown("pci", node.name, f"how {called} shows on the bus is not known here", command)
    labels = node.pci_labels(vendor)
    by_labels = f"label {labels[0]}" if labels else ""
    facts = _of_the_bus(visit)
    # Where the node cannot be read: a pod that got one was offered it.
    offered = node.capacity(wish.resource) or (
        visit.with_gpus.gpus if visit.with_gpus and visit.with_gpus.facts else None
    )
    if facts is None:
        if labels or node.labels.get(f"{vendor}.com/gpu.present") == "true":
            return judged("pci", node.name, by_labels or f"label {vendor}.com/gpu.present", command)
        if node.has_nfd:
            if expected:
                return judged("pci", node.name, "NFD labelled the node, and no GPU", command, [_nothing(called, node)])
            return skipped("pci", node.name, f"no GPU of {called} here, by NFD's labels", command)
        if not expected and not offered:
            return skipped("pci", node.name, f"nothing speaks for a GPU of {called} here", command)
        why = visit.why_not or "no pod looked at the bus"
        return unknown("pci", node.name, f"no labels of node-feature-discovery, and {why}", command)
    found = gpus_on_bus(facts, vendor)
    told = facts.get("pci", {}).get("devices")
    if found:
        drivers = ", ".join(sorted({str(gpu.get("driver") or "no driver") for gpu in found}))
        return judged("pci", node.name, f"{len(found)} of {called} on the bus ({drivers})", command)
    if driver_in(visit.with_gpus, vendor):
        finding = warning(
            "not-on-the-bus",
            "the driver works in a pod, and no PCI device of it is to be seen: an integrated or paravirtual GPU",
        )
        return judged("pci", node.name, f"none among {told} PCI devices", command, [finding])
    if offered:
        finding = warning(
            "offered-without-device",
            f"the node offers {offered} {wish.resource}, and a pod sees no device of {called} among {told} on the bus:"
            " stand-ins, or a virtual machine that was given none",
            (f"on the node: $ lspci -d {PCI_VENDORS[vendor]}:",),
        )
        return judged("pci", node.name, f"none of {called} among {told} PCI devices", command, [finding])
    if labels:
        finding = warning("stale-label", f"{by_labels} says there is one, and a pod sees none on the bus")
        return judged("pci", node.name, f"none of {called} among {told} PCI devices", command, [finding])
    if not expected:
        return skipped("pci", node.name, f"no GPU of {called} on the bus", command)
    return judged("pci", node.name, f"none of {called} among {told} PCI devices", command, [_nothing(called, node)])


def driver(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit) -> Result:
    vendor = wish.vendor
    tool = "rocm-smi" if vendor == "amd" else "nvidia-smi"
    command = f"on the node: {tool}; cat /sys/module/{KERNEL_MODULES.get(vendor, vendor)}/version"
    label = node.driver_label()
    said = driver_in(visit.with_gpus, vendor)
    if said:
        findings = []
        if label and label.count(".") and not said.startswith(label):
            findings.append(
                warning(
                    "stale-label",
                    f"the label says driver {label}, and a pod sees {said}",
                    ("restart gpu-feature-discovery on the node: its labels are old",),
                )
            )
        return judged("driver", node.name, f"driver {said}, as a pod sees it", command, findings)
    facts = _of_the_bus(visit)
    if facts is None:
        if label:
            return judged("driver", node.name, f"driver {label}, by the node's labels", command)
        return unknown("driver", node.name, f"no label tells it, and {visit.why_not or 'no pod looked'}", command)
    module = modules_in(facts).get(KERNEL_MODULES.get(vendor, vendor))
    if module:
        return judged("driver", node.name, f"kernel module {KERNEL_MODULES.get(vendor, vendor)} ({module})", command)
    held = {str(gpu.get("driver")) for gpu in gpus_on_bus(facts, vendor)} & set(OTHER_DRIVERS)
    if held:
        what, do = OTHER_DRIVERS[min(held)]
        return judged("driver", node.name, f"held by {min(held)}", command, [Finding(min(held), "failed", what, do)])
    finding = failure(
        "no-driver",
        f"no kernel module {KERNEL_MODULES.get(vendor, vendor)} is loaded, and a pod finds no driver",
        advice.driver(vendor, node.info.get("osImage", ""), seen.openshift),
    )
    loaded = ", ".join(modules_in(facts)) or "none of nvidia, nouveau, amdgpu"
    return judged("driver", node.name, f"modules: {loaded}", command, [finding])


def runtime(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, below: Result) -> Result:
    """`below` is the driver's diagnostic."""
    engine = node.info.get("containerRuntimeVersion", "")
    classes = [str(one["metadata"]["name"]) for one in seen.runtime_classes or ()]
    offered = f"; runtime classes {', '.join(classes)}" if classes else ""
    evidence = f"{engine}{_cdi(engine)}{offered}"
    command = f"{seen.kubectl} get runtimeclass; on the node: nvidia-ctk cdi list, or crictl info"
    if below.status in ("failed", "skipped"):
        return skipped("runtime", node.name, f"the driver's diagnostic {_ended(below)} ({evidence})", command)
    look = visit.with_gpus
    if look is None or look.facts is None:
        return unknown("runtime", node.name, f"{evidence}; no pod with a GPU ran there", command)
    if driver_in(look, wish.vendor):
        return judged("runtime", node.name, f"{evidence}; the driver is in the pod", command)
    nodes = device_nodes(look.facts)
    what = "a pod that was given a GPU finds neither its device node nor the driver's library"
    if nodes:
        what = f"a pod that was given a GPU has {nodes[0]}, and the driver does not answer: {_first(look)}"
    do = advice.runtime(wish.vendor, node.info.get("osImage", ""), engine, seen.openshift)
    if "nvidia" in classes and wish.runtime_class is None and wish.vendor == "nvidia":
        do = ("the cluster has the runtime class nvidia, and this pod did not name it: --runtime-class nvidia", *do)
    return judged("runtime", node.name, evidence, command, [failure("not-handed-in", what, do)])


def gpus_on_bus(facts: Facts, vendor: str) -> list[dict[str, JsonValue]]:
    found = facts.get("pci", {}).get("gpus")
    return (
        [gpu for gpu in found if isinstance(gpu, dict) and gpu.get("vendor") == vendor]
        if isinstance(found, list)
        else []
    )


def modules_in(facts: Facts) -> dict[str, JsonValue]:
    modules = facts.get("pci", {}).get("modules")
    return modules if isinstance(modules, dict) else {}


def device_nodes(facts: Facts) -> list[str]:
    """GPUs' own nodes in a pod's /dev."""
    nodes = facts.get("pci", {}).get("device_nodes")
    return [str(node) for node in nodes] if isinstance(nodes, list) else []


def driver_in(look: Look | None, vendor: str) -> str | None:
    """The version of the driver that answered in a pod with a GPU; of AMD's, that its nodes were handed in."""
    if look is None or not look.facts:
        return None
    if vendor == "amd":
        module = modules_in(look.facts).get("amdgpu")
        return str(module) if module and "/dev/kfd" in device_nodes(look.facts) else None
    version = look.facts.get("gpu", {}).get("driver")
    return str(version) if version else None


def _of_the_bus(visit: NodeVisit) -> Facts | None:
    return next((facts for facts in visit.told if "pci" in facts), None)


def _nothing(called: str, node: Node) -> Finding:
    other = "nvidia.com/gpu" if called == "AMD" else "amd.com/gpu"
    return failure(
        "no-gpu",
        f"there is no GPU of {called} in {node.name}",
        (
            f"is it another node (--node), another vendor's (--resource {other}), or are only CPUs meant (--gpus none)?",
            "in a virtual machine the GPU must be passed through by the hypervisor",
        ),
    )


def _cdi(engine: str) -> str:
    name, _, version = engine.partition("://")
    parts = version.lstrip("v").split(".")
    if name != "containerd" or len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return ""
    number = (int(parts[0]), int(parts[1]))
    return "" if number >= CDI_ON_SINCE else ", CDI off by default" if number >= CDI_SINCE else ", no CDI before 1.7"


def _first(look: Look) -> str:
    return next(
        (problem for problem in look.problems if "NVIDIA" in problem or "GPU" in problem), "no reason was given"
    )


def _ended(result: Result) -> str:
    return "failed" if result.status == "failed" else "was skipped"
