"""A group of ranks is one run, and this worker is its agent: it starts them as its children and speaks for nobody.

The plan was torchrun's agent. A worker that is its own agent does the same with less, and the same in every place: a host, a
container and a pod start one worker as ever, and need not know that it becomes several. It also does what torchrun does not: it
keeps the ranks' lines whole and says the last word of one that died (agent.py), and the way down is the one that all workers
know: a lifeline, a signal that is polite first, the kernel's word that the parent is gone. So nothing is left behind, whoever
was killed. Where somebody else's launcher has given this process a rank, it is just that rank.

The ranks find each other through a store that rank 0 keeps, at a port that is bound and listens before any of them starts and
is handed down as a descriptor: no port is looked for, let go and raced for, and no file is left.
"""

import os
import signal
import socket
from collections.abc import Callable

from stackmark import events
from stackmark.errors import SpecError
from stackmark.ranks import MOST_RANKS, Rank, own_rank
from stackmark.spec import Spec, Task
from stackmark.worker import ending
from stackmark.worker.agent import LOOPBACK, Agent, Out


def ranks_of(task: Task) -> int:
    """How many processes do this task: only a run is ever more than one."""
    asked = task.spec or task.request
    return asked.ranks if asked and task.do == "run" else 1


def task_of_rank(task: Task, rank: Rank) -> Task:
    """The task as one rank does it: on its own device."""
    if task.spec is None:
        raise SpecError(
            "a run of several ranks that a launcher started needs a spec, not a request",
            hint="leave RANK unset: then the worker resolves the request once, and starts the ranks itself",
        )
    if ranks_of(task) != rank.size:
        raise SpecError(
            f"the run has {ranks_of(task)} ranks, and by the environment this is rank {rank.number} of {rank.size}",
            hint="start as many, or leave RANK and WORLD_SIZE unset: then the worker starts them itself",
        )
    return task.model_copy(update={"rank": rank.number, "spec": _on_own_device(task.spec, rank)})


def _on_own_device(spec: Spec, rank: Rank) -> Spec:
    if not str(spec.params.get("device", "")).startswith("cuda"):
        return spec
    return spec.model_copy(update={"params": {**spec.params, "device": f"cuda:{rank.local_number}"}})


def launched_rank(task: Task) -> Rank | None:
    """This process's own rank, if somebody else's launcher gave it one and the task has several."""
    return own_rank(os.environ) if ranks_of(task) > 1 else None


def lead(task: Task, descriptor: int, copy: str | None, parent_pid: int, hush: Callable[[], None]) -> int:
    """Runs the group to its end, and gives the exit code of its first failure, or 0.

    `hush` is called before the first word of a rank: from then on the stream is theirs.
    """
    spec = _spec(task)
    agent = Agent(Out(descriptor, parent_pid), copy, hush)
    told: ending.Ended | None = None
    try:
        with socket.create_server((LOOPBACK, 0), backlog=MOST_RANKS) as store:
            whole = task.model_copy(update={"spec": spec, "lifeline": True})
            ranks = [Rank(number, spec.ranks, number, spec.ranks) for number in range(spec.ranks)]
            agent.start([(rank, task_of_rank(whole, rank)) for rank in ranks], store)
        agent.until_one_fails()
    except ending.Ended as ended:
        if not agent.spoken:
            raise
        told = ended
    finally:
        agent.end(signal.SIGINT if told and told.kind == "interrupted" else signal.SIGTERM)
    failed = agent.say_what_they_could_not()
    if told:
        return events.FAILURE_EXIT_CODES[told.kind]
    return events.FAILURE_EXIT_CODES.get(failed.kind, 1) if failed else 0


def _spec(task: Task) -> Spec:
    """What all ranks do: resolved once, since two probes may choose differently."""
    from stackmark.worker.resolving import resolved
    from stackmark.workloads.workload import WorkloadFailure

    if ranks_of(task) > MOST_RANKS:
        raise WorkloadFailure(
            "bad_parameter", f"{ranks_of(task)} ranks are more than the {MOST_RANKS} that are started"
        )
    if task.spec is not None:
        return task.spec
    assert task.request is not None
    return resolved(task.request).spec
