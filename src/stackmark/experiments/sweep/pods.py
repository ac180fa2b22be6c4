"""A sweep's pods: created, looked at all together, read when they end, given up when they hang, and removed.

A thousand pods are one list and a few threads that read logs, and not a thread each. A pod's log is read when its worker has
ended: whoever sweeps wants to know which device is slow, and sees each as it comes.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from stackmark.errors import ClusterError
from stackmark.experiments.sweep.flight import SWEEP_LABEL, Flight, Landed, job_of
from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import names, objects, orphans
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.pods import BATCH, Awaited, Closeness, NotReached, Pods, cut_short, remove_run
from stackmark.kubernetes.status import exit_code
from stackmark.places.place import STDERR_LINES_KEPT, Outcome
from stackmark.places.pod.setup import PodSetup
from stackmark.units import say_seconds

# Threads that read logs and create Jobs: more would only wait for one another in the API server's queue.
READERS = 16
# Asked to go, a holder goes at once.
GRACE_S = 1
# A log is read to its end in a moment; where the node does not answer, what there is must do.
READ_S, LAST_WORDS_S = 240.0, 3.0
# How often the pods are looked at: at least, and in parts of what looking takes.
LOOK_S, LOOK_TIMES = 0.5, 4.0
# A pod that does not start is looked at more closely after a while, and then again, but few at a time.
CLOSE = Closeness(first_s=6.0, again_s=10.0, most=5, around_s=10.0)
# A node that takes so long to make a container is in trouble, which is worth a word.
SLOW_TO_START_S = 60.0
# Sentences about pods that wait: what is the matter is seen from a few.
MOST_TOLD = 20


@dataclass(frozen=True)
class _Ended:
    flight: Flight
    # Why it was given up; None where it came to its own end.
    given_up: PlaceFailure | None = None


class SweepPods:
    """All pods of one sweep, known by its label."""

    def __init__(
        self, setup: PodSetup, sweep_id: str, plan: SweepPlan, limit_s: float, say: Callable[[str], None]
    ) -> None:
        self._setup, self._cluster = setup, setup.cluster
        self._sweep_id, self._plan, self._limit_s = sweep_id, plan, limit_s
        self._pods = Pods(setup.cluster, setup.namespace, f"{SWEEP_LABEL}={sweep_id}", close=CLOSE)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="sweep")
        self._say, self._said = say, set[str]()
        self._look_took = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def launch(self, flights: Iterable[Flight], holding_s: float) -> list[tuple[Flight, PlaceFailure]]:
        """Create their Jobs, several at a time; return those that the API server refused, each with its reason."""
        return [found for found in self._pool.map(lambda one: self._create(one, holding_s), flights) if found]

    def _create(self, flight: Flight, holding_s: float) -> tuple[Flight, PlaceFailure] | None:
        job = job_of(flight, self._sweep_id, self._plan, self._setup, limit_s=self._limit_s, holding_s=holding_s)
        orphans.write(self._cluster, self._setup.options.kubeconfig, self._setup.namespace, flight.mark)
        try:
            self._pods.create(job, "jobs", BATCH)
        except ClusterError as error:
            return flight, PlaceFailure("not_created", f"the Job was not created: {error.message}", error.hint or "")
        return None

    def landed(self, flights: Mapping[str, Flight]) -> list[Landed]:
        """Return those that have ended since, with what they said; after a pause where there is none."""
        known, began = list(flights.values()), time.monotonic()
        ended: list[_Ended] = []
        if self._pods.look(known):
            self._look_took = time.monotonic() - began
            ended = [found for flight in known if (found := self._ended(flight))]
        if not ended:
            time.sleep(max(LOOK_S, LOOK_TIMES * self._look_took))
        return list(self._pool.map(self._read, ended))

    def _ended(self, flight: Flight) -> _Ended | None:
        if flight.phase in ("ended", "gone"):
            return _Ended(flight)
        given_up = self._hangs(flight) if flight.phase == "running" else self._is_stuck(flight)
        return _Ended(flight, given_up) if given_up else None

    def _hangs(self, flight: Flight) -> PlaceFailure | None:
        """Say why a pod that runs for too long is given up."""
        if flight.runs_since is None or time.monotonic() - flight.runs_since <= self._limit_s:
            return None
        said = f"it did not end within {say_seconds(self._limit_s)}"
        with suppress(ClusterError):
            ready = objects.condition(self._cluster.get(f"/api/v1/nodes/{flight.slot.node}"), "Ready")
            if ready and ready.get("status") != "True":
                said += f"; its node is not ready: {ready.get('message') or ready.get('reason')}"
        return PlaceFailure("time_limit", said, "a hanging device or node; see `stackmark cluster doctor`")

    def _is_stuck(self, flight: Flight) -> PlaceFailure | None:
        """Say why a pod that does not start is given up: it never will, or it waited for too long."""
        with suppress(ClusterError):
            said = self._pods.explain_now_and_then(flight)
            if said is None or said.failure:
                return said.failure if said else None
            waited = time.monotonic() - flight.began
            if waited > self._setup.options.wait_s:
                return self._pods.overdue(flight)
            if flight.pod and (flight.phase in ("queued", "pending", "pulling") or waited > SLOW_TO_START_S):
                self._tell(f"a pod for {flight.slot.node} waits: {said.sentence}")
        return None

    def _tell(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < MOST_TOLD:
            self._said.add(sentence)
            self._say(sentence)

    def _read(self, ended: _Ended) -> Landed:
        flight, pod = ended.flight, ended.flight.pod
        lines: list[str] = []
        stderr: list[str] = []
        if pod is not None and flight.phase in ("running", "ended"):
            until = time.monotonic() + (READ_S if ended.given_up is None else LAST_WORDS_S)
            meta = pod["metadata"]
            log = PodLog(self._cluster, self._setup.namespace, meta["name"], uid=meta.get("uid"))
            with suppress(ClusterError):
                log.follow(lines.append, stderr.append, stop=lambda: time.monotonic() > until)
        failure = ended.given_up or self._pods.failure(flight)
        failure = failure or cut_short(self._cluster, pod, Closing.of(flight.task, lines))
        code = exit_code(pod) if pod else None
        return Landed(flight, tuple(lines), Outcome(code, failure, tuple(stderr[-STDERR_LINES_KEPT:])))

    def remove(self, marks: Iterable[str]) -> None:
        """Remove their Jobs and pods. What cannot be removed now has its own end, and `cluster clean`."""
        list(self._pool.map(self._remove, list(marks)))

    def _remove(self, mark: str) -> None:
        with suppress(ClusterError):
            remove_run(self._cluster, self._setup.namespace, mark, grace_s=GRACE_S)
            orphans.forget(mark)

    def remove_all(self) -> int:
        """Remove whatever carries the sweep's label, also of a driver before us; return how many Jobs there were."""
        with suppress(ClusterError):
            jobs = self._cluster.items(self._pods.path("jobs", group=BATCH), labelSelector=self._pods.selector)
            self.remove(str(job["metadata"]["labels"][names.RUN_LABEL]) for job in jobs)
            return len(jobs)
        return 0

    def wait_gone(self, marks: Iterable[str], within_s: float = 60.0) -> None:
        """Wait until their pods are no more: only then are their devices free."""
        with suppress(NotReached):
            self._pods.wait_gone([Awaited(mark) for mark in marks], within_s)
