"""Process 1 of a container or a pod: it starts the worker as its child, so that it lives as on the host.

The kernel treats the first process of a pid namespace unlike any other: a signal that it has no handler for does not reach it
(a crash by abort() would hang), and all orphans become its children, which stay zombies unless it asks after them. Engines
have an init for that, which is a package that may be missing, and an option that a pod does not have; these lines are
always there. When process 1 goes, the kernel ends all others of its container.
"""

import os
import signal
import sys
from types import FrameType

from stackmark.machine.software import bundle_file

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def worker_command() -> list[str]:
    """Return the command that starts another worker as this one was started: never with the working folder on the path."""
    bundle = bundle_file()
    # -P came with Python 3.11. A zip file is found by its own path, and needs none.
    return [sys.executable, str(bundle)] if bundle else [sys.executable, "-P", "-m", "stackmark.worker"]


def step_aside() -> None:
    """Start a child as process 1, return in it, and wait for it. In any other process do nothing."""
    if os.getpid() != 1:
        return
    # Until there are handlers a signal waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = os.fork()
    if child == 0:
        os.setsid()  # a group of its own, as the host gives it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
