"""Run one worker in a pod, from its Job's creation to its last line.

Waiting is not running: the time limit counts from the moment the worker's container runs, and how long a pod may wait for
a node, a queue or its image has its own. An API server that is away is waited for; the pod does not need it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from stackmark.errors import ClusterError, PlaceError, Terminated
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import names, orphans, status
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.log.follow import LogEnd, PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.nodes import Node, find_node
from stackmark.kubernetes.patience import AWAY_S, COMING_BACK_S
from stackmark.kubernetes.pods import LOOK_S, Awaited, NotReached, Pods, cut_short, remove_run
from stackmark.places.image_python import NO_PYTHON, NO_PYTHON_EXIT, NO_PYTHON_HINT
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Watch
from stackmark.places.pod.outside import OutsideProgram
from stackmark.places.pod.setup import PodSetup
from stackmark.places.process import POLITE_S
from stackmark.spec import Task

# How often a pod is looked at while its log is followed, and at least while it waits.
LOOK_WHILE_RUNNING_S, LOOK_WHILE_WAITING_S = 2.0, 1.0
NO_POD_YET_S = 3.0


class PodRun:
    """One pod from its Job's creation to its last line."""

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
        # What of the log may be missing.
        self._log_why = ""
        self._time_limit_s = time_limit_s
        self._pods = Pods(setup.cluster, setup.namespace, f"{names.RUN_LABEL}={request.mark}", say=self._say)
        self._one = Awaited(request.mark, by_job=True)
        self._job: Json = {}
        # What is known of the pod, and of the node that it was given.
        self.handle: Handle = {}
        self.node: Node | None = None
        self._said = ""
        self._looked = 0.0
        self._last_line = ""
        self._closing = Closing(task)
        self.timed_out = False
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

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
        # Told before it is there: a driver that is killed in between leaves a name to look for.
        self._watch.started(self.handle)
        orphans.write(setup.cluster, setup.options.kubeconfig, setup.namespace, mark)
        parts = (build.config_map(self._request), build.claim_template(self._request))
        self._job = self._pods.create_job(build.job(self._request), [part for part in parts if part])

    def wait_for_worker(self) -> None:
        """Wait until the container runs or has ended. A pod that no node can ever take, or that waits too long, is given up."""
        self._one.began = time.monotonic()
        try:
            self._pods.wait(
                [self._one],
                lambda one: one.phase in ("running", "ended", "gone"),
                self._setup.options.wait_s,
                say=self._say_why,
                slowest_s=LOOK_WHILE_WAITING_S,
            )
        except NotReached as error:
            raise PlaceError(error.message, hint=error.hint, command=error.command or self._describe_job()) from error
        self._one.runs_since = time.monotonic()
        self._tell_node()

    def read(self) -> None:
        """Read the worker's stream to its end."""
        pod = self._one.pod
        if pod is None:
            return
        meta = pod["metadata"]
        plain = self._outside is not None
        log = PodLog(self._setup.cluster, self._setup.namespace, meta["name"], uid=meta.get("uid"), plain=plain)
        ended = log.follow(self._line, self._stderr, stop=self._stop)
        self._log_why = ended.why
        if not self.timed_out:
            self._last_look()
        self._tell_end(ended)

    def end_early(self) -> None:
        """Ask the worker to end, read its last words, and remove the Job. What cannot be removed now has its note."""
        cluster, namespace, pod = self._setup.cluster, self._setup.namespace, self._one.pod
        deadline = time.monotonic() + POLITE_S
        with suppress(ClusterError, KeyboardInterrupt, Terminated):
            if pod is not None and not self._one.gone:
                name = pod["metadata"]["name"]
                cluster.delete(self._pods.path("pods", name), grace_s=math.ceil(POLITE_S))
                rest = _AfterLine(self._last_line, self._line, self._stderr)
                log = PodLog(cluster, namespace, name)
                log.follow(rest.line, rest.other, stop=lambda: time.monotonic() > deadline)
        with suppress(ClusterError):
            remove_run(cluster, namespace, self._request.mark, grace_s=0)

    @property
    def exit_code(self) -> int | None:
        return status.exit_code(self._one.pod) if self._one.pod else None

    def failure(self) -> PlaceFailure | None:
        return self._pods.failure(self._one) or no_python(self._one.pod) or self._cut_short()

    def close_outside(self, failure: PlaceFailure | None) -> PlaceFailure | None:
        """Say what a program in an image came to; return the place's failure, where it is one."""
        assert self._outside is not None
        return self._outside.close(self._one.pod, failure, self._log_why, self._setup.options)

    def _cut_short(self) -> PlaceFailure | None:
        return None if self._one.gone or self._outside else cut_short(self._setup.cluster, self._one.pod, self._closing)

    def _stop(self) -> bool:
        """Tell whether the log need not be followed any longer: time is up, or the pod is gone."""
        one, now = self._one, time.monotonic()
        if self._time_limit_s is not None and one.runs_since is not None:
            self.timed_out = now - one.runs_since > self._time_limit_s
        if now - self._looked > LOOK_WHILE_RUNNING_S:
            runs_since = one.runs_since
            self._pods.look([one])
            # The worker's time runs on while the API server is away.
            one.runs_since, self._looked = runs_since, time.monotonic()
        return self.timed_out or one.phase == "gone"

    def _last_look(self) -> None:
        """Wait for the container's end in the pod's status, a moment after its log ended; an API server may be away."""
        deadline = time.monotonic() + AWAY_S
        settled = time.monotonic() + COMING_BACK_S
        while time.monotonic() < deadline:
            reached = self._pods.look([self._one])
            ended = self._one.pod is None or self._one.phase in ("ended", "gone")
            if reached and (ended or time.monotonic() > settled):
                return
            time.sleep(LOOK_S)

    def _describe_job(self) -> str:
        name = names.object_name(self._request.mark)
        return f"kubectl -n {self._setup.namespace} describe job {name}"

    # What is told

    def _say_why(self, one: Awaited, sentence: str) -> None:
        """Say why the pod waits. That a Job has no pod is usual at first."""
        if one.pod is not None or time.monotonic() - one.began > NO_POD_YET_S:
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        if sentence and sentence != self._said:
            self._said = sentence
            self._watch.waiting(sentence)

    def _line(self, text: str) -> None:
        self._last_line = text
        self._closing.line(text)
        self._watch.line(text)

    def _stderr(self, text: str) -> None:
        if self._outside:
            self._outside.run.line(text)
            return
        self.stderr_lines.append(text)
        self._watch.stderr(text)

    def _tell_node(self) -> None:
        if self._one.pod is None:
            return
        meta, name = self._one.pod["metadata"], (self._one.pod.get("spec") or {}).get("nodeName")
        with suppress(ClusterError):
            self.node = find_node(self._setup.cluster, name) if name else None
        node = self.node
        self.handle |= {
            "pod": meta.get("name"),
            "pod_uid": meta.get("uid"),
            "node": name,
            "node_boot_id": node.boot_id if node else None,
            "node_machine_id": node.machine_id if node else None,
            "container_runtime": node.runtime if node else None,
        }
        self._watch.started(self.handle)
        if self._outside:
            self._outside.begin(self.handle, node)

    def _tell_end(self, ended: LogEnd) -> None:
        pod = self._one.pod
        if pod is None:
            return
        cut = None if self.timed_out else self._cut_short()
        times = status.timeline(pod, events_of(self._setup.cluster, pod), self._job)
        self.handle |= {
            "log": {
                "complete": ended.complete and cut is None,
                "reconnects": ended.reconnects,
                "longest_outage_s": round(ended.longest_outage_s, 3),
                "why": "; ".join(filter(None, (ended.why, cut.message if cut else ""))),
            },
            "image_id": status.image_id(pod),
            "queue_s": times.queue_s,
            "pull_s": times.pull_s,
            "start_s": times.start_s,
            "run_s": times.run_s,
            "restarts": status.restarts(pod),
        }
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
