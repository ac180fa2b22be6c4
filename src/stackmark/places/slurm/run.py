"""Run one job from the queue to its last line: one srun, one agent on each node.

Waiting is not running: the time limit counts from the moment all nodes answered, and how long a job may wait has its own. srun is
our child, and its standard input the workers' lifeline. When we die by kill -9, srun reads the end of it and hands that on; and
the kernel sends it SIGUSR1 for us: while its job waits srun does not look at its input, and takes the job back on that signal.
"""

import errno
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.errors import PlaceError, Terminated
from stackmark.events import EVENT_PREFIX
from stackmark.failures import PlaceFailure, killed, signal_name
from stackmark.machine.orphans import start_ticks
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.launch import driver_name
from stackmark.places.folders import runs_own_program
from stackmark.places.image_python import NO_PYTHON_EXIT
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Outcome, Watch
from stackmark.places.process import Reading, end_group, ended_from_outside, polite_signal, silence_limit_s, start
from stackmark.places.slurm.boot import NO_PYTHON_HINT, Lines, NodeLine, head_of, node_command
from stackmark.places.slurm.commands import ControllerAway, Job, Slurm
from stackmark.places.slurm.options import SlurmOptions
from stackmark.places.slurm.why import failure_of_job, given_up, not_started, say_waiting
from stackmark.ranks import NODE_RANKS_VARIABLE, RANK_VARIABLES
from stackmark.spec import Task

NAME_PREFIX = "stackmark-"
# How often srun's output is looked at while a job waits, and how often Slurm is asked about it: soon at first, then rarely,
# since a controller has other users.
LOOK_S, ASK_FIRST_S, ASK_SLOWEST_S = 0.05, 0.5, 5.0
# After the first node answered. srun starts them all at once.
ALL_NODES_S = 60.0
# srun ends the other nodes so long after the first one ended: an agent that lost a rank needs up to 6 s for its last words. Ranks
# that do not exchange notice nothing, and would go on: a dead rank must fail the run within 10 s.
OTHERS_END_S = 7
# Slurm's own limit lies above ours, which is exact: it counts in minutes, and only matters when nobody is there.
SLURMS_LIMIT_S = 180
# A state may follow the end of srun by a moment.
STATE_S = 3.0
# What srun ends with where a node cannot start the program: the system's number of the error.
_CANNOT_START = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
# Kinds of failure that say no more than that the worker was ended, or lost another.
_SECONDARY = ("terminated", "interrupted", "lost_driver", "lost_rank")
_FAILED = re.compile(rf'{re.escape(EVENT_PREFIX)}"failed".*?"kind":"([a-z_]+)"')
# srun inherits the signal that it gets when we die (PR_SET_PDEATHSIG).
_WITH_US = (
    "import ctypes, os, sys\n"
    f"ctypes.CDLL(None).prctl(1, {int(signal.SIGUSR1)}, 0, 0, 0)\n"
    "if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])\n"
)


@dataclass(frozen=True)
class Plan:
    """The size of a job: how many nodes, and what each gives."""

    nodes: int
    # How many ranks each node's agent starts; None where one worker does all.
    ranks_each: int | None
    gpus: int


@dataclass
class NodeState:
    """What a node's first program told, and how its worker ended."""

    told: Mapping[str, JsonValue]
    code: int | None = None


def job_name(mark: str) -> str:
    return f"{NAME_PREFIX}{mark}"


def srun_command(options: SlurmOptions, plan: Plan, mark: str, time_limit_s: float | None) -> list[str]:
    """Return the srun of a run, without the program on the nodes."""
    typed = {
        "partition": options.partition, "account": options.account, "qos": options.qos, "constraint": options.constraint,
        "reservation": options.reservation, "nodelist": options.nodelist,
        "cpus-per-task": options.cpu_count, "mem": None if options.memory_mib is None else f"{options.memory_mib}M",
        "gres": ",".join(filter(None, [options.gres, f"gpu:{plan.gpus}" if plan.gpus else None])) or None,
    }  # fmt: skip
    limited = time_limit_s is not None and math.isfinite(time_limit_s)
    return [
        "srun", f"--job-name={job_name(mark)}", f"--comment=stackmark {mark} driver={driver_name()}",
        f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}", "--ntasks-per-node=1",
        *(f"--{key}={value}" for key, value in typed.items() if value is not None),
        *(["--exclusive"] if options.exclusive else []),
        *([f"--time={math.ceil(((time_limit_s or 0) + SLURMS_LIMIT_S) / 60)}"] if limited else []),
        # One agent's end is not the others': they have last words.
        "--kill-on-bad-exit=0", f"--wait={OTHERS_END_S}", "--mpi=none", "--quit-on-interrupt", "--export=ALL",
    ]  # fmt: skip


def by_hand(argv: Sequence[str]) -> list[str]:
    """Return a command that asks Slurm for the same, and says which nodes it gave."""
    ours = ("--job-name", "--comment", "--kill-on-bad-exit", "--wait", "--mpi", "--quit-on-interrupt", "--export")
    return [*(word for word in argv if not word.startswith(ours)), "hostname"]


class SlurmRun:
    """One job from its submission to its last line."""

    def __init__(
        self,
        slurm: Slurm,
        options: SlurmOptions,
        plan: Plan,
        task: Task,
        watch: Watch,
        mark: str,
        environment: Mapping[str, str],
        time_limit_s: float | None,
    ) -> None:
        self._slurm, self._options, self._plan, self._task = slurm, options, plan, task
        self._watch, self._mark, self._environment = watch, mark, environment
        self._time_limit_s = time_limit_s
        # Slurm's own limit is for a run whose driver is gone; a probe's would be above that of some partitions.
        self._argv = srun_command(options, plan, mark, time_limit_s if task.do == "run" else None)
        self._nodes: dict[int, NodeState] = {}
        self._lines = Lines(self._take, self.stderr)
        self._job: Job | None = None
        self._said = ""
        self._sent = False
        self._events = 0
        self._failed: list[str] = []
        # What Slurm said, and what the workers wrote to standard error.
        self._slurms: deque[str] = deque(maxlen=50)
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self.handle: Handle = {}

    # As a reader of srun's two streams

    def line(self, text: str) -> None:
        self._lines.line(text)

    def stderr(self, text: str) -> None:
        self._slurms.append(text)
        if "queued and waiting" not in text and "has been allocated" not in text:
            self._err(text)

    def _err(self, text: str) -> None:
        self._stderr.append(text)
        self._watch.stderr(text)

    def _take(self, line: NodeLine) -> None:
        if line.out is not None:
            self._events += line.out.startswith(EVENT_PREFIX)
            if found := _FAILED.match(line.out):
                self._failed.append(found[1])
            self._watch.line(line.out)
        elif line.err is not None:
            self._err(line.err)
        elif line.told is not None:
            self._told(line.node, line.told)

    def _told(self, number: int, told: Mapping[str, JsonValue]) -> None:
        if number >= self._plan.nodes:
            return
        code = told.get("code")
        if number not in self._nodes:
            self._nodes[number] = NodeState(told)
        elif isinstance(code, int):
            self._nodes[number].code = code

    # From the queue to the end

    def run(self) -> Outcome:
        """Run the job to its end."""
        began_unix_s = time.time()
        self.handle = {
            "slurm_job_name": job_name(self._mark),
            "slurm_version": self._slurm.version,
            "launched_unix_s": began_unix_s,
            "command": [*self._argv],
        }
        self._watch.started(self.handle)
        # Told before it is there: a driver that is killed in between leaves a name to look for.
        program = node_command(self._options.python)
        try:
            process = start(self._guarded(program), self._environment_of_job())
        except OSError as error:
            raise PlaceError(f"srun cannot be started: {error}", command=" ".join(self._argv)) from error
        self.handle |= {"pid": process.pid, "start_ticks": start_ticks(process.pid)}
        reading = Reading(process, self)
        interruption: BaseException | None = None
        in_time = True
        silence_s = silence_limit_s(self._task, self._time_limit_s)
        try:
            self._wait(reading)
            if self._is_here():
                self.handle |= {"queue_s": round(time.time() - began_unix_s, 3)}
                self._begin(process)
                reading.expect(silence_s)
                in_time = reading.until_exit(self._limit_s())
        except (KeyboardInterrupt, Terminated) as error:
            interruption = error
        finally:
            try:
                end_group(process, reading, lambda: self._ask(process, polite_signal(interruption)))
            finally:
                self._end()
        failure = ended_from_outside(interruption, in_time, self._time_limit_s, silence_s if reading.silent else None)
        failure = failure or self._failure(process.returncode)
        return Outcome(process.returncode, failure, tuple(self._stderr), interruption, self._locations())

    def _environment_of_job(self) -> dict[str, str]:
        """Return what srun hands on. A launcher around this driver numbered the driver, not the ranks of this job."""
        theirs = () if runs_own_program(self._task) else RANK_VARIABLES
        return {name: value for name, value in self._slurm.environment.items() if name not in theirs}

    def _guarded(self, program: tuple[str, ...]) -> list[str]:
        """Return the command that becomes srun, which ends with us."""
        return [sys.executable, "-I", "-c", _WITH_US, str(os.getpid()), *self._argv, *program]

    def _limit_s(self) -> float | None:
        return self._time_limit_s if self._time_limit_s is not None and math.isfinite(self._time_limit_s) else None

    def _is_here(self) -> bool:
        return len(self._nodes) == self._plan.nodes and not any("old" in one.told for one in self._nodes.values())

    def _wait(self, reading: Reading) -> None:
        """Wait until all nodes answered, or srun ended. A job that waits too long is given up."""
        began = time.monotonic()
        ask_s = ASK_FIRST_S
        next_s = began + ask_s
        first_s: float | None = None
        while not self._is_here() and not reading.until_exit(LOOK_S):
            now = time.monotonic()
            first_s = first_s or (now if self._nodes else None)
            if now >= next_s:
                self._look()
                ask_s = min(ask_s * 1.5, ASK_SLOWEST_S)
                next_s = now + ask_s
            if now - began > self._options.wait_s or (first_s is not None and now - first_s > ALL_NODES_S):
                self._look()
                raise given_up(self._job, now - began, job_name(self._mark))

    def _look(self) -> None:
        """Ask Slurm about the job, and say why it waits."""
        try:
            jobs = self._slurm.jobs(job_name(self._mark))
        except ControllerAway as error:
            self._say(f"{error.message}; waiting for it")
            return
        if not jobs:
            return
        self._job = jobs[-1]
        if self._job.state in ("PENDING", "CONFIGURING"):
            self._say(say_waiting(self._job))
        self._tell(self._job.number, self._job.partition, self._job.nodes)

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._watch.waiting(sentence)

    def _tell(self, number: JsonValue, partition: JsonValue, nodes: JsonValue) -> None:
        told: Handle = {"slurm_job_id": str(number), "partition": partition, "nodes": nodes}
        if any(self.handle.get(key) != value for key, value in told.items()):
            self.handle |= told
            self._watch.started(self.handle)

    def _begin(self, process: "subprocess.Popen[bytes]") -> None:
        """Hand out the worker and its task. Standard input stays open: it is the lifeline."""
        first = self._nodes[0].told
        self._tell(first.get("SLURM_JOB_ID"), first.get("SLURM_JOB_PARTITION"), first.get("SLURM_JOB_NODELIST"))
        bundle = worker_bundle().content
        environment = {**self._environment, **self._group(first)}
        head = head_of(bundle, environment, scratch=runs_own_program(self._task))
        data = head + bundle + self._task.model_dump_json().encode() + b"\n"
        self._sent = True
        # By a thread: a node that stands still would hold us up.
        threading.Thread(target=_write, args=(process, data), name="worker's zip file", daemon=True).start()

    def _group(self, first: Mapping[str, JsonValue]) -> dict[str, str]:
        """Return what the agents of several nodes need to find each other."""
        if self._plan.ranks_each is None or self._plan.nodes == 1:
            return {}
        name, port = first.get("SLURMD_NODENAME"), first.get("port")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", name) or not isinstance(port, int):
            raise PlaceError("the first node did not say its name and a free port", command="srun --nodes=1 env")
        return {
            NODE_RANKS_VARIABLE: str(self._plan.ranks_each),
            "MASTER_ADDR": self._slurm.address(name),
            "MASTER_PORT": str(port),
        }

    def _ask(self, process: "subprocess.Popen[bytes]", polite: signal.Signals) -> bool:
        if not self._sent:
            process.terminate()  # the job waits, and srun takes it back
        else:
            # srun hands these on, and the program on each node sends its worker what they mean.
            process.send_signal(signal.SIGUSR2 if polite == signal.SIGINT else signal.SIGUSR1)
        return True

    def _end(self) -> None:
        """End what is left of the job. What cannot be ended now is found by the next command, by the job's name."""
        with suppress(PlaceError):
            job = self._state()
            if job is not None and not job.is_over and job.state != "COMPLETING":
                self._slurm.cancel(job_name(self._mark))

    def _state(self) -> Job | None:
        """Return the job as Slurm has it at its end, which follows that of srun."""
        deadline = time.monotonic() + STATE_S
        while True:
            jobs = self._slurm.jobs(job_name(self._mark))
            self._job = jobs[-1] if jobs else self._job
            settled = self._job is None or self._job.is_over or self._job.state == "COMPLETING"
            if settled or time.monotonic() > deadline:
                return self._job
            time.sleep(0.1)

    # How it ended

    def _failure(self, code: int) -> PlaceFailure | None:
        said = "\n".join(self._slurms)
        if old := next((node.told for node in self._nodes.values() if "old" in node.told), None):
            python, version = str(old.get("python"))[:200], str(old.get("old"))[:20]
            message = f"the worker needs Python 3.10 or newer, but {python} on the node is {version}"
            raise PlaceError(message, hint=NO_PYTHON_HINT, kind="old_python")
        if not self._sent:
            if code == NO_PYTHON_EXIT:
                raise PlaceError(
                    self._last("usable Python") or "the node has no Python", hint=NO_PYTHON_HINT, kind="no_python"
                )
            if self._options.python and code in _CANNOT_START:
                # slurmstepd's own sentence about it may be lost: srun does not wait for it.
                message = f"the node cannot start {self._options.python}: {os.strerror(code)}"
                raise PlaceError(message, hint=NO_PYTHON_HINT, kind="no_python")
            if failure := failure_of_job(self._job):
                raise PlaceError(failure.message, hint=failure.hint, kind=failure.kind)
            raise not_started(said, by_hand(self._argv))
        if any(kind not in _SECONDARY for kind in self._failed):
            return None  # a worker knows better
        if failure := failure_of_job(self._job, said):
            return failure
        codes = {number: node.code for number, node in sorted(self._nodes.items())}
        for number, ended in codes.items():
            if ended is not None and ended < 0:
                struck = killed(-ended, False)
                where = f" on {self._name(number)}" if self._plan.nodes > 1 else ""
                return PlaceFailure(struck.kind, f"{struck.message}{where}", struck.hint)
        lost = [self._name(number) for number, ended in codes.items() if ended is None]
        if code < 0:
            return PlaceFailure("killed", f"srun was ended by {signal_name(-code)}", "the job ended with it")
        if lost and code != 0:
            last = self._last("error") or f"srun ended with code {code}"
            hint = f"see the node: sinfo --Node --long --nodes={','.join(lost)}"
            return PlaceFailure("node_lost", f"the worker on {', '.join(lost)} was lost: {last}", hint)
        return None

    def _locations(self) -> dict[int, str]:
        """Say on which node each rank was, if there are several nodes."""
        each = self._plan.ranks_each
        if each is None or self._plan.nodes == 1:
            return {}
        return {
            rank: f"on {self._name(number)}"
            for number in self._nodes
            for rank in range(number * each, (number + 1) * each)
        }

    def _name(self, number: int) -> str:
        name = self._nodes[number].told.get("SLURMD_NODENAME")
        return name if isinstance(name, str) and len(name) < 256 else f"node {number}"

    def _last(self, word: str) -> str:
        return next((text[:300] for text in reversed(self._slurms) if word in text), "")


def _write(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    # A job that is gone already says more by its end than our broken pipe would.
    with suppress(OSError, ValueError):
        left = memoryview(data)
        while left:
            left = left[process.stdin.write(left) or 0 :]
