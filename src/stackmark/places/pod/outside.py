"""Run a user's program in a pod's image: the kubelet runs it as it is, its log is its output, the pod's status tells its end.

The status has whole seconds, so a time that is taken from it is known to a second; a figure that the program prints is exact.

On the driver's own machine the GPUs are watched while the pod runs, as for a container. They are watched from the moment the
pod is seen running, at most a second after its start; elsewhere nobody can look.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.kubernetes import status
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import Node
from stackmark.machine.cgroup import processes_of_pod
from stackmark.machine.facts import Subject
from stackmark.machine.gpu_use import ProgramWatch
from stackmark.machine.host import APPLICATION_ID, app_specific_id
from stackmark.places.outside import (
    FROM_INSIDE,
    OF_MACHINE,
    OF_PROCESS,
    OutsideEnd,
    OutsideRun,
    coarse_clock,
    facts_about_us,
    facts_of_container,
    facts_of_machine,
    program_code,
    unknown,
)
from stackmark.places.place import Handle
from stackmark.places.pod.options import PodOptions
from stackmark.workloads.command.definition import CommandParams

# The API server writes times in whole seconds.
TICK_S = 1.0
# Options that a worker would have verified from inside.
_VERIFIED = frozenset({"cpus", "memory", "shm"})


class OutsideProgram:
    """One program in a pod, from the moment its node is known to its result."""

    def __init__(self, params: CommandParams, run: OutsideRun) -> None:
        self._params, self.run = params, run
        self._begun = False
        self._watched = ExitStack()
        self._gpus: ProgramWatch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watched.close()

    def begin(self, handle: Handle, node: Node | None) -> None:
        """Say what is known of the pod before its log is read; once, though its place is told several times."""
        if self._begun:
            return
        self._begun = True
        if node is not None and node.is_this_machine:
            uid = str(handle.get("pod_uid") or "")
            self._gpus = self._watched.enter_context(ProgramWatch(lambda: processes_of_pod(uid)))
        self.run.begin(self._params, facts_of_pod(handle, node))

    def close(
        self, pod: Json | None, failure: PlaceFailure | None, log_why: str, options: PodOptions
    ) -> PlaceFailure | None:
        """Say what the program came to; return the place's failure, where it is one."""
        self._watched.close()
        if failure is None and log_why:
            failure = PlaceFailure(LOG_INCOMPLETE, f"the program's output is incomplete: {log_why}", "run it again")
        words = self._params.cmd
        if failure is not None and failure.kind == "start_error" and words and self._begun:
            self.run.not_started(words.split()[0], failure.message)
            return None
        if failure is not None or pod is None or not self._begun:
            self.run.cut_off()
            return failure
        code = program_code(status.exit_code(pod) or 0)
        wall_s = status.timeline(pod, []).run_s or 0.0
        flags = [] if self._params.metric else coarse_clock(wall_s, TICK_S, "the cluster's")
        if unseen := sorted(_VERIFIED & options.model_fields_set):
            flags.append(
                f"not-verified: a program in an image cannot verify the pod's options from inside: {', '.join(unseen)}"
            )
        self.run.end(OutsideEnd(code, wall_s, TICK_S, flags=tuple(flags), gpus=self._gpus))
        return None


def facts_of_pod(handle: Mapping[str, Any], node: Node | None) -> Iterator[Subject]:
    """Say what the cluster tells of a pod's machine; where the driver runs on that very machine, what it sees of it."""
    if node is not None and node.is_this_machine:
        yield from facts_of_machine()
    else:
        yield Subject("host", _host(node), ("only what the cluster reports about the node is known",))
        yield from unknown(*(name for name in OF_MACHINE if name != "host"))
    told = {"engine": "kubernetes", "kubernetes": True, "image": handle.get("image"), "software": "image"}
    if node is not None:
        told |= {"node": node.name, "engine_version": node.runtime}
    yield facts_of_container({**told, "pod": handle.get("pod"), "namespace": handle.get("namespace")})
    yield from unknown(*(name for name in OF_PROCESS if name != "container"), *FROM_INSIDE)
    yield facts_about_us()


def _host(node: Node | None) -> dict[str, Any]:
    if node is None:
        return {}
    found: dict[str, Any] = {
        "hostname": node.name,
        "boot_id": node.boot_id,
        "kernel": node.info.get("kernelVersion"),
        "architecture": node.info.get("architecture"),
    }
    try:
        key = bytes.fromhex(node.machine_id or "")
    except ValueError:
        key = b""
    if len(key) == 16:
        found["machine_id"] = app_specific_id(key, APPLICATION_ID)
    return found
