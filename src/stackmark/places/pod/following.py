"""One pod from its Job's creation to its last word.

Waiting is not running: the time limit counts from the moment the worker's container runs, and how long a pod may wait for
a node, a queue or its image has its own. An API server that is away is waited for; the pod does not need it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from stackmark.errors import ClusterError, PlaceError, Terminated
from stackmark.failures import PlaceFailure, killed
from stackmark.kubernetes import names, orphans, status, why
from stackmark.kubernetes.client import ApiError, Json, Unreachable
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.nodes import Node, find_node
from stackmark.kubernetes.objects import describe
from stackmark.kubernetes.orphans import remove
from stackmark.kubernetes.patience import AWAY_S, COMING_BACK_S, is_there, may_pass, patiently
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Watch
from stackmark.places.pod.setup import PodSetup
from stackmark.places.process import POLITE_S
from stackmark.spec import Task
from stackmark.units import say_seconds

# How often a pod is looked at while it waits, and while its log is followed.
LOOK_S, LOOK_WHILE_RUNNING_S = 0.3, 2.0


class Following:
    """One pod from its Job's creation to its last word."""

    def __init__(
        self, setup: PodSetup, request: PodRequest, task: Task, watch: Watch, time_limit_s: float | None
    ) -> None:
        self._setup, self._request, self._watch, self._options = setup, request, watch, setup.options
        self._cluster, self._time_limit_s = setup.cluster, time_limit_s
        self._path = f"/api/v1/namespaces/{setup.namespace}/pods"
        self._name = names.object_name(request.mark)
        self._pod: Json | None = None
        self._handle: Handle = {}
        self._said = ""
        self._runs_since: float | None = None
        self._looked = 0.0
        self._reached = True
        self._refused_since: float | None = None
        self._last_line = ""
        self._closing = Closing(task)
        self._runtime: str | None = None
        self.timed_out = False
        self.gone = False
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

    def create(self) -> None:
        self._handle = {
            "context": self._cluster.context,
            "kubeconfig": self._options.kubeconfig,
            "namespace": self._setup.namespace,
            "job": self._name,
            "image": self._setup.image,
            "software": "host" if self._setup.software else "image",
            "launched_unix_s": time.time(),
        }
        # Told before it is there: a driver that is killed in between leaves a name to look for.
        self._watch.started(self._handle)
        orphans.write(self._cluster, self._options.kubeconfig, self._setup.namespace, self._request.mark)
        base = f"/namespaces/{self._setup.namespace}"
        job = self._create(f"/apis/batch/v1{base}/jobs", build.job(self._request))
        claim = build.claim_template(self._request)
        if claim is not None:
            # The Job owns it, so that it goes with it; the pod waits until it is there.
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self._name, "uid": job["metadata"]["uid"]}
            claim["metadata"]["ownerReferences"] = [owner]
            self._create(f"/apis/{claim['apiVersion']}{base}/resourceclaimtemplates", claim)

    def _create(self, path: str, body: Json) -> Json:
        """Create an object whose name nobody else uses. An API server that is away is waited for."""

        def ask() -> Json:
            try:
                return self._cluster.create(path, body)
            except ApiError as error:
                if is_there(error):
                    return self._cluster.get(f"{path}/{body['metadata']['name']}")
                raise

        return patiently(ask, self._say)

    def wait_for_worker(self) -> None:
        """Until its container runs or has ended. A pod that no node can ever take, or that waits too long, is given up."""
        began, look_s = time.monotonic(), LOOK_S
        away_since: float | None = None
        while True:
            pod = self._look()
            phase = status.phase_of(pod) if pod else "queued"
            if phase in ("running", "ended", "gone"):
                break
            now = time.monotonic()
            if self._reached:
                # While nobody could look, the pod did not wait for a place: it may run since long.
                began += now - away_since if away_since is not None else 0.0
                away_since = None
                self._give_up_if_hopeless(pod, now - began)
            else:
                away_since = now if away_since is None else away_since
                if now - away_since > AWAY_S:
                    raise Unreachable(f"the API server {self._cluster.server} did not answer for {say_seconds(AWAY_S)}")
            time.sleep(look_s)
            look_s = min(1.0, look_s * 1.2)
        self._runs_since = time.monotonic()
        self._tell_node()

    def read(self) -> None:
        """The worker's stream, to its end."""
        if self._pod is None:
            return
        meta = self._pod["metadata"]
        log = PodLog(self._cluster, self._setup.namespace, meta["name"], uid=meta.get("uid"))
        ended = log.follow(self._line, self._stderr, stop=self._stop)
        if not self.timed_out:
            self._last_look()
        cut = None if self.timed_out else self._cut_short()
        self._handle["log"] = {
            "complete": ended.complete and cut is None,
            "reconnects": ended.reconnects,
            "longest_outage_s": round(ended.longest_outage_s, 3),
            "why": "; ".join(filter(None, (ended.why, cut.message if cut else ""))),
        }
        self._tell_end()

    def end_early(self) -> None:
        """Ask the worker to end, read its last words, and remove the Job. What cannot be removed now has its note."""
        deadline = time.monotonic() + POLITE_S
        with suppress(ClusterError, KeyboardInterrupt, Terminated):
            if self._pod is not None and not self.gone:
                pod = self._pod["metadata"]["name"]
                self._cluster.delete(f"{self._path}/{pod}", grace_s=math.ceil(POLITE_S))
                rest = _AfterLine(self._last_line, self._line, self._stderr)
                log = PodLog(self._cluster, self._setup.namespace, pod)
                log.follow(rest.line, rest.other, stop=lambda: time.monotonic() > deadline)
        with suppress(ClusterError):
            remove(self._cluster, self._setup.namespace, self._request.mark, at_once=True)

    @property
    def exit_code(self) -> int | None:
        return status.exit_code(self._pod) if self._pod else None

    def failure(self) -> PlaceFailure | None:
        if self._pod is None:
            return PlaceFailure(
                "deleted", "the Job's pod is gone before it was seen", "somebody removed it, or a quota did"
            )
        failure = why.failure_of(self._pod, self._events(), gone=self.gone)
        if failure is not None:
            return failure
        code = self.exit_code
        # SIGINT and SIGTERM the worker answers itself, with a last event and these codes.
        if code is not None and code > 128 and code not in (130, 143):
            return killed(code - 128, oom=False)
        return self._cut_short()

    def _cut_short(self) -> PlaceFailure | None:
        """The failure of a worker that ended well, but whose last word is not in the log."""
        if self.gone:
            return None
        node = self._handle.get("node")
        return self._closing.failure(self.exit_code, str(node) if node else None, self._runtime)

    # What is looked at

    def _look(self) -> Json | None:
        """The Job's pod. An API server that is away is waited for."""
        self._looked = time.monotonic()
        self._reached = False
        try:
            found = self._cluster.items(self._path, labelSelector=f"{names.RUN_LABEL}={self._request.mark}")
        except Unreachable as error:
            self._say(f"{error.message}; waiting for it")
            return self._pod
        except ApiError:
            # One that has just come back is busy, and knows for a moment neither accounts nor rights.
            self._refused_since = self._refused_since or self._looked
            if self._looked - self._refused_since > COMING_BACK_S:
                raise
            return self._pod
        self._reached, self._refused_since = True, None
        if found:
            # One, unless a user's patch of the Job says otherwise: the first that was made.
            self._pod = min(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        elif self._pod is not None:
            self.gone = True
        return self._pod

    def _stop(self) -> bool:
        """Whether the log need not be followed any longer: time is up, or the pod is gone."""
        if self._time_limit_s is not None and self._runs_since is not None:
            self.timed_out = time.monotonic() - self._runs_since > self._time_limit_s
        if time.monotonic() - self._looked > LOOK_WHILE_RUNNING_S:
            self._look()
        lost = self._pod is not None and status.phase_of(self._pod) == "gone"
        return self.timed_out or self.gone or lost

    def _last_look(self) -> None:
        """The container's end reaches the pod's status a moment after its log ended; an API server may be away."""
        deadline = time.monotonic() + AWAY_S
        settled = time.monotonic() + COMING_BACK_S
        while time.monotonic() < deadline:
            pod = self._look()
            ended = self.gone or pod is None or status.phase_of(pod) in ("ended", "gone")
            if self._reached and (ended or time.monotonic() > settled):
                return
            time.sleep(LOOK_S)

    def _events(self) -> list[Json]:
        if self._pod is None:
            return []
        uid = self._pod["metadata"].get("uid")
        with suppress(ClusterError):  # a person may not see them, or the server is away: the status alone then says why
            path = f"/api/v1/namespaces/{self._setup.namespace}/events"
            return self._cluster.items(path, fieldSelector=f"involvedObject.uid={uid}")
        return []

    def _give_up_if_hopeless(self, pod: Json | None, waited_s: float) -> None:
        if pod is None:
            self._job_without_pod(waited_s)
            return
        events = self._events()
        failure = why.failure_of(pod, events, gone=self.gone)
        if failure is not None:
            raise PlaceError(failure.message, hint=failure.hint or None, command=describe(pod))
        nodes = self._nodes()
        hopeless = why.hopeless_sentence(pod, nodes)
        sentence = hopeless or why.waiting_sentence(pod, events, nodes, self._others())
        limit_s = self._options.wait_s
        if hopeless or waited_s > limit_s:
            waited = "" if hopeless else f"; it waited {waited_s:.0f} s"
            raise PlaceError(
                f"the pod cannot be placed: {sentence}{waited}",
                hint="see --wait, --node and --gpus",
                command=describe(pod),
            )
        if waited_s > 2 * LOOK_S:
            self._say(sentence)

    def _job_without_pod(self, waited_s: float) -> None:
        """A Job whose pods are refused (a quota, Pod Security, a missing account) says so in its events."""
        job: Json = {}
        events: list[Json] = []
        try:
            job = self._cluster.get(f"/apis/batch/v1/namespaces/{self._setup.namespace}/jobs/{self._name}")
            path = f"/api/v1/namespaces/{self._setup.namespace}/events"
            events = self._cluster.items(path, fieldSelector=f"involvedObject.uid={job['metadata']['uid']}")
        except ApiError as error:
            # A server that has just come back knows for a moment no rights; that we have them was checked before.
            if error.status not in (401, 403) and not may_pass(error):
                raise
        except Unreachable:
            pass  # it is waited for when the pod is looked for again
        refused = why.job_refused(job, events)
        if refused is not None:
            raise PlaceError(refused.message, hint=refused.hint or None)
        if waited_s > self._options.wait_s:
            raise PlaceError(
                f"the Job {self._name} has no pod after {waited_s:.0f} s", hint="is it held in a queue? see --wait",
                command=f"kubectl -n {self._setup.namespace} describe job {self._name}",
            )  # fmt: skip
        if waited_s > 3.0:
            suspended = (job.get("spec") or {}).get("suspend")
            self._say(
                "the Job is suspended: its queue has not admitted it yet" if suspended else "the Job has no pod yet"
            )

    def _nodes(self) -> list[Json]:
        with suppress(ClusterError):
            return self._cluster.items("/api/v1/nodes")
        return []

    def _others(self) -> list[Json]:
        with suppress(ClusterError):
            return self._cluster.items("/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed")
        return []

    # What is told

    def _say(self, sentence: str) -> None:
        if sentence and sentence != self._said:
            self._said = sentence
            self._watch.waiting(sentence)

    def _line(self, text: str) -> None:
        self._last_line = text
        self._closing.line(text)
        self._watch.line(text)

    def _stderr(self, text: str) -> None:
        self.stderr_lines.append(text)
        self._watch.stderr(text)

    def _tell_node(self) -> None:
        if self._pod is None:
            return
        meta, name = self._pod["metadata"], (self._pod.get("spec") or {}).get("nodeName")
        node: Node | None = None
        with suppress(ClusterError):
            node = find_node(self._cluster, name) if name else None
        self._runtime = node.runtime if node else None
        self._handle |= {
            "pod": meta.get("name"),
            "pod_uid": meta.get("uid"),
            "node": name,
            "node_boot_id": node.boot_id if node else None,
            "node_machine_id": node.machine_id if node else None,
            "container_runtime": self._runtime,
        }
        self._watch.started(self._handle)

    def _tell_end(self) -> None:
        if self._pod is None:
            return
        times = status.timeline(self._pod, self._events())
        self._handle |= {
            "image_id": status.image_id(self._pod),
            "queue_s": times.queue_s,
            "pull_s": times.pull_s,
            "start_s": times.start_s,
            "run_s": times.run_s,
            "restarts": status.restarts(self._pod),
        }
        self._watch.started(self._handle)


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
