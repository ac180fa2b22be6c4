"""A sweep's pods: how each is built, how all of them are followed, and which device each of them holds.

A thousand pods are one list and a few threads that read logs, and not a thread each. A pod's log is read when its worker has
ended: whoever sweeps wants to know which device is slow, and sees each as it comes.

Which GPU a pod gets is the device plugin's choice. But a pod keeps its device while any of its containers lives: on a node with
several, each pod has a second container that only waits (`hold`), so that the next pod on that node gets another device. A pod
whose worker has ended and whose holder lives is a seat: the device is taken, and known by the facts that the worker told. To run
on a certain device, all others of its node are held, and the one that is meant is given up just before: then there is no other
to get.

The worker goes to an image as a ConfigMap, which all pods of a sweep share. A Job that never starts a pod owns it: both go when
the sweep ends, or with the next command after its driver was killed, like every other Job of a sweep.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from stackmark.errors import ClusterError
from stackmark.events import gathered_facts
from stackmark.experiments.judging import read_lines
from stackmark.experiments.sweep.plan import Slot, SweepPlan, devices_by_node
from stackmark.experiments.sweep.rows import device_in
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.kubernetes import names, objects, orphans
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.pods import BATCH, Awaited, Closeness, NotReached, Pods, cut_short, remove_run
from stackmark.kubernetes.refusals import explained
from stackmark.kubernetes.status import exit_code
from stackmark.ledger.rows import Json
from stackmark.places.place import STDERR_LINES_KEPT, Outcome
from stackmark.places.pod.options import LONGEST_DEADLINE_S
from stackmark.places.pod.run import no_python
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Task
from stackmark.units import counted, say_seconds

SWEEP_LABEL = "stackmark.io/sweep"
HOLD = "hold"
# A Python that waits takes some 10 MiB; this is what it may take.
HOLD_LIMITS = {"cpu": "10m", "memory": "64Mi"}
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
# A holder whose driver was killed gives its device up by itself after so long at the latest.
MOST_HOLDING_S = 4 * 3600.0


@dataclass
class Flight(Awaited):
    """One pod that was started and has not ended."""

    slot: Slot
    task: Task
    holds: bool
    block: int | None = None
    # In a repetition, the number of the slot that is suspected.
    suspect: int | None = None
    # 0 in the first pass; of a second pass, which run of each device it is.
    number: int = 0
    # 0 where it never was.
    launched_unix_s: float = 0.0
    # By the monotonic clock, also while the API server was away.
    launched: float = field(default_factory=time.monotonic)
    by_job: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Landed:
    """A pod's output, and what the cluster reports about it."""

    flight: Flight
    lines: tuple[str, ...]
    outcome: Outcome


def job_of(
    flight: Flight,
    sweep_id: str,
    plan: SweepPlan,
    setup: PodSetup,
    *,
    limit_s: float,
    holding_s: float,
    worker_map: str | None = None,
) -> ApiObject:
    # Their sum, since the holder lives in the same pod.
    deadline_s = limit_s + setup.options.wait_s + (holding_s if flight.holds else 0.0)
    request = setup.request(
        flight.mark,
        "sweep",
        task=flight.task,
        node=flight.slot.node,
        gpus=plan.gpus,
        deadline_s=math.ceil(deadline_s) + 120,
        worker_map=worker_map,
    )
    made = _labelled(build.job(request), sweep_id)
    template = made["spec"]["template"]
    if flight.holds:
        template["spec"]["containers"].append(holder(template["spec"], setup.python, holding_s, asks=plan.holders_ask))
    return made


def _labelled(job: ApiObject, sweep_id: str) -> ApiObject:
    for labelled in (job, job["spec"]["template"]):
        labelled["metadata"].setdefault("labels", {})[SWEEP_LABEL] = sweep_id
    return job


def holder(pod_spec: ApiObject, python: str | None, seconds: float, *, asks: bool = True) -> ApiObject:
    """Return the container that only waits: the worker's own image and folders, without its devices."""
    containers = pod_spec["containers"]
    # A user's patch may have named it otherwise.
    worker = next((one for one in containers if one["name"] == names.CONTAINER), containers[0])
    return build.sleeper(worker, HOLD, python, seconds, HOLD_LIMITS if asks else None)


def is_seat(flight: Flight) -> bool:
    """Return whether its worker has ended and its holder has not."""
    if not flight.holds or flight.pod is None:
        return False
    return flight.phase == "ended" and bool(objects.state(flight.pod, "running", HOLD))


def handle_of(flight: Flight, setup: PodSetup) -> Json:
    """Return what the ledger stores to find the pod again."""
    made: Json = {
        "context": setup.cluster.context,
        "kubeconfig": setup.options.kubeconfig,
        "namespace": setup.namespace,
        "job": names.object_name(flight.mark),
        "image": setup.image,
        "software": "host" if setup.software else "image",
        "launched_unix_s": flight.launched_unix_s,
        "node": flight.slot.node,
        "node_boot_id": flight.slot.machine,
    }
    if flight.pod is not None:
        made |= {"pod": flight.pod["metadata"].get("name"), "pod_uid": flight.pod["metadata"].get("uid")}
    return made


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
        self._worker_map: str | None = None

    def share_worker(self) -> None:
        """Send the worker to the cluster, once for all pods; the host's own software has one."""
        if self._setup.software is not None:
            return
        mark = new_id("r")
        request = self._setup.request(mark, "sweep", task=Task(do="facts"), deadline_s=LONGEST_DEADLINE_S)
        orphans.write(self._cluster, self._setup.options.kubeconfig, self._setup.namespace, mark)
        try:
            anchor = self._pods.create(_labelled(build.anchor(request), self._sweep_id), "jobs", BATCH)
            if worker := build.config_map(request):
                self._pods.create_part(anchor, worker)
        except ClusterError as error:
            raise explained(error, f"the Job {names.object_name(mark)}") from error
        self._worker_map = names.object_name(mark)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def launch(self, flights: Iterable[Flight], holding_s: float) -> list[tuple[Flight, PlaceFailure]]:
        """Create their Jobs, several at a time; return those that the API server refused, each with its reason."""
        return [found for found in self._pool.map(lambda one: self._create(one, holding_s), flights) if found]

    def _create(self, flight: Flight, holding_s: float) -> tuple[Flight, PlaceFailure] | None:
        job = job_of(
            flight,
            self._sweep_id,
            self._plan,
            self._setup,
            limit_s=self._limit_s,
            holding_s=holding_s,
            worker_map=self._worker_map,
        )
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
                self._tell(f"a pod for {flight.slot.node} is waiting: {said.sentence}")
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
        failure = ended.given_up or self._pods.failure(flight) or no_python(pod)
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


class Seats:
    def __init__(self, plan: SweepPlan, pods: SweepPods, say: Callable[[str], None]) -> None:
        self._plan, self._pods, self._say = plan, pods, say
        self._devices = devices_by_node(plan.slots)
        # By node: which device is held by whom.
        self._seats: dict[str, dict[str, str]] = {}
        # Pods that hold a device nobody could name.
        self._nameless: dict[str, list[str]] = {}

    def needed(self, slot: Slot) -> bool:
        """Return whether a pod there must hold its device, because another pod of its node would get the same one."""
        return self._plan.gpus > 0 and self._devices[slot.node] > 1

    def take(self, nodes: Collection[str]) -> None:
        """Hold every available device of these nodes, and identify each."""
        if not nodes:
            return
        count = sum(self._devices[node] for node in nodes)
        self._say(f"holding {count} devices of {counted(len(nodes), 'node')} for a moment to identify each")
        slots = [slot for slot in self._plan.slots if slot.node in nodes and not slot.trouble]
        made = [Flight(new_id("r"), slot, Task(do="facts"), holds=True) for slot in slots]
        flights = {flight.mark: flight for flight in made}
        for flight, failure in self._pods.launch(made, MOST_HOLDING_S):
            self._say(f"{flight.slot.node}: {failure.message}")
            del flights[flight.mark]
        while flights:
            for landed in self._pods.landed(flights):
                del flights[landed.flight.mark]
                self._taken(landed)

    def _taken(self, landed: Landed) -> None:
        flight, failure = landed.flight, landed.outcome.failure
        if failure is not None:
            self._say(f"cannot hold a device of {flight.slot.node}: {failure.message}")
            self._pods.remove([flight.mark])
        else:
            facts = gathered_facts(read_lines(landed.lines)[0].events)
            self.keep(flight, device_in(facts, self._plan.gpus))

    def keep(self, flight: Flight, device: str | None) -> None:
        if device:
            self._seats.setdefault(flight.slot.node, {})[device] = flight.mark
        else:
            self._nameless.setdefault(flight.slot.node, []).append(flight.mark)

    def give_up(self, node: str, device: str) -> None:
        """Stop holding a device, and wait until it is free."""
        mark = self._seats.get(node, {}).pop(device, None)
        self._wait_gone([mark] if mark else [])

    def give_up_others(self, node: str, devices: Collection[str]) -> None:
        """Stop holding all devices of the node except these, and wait until they are free."""
        seats = self._seats.get(node, {})
        others = [mark for device, mark in seats.items() if device not in devices]
        self._seats[node] = {device: mark for device, mark in seats.items() if device in devices}
        self._wait_gone([*others, *self._nameless.pop(node, [])])

    def release(self, node: str) -> None:
        """Release the whole node without waiting."""
        self._pods.remove([*self._seats.pop(node, {}).values(), *self._nameless.pop(node, [])])

    def release_all(self) -> None:
        for node in list(self._seats):
            self.release(node)

    def _wait_gone(self, marks: Sequence[str]) -> None:
        self._pods.remove(marks)
        self._pods.wait_gone(marks)
