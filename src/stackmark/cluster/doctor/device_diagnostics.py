"""Diagnose Kubernetes' own view of a GPU: the device plugin that announces it, and what a node can allocate.

`capacity` is what the plugin once registered, `allocatable` what of it is healthy now: a plugin that died leaves the first and
takes the second to 0. How many GPUs there are behind them, GFD's labels say: `gpu.count` are GPUs, and `gpu.replicas` how often
each of them is given out, so that eight GPUs in two time slices have fewer replicas than GPUs, and are shared all the same.
"""

from pydantic import JsonValue

from stackmark.cluster.doctor import advice
from stackmark.cluster.doctor.evidence import ClusterView, Facts, Look, NodeVisit, Wish
from stackmark.cluster.doctor.results import Finding, Result, failure, judged, skipped, unknown, warning
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import PCI_VENDORS, Node, holders

# --- Diagnose a node's hardware and software: the GPU on the bus, its driver, the runtime that hands it into a container
#
# What a pod saw counts more than a label: labels are left by programs that may have stopped. A pod sees the kernel's
# bus and modules also where it was given no GPU, which is what tells a missing driver from a runtime that does not hand
# it in.


# A driver of the kernel that takes the GPU and is of no use for computing, with what to do.
OTHER_DRIVERS = {
    "nouveau": (
        "the driver nouveau holds the GPU; it cannot compute",
        ("$ printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
         "then rebuild the initial RAM disk (update-initramfs -u, or dracut --force) and reboot"),
    ),
    "vfio-pci": ("the driver vfio-pci holds the GPU for virtual machines", ("unbind it, or examine the virtual machines",)),
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
        return unknown("pci", node.name, f"stackmark cannot identify {called} on the bus", command)
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
                return judged("pci", node.name, "NFD labelled the node, but no GPU", command, [_nothing(called, node)])
            return skipped("pci", node.name, f"no GPU of {called} here, by NFD's labels", command)
        if not expected and not offered:
            return skipped("pci", node.name, f"there is no sign of a GPU of {called} here", command)
        why = visit.why_not or "no pod has read the bus"
        return unknown("pci", node.name, f"no labels of node-feature-discovery, and {why}", command)
    found = gpus_on_bus(facts, vendor)
    told = facts.get("pci", {}).get("devices")
    if found:
        drivers = ", ".join(sorted({str(gpu.get("driver") or "no driver") for gpu in found}))
        return judged("pci", node.name, f"{len(found)} of {called} on the bus ({drivers})", command)
    if driver_in(visit.with_gpus, vendor):
        finding = warning(
            "not-on-the-bus",
            "the driver works in a pod, but its PCI device is not visible: an integrated or paravirtual GPU",
        )
        return judged("pci", node.name, f"none among {told} PCI devices", command, [finding])
    if offered:
        finding = warning(
            "offered-without-device",
            f"the node offers {offered} {wish.resource}, but a pod sees no device of {called} among {told} on the bus:"
            " fake devices, or a virtual machine without GPUs",
            (f"on the node: $ lspci -d {PCI_VENDORS[vendor]}:",),
        )
        return judged("pci", node.name, f"none of {called} among {told} PCI devices", command, [finding])
    if labels:
        finding = warning("stale-label", f"{by_labels} shows one, but a pod sees none on the bus")
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
                    f"the label says driver {label}, but a pod sees {said}",
                    ("restart gpu-feature-discovery on the node: its labels are out of date",),
                )
            )
        return judged("driver", node.name, f"driver {said}, seen in a pod", command, findings)
    facts = _of_the_bus(visit)
    if facts is None:
        if label:
            return judged("driver", node.name, f"driver {label}, by the node's labels", command)
        return unknown("driver", node.name, f"no label shows it, and {visit.why_not or 'no pod was sent'}", command)
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
    """Diagnose the runtime. `below` is the driver's diagnostic."""
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
    what = "a pod with a GPU finds neither its device node nor the driver's library"
    if nodes:
        what = f"a pod with a GPU has {nodes[0]}, but the driver does not answer: {_first(look)}"
    do = advice.runtime(wish.vendor, node.info.get("osImage", ""), engine, seen.openshift)
    if "nvidia" in classes and wish.runtime_class is None and wish.vendor == "nvidia":
        do = ("the cluster has the runtime class nvidia, but this pod did not use it: --runtime-class nvidia", *do)
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
    """Return the GPUs' own nodes in a pod's /dev."""
    nodes = facts.get("pci", {}).get("device_nodes")
    return [str(node) for node in nodes] if isinstance(nodes, list) else []


def driver_in(look: Look | None, vendor: str) -> str | None:
    """Return the version of the driver that answered in a pod with a GPU; for AMD, whether its nodes were passed in."""
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
        f"{node.name} has no GPU of {called}",
        (
            f"for another node use --node, for another vendor --resource {other}, for CPUs only --gpus none",
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
    return next((problem for problem in look.problems if "NVIDIA" in problem or "GPU" in problem), "no reason given")


def _ended(result: Result) -> str:
    return "failed" if result.status == "failed" else "was skipped"


# Parts of names and of images of the device plugins that people run.
PLUGINS = {
    "nvidia": ("nvidia-device-plugin", "k8s-device-plugin", "nvidia-gpu-device-plugin"),
    "amd": ("amdgpu-device-plugin", "rocm/k8s-device-plugin", "amdgpu-dp", "amd-gpu"),
}
SHOWN_HOLDERS = 4
NOT_READ = "you may not read nodes"
EXCLUSIVE = "for measurements do not share GPUs: remove `sharing` from the device plugin's configuration"


def device_plugin(node: Node, seen: ClusterView, wish: Wish, expected: bool) -> Result:
    command = f"{seen.kubectl} get daemonsets -A; {seen.kubectl} describe node {node.name}"
    slices = in_slices(seen, node.name, wish)
    if wish.dra:
        return _by_claim(node, seen, wish, slices, command)
    if not node.known:
        return unknown("device-plugin", node.name, NOT_READ, command)
    capacity = node.capacity(wish.resource)
    sets = [one for one in seen.daemonsets or () if _is_plugin(one, wish.vendor)]
    here = _plugin_pods(seen, node.name, sets)
    trouble = [problem for pod in here if (problem := _pod_trouble(pod))]
    if capacity:
        running = f", {len(here)} plugin pod on the node" if here else "" if sets else _unseen(seen)
        findings = [_ill(trouble[0], seen)] if trouble else []
        if not node.allocatable(wish.resource) and not here:
            return unknown(
                "device-plugin",
                node.name,
                f"{capacity} {wish.resource} were registered before; whether the plugin runs now is unknown{_unseen(seen)}",
                command,
            )
        return judged("device-plugin", node.name, f"{wish.resource} is registered{running}", command, findings)
    others = node.others(wish.resource)
    if others:
        return _other_names(node, wish, others, command)
    if slices:
        finding = warning(
            "dra-only",
            f"{slices} devices are offered by claims (DRA), but none as {wish.resource}",
            (f"request them by a claim: --dra {_class(seen)}",),
        )
        return judged("device-plugin", node.name, f"{slices} devices in ResourceSlices", command, [finding])
    if not expected:
        return skipped("device-plugin", node.name, "no GPU is known here", command)
    if trouble:
        return judged("device-plugin", node.name, "its pod on the node is unhealthy", command, [_ill(trouble[0], seen)])
    if sets:
        name = f"{sets[0]['metadata'].get('namespace')}/{sets[0]['metadata']['name']}"
        finding = failure(
            "plugin-not-here",
            f"the DaemonSet {name} exists, but has registered no {wish.resource} on this node",
            (
                f"$ {seen.kubectl} -n {sets[0]['metadata'].get('namespace')} describe daemonset {sets[0]['metadata']['name']}",
                "look at its nodeSelector, affinity and tolerations, and at the log of its pod on the node",
            ),
        )
        return judged("device-plugin", node.name, f"{wish.resource} is not registered", command, [finding])
    finding = failure(
        "no-plugin",
        f"no device plugin has registered {wish.resource} on this node{_unseen(seen)}",
        advice.plugin(wish.vendor, seen.openshift),
    )
    return judged("device-plugin", node.name, f"{wish.resource} is not registered", command, [finding])


def allocatable(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, expected: bool) -> Result:
    command = f"{seen.kubectl} get node {node.name} -o jsonpath='{{.status.capacity}}{{.status.allocatable}}'"
    if wish.dra:
        slices = in_slices(seen, node.name, wish)
        if slices is None:
            return unknown("allocatable", node.name, "you may not read ResourceSlices", command)
        if not slices:
            return skipped("allocatable", node.name, "no DRA driver offers a device here", command)
        return judged("allocatable", node.name, f"{slices} devices in ResourceSlices", command, _too_few(wish, slices))
    if not node.known:
        return unknown("allocatable", node.name, NOT_READ, command)
    capacity, can = node.capacity(wish.resource), node.allocatable(wish.resource)
    if not capacity:
        findings = _hardware(node, wish, visit, 0)
        if findings:
            return judged("allocatable", node.name, f"no {wish.resource}", command, findings)
        return skipped("allocatable", node.name, f"nothing has registered {wish.resource} here", command)
    findings = []
    if can == 0:
        findings.append(
            failure(
                "none-allocatable",
                f"capacity {capacity}, allocatable 0: the device plugin has stopped, or all its devices are unhealthy",
                (
                    f"$ {seen.kubectl} get pods -A -o wide --field-selector spec.nodeName={node.name} | grep -i plugin",
                    "start the plugin again to get its devices back; if it runs, its log shows which are unhealthy",
                ),
            )
        )
    elif can < capacity:
        findings.append(
            warning(
                "unhealthy",
                f"capacity {capacity}, allocatable {can}: {capacity - can} unhealthy",
                (
                    "the device plugin's log shows which, and why (an XID, a lost GPU)",
                    "on the node: $ nvidia-smi; dmesg | grep -i xid",
                ),
            )
        )
    else:
        findings += _too_few(wish, can)
    findings += [*_sharing(node, wish, capacity), *_hardware(node, wish, visit, capacity)]
    evidence = f"capacity {capacity}, allocatable {can}{_held(node, seen, wish)}"
    return judged("allocatable", node.name, evidence, command, findings)


def free(node: Node, seen: ClusterView, wish: Wish) -> int | None:
    """Return the devices that no pod holds; None where unknown."""
    if wish.dra or seen.pods is None or not node.known:
        return None
    return node.free(wish.resource, seen.pods)


def in_slices(seen: ClusterView, node: str, wish: Wish) -> int | None:
    """Return the devices that drivers offer on the node by claims; None without the right to look."""
    if seen.slices is None:
        return None
    domain = f"{wish.vendor}.com"
    return sum(
        len(spec.get("devices") or ())
        for one in seen.slices
        if (spec := one.get("spec") or {}).get("nodeName") == node and domain in str(spec.get("driver"))
    )


def say_holders(seen: ClusterView, node: str, resource: str) -> str:
    held = holders(seen.pods or (), node, resource)
    named = ", ".join(f"{who} ({count})" for who, count in held[:SHOWN_HOLDERS])
    return named + (f" and {len(held) - SHOWN_HOLDERS} more" if len(held) > SHOWN_HOLDERS else "")


def _held(node: Node, seen: ClusterView, wish: Wish) -> str:
    left = free(node, seen, wish)
    if left is None or left == node.allocatable(wish.resource):
        return ""
    return f", {max(0, left)} free; held by {say_holders(seen, node.name, wish.resource)}"


def _too_few(wish: Wish, can: int) -> list[Finding]:
    if can >= wish.gpus:
        return []
    return [failure("too-few", f"{wish.gpus} are requested, but the node can give {can}", ("request fewer: --gpus",))]


def _sharing(node: Node, wish: Wish, capacity: int) -> list[Finding]:
    labels, domain = node.labels, wish.resource.partition("/")[0]
    strategy = labels.get(f"{domain}/gpu.sharing-strategy", "none")
    replicas, count = node.number(f"{domain}/gpu.replicas") or 1, node.number(f"{domain}/gpu.count")
    mig = labels.get(f"{domain}/mig.strategy", "none")
    product = labels.get(f"{domain}/gpu.product", "")
    findings = []
    if strategy in ("time-slicing", "mps"):
        what = f"GPUs are shared by {strategy}: {replicas} pods on each of {count}"
        findings.append(warning(strategy, what, (EXCLUSIVE,)))
    elif replicas > 1 or product.endswith("-SHARED"):
        findings.append(warning("replicas", f"each of {count} GPUs is assigned {replicas} times", (EXCLUSIVE,)))
    elif count and "MIG" not in product and mig == "none" and capacity > count:
        findings.append(warning("replicas", f"{count} GPUs are offered as {capacity}: they are shared", (EXCLUSIVE,)))
    slices = {name: number for name, number in node.others(wish.resource).items() if "/mig-" in name}
    if "-MIG-" in product or (mig != "none" and slices) or "/mig-" in wish.resource:
        what = product or ", ".join(f"{number} {name}" for name, number in slices.items()) or wish.resource
        findings.append(
            warning(
                "mig",
                f"GPUs are divided into slices (MIG {mig}): {what}",
                ("a slice behaves like a smaller GPU: compare it only with slices of the same kind",),
            )
        )
    if labels.get(f"{domain}/vgpu.present") == "true":
        findings.append(warning("vgpu", "a virtual GPU: the hypervisor shares it with other machines"))
    return findings


def _hardware(node: Node, wish: Wish, visit: NodeVisit, capacity: int) -> list[Finding]:
    """Hardware that is there and cannot be asked for."""
    on_bus = max((len(gpus_on_bus(facts, wish.vendor)) for facts in visit.told), default=0)
    known = node.number(f"{wish.vendor}.com/gpu.count") or capacity
    other = sum(node.others(wish.resource).values())
    if on_bus > known and not other:
        return [
            warning(
                "pci-not-allocatable",
                f"{on_bus} GPUs are on the bus, but {known} can be requested",
                (
                    "the device plugin's log shows why it left them out",
                    "on the node: $ nvidia-smi -L; dmesg | grep -i -E 'nvrm|xid'",
                ),
            )
        ]
    if not capacity and not other and node.pci_labels(wish.vendor):
        what = f"NFD found a GPU ({node.pci_labels(wish.vendor)[0]}), but none can be requested"
        return [warning("pci-not-allocatable", what)]
    return []


def _by_claim(node: Node, seen: ClusterView, wish: Wish, slices: int | None, command: str) -> Result:
    classes = [str(one["metadata"]["name"]) for one in seen.device_classes or ()]
    if seen.device_classes is not None and wish.dra not in classes:
        finding = failure(
            "no-device-class",
            f"the cluster has no DeviceClass {wish.dra}; it has: {', '.join(classes) or 'none'}",
            (
                "install the vendor's DRA driver, or leave out --dra",
                "NVIDIA's: https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu",
            ),
        )
        return judged("device-plugin", node.name, f"DRA, {len(classes)} device classes", command, [finding])
    if slices is None:
        return unknown("device-plugin", node.name, "DRA: you may not read ResourceSlices", command)
    finding = failure(
        "no-slices", "no DRA driver offers a device on this node", (f"$ {seen.kubectl} get resourceslices",)
    )
    return judged(
        "device-plugin", node.name, f"DRA, class {wish.dra}: {slices} devices", command, [] if slices else [finding]
    )


def _other_names(node: Node, wish: Wish, others: dict[str, int], command: str) -> Result:
    said = ", ".join(f"{count} {name}" for name, count in others.items())
    finding = failure(
        "other-resource",
        f"the node offers {said}, but no {wish.resource}",
        (f"request that: --resource {next(iter(others))}",),
    )
    return judged("device-plugin", node.name, said, command, [finding])


def _class(seen: ClusterView) -> str:
    return next((str(one["metadata"]["name"]) for one in seen.device_classes or ()), "CLASS")


def _is_plugin(daemonset: Json, vendor: str) -> bool:
    words = [str(daemonset["metadata"]["name"])]
    spec = ((daemonset.get("spec") or {}).get("template") or {}).get("spec") or {}
    words += [str(container.get("image")) for container in spec.get("containers") or ()]
    return any(part in word for part in PLUGINS.get(vendor, ()) for word in words)


def _plugin_pods(seen: ClusterView, node: str, sets: list[Json]) -> list[Json]:
    ids = {one["metadata"].get("uid") for one in sets}
    return [
        pod
        for pod in seen.pods or ()
        if (pod.get("spec") or {}).get("nodeName") == node
        and any(owner.get("uid") in ids for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def _pod_trouble(pod: Json) -> str | None:
    """Why a plugin's pod is not well, or None."""
    name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        if not one.get("ready"):
            state = (one.get("state") or {}).get("waiting") or (one.get("state") or {}).get("terminated") or {}
            return f"{name}: {state.get('reason') or 'not ready'}, {one.get('restartCount', 0)} restarts"
    return None if status.get("phase") == "Running" else f"{name}: {status.get('phase')}"


def _ill(trouble: str, seen: ClusterView) -> Finding:
    namespace, _, pod = trouble.partition(":")[0].partition("/")
    do = (f"$ {seen.kubectl} -n {namespace} logs {pod} --previous",)
    return failure("plugin-ill", f"the device plugin's pod {trouble}", do)


def _unseen(seen: ClusterView) -> str:
    return " (you may not list DaemonSets)" if seen.daemonsets is None else " (no DaemonSet of a known plugin exists)"
