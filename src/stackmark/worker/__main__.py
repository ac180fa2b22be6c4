"""`python -m stackmark.worker`: a task comes in by standard input or STACKMARK_SPEC, events go out by standard output.

This is one of the two borders where any exception is caught: what nobody foresaw becomes a `failed` event of kind
`crash` with the traceback on standard error, so that a run never ends without a reason.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from stackmark import events
from stackmark.errors import StackmarkError
from stackmark.machine.software import bundle_file
from stackmark.spec import (
    COPY_VARIABLE,
    LOG_VARIABLE,
    PYTHONS_VARIABLE,
    SPEC_LIMIT_BYTES,
    SPEC_VARIABLE,
    Spec,
    Task,
    read_task,
)
from stackmark.version import RELEASE
from stackmark.worker import ending, first, home
from stackmark.worker.stream import Emitter, guard_stdout

if TYPE_CHECKING:
    from stackmark.worker.readable import ForPeople

# Of a spec that the first event names: half of what an event may have. All of ours have a few hundred bytes.
TOLD_SPEC_BYTES = events.EVENT_LIMIT_BYTES // 2


class Voice:
    """A worker's messages about itself, besides what it measures; an agent is silent while its ranks have the stream."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.greeted = self.silent = False

    def hush(self) -> None:
        self.silent = True

    def hello(self, ranks: int = 1, spec: Spec | None = None) -> None:
        self.greeted = True
        versions = {"stackmark": RELEASE, "python": sys.version.split()[0]}
        self.emitter(events.Hello, time_unix_s=time.time(), pid=os.getpid(), ranks=ranks, versions=versions, spec=spec)

    def failed(self, kind: str, message: str, hint: str = "") -> int:
        if not self.silent:
            if not self.greeted:
                self.hello()
            self.emitter.last(events.Failed, kind=kind, message=message, hint=hint)
        return events.FAILURE_EXIT_CODES[kind]


def main(parent: int) -> int:
    copy, log = os.environ.pop(COPY_VARIABLE, None), os.environ.pop(LOG_VARIABLE, None)
    descriptor = guard_stdout()
    emitter = Emitter(descriptor, leave=partial(ending.leave, parent_pid=parent), copy=copy)
    voice = Voice(emitter)
    try:
        ending.watch_signals(
            lambda kind: voice.failed(kind, "the worker did not stop in time and was killed"),
            ending.RANK_GRACE_S if "RANK" in os.environ else ending.GRACE_S,
        )
        said = home.settle()
        emitter.people = _lines_for_people(log)
        try:
            task, by_stdin = receive()
            from stackmark.worker import ranks  # now that a signal is heard

            rank = ranks.launched_rank(task)
            task = ranks.task_of_rank(task, rank) if rank else task
        except StackmarkError as error:
            return voice.failed("bad_task", error.message, error.hint or "")
        agent = ranks.ranks_of(task) > 1 and rank is None
        emitter.rank = task.rank
        if not agent:
            voice.hello(ranks.ranks_of(task), spec_to_tell(task))
        if task.lifeline and by_stdin:
            ending.watch_lifeline(lambda kind: voice.failed(kind, "stackmark has ended: its connection closed"))
            ending.die_with_parent(parent, lambda kind: voice.failed(kind, "stackmark has ended: its process died"))
        if agent:
            print(*said, sep="\n", end="\n" if said else "", file=sys.stderr, flush=True)
            return work(voice, lambda: ranks.lead(task, descriptor, copy, parent, voice.hush, log))
        for sentence in said:
            emitter(events.Log, line=sentence)
        code = work(voice, lambda: perform_here(task, emitter))
        emitter.close()
        return code
    except ending.Ended as ended:
        return voice.failed(ended.kind, f"the worker was {ended.kind} by a signal")


def _lines_for_people(log: str | None) -> "ForPeople | None":
    if not log:
        return None
    from stackmark.worker.readable import for_people  # now that a signal is heard

    return for_people(log)


def spec_to_tell(task: Task) -> Spec | None:
    """Return the spec that the log is to name; None for a user's own program, whose command may hold a secret."""
    from stackmark.workloads.registry import is_own_program

    spec = task.spec if task.do == "run" and task.rank == 0 else None
    if spec is None or is_own_program(spec.workload) or len(spec.canonical()) > TOLD_SPEC_BYTES:
        return None
    return spec


def receive() -> tuple[Task, bool]:
    text = os.environ.pop(SPEC_VARIABLE, None)
    if text is not None:
        return read_task(text), False
    # One more than is read, and the newline: enough to see that it is too long.
    return read_task(sys.stdin.buffer.readline(SPEC_LIMIT_BYTES + 2)), True


def perform_here(task: Task, emitter: Emitter) -> int:
    from stackmark.worker.run import device_trouble, perform

    if task.request and task.spec and task.rank == 0:
        # The group's agent resolved it, and says nothing itself.
        emitter(events.Probe, spec=task.spec, choices={})
    with device_trouble():
        perform(task, emitter)
    return 0


def work(voice: Voice, do: Callable[[], int]) -> int:
    from stackmark.workloads.workload import WorkloadFailure

    try:
        return do()
    except WorkloadFailure as failure:
        return voice.failed(failure.kind, failure.message, failure.hint)
    except StackmarkError as error:
        return voice.failed("bad_parameter", error.message, error.hint or "")
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        message = f"{package} cannot be imported by {sys.executable}: {error}"
        # The shell that chose this Python says which ones it looked at (places/image_python.py).
        looked = os.environ.get(PYTHONS_VARIABLE)
        if package == "torch" and looked:
            message += f"; no Python of the {_where()} has it (tried: {looked})"
        return voice.failed("missing_package", message, _how_to_install(package))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border; a library that calls sys.exit() crashed too
        with suppress(OSError):
            traceback.print_exc()
        hint = "the traceback is in the run's log: stackmark show RUN --log"
        return voice.failed("crash", f"{type(error).__name__}: {error}", hint)


def _how_to_install(package: str) -> str:
    if package != "torch":
        return ""
    if bundle_file():
        use = "install it on the node" if _where() == "node" else "use an image with PyTorch"
        return f"{use}, or give the path of the {_where()}'s Python that has it: --python PATH"
    return f"install it: pip install 'stackmark[{package}]'"


def _where() -> str:
    """Return what has the Pythons that a place looked at: a Slurm job's node, or an image."""
    return "node" if "SLURM_JOB_ID" in os.environ else "image"


def begin() -> NoReturn:
    """Run this process as a worker to its end; the zip file begins here too."""
    first.step_aside()
    # The driver may be gone before we ask; whoever started us is the parent that counts.
    driver = os.getppid()
    ending.leave(main(driver), driver)


if __name__ == "__main__":
    begin()
