"""The bare host: the worker as a child of ours, in a process group of its own.

Its standard input is a lifeline: it stays open while we live, and the kernel closes it when we die, even by kill -9. Its
output is read as it comes. It is ended as a group: politely first, so that it can say its last event, then for good.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import PlaceError, Terminated
from stackmark.places.place import Facts, Outcome, PlaceOptions, Watch, cache_variables
from stackmark.places.process import (
    Reading,
    end,
    ended_from_outside,
    killed,
    oom_kills,
    polite_signal,
    send,
    worker_environment,
)
from stackmark.spec import Spec, Task
from stackmark.strays import MARK_VARIABLE, end_marked, start_ticks


class HostOptions(PlaceOptions):
    """The bare host has none: what is there is what runs."""


class HostPlace:
    name = "host"

    def __init__(
        self,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        cache: Path | None = None,
    ) -> None:
        self._python = python
        self._environment = {**(os.environ if environment is None else environment), **cache_variables(cache)}

    def options(self) -> dict[str, JsonValue]:
        return {}

    def command(self) -> list[str]:
        # -P: a file of the working folder that is named like a module must not stand in for it.
        return [self._python, "-P", "-m", "stackmark.worker"]

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        return []

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        oom_before = oom_kills()
        process = self._start(mark)
        reading = Reading(process, watch)
        interruption: BaseException | None = None
        in_time = True
        try:
            watch.started({"pid": process.pid, "start_ticks": start_ticks(process.pid)})
            send(process, task)
            in_time = reading.until_exit(time_limit_s)
        except (KeyboardInterrupt, Terminated) as error:
            interruption = error
        finally:
            try:
                end(process, reading, lambda: _asked(process, polite_signal(interruption)))
            finally:
                end_marked(mark)
        failure = ended_from_outside(interruption, in_time, time_limit_s)
        if failure is None and process.returncode < 0:
            failure = killed(-process.returncode, oom_kills() > oom_before)
        return Outcome(process.returncode, failure, tuple(reading.stderr_lines), interruption)

    def _start(self, mark: str) -> subprocess.Popen[bytes]:
        environment = {**worker_environment(self._environment), MARK_VARIABLE: mark}
        try:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise PlaceError(
                f"no worker could be started on the host: {error}", command=" ".join(self.command())
            ) from error


def _asked(process: subprocess.Popen[bytes], polite: signal.Signals) -> bool:
    process.send_signal(polite)
    return True
