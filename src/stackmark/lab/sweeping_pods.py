"""A sweep's pods: created, looked at all together, read when they end, and removed.

A thousand pods are one list and a few threads that read logs, and not a thread each. A pod's log is read when its worker has
ended: whoever sweeps wants to know which device is slow, and sees each as it comes.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from stackmark.errors import ClusterError
from stackmark.lab.sweeping_holding import Flight, Landed, holder
from stackmark.lab.sweeping_plan import SweepPlan
from stackmark.ledger.rows import Json
from stackmark.places.kubernetes import manifest, names, podstatus
from stackmark.places.kubernetes.client import ApiError, Unreachable
from stackmark.places.kubernetes.client import Json as ApiObject
from stackmark.places.kubernetes.podlog import PodLog
from stackmark.places.kubernetes.ready import Ready
from stackmark.places.place import STDERR_LINES_KEPT, Outcome, PlaceFailure
from stackmark.places.process import killed
from stackmark.units import say_seconds

SWEEP_LABEL = "stackmark.io/sweep"
# Threads that read logs and create Jobs: more would only wait for one another in the API server's queue.
READERS = 16
# Asked to go, a holder goes at once.
GRACE_S = 1
# An API server that is away is waited for so long; pods go on without it.
AWAY_S = 600.0
# Between two questions to one that is away.
AGAIN_S = 2.0
# A log is read to its end in a moment; where the node does not answer, what there is must do.
READ_S, LAST_WORDS_S = 240.0, 3.0
# From when on a pod that does not start is looked at more closely, and how often.
STUCK_S, STUCK_AGAIN_S = 6.0, 10.0
# A node that takes so long to make a container is in trouble, which is worth a word.
SLOW_TO_START_S = 60.0
# How many of them at one look: a thousand that wait for one reason are not a thousand questions.
MOST_CLOSER_LOOKS = 5
# How often the pods are looked at: at least, and in parts of what looking takes.
LOOK_S, LOOK_TIMES = 0.5, 4.0
# Sentences about pods that wait.
MOST_TOLD = 20
RUNNING = ("running", "ended", "gone")


@dataclass(frozen=True)
class _Ended:
    flight: Flight
    # Why it was given up; None where it came to its own end.
    given_up: PlaceFailure | None = None
    gone: bool = False


class Pods:
    """All pods of one sweep, known by its label."""

    def __init__(
        self, ready: Ready, sweep_id: str, plan: SweepPlan, limit_s: float, say: Callable[[str], None]
    ) -> None:
        self._ready, self._cluster = ready, ready.cluster
        self._sweep_id, self._plan, self._limit_s = sweep_id, plan, limit_s
        self._pods = f"/api/v1/namespaces/{ready.namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{ready.namespace}/jobs"
        self._selector = f"{SWEEP_LABEL}={sweep_id}"
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="sweep")
        self._say, self._said = say, set[str]()
        self._away_since: float | None = None
        self._look_took = 0.0
        self._closer_looks = 0
        self._neighbours: tuple[float, list[ApiObject], list[ApiObject]] | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def handle(self, flight: Flight) -> Json:
        """What the ledger keeps, to find the pod again."""
        made: Json = {
            "context": self._cluster.context,
            "kubeconfig": self._ready.options.kubeconfig,
            "namespace": self._ready.namespace,
            "job": names.object_name(flight.mark),
            "image": self._ready.image,
            "software": "host" if self._ready.software else "image",
            "launched_unix_s": flight.launched_unix_s,
            "node": flight.slot.node,
            "node_boot_id": flight.slot.machine,
        }
        if flight.pod is not None:
            meta = flight.pod["metadata"]
            made |= {"pod": meta.get("name"), "pod_uid": meta.get("uid")}
        return made

    def launch(self, flights: Iterable[Flight], holding_s: float) -> list[tuple[Flight, PlaceFailure]]:
        """Creates their Jobs, several at a time; those that the API server refused, each with its reason."""
        asked = list(flights)
        return [found for found in self._pool.map(lambda one: self._create(one, holding_s), asked) if found]

    def _create(self, flight: Flight, holding_s: float) -> tuple[Flight, PlaceFailure] | None:
        job, until = self._job(flight, holding_s), time.monotonic() + AWAY_S
        while True:
            try:
                self._cluster.create(self._jobs, job)
            except ClusterError as error:
                if _is_there(error):
                    return None  # the answer to the try before was lost
                if not _may_pass(error) or time.monotonic() > until:
                    said = f"the Job was not created: {error.message}"
                    return flight, PlaceFailure("not_created", said, error.hint or "")
                time.sleep(AGAIN_S)
            else:
                return None

    def _job(self, flight: Flight, holding_s: float) -> ApiObject:
        ready = self._ready
        # Their sum, since the holder lives in the same pod.
        deadline_s = self._limit_s + ready.options.wait_s + (holding_s if flight.holds else 0.0)
        wanted = manifest.Wanted(
            mark=flight.mark,
            kind="sweep",
            options=ready.options,
            namespace=ready.namespace,
            image=ready.image,
            task=flight.task,
            node=flight.slot.node,
            gpus=self._plan.gpus,
            software=ready.software,
            deadline_s=math.ceil(deadline_s) + 120,
            claim_version=ready.claim_version,
            about={"engine_version": ready.cluster.version},
        )
        made = manifest.job(wanted)
        template = made["spec"]["template"]
        for labelled in (made, template):
            labelled["metadata"].setdefault("labels", {})[SWEEP_LABEL] = self._sweep_id
        if flight.holds:
            python = ready.software.python if ready.software else "python3"
            template["spec"]["containers"].append(
                holder(template["spec"], python, holding_s, asks=self._plan.holders_ask)
            )
        return made

    def pause_s(self) -> float:
        return max(LOOK_S, LOOK_TIMES * self._look_took)

    def look(self, flights: Mapping[str, Flight]) -> list[_Ended]:
        """Which of them have ended, or are given up. One list for all."""
        began = time.monotonic()
        try:
            found = self._cluster.items(self._pods, labelSelector=self._selector)
        except ClusterError as error:
            self._away_since = self._away_since or began
            if not _may_pass(error) or began - self._away_since > AWAY_S:
                raise
            return []
        if self._away_since is not None:
            # While nobody could look, nobody's time ran out.
            for flight in flights.values():
                flight.began += began - self._away_since
                flight.runs_since = flight.runs_since and flight.runs_since + began - self._away_since
            self._away_since = None
        self._look_took = time.monotonic() - began
        self._closer_looks = 0
        pods = {pod["metadata"].get("labels", {}).get(names.RUN_LABEL): pod for pod in found}
        ended = [self._seen(flight, pods.get(flight.mark)) for flight in list(flights.values())]
        return [one for one in ended if one is not None]

    def _seen(self, flight: Flight, pod: ApiObject | None) -> _Ended | None:
        now = time.monotonic()
        if pod is None:
            if flight.pod is not None:
                return _Ended(flight, gone=True)
            return self._without_pod(flight, now)
        flight.pod = pod
        phase = podstatus.phase_of(pod)
        if phase in ("ended", "gone"):
            return _Ended(flight, gone=phase == "gone")
        if phase == "running":
            flight.runs_since = flight.runs_since or now
            if now - flight.runs_since > self._limit_s:
                return _Ended(flight, self._too_long(flight))
            return None
        return self._stuck(flight, pod, now)

    def _too_long(self, flight: Flight) -> PlaceFailure:
        said = f"it did not end within {say_seconds(self._limit_s)}"
        with suppress(ClusterError):
            node = self._cluster.get(f"/api/v1/nodes/{flight.slot.node}")
            conditions = (node.get("status") or {}).get("conditions") or ()
            ready: ApiObject = next((one for one in conditions if one.get("type") == "Ready"), {})
            if ready and ready.get("status") != "True":
                said += f"; its node is not ready: {ready.get('message') or ready.get('reason')}"
        return PlaceFailure("time_limit", said, "a hanging device or node; see `stackmark cluster doctor`")

    def _without_pod(self, flight: Flight, now: float) -> _Ended | None:
        """A Job whose pods are refused (a quota, Pod Security) says so in its events; one in a queue waits."""
        if now - flight.began < STUCK_S or now - flight.stuck_looked < STUCK_AGAIN_S:
            return None
        if self._closer_looks >= MOST_CLOSER_LOOKS:
            return None
        self._closer_looks += 1
        flight.stuck_looked = now
        name = names.object_name(flight.mark)
        with suppress(ClusterError):
            job = self._cluster.get(f"{self._jobs}/{name}")
            refused = podstatus.job_refused(job, self._events(job))
            if refused is not None:
                return _Ended(flight, refused)
        if now - flight.began > self._ready.options.wait_s:
            said = f"the Job {name} has no pod after {say_seconds(now - flight.began)}"
            return _Ended(flight, PlaceFailure("not_placed", said, "is it held in a queue? see --wait"))
        return None

    def _stuck(self, flight: Flight, pod: ApiObject, now: float) -> _Ended | None:
        """A pod that does not start: hopeless, or waited for too long."""
        waited = now - flight.began
        if waited < STUCK_S or now - flight.stuck_looked < STUCK_AGAIN_S:
            return None
        if self._closer_looks >= MOST_CLOSER_LOOKS:
            return None
        self._closer_looks += 1
        flight.stuck_looked = now
        events = self._events(pod)
        failure = podstatus.failure_of(pod, events)
        if failure is not None:
            return _Ended(flight, failure)
        with suppress(ClusterError):
            nodes, others = self._around(now)
            hopeless = podstatus.hopeless_sentence(pod, nodes)
            said = hopeless or podstatus.waiting_sentence(pod, events, nodes, others)
            if hopeless or waited > self._ready.options.wait_s:
                return _Ended(flight, PlaceFailure("not_placed", f"it was not started: {said}", "see --wait"))
            if podstatus.phase_of(pod) in ("queued", "pending", "pulling") or waited > SLOW_TO_START_S:
                self._tell(f"a pod for {flight.slot.node} waits: {said}")
        return None

    def _around(self, now: float) -> tuple[list[ApiObject], list[ApiObject]]:
        """All nodes, and all pods that hold something; asked anew every few seconds, since both may be thousands."""
        if self._neighbours is None or now - self._neighbours[0] > STUCK_AGAIN_S:
            nodes = self._cluster.items("/api/v1/nodes")
            alive = "status.phase!=Succeeded,status.phase!=Failed"
            self._neighbours = (now, nodes, self._cluster.items("/api/v1/pods", fieldSelector=alive))
        return self._neighbours[1], self._neighbours[2]

    def _tell(self, sentence: str) -> None:
        """Once, and not of a thousand pods: what is the matter is seen from a few."""
        if sentence not in self._said and len(self._said) < MOST_TOLD:
            self._said.add(sentence)
            self._say(sentence)

    def read(self, ended: Iterable[_Ended]) -> list[Landed]:
        """What they said, several at a time."""
        return list(self._pool.map(self._read, ended))

    def _read(self, ended: _Ended) -> Landed:
        flight, pod = ended.flight, ended.flight.pod
        lines: list[str] = []
        stderr: list[str] = []
        if pod is not None and not ended.gone and podstatus.phase_of(pod) in RUNNING:
            until = time.monotonic() + (READ_S if ended.given_up is None else LAST_WORDS_S)
            log = PodLog(self._cluster, self._ready.namespace, pod["metadata"]["name"], uid=pod["metadata"].get("uid"))
            with suppress(ClusterError):
                log.follow(lines.append, stderr.append, stop=lambda: time.monotonic() > until)
        outcome = Outcome(
            podstatus.exit_code(pod) if pod else None,
            ended.given_up or self._failure(pod, ended.gone),
            tuple(stderr[-STDERR_LINES_KEPT:]),
        )
        return Landed(flight, tuple(lines), outcome)

    def _failure(self, pod: ApiObject | None, gone: bool) -> PlaceFailure | None:
        if pod is None:
            return PlaceFailure("deleted", "its pod is gone", "somebody removed it, or a quota did")
        code = podstatus.exit_code(pod)
        if code == 0 and not gone:
            return None
        failure = podstatus.failure_of(pod, self._events(pod), gone=gone)
        if failure is None and code is not None and code > 128 and code not in (130, 143):
            return killed(code - 128, oom=False)
        return failure

    def _events(self, thing: ApiObject) -> list[ApiObject]:
        with suppress(ClusterError):  # a person may not see them: the status alone then says why
            path = f"/api/v1/namespaces/{self._ready.namespace}/events"
            return self._cluster.items(path, fieldSelector=f"involvedObject.uid={thing['metadata'].get('uid')}")
        return []

    def remove(self, marks: Iterable[str]) -> None:
        """Their Jobs and pods. What cannot be removed now has its own end, and `cluster clean`."""
        list(self._pool.map(self._remove, list(marks)))

    def _remove(self, mark: str) -> None:
        name = names.object_name(mark)
        with suppress(ClusterError):
            self._cluster.delete(f"{self._jobs}/{name}", grace_s=GRACE_S)
        # The Job's own pods go with it, in their own time (10 s); these go now.
        with suppress(ClusterError):
            for pod in self._cluster.items(self._pods, labelSelector=f"{names.RUN_LABEL}={mark}"):
                self._cluster.delete(f"{self._pods}/{pod['metadata']['name']}", grace_s=GRACE_S)

    def remove_all(self) -> int:
        """Whatever carries the sweep's label, also of a driver before us; how many Jobs there were."""
        with suppress(ClusterError):
            jobs = self._cluster.items(self._jobs, labelSelector=self._selector)
            self.remove(str(job["metadata"]["labels"][names.RUN_LABEL]) for job in jobs)
            return len(jobs)
        return 0

    def wait_gone(self, marks: Iterable[str], within_s: float = 60.0) -> None:
        """Until their pods are no more: only then are their devices free."""
        waited, until = set(marks), time.monotonic() + within_s
        while waited and time.monotonic() < until:
            with suppress(Unreachable):
                found = self._cluster.items(self._pods, labelSelector=self._selector)
                waited &= {str(pod["metadata"].get("labels", {}).get(names.RUN_LABEL)) for pod in found}
            if waited:
                time.sleep(0.2)


def _may_pass(error: ClusterError) -> bool:
    """Whether it is worth asking again: nobody answered, or the server has trouble of its own, or too much to do."""
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


def _is_there(error: ClusterError) -> bool:
    return isinstance(error, ApiError) and error.reason == "AlreadyExists"
