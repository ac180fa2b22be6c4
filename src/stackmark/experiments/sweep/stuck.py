"""Why a pod of a sweep does not start, or does not end, and when it is given up.

A thousand pods that wait for one reason are not a thousand questions to the API server, nor a thousand sentences.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from stackmark.errors import ClusterError
from stackmark.experiments.sweep.flight import Flight
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import names, objects, status, why
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.why import ACTIVE
from stackmark.places.pod.setup import PodSetup
from stackmark.units import say_seconds

# From when on a pod that does not start is looked at more closely, and how often.
STUCK_S, STUCK_AGAIN_S = 6.0, 10.0
# A node that takes so long to make a container is in trouble, which is worth a word.
SLOW_TO_START_S = 60.0
# So many are looked at more closely at one look at all of them.
MOST_CLOSER_LOOKS = 5
# Sentences about pods that wait.
MOST_TOLD = 20


class Stuck:
    """Each of its questions answers with why the pod is given up, or None."""

    def __init__(self, ready: PodSetup, limit_s: float, say: Callable[[str], None]) -> None:
        self._ready, self._cluster, self._limit_s = ready, ready.cluster, limit_s
        self._say, self._said = say, set[str]()
        self._closer_looks = 0
        self._neighbours: tuple[float, list[ApiObject], list[ApiObject]] | None = None

    def begin(self) -> None:
        """All pods are looked at anew."""
        self._closer_looks = 0

    def running(self, flight: Flight) -> PlaceFailure | None:
        now = time.monotonic()
        flight.runs_since = flight.runs_since or now
        if now - flight.runs_since <= self._limit_s:
            return None
        said = f"it did not end within {say_seconds(self._limit_s)}"
        with suppress(ClusterError):
            ready = objects.condition(self._cluster.get(f"/api/v1/nodes/{flight.slot.node}"), "Ready")
            if ready and ready.get("status") != "True":
                said += f"; its node is not ready: {ready.get('message') or ready.get('reason')}"
        return PlaceFailure("time_limit", said, "a hanging device or node; see `stackmark cluster doctor`")

    def without_pod(self, flight: Flight) -> PlaceFailure | None:
        """A Job whose pods are refused (a quota, Pod Security) says so in its events; one in a queue waits."""
        now = time.monotonic()
        if not self._worth_a_look(flight, now):
            return None
        name = names.object_name(flight.mark)
        with suppress(ClusterError):
            job = self._cluster.get(f"/apis/batch/v1/namespaces/{self._ready.namespace}/jobs/{name}")
            refused = why.job_refused(job, events_of(self._cluster, job))
            if refused is not None:
                return refused
        if now - flight.began > self._ready.options.wait_s:
            said = f"the Job {name} has no pod after {say_seconds(now - flight.began)}"
            return PlaceFailure("not_placed", said, "is it held in a queue? see --wait")
        return None

    def waiting(self, flight: Flight, pod: ApiObject) -> PlaceFailure | None:
        """A pod that does not start: hopeless, or waited for too long."""
        now = time.monotonic()
        if not self._worth_a_look(flight, now):
            return None
        events = events_of(self._cluster, pod)
        failure = why.failure_of(pod, events)
        if failure is not None:
            return failure
        waited = now - flight.began
        with suppress(ClusterError):
            nodes, others = self._around(now)
            hopeless = why.hopeless_sentence(pod, nodes)
            said = hopeless or why.waiting_sentence(pod, events, nodes, others)
            if hopeless or waited > self._ready.options.wait_s:
                return PlaceFailure("not_placed", f"it was not started: {said}", "see --wait")
            if status.phase_of(pod) in ("queued", "pending", "pulling") or waited > SLOW_TO_START_S:
                self._tell(f"a pod for {flight.slot.node} waits: {said}")
        return None

    def _worth_a_look(self, flight: Flight, now: float) -> bool:
        if now - flight.began < STUCK_S or now - flight.stuck_looked < STUCK_AGAIN_S:
            return False
        if self._closer_looks >= MOST_CLOSER_LOOKS:
            return False
        self._closer_looks += 1
        flight.stuck_looked = now
        return True

    def _around(self, now: float) -> tuple[list[ApiObject], list[ApiObject]]:
        """All nodes, and all pods that hold something; asked anew every few seconds, since both may be thousands."""
        if self._neighbours is None or now - self._neighbours[0] > STUCK_AGAIN_S:
            nodes = self._cluster.items("/api/v1/nodes")
            self._neighbours = (now, nodes, self._cluster.items("/api/v1/pods", fieldSelector=ACTIVE))
        return self._neighbours[1], self._neighbours[2]

    def _tell(self, sentence: str) -> None:
        """Once, and not of a thousand pods: what is the matter is seen from a few."""
        if sentence not in self._said and len(self._said) < MOST_TOLD:
            self._said.add(sentence)
            self._say(sentence)
