"""Diagnose the whole cluster: does the API answer, and does the user have the necessary rights?"""

from collections.abc import Mapping
from dataclasses import replace

from stackmark.cluster.doctor import advice
from stackmark.cluster.doctor.evidence import NO_NAMESPACE, ClusterView, Look, NodeVisit, RightReview, Wish
from stackmark.cluster.doctor.results import Finding, Result, failure, judged, skipped, unknown, warning
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import Node, untolerated

# The first version that this program is tried against.
OLDEST = (1, 28)
ENFORCED = "pod-security.kubernetes.io/enforce"


def api(seen: ClusterView) -> Result:
    command = f"kubectl --context {seen.context} get --raw /readyz"
    if seen.trouble:
        finding = failure("unreachable", seen.trouble, (seen.trouble_hint,) if seen.trouble_hint else ())
        return judged("api", None, f"{seen.server or 'no API server'} does not answer", command, [finding])
    findings = []
    if (version := _version(seen.version)) and version < OLDEST:
        findings.append(
            warning(
                "old-kubernetes",
                f"Kubernetes {seen.version} is older than 1.28, the oldest tested version",
                ("upgrade the cluster; until then it may refuse some objects",),
            )
        )
    who = f", as {seen.user}" if seen.user else ""
    kind = "OpenShift, Kubernetes" if seen.openshift else "Kubernetes"
    return judged("api", None, f"{kind} {seen.version} at {seen.server}{who}", command, findings)


def permissions(seen: ClusterView, wish: Wish) -> Result:
    command = f"{seen.kubectl} auth can-i --list -n {seen.namespace}"
    findings = []
    if seen.namespace_trouble:
        findings.append(_namespace(seen))
    missing = [one for one in seen.rights if one.allowed is False]
    needed = [one.right for one in missing if one.needed]
    if needed:
        said = ", ".join(map(str, needed))
        findings.append(
            failure(
                "missing-rights",
                f"stackmark cannot run pods in the namespace {seen.namespace} without the rights: {said}",
                (
                    "ask an administrator to grant them:",
                    *advice.role(
                        seen.kubectl, seen.namespace, [(right.verb, right.name) for right in needed], seen.user
                    ),
                    "or use a namespace where you have them: --namespace",
                ),
            )
        )
    findings += [_less_seen(seen, one) for one in missing if not one.needed]
    findings += _quota(seen, wish)
    untold = [one for one in seen.rights if one.allowed is None]
    if seen.rights and len(untold) == len(seen.rights) and not findings:
        return unknown("permissions", None, "the API server does not report your rights", command)
    have = sum(one.allowed is True for one in seen.rights)
    policy = seen.namespace_labels.get(ENFORCED)
    level = f"; Pod Security {policy}" if policy else ""
    evidence = f"{have} of {len(seen.rights)} rights in the namespace {seen.namespace}{level}"
    return judged("permissions", None, evidence, command, findings)


def may_run_pods(seen: ClusterView) -> str | None:
    """Return why stackmark cannot create pods, or None."""
    if seen.trouble:
        return "the API server does not answer"
    if seen.namespace_trouble:
        return seen.namespace_trouble
    lacks = [str(one.right) for one in seen.rights if one.needed and one.allowed is False]
    return f"you may not {', '.join(lacks)} in the namespace {seen.namespace}" if lacks else None


def _namespace(seen: ClusterView) -> Finding:
    do: tuple[str, ...] = ("use another: --namespace",)
    if seen.namespace_trouble.startswith(NO_NAMESPACE):
        do = (f"$ {seen.kubectl} create namespace {seen.namespace}", "or use another: --namespace")
    return failure("namespace", seen.namespace_trouble, do)


def _less_seen(seen: ClusterView, review: RightReview) -> Finding:
    right = review.right
    where = f" -n {seen.namespace}" if right.namespace is not None else ""
    return warning(
        "less-seen",
        f"you may not {right}: {review.loses}",
        (f"$ {seen.kubectl} auth can-i {right}{where}",),
    )


def _quota(seen: ClusterView, wish: Wish) -> list[Finding]:
    """A quota that leaves no room for the GPUs that are asked for refuses the pod, and not the Job: it waits for nothing."""
    findings = []
    for quota in seen.quotas or ():
        name = f"requests.{wish.resource}"
        status = quota.get("status") or {}
        hard, used = (status.get("hard") or {}).get(name), (status.get("used") or {}).get(name, "0")
        if not str(hard).isdecimal() or not str(used).isdecimal():
            continue
        left = int(str(hard)) - int(str(used))
        if left < wish.gpus:
            called = (quota.get("metadata") or {}).get("name")
            findings.append(
                Finding(
                    "quota",
                    "failed" if int(str(hard)) < wish.gpus else "warning",
                    f"the quota {called} of the namespace {seen.namespace} leaves {max(0, left)} of {hard} {wish.resource}",
                    (f"$ {seen.kubectl} -n {seen.namespace} describe resourcequota {called}",),
                )
            )
    return findings


def _version(text: str) -> tuple[int, int] | None:
    parts = text.lstrip("v").split(".")
    minor = "".join(char for char in parts[1] if char.isdecimal()) if len(parts) > 1 else ""
    return (int(parts[0]), int(minor)) if parts[0].isdecimal() and minor else None


# --- The diagnostic of a node itself: is it ready, may pods go there, and how does its kubelet give out CPUs?


# True is bad of these; the last are node-problem-detector's own.
BAD_WHEN_TRUE = (
    "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "KernelDeadlock", "ReadonlyFilesystem",
    "CorruptDockerOverlay2", "FrequentKubeletRestart", "FrequentContainerdRestart", "FrequentDockerRestart",
    "FrequentUnregisterNetDevice",
)  # fmt: skip
CPU_MANAGER = (
    "in the kubelet's configuration: cpuManagerPolicy: static, with reservedSystemCPUs; then"
    " (kubernetes.io, Control CPU Management Policies on the Node):",
    "$ sudo systemctl stop kubelet && sudo rm /var/lib/kubelet/cpu_manager_state && sudo systemctl start kubelet",
    "and request whole CPUs and memory, so that the pod's QoS class is Guaranteed: --cpus 8 --memory 32g",
)


def no_nodes(seen: ClusterView, wish: Wish) -> Result:
    """Diagnose a cluster without nodes to examine."""
    command = f"{seen.kubectl} get nodes"
    if seen.nodes is None:
        return skipped(
            "nodes", None, "you may not list nodes: with --node NAME pods can still be sent to a node", command
        )
    finding = failure("no-nodes", "the cluster has no node", ("join one: a cluster without nodes runs nothing",))
    if seen.nodes:
        said = ", ".join(f"{key}={value}" for key, value in wish.labels.items())
        finding = failure("no-nodes", f"no node has the label {said}", ("see --node-selector",))
        command += " --show-labels"
    return judged("nodes", None, f"{len(seen.nodes)} nodes", command, [finding])


def nodes(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, matters: bool) -> Result:
    """Diagnose the nodes. `matters`: it has a GPU, or CPUs are meant; on others the kubelet's settings do not matter."""
    command = f"{seen.kubectl} describe node {node.name}"
    if not node.known:
        return unknown("nodes", node.name, "you may not read nodes", command)
    findings = [*_conditions(node, seen)]
    if node.cordoned:
        findings.append(
            warning(
                "cordoned", "this node accepts no new pods: it is cordoned", (f"$ {seen.kubectl} uncordon {node.name}",)
            )
        )
    taints = untolerated(node.taints, wish.tolerations)
    if taints and matters:
        findings.append(
            warning(
                "taint",
                f"our pods do not tolerate {', '.join(taints)}",
                (f"stackmark … {' '.join(f'--toleration {taint}' for taint in taints)}",),
            )
        )
    if matters:
        by_hand = f"{seen.kubectl} get --raw /api/v1/nodes/{node.name}/proxy/configz"
        findings += [replace(one, command=by_hand) for one in _kubelet(seen.kubelets.get(node.name), visit)]
        findings += _cgroup(visit)
    info = node.info
    tainted = f", tainted {', '.join(taints)}" if taints and not matters else ""
    evidence = f"{'Ready' if node.ready else 'not Ready'}, kubelet {info.get('kubeletVersion', '?')}, {info.get('osImage', '?')}"
    return judged("nodes", node.name, f"{evidence}{tainted}", command, findings)


def closed(node: Node, wish: Wish) -> str | None:
    """Return why stackmark's pods cannot run on the node, or None."""
    if not node.known:
        return None
    if not node.ready:
        return "the node is not Ready"
    if node.cordoned:
        return "the node is cordoned"
    if lacking := node.lacks(wish.labels):
        return f"the node has no label {', '.join(lacking)} (--node-selector)"
    taints = untolerated(node.taints, wish.tolerations)
    return f"our pods do not tolerate the taint {', '.join(taints)} (--toleration)" if taints else None


def _conditions(node: Node, seen: ClusterView) -> list[Finding]:
    findings = []
    if not any(one.get("type") == "Ready" for one in node.conditions):
        findings.append(failure("not-ready", "the node has never reported that it is ready"))
    for one in node.conditions:
        kind, status = str(one.get("type")), one.get("status")
        said = f"{one.get('reason') or 'no reason'}: {one.get('message') or 'no message'}"
        if kind == "Ready" and status != "True":
            look = (
                f"$ {seen.kubectl} describe node {node.name}",
                "on the node: $ sudo systemctl status kubelet; sudo journalctl -u kubelet --since -10min",
            )
            findings.append(
                failure("not-ready", f"the node is not Ready since {one.get('lastTransitionTime')}: {said}", look)
            )
        elif kind in BAD_WHEN_TRUE and status == "True":
            findings.append(
                Finding(
                    "condition",
                    "failed" if kind == "NetworkUnavailable" else "warning",
                    f"{kind}: {said}",
                    (f"$ {seen.kubectl} describe node {node.name}",),
                )
            )
        elif kind != "Ready" and kind.endswith("Ready") and status == "False":
            findings.append(warning("condition", f"{kind} is False: {said}"))
    return findings


def _kubelet(settings: Json | None, visit: NodeVisit) -> list[Finding]:
    """By the kubelet's own configuration where one may read it, else by what a pod with whole CPUs got."""
    if settings:
        return _policies(settings)
    look = visit.with_gpus or visit.plain
    cpus = shared_cpus(look) if look else None
    if cpus is None:
        return []
    what = f"no CPU manager: a pod with {look.cpus if look else 0} whole CPU may run on all {cpus} of the node"
    return [warning("no-cpu-manager", f"{what} and moves between them", CPU_MANAGER)]


def shared_cpus(look: Look) -> int | None:
    """Return the CPUs of a pod that should have its own, where they are all of the node's; None where unknown."""
    if not look.facts or look.cpus is None:
        return None
    own, all_of_them = look.facts.get("cgroup", {}).get("cpuset_cpus"), look.facts.get("cpu", {}).get("threads")
    if not isinstance(own, int) or not isinstance(all_of_them, int) or all_of_them <= look.cpus:
        return None
    return all_of_them if own == all_of_them else None


def _cgroup(visit: NodeVisit) -> list[Finding]:
    look = visit.plain or visit.with_gpus
    if not look or not look.facts or look.facts.get("cgroup", {}).get("version") != "v1":
        return []
    do = ("boot it with systemd.unified_cgroup_hierarchy=1",)
    command = "on the node: stat -fc %T /sys/fs/cgroup"
    return [warning("cgroup-v1", "the node has cgroup v1, which kubelets since 1.35 refuse by default", do, command)]


def _policies(settings: Mapping[str, object]) -> list[Finding]:
    findings = []
    cpu = str(settings.get("cpuManagerPolicy") or "none")
    topology = str(settings.get("topologyManagerPolicy") or "none")
    if cpu == "none":
        what = "cpuManagerPolicy none: pods share all CPUs and move between them"
        findings.append(warning("no-cpu-manager", what, CPU_MANAGER))
    if topology == "none":
        findings.append(
            warning(
                "topology",
                "topologyManagerPolicy none: a pod's CPUs may be far from its GPU",
                (
                    "in the kubelet's configuration, together with the static CPU manager: topologyManagerPolicy: best-effort",
                ),
            )
        )
    elif topology in ("restricted", "single-numa-node"):
        findings.append(
            warning(
                "topology",
                f"topologyManagerPolicy {topology}: a pod that cannot be aligned is refused",
                ("request no more CPUs and GPUs than a NUMA node has, else the pod ends with TopologyAffinityError",),
            )
        )
    return findings
