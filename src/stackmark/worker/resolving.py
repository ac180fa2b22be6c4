"""A request resolved where it will run, by a worker of its own: a trial step leaves memory, caches and settings behind in its
process, and what is measured runs in a fresh one, as everywhere else."""

import os
import subprocess
import sys

from stackmark import events
from stackmark.errors import StreamError
from stackmark.spec import SPEC_VARIABLE, Request, Task
from stackmark.workloads.workload import WorkloadFailure


def resolved(request: Request) -> events.Probe:
    """What a probe says to the request, or its failure as ours."""
    task = Task(do="probe", request=request, lifeline=False)
    done = subprocess.run(
        # As this worker was started: without the working folder on the path.
        [sys.executable, "-P", "-m", "stackmark.worker"],
        env={**os.environ, SPEC_VARIABLE: task.model_dump_json()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    stream = events.Stream()
    try:
        for line in done.stdout.decode(errors="replace").splitlines():
            stream.feed(line)
    except StreamError as error:
        raise WorkloadFailure("bad_output", f"the probe's events cannot be read: {error.message}") from error
    closed = stream.ended()
    if isinstance(closed, events.Failed):
        raise WorkloadFailure(closed.kind, closed.message, closed.hint)
    found = next((event for event in stream.events if isinstance(event, events.Probe)), None)
    if found is None:
        raise WorkloadFailure("crash", f"the probe ended with code {done.returncode} and said nothing")
    return found
