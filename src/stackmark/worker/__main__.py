"""`python -m stackmark.worker`: a task comes in by standard input or STACKMARK_SPEC, events go out by standard output.

This is one of the two borders where any exception is caught: what nobody foresaw becomes a `failed` event of kind
`crash` with the traceback on standard error, so that a run never ends without a reason.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from functools import partial

from stackmark import __version__, events
from stackmark.errors import StackmarkError
from stackmark.spec import COPY_VARIABLE, SPEC_LIMIT_BYTES, SPEC_VARIABLE, Task, read_task
from stackmark.worker import ending, first, home
from stackmark.worker.stream import Emitter, guard_stdout


def main(parent: int) -> int:
    copy = os.environ.pop(COPY_VARIABLE, None)
    emitter = Emitter(guard_stdout(), leave=partial(ending.leave, parent_pid=parent), copy=copy)
    greeted = False
    try:
        ending.watch_signals(lambda kind: say_failed(emitter, kind, "the worker did not stop in time and was ended"))
        said = home.settle()
        try:
            task, by_stdin = receive()
        except StackmarkError as error:
            say_hello(emitter)
            return say_failed(emitter, "bad_task", error.message, error.hint or "")
        emitter.rank = task.rank
        greeted = True
        say_hello(emitter, ranks_of(task))
        if task.lifeline and by_stdin:
            ending.watch_lifeline(lambda kind: say_failed(emitter, kind, "the driver is gone: its lifeline ended"))
            ending.die_with_parent(parent, lambda kind: say_failed(emitter, kind, "the driver is gone: it died"))
        for sentence in said:
            emitter(events.Log, line=sentence)
        code = work(task, emitter)
        emitter.close()
        return code
    except ending.Ended as ended:
        if not greeted:
            say_hello(emitter)
        return say_failed(emitter, ended.kind, f"the worker was {ended.kind} by a signal")


def receive() -> tuple[Task, bool]:
    text = os.environ.pop(SPEC_VARIABLE, None)
    if text is not None:
        return read_task(text), False
    # One more than is read, and the newline: enough to see that it is too long.
    return read_task(sys.stdin.buffer.readline(SPEC_LIMIT_BYTES + 2)), True


def ranks_of(task: Task) -> int:
    asked = task.spec or task.request
    return asked.ranks if asked else 1


def say_hello(emitter: Emitter, ranks: int = 1) -> None:
    versions = {"stackmark": __version__, "python": sys.version.split()[0]}
    emitter(events.Hello, time_unix_s=time.time(), pid=os.getpid(), ranks=ranks, versions=versions)


def work(task: Task, emitter: Emitter) -> int:
    from stackmark.worker.run import device_trouble, perform
    from stackmark.workloads.workload import WorkloadFailure

    try:
        with device_trouble():
            perform(task, emitter)
        return 0
    except WorkloadFailure as failure:
        return say_failed(emitter, failure.kind, failure.message, failure.hint)
    except StackmarkError as error:
        return say_failed(emitter, "bad_parameter", error.message, error.hint or "")
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        hint = f"install it beside stackmark: pip install 'stackmark[{package}]'" if package == "torch" else ""
        return say_failed(emitter, "missing_package", f"{package} cannot be imported: {error}", hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border; a library that calls sys.exit() crashed too
        with suppress(OSError):
            traceback.print_exc()
        hint = "the traceback is in the run's log: stackmark show RUN --log"
        return say_failed(emitter, "crash", f"{type(error).__name__}: {error}", hint)


def say_failed(emitter: Emitter, kind: str, message: str, hint: str = "") -> int:
    emitter.last(events.Failed, kind=kind, message=message, hint=hint)
    return events.FAILURE_EXIT_CODES[kind]


if __name__ == "__main__":
    first.step_aside()
    # The driver may be gone before we ask; whoever started us is the parent that counts.
    driver = os.getppid()
    ending.leave(main(driver), driver)
