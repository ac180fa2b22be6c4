"""Divide the CPUs of a machine among the processes of a run, as `--bind` asks.

Only a worker sees the machine's NUMA nodes and which of them its GPU is attached to, so it binds itself, before it allocates or
starts a thread. Memory needs no rule of its own: Linux takes a page from the node of the CPU that writes it first. (A rule, as
`numactl --membind` sets it, is refused in most containers.)

- `numa`: a process has the CPUs of one node: of the one that its GPU is attached to. Where no GPU is known the nodes are dealt
  out in order, and processes of one node share its CPUs.
- `cores`: each process has whole cores of its own, and of each core one hardware thread: an equal part of its GPU's node, or of
  the machine where no GPU is known.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.machine.gpu import node_of_gpu
from stackmark.machine.memory import nodes
from stackmark.machine.reading import ROOT, cpu_set, text

NUMA, CORES = "numa", "cores"


@dataclass(frozen=True)
class Share:
    """The CPUs of one process. `sharing` is how many processes have them; `problems` is what could not be found out."""

    cpus: frozenset[int]
    sharing: int = 1
    problems: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        """Return how many threads the process can run on CPUs that no other one uses."""
        return max(1, len(self.cpus) // self.sharing)


def shares(
    kind: str,
    devices: Sequence[str],
    environ: Mapping[str, str],
    *,
    allowed: Iterable[int] | None = None,
    root: Path = ROOT,
    module: object = None,
) -> list[Share]:
    """Return the CPUs of each process on this machine. `devices` are theirs: `cuda:0`, `cpu`."""
    may = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    found = [node_of_gpu(device, environ, root, module) for device in devices]
    return divide(kind, [node for node, _ in found], nodes(root, may), cores_of(may, root), [why for _, why in found])


def divide(
    kind: str,
    near: Sequence[int | None],
    among: Mapping[int, frozenset[int]],
    cores: Sequence[frozenset[int]],
    problems: Sequence[str] = (),
) -> list[Share]:
    """Divide nodes, or cores, among processes. `near` is the node of each process's GPU, None where there is none."""
    said = [(why,) if why else () for why in problems] or [()] * len(near)
    for number, node in enumerate(near):
        if node is not None and node not in among:
            said[number] = (f"its GPU is attached to the NUMA node {node}, whose CPUs this process may not use",)
    known = [node if node in among else None for node in near]
    if kind == NUMA:
        return _nodes(known, among, said)
    if kind == CORES:
        return _cores(known, among, cores, said)
    raise SpecError(f"bind must be {NUMA} or {CORES}, got {kind!r}")


def _nodes(
    near: Sequence[int | None], among: Mapping[int, frozenset[int]], said: Sequence[tuple[str, ...]]
) -> list[Share]:
    # A single process has the node with most CPUs: of the first one a container may give two.
    order = sorted(among, key=lambda node: (-len(among[node]), node))
    homes = [order[number * len(order) // len(near)] if node is None else node for number, node in enumerate(near)]
    alone = "this machine has one NUMA node, or shows no more: binding to it changes nothing"
    more = (alone,) if len(among) < 2 else ()
    return [Share(among[home], homes.count(home), (*why, *more)) for home, why in zip(homes, said, strict=True)]


def _cores(
    near: Sequence[int | None],
    among: Mapping[int, frozenset[int]],
    cores: Sequence[frozenset[int]],
    said: Sequence[tuple[str, ...]],
) -> list[Share]:
    if len(cores) < len(near):
        raise SpecError(
            f"bind=cores gives each of {len(near)} processes a core of its own, but there are {len(cores)}",
            hint="use fewer ranks on each node, or bind=numa",
        )
    # One hardware thread of each core, node by node.
    firsts = {node: sorted(min(core) for core in cores if min(core) in cpus) for node, cpus in sorted(among.items())}
    by_node = None not in near and all(len(firsts[node]) >= near.count(node) for node in near if node is not None)
    if by_node:
        taken = {node: _parts(firsts[node], near.count(node)) for node in near if node is not None}
        own = [taken[node].pop(0) for node in near if node is not None]
    else:
        # Also CPUs of no node, as a kernel without NUMA has them.
        listed = [cpu for cpus in firsts.values() for cpu in cpus]
        own = _parts(listed + sorted({min(core) for core in cores} - set(listed)), len(near))
    return [Share(frozenset(cpus), 1, why) for cpus, why in zip(own, said, strict=True)]


def _parts(cpus: Sequence[int], count: int) -> list[list[int]]:
    """Return equal parts; what does not divide stays free."""
    each = len(cpus) // count
    return [list(cpus[number * each : (number + 1) * each]) for number in range(count)]


def cores_of(allowed: Iterable[int], root: Path = ROOT) -> list[frozenset[int]]:
    """Return the cores with CPUs that may be used, each as its hardware threads; a CPU without topology is a core."""
    may = frozenset(allowed)
    found: dict[frozenset[int], None] = {}
    for cpu in sorted(may):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = cpu_set(text(topology / "core_cpus_list") or text(topology / "thread_siblings_list"))
        found[(siblings & may) | {cpu}] = None
    return list(found)
