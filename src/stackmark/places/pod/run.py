"""Run one worker in a pod, or a group of them in several, from the Job's creation to the last line.

Waiting is not running: the time limit counts from the moment the worker's container runs, and how long a pod may wait for
a node, a queue or its image has its own. An API server that is away is waited for; the pod does not need it.

A run on several nodes has a pod on each. It begins when all of them run; each pod's log is followed in a thread of its own, and
the lines are handed on one at a time. When one pod fails, the Job controller ends the others; what it cannot end is removed here.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from stackmark.errors import ClusterError, PlaceError, StreamError, Terminated
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import names, orphans, status
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.patience import AWAY_S, COMING_BACK_S
from stackmark.kubernetes.pods import BATCH, LOOK_S, Awaited, NotReached, Pods, cut_short, remove_run
from stackmark.places.image_python import NO_PYTHON, NO_PYTHON_EXIT, NO_PYTHON_HINT
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Watch
from stackmark.places.pod.member import Member, cause_among, located, lost_node, members_of
from stackmark.places.pod.outside import OutsideProgram
from stackmark.places.pod.setup import PodSetup
from stackmark.places.process import POLITE_S
from stackmark.spec import Task

# How often a pod is looked at while its log is followed, and at least while it waits.
LOOK_WHILE_RUNNING_S, LOOK_WHILE_WAITING_S = 2.0, 1.0
NO_POD_YET_S = 3.0
# After the first pod of a group has failed: the others are asked to end within their grace period, and their logs are read.
OTHERS_S = build.GRACE_S + 10.0


class PodRun:
    """The pods of one run, from their Job's creation to the last line."""

    def __init__(
        self,
        setup: PodSetup,
        request: PodRequest,
        task: Task,
        watch: Watch,
        time_limit_s: float | None,
        outside: OutsideProgram | None = None,
    ) -> None:
        self._setup, self._request, self._watch = setup, request, watch
        self._outside = outside
        self._time_limit_s = time_limit_s
        self._pods = Pods(setup.cluster, setup.namespace, f"{names.RUN_LABEL}={request.mark}", say=self._say)
        self._members = members_of(request, task)
        # The pod of rank 0, which speaks for all.
        self._first = self._members[0]
        self._job: Json = {}
        # What is known of the pods, and of the node that the first one was given.
        self.handle: Handle = {}
        self._said: set[str] = set()
        self._looked = 0.0
        self._handing_on = threading.Lock()
        # Lines are handed on of the reading with this number.
        self._reading = 0
        self.timed_out = False
        # A pod of the group failed, and another one did not end after it.
        self.broken_off = False
        self._lost: list[tuple[Member, PlaceFailure]] = []
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

    @property
    def node(self) -> Node | None:
        return self._first.node

    @property
    def _is_group(self) -> bool:
        return len(self._members) > 1

    @property
    def _awaited(self) -> list[Awaited]:
        return [member.one for member in self._members]

    def create(self) -> None:
        setup, mark = self._setup, self._request.mark
        self.handle = {
            "context": setup.cluster.context,
            "kubeconfig": setup.options.kubeconfig,
            "namespace": setup.namespace,
            "job": names.object_name(mark),
            "image": setup.image,
            "software": "host" if setup.software else "image",
            "launched_unix_s": time.time(),
        }
        job = build.job(self._request)
        # Told before it is there: a driver that is killed in between leaves a name to look for.
        self._watch.started(self.handle)
        orphans.write(setup.cluster, setup.options.kubeconfig, setup.namespace, mark)
        makers = (build.config_map, build.service, build.claim_template)
        self._job = self._pods.create_job(job, [part for make in makers if (part := make(self._request))])

    def wait_for_worker(self) -> None:
        """Wait until all containers run, or one has ended. What no node can ever take, or waits too long, is given up."""
        for one in self._awaited:
            one.began = time.monotonic()
        try:
            self._pods.wait(
                self._awaited,
                lambda one: one.phase == "running" or any(other.has_ended for other in self._members),
                self._setup.options.wait_s,
                say=self._say_why,
                slowest_s=LOOK_WHILE_WAITING_S,
            )
        except NotReached as error:
            message = error.message
            if self._is_group:
                message = f"{self._count_running()}; {self._of(error.one, ': ')}{error.message}"
            raise PlaceError(message, hint=error.hint, command=error.command or self._describe_job()) from error
        for one in self._awaited:
            one.runs_since = time.monotonic()
        self._tell_nodes()

    def read(self) -> None:
        """Read the stream of each pod to its end."""
        there = [member for member in self._members if member.one.pod is not None]
        if not there:
            return
        if self._is_group:
            self._read_side_by_side(there)
        else:
            self._follow(self._first, self._stop)
        if not self.timed_out and not self.broken_off:
            self._last_look()
        self._tell_end()

    def _follow(self, member: Member, stop: Callable[[], bool]) -> None:
        meta, reading = (member.one.pod or {})["metadata"], self._reading
        log = PodLog(
            self._setup.cluster,
            self._setup.namespace,
            meta["name"],
            uid=meta.get("uid"),
            plain=self._outside is not None,
        )
        member.log = log.follow(
            lambda text: self._line(member, text, reading), lambda text: self._stderr(member, text, reading), stop=stop
        )

    def _read_side_by_side(self, members: list[Member]) -> None:
        over, errors = threading.Event(), list[BaseException]()

        def follow(member: Member) -> None:
            try:
                self._follow(member, lambda: over.is_set() or member.one.gone)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that drives the run
                errors.append(error)

        threads = [
            threading.Thread(target=follow, args=(member,), name=f"pod {member.one.index}", daemon=True)
            for member in members
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not errors and not self._stop():
                time.sleep(LOOK_S)
        finally:
            over.set()
            for thread in threads:
                thread.join(POLITE_S)
            with self._handing_on:
                self._reading += 1
        if errors:
            raise errors[0]

    def end_early(self) -> None:
        """Ask the workers to end, read their last words, and remove the Job. What cannot be removed now has its note."""
        self._lost = self._on_lost_nodes()
        with suppress(ClusterError, KeyboardInterrupt, Terminated):
            threads = [
                threading.Thread(target=self._read_last_words, args=(member,), daemon=True)
                for member in self._members
                if member.one.pod is not None and not member.one.gone
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(2 * POLITE_S)
        with self._handing_on:
            self._reading += 1
        with suppress(ClusterError):
            remove_run(self._setup.cluster, self._setup.namespace, self._request.mark, grace_s=0)

    def _read_last_words(self, member: Member) -> None:
        cluster, deadline, reading = self._setup.cluster, time.monotonic() + POLITE_S, self._reading
        with suppress(ClusterError, StreamError):
            cluster.delete(self._pods.path("pods", member.name), grace_s=math.ceil(POLITE_S))
            rest = _AfterLine(
                member.last_line,
                lambda text: self._line(member, text, reading),
                lambda text: self._stderr(member, text, reading),
            )
            log = PodLog(cluster, self._setup.namespace, member.name)
            log.follow(rest.line, rest.other, stop=lambda: time.monotonic() > deadline)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; of several pods the first that is not 0."""
        codes = [status.exit_code(one.pod) if one.pod else None for one in self._awaited]
        return next((code for code in codes if code), None if None in codes else 0)

    def failure(self) -> PlaceFailure | None:
        if not self._is_group:
            return self._failure_of(self._first)
        found = [(member, failure) for member in self._members if (failure := self._failure_of(member))]
        found += self._on_lost_nodes()
        return cause_among(found, self._members)

    def out_of_time(self, failure: PlaceFailure | None) -> PlaceFailure | None:
        """Say of a group whose time was up and that was ended which node was lost."""
        if failure is None or failure.kind != "timeout" or not self._lost:
            return failure
        named = located(*self._lost[0])
        return replace(named, message=f"{named.message.removesuffix('.')}; {failure.message}")

    def locations(self) -> dict[int, str]:
        """Return where each rank of a group was."""
        found = [member for member in self._members if self._is_group]
        return {rank: member.place for member in found for rank in member.ranks}

    def _on_lost_nodes(self) -> list[tuple[Member, PlaceFailure]]:
        if not self._is_group:
            return []
        return [(one, failure) for one in self._members if (failure := lost_node(one, self._setup.cluster))]

    def _failure_of(self, member: Member) -> PlaceFailure | None:
        failure = self._pods.failure(member.one)
        if failure and failure.kind == "deleted" and self._request.kueue and self._is_held():
            failure = PlaceFailure(
                "preempted",
                f"the queue {self._request.kueue} took the admission back: the Job was suspended while it ran",
                "run it when the cluster is less busy, or with a higher --priority-class",
            )
        return failure or no_python(member.one.pod) or self._cut_short(member)

    def _is_held(self) -> bool:
        with suppress(ClusterError):
            path = self._pods.path("jobs", names.object_name(self._request.mark), BATCH)
            return bool((self._setup.cluster.get(path).get("spec") or {}).get("suspend"))
        return False

    def close_outside(self, failure: PlaceFailure | None) -> PlaceFailure | None:
        """Say what a program in an image came to; return the place's failure, where it is one."""
        assert self._outside is not None
        log = self._first.log
        return self._outside.close(self._first.one.pod, failure, log.why if log else "", self._setup.options)

    def _cut_short(self, member: Member) -> PlaceFailure | None:
        if member.one.gone or self._outside:
            return None
        return cut_short(self._setup.cluster, member.one.pod, member.closing)

    def _stop(self) -> bool:
        """Tell whether the logs need not be followed any longer: time is up, the pod is gone, or one of several has failed."""
        now, since = time.monotonic(), self._first.one.runs_since
        if self._time_limit_s is not None and since is not None:
            self.timed_out = now - since > self._time_limit_s
        if now - self._looked > LOOK_WHILE_RUNNING_S:
            before = [one.runs_since for one in self._awaited]
            self._pods.look(self._awaited)
            # The worker's time runs on while the API server is away.
            for one, runs_since in zip(self._awaited, before, strict=True):
                one.runs_since = runs_since
            self._looked = time.monotonic()
        if not self._is_group:
            return self.timed_out or self._first.one.phase == "gone"
        for member in self._members:
            member.note_end()
        failed = [member.failed_at for member in self._members if member.failed_at is not None]
        self.broken_off = (
            bool(failed)
            and time.monotonic() - min(failed) > OTHERS_S
            and not all(member.has_ended for member in self._members)
        )
        return self.timed_out or self.broken_off

    def _last_look(self) -> None:
        """Wait for the containers' ends in the pods' status, a moment after their logs ended; an API server may be away."""
        deadline = time.monotonic() + AWAY_S
        settled = time.monotonic() + COMING_BACK_S
        while time.monotonic() < deadline:
            reached = self._pods.look(self._awaited)
            ended = all(member.one.pod is None or member.has_ended for member in self._members)
            if reached and (ended or time.monotonic() > settled):
                break
            time.sleep(LOOK_S)
        for member in self._members:
            member.note_end()

    def _describe_job(self) -> str:
        name = names.object_name(self._request.mark)
        return f"kubectl -n {self._setup.namespace} describe job {name}"

    # What is told

    def _say_why(self, one: Awaited, sentence: str) -> None:
        """Say why a pod waits. That a Job has no pod is usual at first."""
        if one.pod is not None or time.monotonic() - one.began > NO_POD_YET_S:
            self._say(f"{self._count_running()}; {self._of(one, ' waits: ')}{sentence}" if self._is_group else sentence)

    def _count_running(self) -> str:
        running = sum(one.phase == "running" for one in self._awaited)
        return f"{running} of {len(self._members)} pods run"

    def _of(self, one: Awaited, then: str) -> str:
        """Name one of several pods, where there is one already."""
        name = next((member.name for member in self._members if member.one is one), "")
        return f"{name}{then}" if name else ""

    def _say(self, sentence: str) -> None:
        if not sentence or sentence in self._said:
            return
        # Of one pod the last sentence alone counts: what was so before may be so again.
        self._said = {*(self._said if self._is_group else ()), sentence}
        self._watch.waiting(sentence)

    def _line(self, member: Member, text: str, reading: int) -> None:
        with self._handing_on:
            if reading == self._reading:
                member.take(text)
                self._watch.line(text)

    def _stderr(self, member: Member, text: str, reading: int) -> None:
        with self._handing_on:
            if reading != self._reading:
                return
            if self._outside:
                self._outside.run.line(text)
                return
            if self._is_group and not text.startswith("[rank "):
                text = f"[{member.says}] {text}"
            self.stderr_lines.append(text)
            self._watch.stderr(text)

    def _tell_nodes(self) -> None:
        there = [member for member in self._members if member.one.pod is not None]
        for member in there:
            member.find_node(self._setup.cluster)
        if self._first not in there:
            return
        self.handle |= self._first.placed()
        if self._is_group:
            self.handle["pods"] = [{"ranks": [*member.ranks], **member.placed()} for member in self._members]
        self._watch.started(self.handle)
        if self._outside:
            self._outside.begin(self.handle, self._first.node)

    def _tell_end(self) -> None:
        ends = [
            member.ended(self._setup.cluster, self._job, None if self.timed_out else self._cut_short(member))
            for member in self._members
        ]
        self.handle |= ends[0]
        if self._is_group:
            self.handle["pods"] = [
                {"ranks": [*member.ranks], **member.placed(), **end}
                for member, end in zip(self._members, ends, strict=True)
            ]
        self._watch.started(self.handle)


def no_python(pod: Json | None) -> PlaceFailure | None:
    """Return the failure of a pod whose image has no Python, which is found out in the pod."""
    if pod is None or status.exit_code(pod) != NO_PYTHON_EXIT:
        return None
    return PlaceFailure("no_python", NO_PYTHON, NO_PYTHON_HINT)


class _AfterLine:
    """Hands on what comes after a line that was seen: a log that is read again begins with what was read before."""

    def __init__(self, last: str, line: Callable[[str], None], other: Callable[[str], None]) -> None:
        self._last, self._line, self._other, self._open = last, line, other, not last

    def line(self, text: str) -> None:
        if self._open:
            self._line(text)
        self._open = self._open or text == self._last

    def other(self, text: str) -> None:
        if self._open:
            self._other(text)
