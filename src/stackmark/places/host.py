"""Run on the bare host: the worker is our child, in its own process group.

Its standard input is a lifeline: it stays open while we live, and the kernel closes it when we die, even by kill -9. Its
output is read as it comes. It is ended as a group: politely first, so that it can say its last event, then for good.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, JsonValue

from stackmark.errors import PlaceError, SpecError
from stackmark.failures import killed
from stackmark.machine.gpu import not_here
from stackmark.machine.orphans import MARK_VARIABLE, end_marked, start_ticks
from stackmark.places.folders import private_folder, runs_own_program, scratch_folder
from stackmark.places.mounts import MOUNT, Mount, read_mounts, refuse_cluster_sources, require_sources
from stackmark.places.place import (
    GPU_IDS,
    VISIBLE_GPUS,
    Facts,
    NamesGpus,
    Outcome,
    Several,
    Watch,
    cache_variables,
    not_bound,
)
from stackmark.places.process import oom_kills, start, supervise, worker_environment
from stackmark.places.variables import BIND_HELP, VARIABLES_HELP, Bind, Variables, WithVariables
from stackmark.ranks import RANK_VARIABLES
from stackmark.spec import AUTO, BIND_VARIABLE, SCRATCH_VARIABLE, TYPED_VARIABLE, Spec, Task
from stackmark.units import counted


class HostOptions(WithVariables, NamesGpus):
    """The host's options: which GPUs are visible, and variables of the environment.

    A mount of a path at itself is accepted and does nothing: then a path like /data may be named for all arms at once.
    """

    PLAIN: ClassVar[frozenset[str]] = frozenset({"gpus", GPU_IDS, "bind"})

    bind: Bind = Field(default="none", description=BIND_HELP)
    mount: Several = MOUNT
    env: Variables = Field(default=(), description=VARIABLES_HELP)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return read_mounts(self.mount)

    def _checks(self) -> tuple[Callable[[], None], ...]:
        return (self._mounts_are_there, self._check_variables)

    def _mounts_are_there(self) -> None:
        refuse_cluster_sources(self.mounts, "host")
        for mount in self.mounts:
            if mount.source != mount.target:
                raise SpecError(
                    f"mount: {mount.text!r}: on the host a path stays where it is, and {mount.source} is not {mount.target}",
                    hint=f"name the host's own path ({mount.source}), or give the mount to one arm: --arm container,mount=…",
                )

    def _check_variables(self) -> None:
        names = {*self.variables, *self.named_variables}
        if self.gpus != AUTO and VISIBLE_GPUS in names:
            raise SpecError(
                "gpus and env=CUDA_VISIBLE_DEVICES both say which GPUs are seen", hint="give one of the two"
            )


class HostPlace:
    name = "host"

    def __init__(
        self,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        cache: Path | None = None,
        options: HostOptions | None = None,
    ) -> None:
        self._python = python
        self._options = options or HostOptions()
        around = os.environ if environment is None else environment
        self._environment = {**around, **cache_variables(cache), **self._options.all_variables(around)}
        for name in (TYPED_VARIABLE, BIND_VARIABLE):
            self._environment.pop(name, None)
        self._environment |= self._options.worker_variables
        if self._options.gpus not in (AUTO, "all"):
            self._environment[VISIBLE_GPUS] = ",".join(self._options.gpu_names(self._environment))

    def options(self) -> dict[str, JsonValue]:
        """Return the options as typed."""
        return self._options.model_dump(mode="json", exclude_unset=True)

    def command(self) -> list[str]:
        # -P: a file of the working folder that is named like a module must not stand in for it.
        return [self._python, "-P", "-m", "stackmark.worker"]

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        return not_bound(self._options.bind, facts)

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        self._require_gpus()
        require_sources(self._options.mounts)
        if not runs_own_program(task):
            return self._run(task, watch, mark, time_limit_s, {})
        with private_folder(mark) as folder:
            more = {SCRATCH_VARIABLE: str(scratch_folder(folder, task))}
            return self._run(task, watch, mark, time_limit_s, more)

    def _require_gpus(self) -> None:
        """Refuse GPUs that are not here, before a worker finds none and takes the CPU."""
        asked = self._options.gpus
        if asked in (AUTO, "none"):
            return
        names = [name for name in self._environment.get(VISIBLE_GPUS, "").split(",") if name and asked != "all"]
        if len(names) < (self._options.gpu_count or 0):
            raise PlaceError(
                f"--gpus {asked}: {VISIBLE_GPUS} shows {counted(len(names), 'GPU')}",
                hint="ask for fewer, or name them: --gpu-ids 0+1; for the CPU: --gpus none",
            )
        absent, count = not_here(names)
        if absent or not count:
            there = f"{counted(count, 'GPU')}, with the numbers 0 to {count - 1}" if count > 1 else "only GPU 0"
            named = f"this host has no GPU {' and no GPU '.join(absent)}: it has {there}"
            raise PlaceError(
                f"{self._typed_gpus()}: {named if count else 'this host has no GPU'}",
                hint="--gpus takes a number of GPUs, all or none, and --gpu-ids names them (nvidia-smi -L lists them); "
                "for the CPU: --gpus none",
            )

    def _typed_gpus(self) -> str:
        """Return the GPUs as a person types them."""
        asked = self._options.gpus
        if isinstance(asked, int) or asked == "all":
            return f"--gpus {asked}"
        return f"--gpu-ids {asked.replace(',', '+')}"

    def _run(self, task: Task, watch: Watch, mark: str, time_limit_s: float | None, more: Mapping[str, str]) -> Outcome:
        oom_before = oom_kills()
        process = self._start(self._environment_of(task), {**more, MARK_VARIABLE: mark})
        ended = supervise(
            process,
            task,
            watch,
            lambda: {"pid": process.pid, "start_ticks": start_ticks(process.pid)},
            ask=lambda polite: _asked(process, polite),
            clean_up=lambda: end_marked(mark),
            time_limit_s=time_limit_s,
        )
        failure = ended.failure
        if failure is None and process.returncode < 0:
            failure = killed(-process.returncode, oom_kills() > oom_before)
        return Outcome(process.returncode, failure, tuple(ended.reading.stderr_lines), ended.interruption)

    def _environment_of(self, task: Task) -> dict[str, str]:
        """Return the environment of a worker. A launcher around this driver numbered the driver, not the worker's ranks."""
        if runs_own_program(task):
            return self._environment
        ours = {*RANK_VARIABLES} - {*self._options.worker_variables}
        return {name: value for name, value in self._environment.items() if name not in ours}

    def _start(self, environment: Mapping[str, str], more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            return start(self.command(), {**worker_environment(environment), **more})
        except OSError as error:
            raise PlaceError(
                f"the worker cannot be started on the host: {error}", command=" ".join(self.command())
            ) from error


def _asked(process: subprocess.Popen[bytes], polite: signal.Signals) -> bool:
    process.send_signal(polite)
    return True
