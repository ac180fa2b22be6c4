"""Run the processes of a group: start them, read their output, end them, and report for those that cannot.

An event may have 8 KiB, and a pipe takes only 4 KiB in one piece: several processes that share one standard output tear each
other's lines. So each rank has a pipe of its own, and whole lines go on. A rank that dies says nothing; its agent says its last
event for it, with its number in the rank's own stream: that it died, and of what.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from stackmark import events
from stackmark.errors import SpecError, StreamError
from stackmark.machine.binding import shares
from stackmark.ranks import (
    DID_NOT_STOP,
    MOST_LOCAL_RANKS,
    MOST_RANKS,
    STORE_VARIABLE,
    NodeShare,
    Rank,
    own_rank,
    own_share,
    variables,
)
from stackmark.spec import BIND_VARIABLE, COPY_VARIABLE, LOG_VARIABLE, Spec, Task
from stackmark.version import RELEASE
from stackmark.worker import ending
from stackmark.worker.first import worker_command
from stackmark.worker.meeting import join_nodes, receive_nodes
from stackmark.worker.readable import for_people

LOOPBACK = "127.0.0.1"
# After a rank has said goodbye by itself, or was ended by its own watch (ending.RANK_GRACE_S), and before our own ends us.
KILL_AFTER_S = 3.5
# A rank that lost another tells it within a millisecond; the one that it lost may still be saying why.
CAUSE_S = 2.0
# A rank that is gone may have left a child that holds its output open.
DRAIN_S = 0.5
# No event is longer; what else comes without an end is handed on in pieces.
LINE_LIMIT_BYTES = 64 * 1024
# Of the last event of a rank that died: a phase may have any name.
LONGEST_SAID = 80
_LOST_RANK = events.FAILURE_EXIT_CODES["lost_rank"]
_HINTS: dict[int, str] = {
    signal.SIGKILL: "kill -9 or a system limit ended it",
    signal.SIGSEGV: "a library crashed; see the log: stackmark show RUN --log",
    signal.SIGABRT: "a library aborted, as NCCL does after waiting too long; see the log: stackmark show RUN --log",
    signal.SIGBUS: "shared memory may be too small: df -h /dev/shm",
}


@dataclass
class Child:
    number: int
    # None: it could not be started.
    process: subprocess.Popen[bytes] | None
    readers: list[threading.Thread] = field(default_factory=list)
    # How many events it has said, which is the number of its next.
    said: int = 0
    last_line: str = ""
    failed: events.Failed | None = None
    done: bool = False
    # We ended it, politely or for good: its end says nothing of why.
    ended_by_us: bool = False
    killed_by_us: bool = False

    @property
    def code(self) -> int | None:
        return self.process.poll() if self.process else 1


class Out:
    """Standard output and standard error, whole lines at a time. When nothing reads them, the group ends."""

    def __init__(self, descriptor: int, parent_pid: int) -> None:
        self._descriptors = {"out": descriptor, "err": 2}
        self._locks = {"out": threading.Lock(), "err": threading.Lock()}
        self._parent_pid = parent_pid

    def line(self, where: str, line: bytes) -> None:
        try:
            with self._locks[where]:
                while line:
                    line = line[os.write(self._descriptors[where], line) :]
        except OSError:
            if where == "out":  # the ranks hear of it by their lifelines
                ending.leave(events.FAILURE_EXIT_CODES["lost_driver"], self._parent_pid)


class Agent:
    def __init__(
        self, out: Out, copy: str | None, hush: Callable[[], None] = lambda: None, log: str | None = None
    ) -> None:
        self._out, self._copy, self._hush, self._log = out, copy, hush, log
        # Whether the stream is the ranks' already.
        self.spoken = False
        self._began = time.monotonic()
        self._size = 0
        self._children: list[Child] = []
        # In the order in which they came.
        self._failures: list[events.Failed] = []
        self._oom_kills = _oom_kills()

    def start(self, tasks: Sequence[tuple[Rank, Task]], store: "Store") -> None:
        """Start the ranks; stop at the first that cannot be started, and report it."""
        for rank, task in tasks:
            self._size = rank.size
            environment = _environment(rank, task.spec, store, self._copy, self._log)
            child = Child(rank.number, None)
            self._children.append(child)
            if not self.spoken:
                self.spoken = True
                self._hush()
            try:
                process = child.process = subprocess.Popen(
                    worker_command(),
                    env=environment,
                    pass_fds=store.descriptors if rank.number == 0 else (),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                self._say(child, "rank_died", f"the worker could not be started: {error}", "use fewer ranks")
                return
            for read, stream in ((self._events, process.stdout), (self._errors, process.stderr)):
                thread = threading.Thread(target=read, args=(child, stream), name=f"rank {rank.number}", daemon=True)
                child.readers.append(thread)
                thread.start()
            _give(process, task)

    def _events(self, child: Child, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LINE_LIMIT_BYTES), b""):
            if line.endswith(b"\n"):
                self._take_in(child, line.decode("utf-8", "replace"))
                self._out.line("out", line)
            else:
                # It died in the middle of a line: half an event would break the whole stream.
                self._out.line("err", b"[rank %d] its last line was cut off: %s\n" % (child.number, line[:200]))

    def _take_in(self, child: Child, line: str) -> None:
        if not line.startswith(events.EVENT_PREFIX):
            return
        child.said += 1
        child.last_line = line
        kind = line.removeprefix(events.EVENT_PREFIX)
        child.done = child.done or kind.startswith('"result"')
        if kind.startswith('"failed"'):
            with suppress(StreamError):  # whoever reads the stream finds it too, and says so
                event = events.read_event(line, child.said)
                assert isinstance(event, events.Failed)
                child.failed = event
                self._failures.append(event)

    def _errors(self, child: Child, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LINE_LIMIT_BYTES), b""):
            self._out.line("err", b"[rank %d] %s\n" % (child.number, line.removesuffix(b"\n")))

    def until_one_fails(self) -> None:
        """Wait for the first rank that fails, or for the last one that does not."""
        ours = {child.process.pid for child in self._children if child.process}
        while None in (codes := [child.code for child in self._children]) and not any(codes):
            # Comes back at once for whoever ended since it was asked above.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if found and found.si_pid not in ours:
                os.waitpid(found.si_pid, 0)
        if {code for code in codes if code} == {_LOST_RANK}:
            self._wait_for_cause()

    def _wait_for_cause(self) -> None:
        deadline = time.monotonic() + CAUSE_S
        while time.monotonic() < deadline:
            codes = [child.code for child in self._children]
            if None not in codes or any(code not in (None, 0, _LOST_RANK) for code in codes):
                return
            time.sleep(0.02)

    def end(self, polite: signal.Signals) -> None:
        """End the ranks that live: first by request, so that each can send its last event, then by force. All output is read."""
        deadline = time.monotonic() + KILL_AFTER_S
        living = [(child, child.process) for child in self._children if child.process and child.code is None]
        for child, process in living:
            child.ended_by_us = True
            process.send_signal(polite)
        for child, process in living:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.killed_by_us = True
                process.kill()
                process.wait()
        deadline = time.monotonic() + DRAIN_S
        for thread in (thread for child in self._children for thread in child.readers):
            thread.join(max(0.0, deadline - time.monotonic()))

    def say_what_they_could_not(self) -> events.Failed | None:
        """Write the last event of each rank that sent none, first those that died by themselves, and return the first failure."""
        for child in sorted(self._children, key=lambda child: child.ended_by_us):
            if child.failed is None and (why := self._why(child)):
                self._say(child, *why)
        return events.first_cause(self._failures) if self._failures else None

    def _why(self, child: Child) -> tuple[str, str, str] | None:
        code = child.code or 0
        if child.done and (code == 0 or child.ended_by_us):
            return None
        if child.killed_by_us:
            return "terminated", DID_NOT_STOP, ""
        if child.ended_by_us:
            return "terminated", "the worker was stopped with its group, without further output", ""
        if code < 0:
            kind, said, hint = self._killed(-code)
            return kind, f"{said}{_last_event(child)}", hint
        after = "after reporting its result" if child.done else "without a result"
        said = f"the worker ended with code {code} {after}{'' if child.done else _last_event(child)}"
        return "rank_died", said, "see the log: stackmark show RUN --log"

    def _killed(self, number: int) -> tuple[str, str, str]:
        if number == signal.SIGKILL and _oom_kills() > self._oom_kills:
            said = "the kernel's OOM killer ended the worker: the host, or its control group, ran out of memory"
            return "out_of_host_memory", said, "use fewer ranks or smaller problems, or give it more memory"
        known = number in {int(one) for one in signal.Signals}
        name = signal.Signals(number).name if known else f"signal {number}"
        return "rank_died", f"the worker was ended by {name}", _HINTS.get(number, "")

    def _say(self, child: Child, kind: str, message: str, hint: str) -> None:
        t = round(time.monotonic() - self._began, 6)
        if child.said == 0:
            pid = child.process.pid if child.process else 0
            versions = {"stackmark": RELEASE, "python": sys.version.split()[0]}
            self._event(
                child,
                events.Hello(
                    seq=0, rank=child.number, t=t, time_unix_s=time.time(), pid=pid, ranks=self._size, versions=versions
                ),
            )
        failed = events.Failed(seq=child.said, rank=child.number, t=t, kind=kind, message=message, hint=hint)
        self._event(child, failed)
        child.failed = failed
        self._failures.append(failed)

    def _event(self, child: Child, event: events.Event) -> None:
        line = events.write_event(event).encode() + b"\n"
        child.said += 1
        if self._copy is not None:
            with suppress(OSError), open(self._copy, "ab", buffering=0) as file:
                file.write(line)
        self._out.line("out", line)
        if self._log and (lines := for_people(self._log)) and isinstance(event, events.Failed):
            for text in lines(event):
                self._out.line("out", text.encode("utf-8", "replace") + b"\n")


def _last_event(child: Child) -> str:
    """Say what a dead rank did last; empty where it said nothing that can be read."""
    event = None
    with suppress(StreamError):
        event = events.read_event(child.last_line, child.said)
    if isinstance(event, events.Steps):
        said = f"step {event.first + len(event.step_s)} of {event.phase}"
    elif isinstance(event, events.Phase):
        said = f"{event.phase}, {event.state}"
    elif event is not None:
        said = event.event
    else:
        return ""
    return f"; its last event was: {said[:LONGEST_SAID]}"


@dataclass(frozen=True)
class Store:
    """Where the ranks find each other. The agent that starts rank 0 has the socket, and the others its address alone."""

    address: str
    port: int
    listening: socket.socket | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.listening.fileno(),) if self.listening else ()


@contextmanager
def open_store(share: NodeShare) -> Iterator[Store]:
    """Listen for the ranks: on this machine at a free port, else at the address that the place chose for the first node."""
    if share.is_whole:
        with socket.create_server((LOOPBACK, 0), backlog=MOST_LOCAL_RANKS) as listening:
            yield Store(LOOPBACK, listening.getsockname()[1], listening)
        return
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SpecError(
            "a group on several nodes needs MASTER_ADDR and MASTER_PORT in the environment of each worker, "
            f"got {address!r} and {port!r}"
        )
    if share.first:
        join_nodes(address, int(port), share.first // share.count)
        yield Store(address, int(port))
        return
    try:
        # The connections of a thousand ranks may come within a second.
        with socket.create_server(("", int(port)), backlog=MOST_RANKS) as listening:
            receive_nodes(listening, share.size // share.count - 1)
            yield Store(address, int(port), listening)
    except OSError as error:
        raise SpecError(f"port {port} of the first node cannot be listened at: {error.strerror}") from error


def _environment(rank: Rank, spec: Spec | None, store: Store, copy: str | None, log: str | None) -> dict[str, str]:
    made = {**os.environ, **variables(rank, store.address, store.port)}
    made[STORE_VARIABLE] = str(store.listening.fileno()) if store.listening and rank.number == 0 else ""
    if copy is not None:
        made[COPY_VARIABLE] = copy
    if log is not None and rank.number == 0:  # who speaks for the group
        made[LOG_VARIABLE] = log
    # As many threads as there are cores for, or each rank would take all of them; what a person set is theirs.
    made.setdefault("OMP_NUM_THREADS", str(max(1, _cores_for(spec, rank))))
    if rank.local_size == rank.size:
        # All ranks are here: a host name that leads nowhere, or out of the machine, is not asked.
        made.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return made


def _cores_for(spec: Spec | None, rank: Rank) -> int:
    """Return how many CPUs a rank has to itself: as it will be bound (run.py), or an equal part."""
    kind = os.environ.get(BIND_VARIABLE)
    if kind is None or spec is None:
        return len(os.sched_getaffinity(0)) // rank.local_size
    return shares(kind, devices_of_ranks(spec, rank.local_size), os.environ)[rank.local_number].threads


def _give(process: subprocess.Popen[bytes], task: Task) -> None:
    """Writes the task and leaves the pipe open: it is the rank's lifeline."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # its exit code says more
        process.stdin.write(task.model_dump_json().encode() + b"\n")
        process.stdin.flush()


def _oom_kills() -> int:
    """How often the kernel killed because memory ran out: in our control group, or where that does not tell, on this machine."""
    from stackmark.machine import cgroup

    kills = cgroup.read_oom_kills()
    if kills is not None:
        return kills
    with suppress(OSError):
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


# --- A group of ranks is one run, and this worker is its agent: it starts them as its children and speaks for nobody
#
# The plan was torchrun's agent. A worker that is its own agent does the same with less, and the same in every place: a
# host, a container and a pod start one worker as ever, and need not know that it becomes several. It also does what
# torchrun does not: it keeps the ranks' lines whole and says the last word of one that died (above), and the way
# down is the one that all workers know: a lifeline, a signal that is polite first, the kernel's word that the parent is
# gone. So nothing is left behind, whoever was killed. Where another launcher has given this process a rank, it
# is just that rank.
#
# The ranks find each other through a store that rank 0 keeps, at a port that is bound and listens before any of them
# starts and is handed down as a descriptor: no port is looked for, let go and raced for, and no file is left.


def ranks_of(task: Task) -> int:
    """Return how many processes do this task: only a run can have more than one."""
    asked = task.spec or task.request
    return asked.ranks if asked and task.do == "run" else 1


def task_of_rank(task: Task, rank: Rank) -> Task:
    """Return the task of one rank: on its own device."""
    if task.spec is None:
        raise SpecError(
            "a run of several ranks that a launcher started needs a spec, not a request",
            hint="leave RANK unset: then the worker resolves the request once, and starts the ranks itself",
        )
    if ranks_of(task) != rank.size:
        raise SpecError(
            f"the run has {ranks_of(task)} ranks, but by the environment this is rank {rank.number} of {rank.size}",
            hint=f"start {ranks_of(task)}, or leave RANK and WORLD_SIZE unset: then the worker starts them itself",
        )
    return task.model_copy(update={"rank": rank.number, "spec": _on_own_device(task.spec, rank)})


def _on_own_device(spec: Spec, rank: Rank) -> Spec:
    if "device" not in spec.params:
        return spec
    device = devices_of_ranks(spec, rank.local_size)[rank.local_number]
    return spec.model_copy(update={"params": {**spec.params, "device": device}})


def devices_of_ranks(spec: Spec, local_size: int) -> list[str]:
    """Return the devices of the ranks on one machine: a GPU each, or the one that the spec names for all."""
    device = str(spec.params.get("device", ""))
    if spec.ranks == 1 or not device.startswith("cuda") or spec.params.get("share_gpus"):
        return [device] * local_size
    return [f"cuda:{number}" for number in range(local_size)]


def launched_rank(task: Task) -> Rank | None:
    """Return this process's own rank, if a launcher gave it one and the task has several."""
    return own_rank(os.environ) if ranks_of(task) > 1 else None


def lead(
    task: Task,
    descriptor: int,
    copy: str | None,
    parent_pid: int,
    hush: Callable[[], None],
    log: str | None = None,
) -> int:
    """Run the group to its end, and return the exit code of its first failure, or 0.

    `hush` is called before the first word of a rank: from then on the stream is theirs.
    """
    share = own_share(os.environ, ranks_of(task))
    spec = _spec(task, share)
    agent = Agent(Out(descriptor, parent_pid), copy, hush, log)
    told: ending.Ended | None = None
    try:
        with open_store(share) as store:
            whole = task.model_copy(update={"spec": spec, "lifeline": True})
            agent.start([(rank, task_of_rank(whole, rank)) for rank in share.ranks], store)
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


def _spec(task: Task, share: NodeShare) -> Spec:
    """What all ranks do: resolved once, since two probes may choose differently."""
    from stackmark.worker.run import resolved
    from stackmark.workloads.workload import WorkloadFailure

    if share.count > MOST_LOCAL_RANKS or share.size > MOST_RANKS:
        raise WorkloadFailure(
            "bad_parameter",
            f"{share.count} of {share.size} ranks on one machine: at most {MOST_LOCAL_RANKS} on a machine and "
            f"{MOST_RANKS} in all are supported",
            "use fewer ranks, or several machines, e.g. --on pod --ranks-per-node 8",
        )
    if task.spec is not None:
        return task.spec
    assert task.request is not None
    if not share.is_whole:
        raise SpecError(
            "a run on several nodes needs a spec, not a request: each node would resolve a request by itself"
        )
    return resolved(task.request).spec
