"""Was it done? What was asked of the pod, held against what the worker saw from inside.

A cluster may change what was asked for (an admission webhook, a LimitRange), and a node may not enforce it. Each sentence
says what was asked for and what is there.
"""

from collections.abc import Iterator

from stackmark.places.container.checks import near
from stackmark.places.place import Facts, missing_facts
from stackmark.places.pod.options import PodOptions
from stackmark.units import MIB, say_size


def not_enforced(options: PodOptions, gpus: int, facts: Facts) -> list[str]:
    return [*missing_facts(facts), *_inside(options, facts), *_limits(options, facts), *_gpus(options, gpus, facts)]


def _inside(options: PodOptions, facts: Facts) -> Iterator[str]:
    container = facts.get("container", {})
    if container.get("kubernetes") is not True:
        yield "the worker sees no sign of a pod around it"
    node = container.get("node")
    if options.node is not None and node is not None and node != options.node:
        yield f"the node {options.node} was asked for, and the pod ran on {node}"


def _limits(options: PodOptions, facts: Facts) -> Iterator[str]:
    cgroup, limits = facts.get("cgroup", {}), facts.get("limits", {})
    asked, seen = None if options.cpu_count is None else float(options.cpu_count), cgroup.get("cpu_limit_cpus")
    if asked is not None and not near(seen, asked):
        # With the static CPU manager newer kubelets switch the quota off: the cores are the limit then.
        cores = facts.get("process", {}).get("cpu_count")
        if not near(cores, asked):
            yield f"a limit of {asked:g} CPUs was asked for, and {_has(seen, ' CPUs')}"
    memory, seen = options.memory_bytes, cgroup.get("memory_limit_mib")
    if memory is not None and not near(seen, memory / MIB):
        yield f"a memory limit of {say_size(memory)} was asked for, and {_has(seen, ' MiB')}"
    shm, seen = options.shm_bytes, limits.get("shm_mib")
    if shm is not None and not near(seen, shm / MIB):
        yield f"a /dev/shm of {say_size(shm)} was asked for, and it has {seen} MiB"


def _gpus(options: PodOptions, asked: int, facts: Facts) -> Iterator[str]:
    count = facts.get("gpu", {}).get("count")
    if isinstance(count, int) and count != asked and options.resource == "nvidia.com/gpu" and (asked or count):
        yield f"{asked} GPUs were asked for, and {count} are to be seen in the pod"


def _has(seen: object, unit: str) -> str:
    return f"there is one of {seen:g}{unit}" if isinstance(seen, int | float) else "there is none"
