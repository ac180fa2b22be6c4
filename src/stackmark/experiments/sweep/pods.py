"""A sweep's pods: created, looked at all together, read when they end, and removed.

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
from stackmark.experiments.sweep.stuck import Stuck
from stackmark.failures import PlaceFailure, killed
from stackmark.kubernetes import names, orphans, status, why
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.client import Unreachable
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.nodes import runtime_of
from stackmark.kubernetes.patience import AGAIN_S, AWAY_S, is_there, may_pass
from stackmark.places.place import STDERR_LINES_KEPT, Outcome
from stackmark.places.pod.setup import PodSetup

# Threads that read logs and create Jobs: more would only wait for one another in the API server's queue.
READERS = 16
# Asked to go, a holder goes at once.
GRACE_S = 1
# A log is read to its end in a moment; where the node does not answer, what there is must do.
READ_S, LAST_WORDS_S = 240.0, 3.0
# How often the pods are looked at: at least, and in parts of what looking takes.
LOOK_S, LOOK_TIMES = 0.5, 4.0
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
        self, ready: PodSetup, sweep_id: str, plan: SweepPlan, limit_s: float, say: Callable[[str], None]
    ) -> None:
        self._ready, self._cluster = ready, ready.cluster
        self._sweep_id, self._plan, self._limit_s = sweep_id, plan, limit_s
        self._pods = f"/api/v1/namespaces/{ready.namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{ready.namespace}/jobs"
        self._selector = f"{SWEEP_LABEL}={sweep_id}"
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="sweep")
        self._stuck = Stuck(ready, limit_s, say)
        self._away_since: float | None = None
        self._look_took = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def launch(self, flights: Iterable[Flight], holding_s: float) -> list[tuple[Flight, PlaceFailure]]:
        """Creates their Jobs, several at a time; those that the API server refused, each with its reason."""
        return [found for found in self._pool.map(lambda one: self._create(one, holding_s), flights) if found]

    def _create(self, flight: Flight, holding_s: float) -> tuple[Flight, PlaceFailure] | None:
        job = job_of(flight, self._sweep_id, self._plan, self._ready, limit_s=self._limit_s, holding_s=holding_s)
        until = time.monotonic() + AWAY_S
        orphans.write(self._cluster, self._ready.options.kubeconfig, self._ready.namespace, flight.mark)
        while True:
            try:
                self._cluster.create(self._jobs, job)
            except ClusterError as error:
                if is_there(error):
                    return None  # the answer to the try before was lost
                if not may_pass(error) or time.monotonic() > until:
                    said = f"the Job was not created: {error.message}"
                    return flight, PlaceFailure("not_created", said, error.hint or "")
                time.sleep(AGAIN_S)
            else:
                return None

    def landed(self, flights: Mapping[str, Flight]) -> list[Landed]:
        """Those that have ended since, with what they said; after a pause where there is none."""
        ended = self._look(flights)
        if not ended:
            time.sleep(max(LOOK_S, LOOK_TIMES * self._look_took))
        return list(self._pool.map(self._read, ended))

    def _look(self, flights: Mapping[str, Flight]) -> list[_Ended]:
        """Which of them have ended, or are given up. One list for all."""
        began = time.monotonic()
        try:
            found = self._cluster.items(self._pods, labelSelector=self._selector)
        except ClusterError as error:
            self._away_since = self._away_since or began
            if not may_pass(error) or began - self._away_since > AWAY_S:
                raise
            return []
        if self._away_since is not None:
            # While nobody could look, nobody's time ran out.
            for flight in flights.values():
                flight.began += began - self._away_since
                flight.runs_since = flight.runs_since and flight.runs_since + began - self._away_since
            self._away_since = None
        self._look_took = time.monotonic() - began
        self._stuck.begin()
        pods = {pod["metadata"].get("labels", {}).get(names.RUN_LABEL): pod for pod in found}
        ended = [self._seen(flight, pods.get(flight.mark)) for flight in list(flights.values())]
        return [one for one in ended if one is not None]

    def _seen(self, flight: Flight, pod: ApiObject | None) -> _Ended | None:
        if pod is None and flight.pod is not None:
            return _Ended(flight, gone=True)
        flight.pod = pod
        if pod is None:
            given_up = self._stuck.without_pod(flight)
        else:
            phase = status.phase_of(pod)
            if phase in ("ended", "gone"):
                return _Ended(flight, gone=phase == "gone")
            given_up = self._stuck.running(flight) if phase == "running" else self._stuck.waiting(flight, pod)
        return _Ended(flight, given_up) if given_up else None

    def _read(self, ended: _Ended) -> Landed:
        flight, pod = ended.flight, ended.flight.pod
        lines: list[str] = []
        stderr: list[str] = []
        if pod is not None and not ended.gone and status.phase_of(pod) in RUNNING:
            until = time.monotonic() + (READ_S if ended.given_up is None else LAST_WORDS_S)
            log = PodLog(self._cluster, self._ready.namespace, pod["metadata"]["name"], uid=pod["metadata"].get("uid"))
            with suppress(ClusterError):
                log.follow(lines.append, stderr.append, stop=lambda: time.monotonic() > until)
        failure = ended.given_up or self._failure(pod, ended.gone)
        closing = Closing.of(flight.task, lines)
        if failure is None and pod is not None and not closing.seen:
            node = flight.slot.node
            failure = closing.failure(status.exit_code(pod), node, runtime_of(self._cluster, node))
        outcome = Outcome(
            status.exit_code(pod) if pod else None,
            failure,
            tuple(stderr[-STDERR_LINES_KEPT:]),
        )
        return Landed(flight, tuple(lines), outcome)

    def _failure(self, pod: ApiObject | None, gone: bool) -> PlaceFailure | None:
        if pod is None:
            return PlaceFailure("deleted", "its pod is gone", "somebody removed it, or a quota did")
        code = status.exit_code(pod)
        if code == 0 and not gone:
            return None
        failure = why.failure_of(pod, events_of(self._cluster, pod), gone=gone)
        if failure is None and code is not None and code > 128 and code not in (130, 143):
            return killed(code - 128, oom=False)
        return failure

    def remove(self, marks: Iterable[str]) -> None:
        """Their Jobs and pods. What cannot be removed now has its own end, and `cluster clean`."""
        list(self._pool.map(self._remove, list(marks)))

    def _remove(self, mark: str) -> None:
        name = names.object_name(mark)
        with suppress(ClusterError):
            self._cluster.delete(f"{self._jobs}/{name}", grace_s=GRACE_S)
            orphans.forget(mark)
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
