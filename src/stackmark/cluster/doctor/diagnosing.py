"""Decide which diagnostics need which, and make the whole report from what was seen.

    api ─▶ permissions ────────────────────────────────────────┐
     └───▶ nodes ──▶ device-plugin, allocatable ───────────────┤
             ├────▶ pci          (labels, or a pod that looks) ├─▶ pod ─▶ vector-add
             └────▶ driver ─▶ runtime ─────────────────────────┘

A missing label forbids nothing below it: a diagnostic is skipped only where it cannot be made. So `allocatable` is told on a
node whose bus nobody has looked at, and a pod is sent wherever the scheduler could place it, since what it sees is the best
evidence for all diagnostics above it.
"""

from collections.abc import Iterable, Mapping, Sequence

from stackmark.cluster.doctor import (
    cluster_diagnostics,
    device_diagnostics,
    pod_diagnostics,
)
from stackmark.cluster.doctor.device_diagnostics import driver_in, gpus_on_bus
from stackmark.cluster.doctor.evidence import ClusterView, NodeVisit, Wish
from stackmark.cluster.doctor.results import DIAGNOSTICS, OF_THE_CLUSTER, Diagnostic, Report, Result, skipped
from stackmark.errors import SpecError, nearest_names
from stackmark.kubernetes.nodes import Node

# Diagnostics that a person who measures CPUs has no use for.
OF_GPUS: tuple[Diagnostic, ...] = ("pci", "driver", "runtime", "device-plugin", "allocatable")
# In a cluster of this many nodes a pod looks at those too that nothing speaks for: a GPU without labels is found by it.
LOOK_EVERYWHERE = 16
NO_VISIT = NodeVisit(why_not="no pod was sent")


def examined(seen: ClusterView, wish: Wish, visited: Iterable[str] = ()) -> list[Node]:
    """Return the named nodes, or all. A node that may not be read is only a name: given, or where a pod was placed."""
    if seen.nodes is None:
        return [Node({"metadata": {"name": name}}) for name in wish.named or tuple(visited)]
    nodes = [Node(data) for data in seen.nodes]
    if not wish.named:
        return [node for node in nodes if not node.lacks(wish.labels)]
    by_name = {node.name: node for node in nodes}
    for name in wish.named:
        if name not in by_name:
            raise SpecError(
                f"the cluster has no node {name!r}{nearest_names(name, list(by_name))}",
                hint=f"see: {seen.kubectl} get nodes",
            )
    return [by_name[name] for name in dict.fromkeys(wish.named)]


def expects_gpu(node: Node, nodes: Sequence[Node], wish: Wish) -> bool:
    """Return whether the node should have a GPU: a named node should, and if no node reports one, each should."""
    says = [one for one in nodes if one.says_gpu(wish.vendor, wish.resource)]
    return bool(wish.gpus) and (node.name in wish.named or not says or node in says)


def worth_a_visit(node: Node, nodes: Sequence[Node], wish: Wish) -> bool:
    return not wish.gpus or expects_gpu(node, nodes, wish) or len(nodes) <= LOOK_EVERYWHERE


def worth_adding(visit: NodeVisit, wish: Wish) -> bool:
    """Return whether a vector add would show more: not without a driver in the pod, or on a GPU that is not its own."""
    if not wish.gpus:
        return visit.plain is not None and visit.plain.facts is not None
    look = visit.with_gpus
    if look is None or look.facts is None or driver_in(look, wish.vendor) is None:
        return False
    return len(pod_diagnostics.shown_gpus(look.facts, wish.vendor)) >= wish.gpus


def make_report(seen: ClusterView, wish: Wish, visits: Mapping[str, NodeVisit]) -> Report:
    """Make the whole report from data only."""
    results: list[Result] = [cluster_diagnostics.api(seen)]
    if seen.trouble:
        # Nothing can be asked: every diagnostic below says so, once for the cluster.
        results += [skipped(diagnostic, None, "the API server does not answer") for diagnostic in DIAGNOSTICS[1:]]
        return _report(seen, (), results)
    results.append(cluster_diagnostics.permissions(seen, wish))
    nodes = examined(seen, wish, visits)
    if not nodes:
        results.append(cluster_diagnostics.no_nodes(seen, wish))
        why = "no node could be examined"
        results += [
            skipped(diagnostic, None, why) for diagnostic in DIAGNOSTICS if diagnostic not in (*OF_THE_CLUSTER, "nodes")
        ]
        return _report(seen, (), results)
    for node in nodes:
        results += _of_node(node, nodes, seen, wish, visits.get(node.name, NO_VISIT))
    return _report(seen, tuple(node.name for node in nodes), results)


def _of_node(node: Node, nodes: Sequence[Node], seen: ClusterView, wish: Wish, visit: NodeVisit) -> list[Result]:
    expected = expects_gpu(node, nodes, wish)
    on_bus = any(gpus_on_bus(facts, wish.vendor) for facts in visit.told)
    made = [cluster_diagnostics.nodes(node, seen, wish, visit, matters=expected or on_bus or not wish.gpus)]
    if not wish.gpus:
        made += [skipped(diagnostic, node.name, "no GPU is requested (--gpus none)") for diagnostic in OF_GPUS]
    elif not expected and not on_bus and not node.says_gpu(wish.vendor, wish.resource):
        why = f"no GPU of {wish.vendor} is known here"
        return [*made, *(skipped(diagnostic, node.name, why) for diagnostic in (*OF_GPUS, "pod", "vector-add"))]
    else:
        made.append(device_diagnostics.pci(node, seen, wish, visit, expected))
        made += _driver_and_runtime(node, seen, wish, visit, made[-1])
        made.append(device_diagnostics.device_plugin(node, seen, wish, expected or on_bus))
        made.append(device_diagnostics.allocatable(node, seen, wish, visit, expected))
    made.append(pod_diagnostics.pod(node, seen, wish, visit))
    made.append(pod_diagnostics.vector_add(node, seen, wish, visit, made[-1]))
    return made


def _driver_and_runtime(node: Node, seen: ClusterView, wish: Wish, visit: NodeVisit, below: Result) -> list[Result]:
    if below.status == "failed":
        why = "there is no GPU"
        return [skipped("driver", node.name, why), skipped("runtime", node.name, why)]
    driver = device_diagnostics.driver(node, seen, wish, visit)
    return [driver, device_diagnostics.runtime(node, seen, wish, visit, driver)]


def _report(seen: ClusterView, nodes: tuple[str, ...], results: list[Result]) -> Report:
    return Report(seen.context, seen.server, seen.version, seen.namespace, nodes, tuple(results))
