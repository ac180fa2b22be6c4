"""Verify a container's options: compare the request with what the worker saw from inside.

An engine that takes an option and ignores it ends with 0: podman 4.3 does so with `--gpus`, rootless podman on control groups
of version 1 with every limit. So nothing is believed; each sentence here says what was asked for and what is there.
"""

from collections.abc import Iterator
from pathlib import Path

from stackmark.machine.host import boot_id
from stackmark.places.container.options import UNLIMITED, ContainerOptions, cpu_numbers
from stackmark.places.place import Facts, cpus_allowed, missing_facts
from stackmark.remarks import Remark
from stackmark.units import MIB, say_size

# Engines round a CPU quota to microseconds and sizes to pages.
TOLERANCE = 0.01
IGNORED = "the engine accepted the option and ignored it, as rootless podman does on cgroups v1"


def not_enforced(
    options: ContainerOptions, gpus_given: bool, facts: Facts, bundle_sha256: str | None = None
) -> list[str]:
    """Return what is not as it was asked. `bundle_sha256` is the hash of the worker's zip file, where one was mounted."""
    found = [
        *missing_facts(facts),
        *_inside(facts),
        *(other_worker(bundle_sha256, facts) if bundle_sha256 else []),
        *_cpu(options, facts),
        *_memory(options, facts),
        *_ulimits(options, facts),
    ]
    return [*found, *_rights(options, facts), *(_gpus(options, facts) if gpus_given else [])]


def _inside(facts: Facts) -> Iterator[Remark]:
    if facts.get("container", {}).get("engine") in (None, "none"):
        yield Remark("the worker sees no sign of a container around it", "no-container")
    boot, here = facts.get("host", {}).get("boot_id"), boot_id()
    if here is not None and boot != here:
        said = "did not report its machine" if boot is None else "ran on a different machine"
        yield Remark(
            f"the container {said}: does DOCKER_HOST or CONTAINER_HOST point to another machine?", "other-machine"
        )


def other_worker(bundle_sha256: str, facts: Facts) -> Iterator[Remark]:
    """Hold the zip file that the worker says it ran from against the one that was mounted."""
    seen = facts.get("stackmark", {}).get("bundle_sha256")
    if seen != bundle_sha256:
        said = f"ran from one with the SHA-256 {str(seen)[:64]}" if seen else "did not report its own"
        text = f"the worker's zip file has the SHA-256 {bundle_sha256}, but the worker {said}"
        yield Remark(text, "other-worker")


def _cpu(options: ContainerOptions, facts: Facts) -> Iterator[Remark]:
    asked, seen = options.cpu_count, facts.get("cgroup", {}).get("cpu_limit_cpus")
    if asked is not None and not near(seen, asked):
        has = f"it is {seen:g}" if isinstance(seen, int | float) else f"there is none: {IGNORED}"
        yield Remark(f"a CPU limit of {asked:g} CPUs was requested, but {has}", "cpus")
    cpus = options.cpuset_list
    seen_cpus = cpus_allowed(facts)
    if cpus is not None and not (isinstance(seen_cpus, str) and cpu_numbers(seen_cpus) == cpus):
        text = f"the CPUs {options.cpuset} were requested, but the worker may run on {seen_cpus}"
        yield Remark(text, "cpuset")


def _memory(options: ContainerOptions, facts: Facts) -> Iterator[Remark]:
    asked, seen = options.memory_bytes, facts.get("cgroup", {}).get("memory_limit_mib")
    if asked is not None and not near(seen, asked / MIB):
        has = f"it is {seen:g} MiB" if isinstance(seen, int | float) else f"there is none: {IGNORED}"
        yield Remark(f"a memory limit of {say_size(asked)} was requested, but {has}", "memory")
    asked, seen = options.shm_bytes, facts.get("limits", {}).get("shm_mib")
    if asked is not None and not near(seen, asked / MIB):
        yield Remark(f"a /dev/shm of {say_size(asked)} was requested, but it has {seen} MiB", "shm")


def _ulimits(options: ContainerOptions, facts: Facts) -> Iterator[Remark]:
    seen = facts.get("limits", {}).get("ulimits")
    table = seen if isinstance(seen, dict) else {}
    for name, pair in options.ulimits.items():
        asked = ":".join("unlimited" if value == UNLIMITED else str(value) for value in pair)
        if table.get(name) != asked:
            text = f"ulimit {name}={asked} was requested, but it is {table.get(name, 'unknown')}"
            yield Remark(text, "ulimit")


def _rights(options: ContainerOptions, facts: Facts) -> Iterator[Remark]:
    limits, process, container = (facts.get(name, {}) for name in ("limits", "process", "container"))
    filtered = limits.get("seccomp")
    asked = options.seccomp != "unconfined" and not options.privileged and "seccomp" in options.model_fields_set
    if asked and filtered in ("off", None):
        text = f"the seccomp profile {options.seccomp} was requested, but the worker's system calls are not filtered"
        yield Remark(text, "seccomp")
    if filtered == "filter" and options.seccomp == "unconfined" and not _filtered_here():
        yield Remark("seccomp=unconfined was requested, but there is a filter", "seccomp")
    held = limits.get("capabilities")
    for name in options.cap_drop:
        if name.upper() == "ALL":
            if not options.cap_add and held != "none":
                yield Remark(
                    f"dropping all capabilities was requested, but the worker has: {held or 'unknown ones'}", "cap_drop"
                )
        elif _bare(name) not in map(_bare, options.cap_add) and _holds(held, name) is not False:
            text = f"dropping {name} was requested, but the worker {'has it' if held else 'did not report its capabilities'}"
            yield Remark(text, "cap-drop")
    # Capabilities take effect for root only; another user has them in reserve.
    for name in options.cap_add if process.get("uid") == 0 else ():
        if name.upper() != "ALL" and not _holds(held, name):
            text = f"the capability {name} was requested, but is missing: the engine itself may not have it"
            yield Remark(text, "cap-add")
    if options.read_only and container.get("root_read_only") is not True:
        yield Remark(
            "a read-only root file system was requested, but the container has none, as far as can be seen", "read-only"
        )
    if options.network == "none" and container.get("network") is not False:
        yield Remark("network=none was requested, but the worker did not confirm it", "network")


def _gpus(options: ContainerOptions, facts: Facts) -> Iterator[Remark]:
    gpu = facts.get("gpu", {})
    count, nodes = gpu.get("count"), gpu.get("device_nodes")
    seen = count if isinstance(count, int) else len(nodes) if isinstance(nodes, list) else 0
    asked = options.gpu_count or len(options.gpu_names({}))
    if not seen:
        text = (
            "GPUs were requested, but none is visible in the container: the engine accepted the option and ignored it"
        )
        yield Remark(text, "gpus")
    elif asked and seen != asked:
        text = f"{asked} GPUs were requested, but {seen} are visible in the container"
        yield Remark(text, "gpus")


def _holds(said: object, name: str) -> bool | None:
    """Whether the facts' words (`none`, `all`, `all but x y`, `x y`) hold a capability; None where they say nothing."""
    if not isinstance(said, str):
        return None
    if said.startswith("all"):
        return _bare(name) not in said.removeprefix("all but ").split()
    return _bare(name) in said.split()


def _filtered_here() -> bool:
    """Whether we ourselves run under a seccomp filter, which every child of ours then does."""
    try:
        return "\nSeccomp:\t2\n" in Path("/proc/self/status").read_text()
    except OSError:
        return False


def _bare(name: str) -> str:
    return name.lower().removeprefix("cap_")


def near(seen: object, asked: float) -> bool:
    return isinstance(seen, int | float) and abs(seen - asked) <= TOLERANCE * asked
