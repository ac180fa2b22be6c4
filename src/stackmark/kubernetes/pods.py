"""Create, watch, await, explain and remove pods of one namespace; one pod or a thousand.

Pods that belong together share a label, and each carries the mark of what it was made for: one list shows all of them. A
thousand pods that wait for one reason are not a thousand questions to the API server, so a pod that does not start is looked at
more closely only now and then. While the API server is away nobody's time runs out: pods go on without it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

from stackmark.errors import ClusterError
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import names, why
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import READ_S, ApiError, Cluster, Json, Unreachable
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest.build import owned_by
from stackmark.kubernetes.nodes import runtime_of
from stackmark.kubernetes.patience import AWAY_S, COMING_BACK_S, is_there, may_pass, patiently
from stackmark.kubernetes.queues import held_sentence
from stackmark.kubernetes.refusals import explained
from stackmark.kubernetes.status import Phase, exit_code, phase_of
from stackmark.units import say_seconds

LOOK_S = 0.2
# A list of a thousand pods takes the server a second: the more pods, the rarer the look.
PODS_A_LOOK_PER_S = 500
# An API server takes far more calls at once; the driver's own cores do not.
AT_ONCE = 16
BATCH, CORE = "/apis/batch/v1", "/api/v1"
SEE = "see --wait, --node and --gpus"
Thing = TypeVar("Thing")
Result = TypeVar("Result")
Say = Callable[[str], None]


@dataclass
class Awaited:
    """A pod that is awaited: since when, and its last known state."""

    # What the pod was made for; its label, and in its name.
    mark: str
    # Its number among the pods of an Indexed Job, which all have one mark.
    index: int | None = field(default=None, kw_only=True)
    # Whether a Job makes the pod, so that there may be none yet.
    by_job: bool = field(default=False, kw_only=True)
    # By the monotonic clock, without the time in which the API server was away.
    began: float = field(default_factory=time.monotonic, kw_only=True)
    runs_since: float | None = field(default=None, kw_only=True)
    looked_closely: float = field(default=0.0, kw_only=True)
    # As it was seen last.
    pod: Json | None = field(default=None, kw_only=True)
    # It was there, and is not any more.
    gone: bool = field(default=False, kw_only=True)

    @property
    def phase(self) -> Phase:
        return "gone" if self.gone else phase_of(self.pod) if self.pod else "queued"


@dataclass(frozen=True)
class Explanation:
    """Why a pod does not run; `failure` is set where waiting longer would not help."""

    sentence: str
    failure: PlaceFailure | None = None


class NotReached(ClusterError):
    """A pod did not reach the awaited state. `waiting` is how many did not; `timed_out`: they might have, with more time."""

    def __init__(self, one: Awaited, failure: PlaceFailure, waiting: int, *, timed_out: bool = False) -> None:
        super().__init__(failure.message, hint=failure.hint or None, command=at.describe(one.pod) if one.pod else None)
        self.one, self.failure, self.waiting, self.timed_out = one, failure, waiting, timed_out


@dataclass(frozen=True)
class Closeness:
    """When and how often a pod that does not run is examined, and how many of them at once."""

    first_s: float = 0.5
    again_s: float = 1.0
    most: int = 5
    # Nodes and others' pods may be thousands: how long they are believed to be as they were.
    around_s: float = 0.0


class Pods:
    """Pods of one namespace that share a label. Without `patience_s` an API server that is away is an error at once."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        selector: str,
        *,
        patience_s: float = AWAY_S,
        answer_s: float = READ_S,
        close: Closeness | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self.cluster, self.namespace, self.selector = cluster, namespace, selector
        self._patience_s, self._answer_s, self._close, self._say = patience_s, answer_s, close or Closeness(), say
        self._away_since: float | None = None
        self._closer_looks = 0
        self._around: tuple[float, list[Json], list[Json]] | None = None

    def path(self, kind: str = "pods", name: str = "", group: str = CORE) -> str:
        return f"{group}/namespaces/{quote(self.namespace, safe='')}/{kind}{f'/{name}' if name else ''}"

    # Create

    def create(self, body: Json, kind: str = "pods", group: str = CORE) -> Json:
        """Create an object whose name nobody else uses. An API server that is away is waited for."""

        def ask() -> Json:
            try:
                return self.cluster.create(self.path(kind, group=group), body)
            except ApiError as error:
                if is_there(error):  # the answer to the try before was lost
                    return self.cluster.get(self.path(kind, str(body["metadata"]["name"]), group))
                raise

        return patiently(ask, self._say, self._patience_s)

    def create_job(self, body: Json, parts: Sequence[Json] = ()) -> Json:
        """Create a Job and what its pod needs, each owned by the Job, so that it goes with it.

        With parts the Job is suspended until they are there, and then let go, unless it was to be suspended anyway (a queue).
        """
        if not parts:
            return self.create(body, "jobs", BATCH)
        held = bool(body["spec"].get("suspend"))
        made = self.create({**body, "spec": {**body["spec"], "suspend": True}}, "jobs", BATCH)
        for part in parts:
            self.create_part(made, part)
        if not held:
            path = self.path("jobs", str(made["metadata"]["name"]), BATCH)
            patiently(lambda: self.cluster.patch(path, {"spec": {"suspend": False}}), self._say, self._patience_s)
        return made

    def create_part(self, job: Json, part: Json) -> None:
        """Create an object that belongs to a Job. Raises PlaceError with its name, since the Job itself was accepted."""
        kind, version = str(part["kind"]), str(part["apiVersion"])
        group = CORE if version == "v1" else f"/apis/{version}"
        try:
            self.create(owned_by(job, part), f"{kind.lower()}s", group)
        except ApiError as error:
            raise explained(error, f"the {kind} {part['metadata']['name']}") from error

    # Look

    def by_mark(self) -> dict[str, Json]:
        """List the pods by their marks; of several with one mark the first that was made."""
        return {mark: pod for (mark, index), pod in self._by_number().items() if index is None}

    def _by_number(self) -> dict[tuple[str, int | None], Json]:
        """The pods by mark, and those of Indexed Jobs also by mark and number."""
        found = self._listed()
        found.sort(key=lambda pod: str(at.metadata(pod).get("creationTimestamp")), reverse=True)
        return {(_mark(pod), index): pod for pod in found for index in {None, index_of(pod)}}

    def _listed(self) -> list[Json]:
        return self.cluster.items(self.path(), timeout_s=self._answer_s, labelSelector=self.selector)

    def look(self, awaited: Iterable[Awaited]) -> bool:
        """Look at all of them; False where the API server did not answer, which is waited for."""
        now = time.monotonic()
        try:
            found = self._by_number()
        except ClusterError as error:
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= self._patience_for(error):
                raise
            if isinstance(error, Unreachable):
                self._say(f"{error.message}; waiting for it")
            return False
        away_s = 0.0 if self._away_since is None else now - self._away_since
        self._away_since, self._closer_looks = None, 0
        for one in awaited:
            one.began += away_s
            one.runs_since = one.runs_since and one.runs_since + away_s
            pod = found.get((one.mark, one.index))
            one.gone = pod is None and one.pod is not None
            one.pod = pod or one.pod
            if one.phase == "running":
                one.runs_since = one.runs_since or now
        return True

    def _patience_for(self, error: ClusterError) -> float:
        """One that has just come back knows for a moment neither accounts nor rights; no other refusal is waited for long."""
        return self._patience_s if may_pass(error) else min(self._patience_s, COMING_BACK_S)

    # Wait

    def wait(
        self,
        awaited: Sequence[Awaited],
        until: Callable[[Awaited], bool],
        within_s: float,
        *,
        early: bool = True,
        say: Callable[[Awaited, str], None] = lambda _one, _sentence: None,
        stop: Callable[[], bool] = lambda: False,
        slowest_s: float = LOOK_S,
    ) -> None:
        """Wait until all are so. Raises NotReached where one will never be (`early`), time is up, or `stop` says so.

        A pod that has ended or is gone will not become anything else. The looks become rarer, up to `slowest_s`.
        """
        pause_s = max(LOOK_S, len(awaited) / PODS_A_LOOK_PER_S)
        while awaited:
            if self.look(awaited):
                waiting = [one for one in awaited if not until(one)]
                if not waiting:
                    return
                for one in waiting if early else ():
                    said = self.explain_now_and_then(one)
                    if said and said.failure:
                        raise NotReached(one, said.failure, len(waiting))
                    if said:
                        say(one, said.sentence)
                if time.monotonic() - waiting[0].began > within_s:
                    raise NotReached(waiting[0], self.overdue(waiting[0]), len(waiting), timed_out=True)
            if stop():
                raise NotReached(
                    awaited[0], PlaceFailure("given_up", "the wait was given up"), len(awaited), timed_out=True
                )
            time.sleep(pause_s)
            pause_s = max(pause_s, min(slowest_s, pause_s * 1.2))

    def wait_gone(self, awaited: Sequence[Awaited], within_s: float) -> None:
        """Wait until they are no more: only then are their devices free."""
        self.wait(awaited, lambda one: one.gone or one.pod is None, within_s, early=False)

    # Explain

    def explain_now_and_then(self, one: Awaited) -> Explanation | None:
        """Explain why a pod does not run; None where it runs, or was looked at a moment ago."""
        now, close = time.monotonic(), self._close
        if one.phase in ("ended", "gone"):
            return self.explain(one)
        if one.phase == "running" or now - one.began < close.first_s or now - one.looked_closely < close.again_s:
            return None
        if self._closer_looks >= close.most:
            return None
        self._closer_looks += 1
        one.looked_closely = now
        return self.explain(one)

    def explain(self, one: Awaited) -> Explanation:
        """Explain why a pod does not run, from its own status and events, the nodes, and who holds what they have."""
        if one.phase in ("ended", "gone"):
            code = exit_code(one.pod) if one.pod else None
            ended = self.failure(one) or PlaceFailure("ended", f"the pod ended too early, with code {code}")
            return Explanation(ended.message, ended)
        if one.pod is None:
            return self._without_pod(one)
        events = events_of(self.cluster, one.pod)
        failure = why.failure_of(one.pod, events)
        if failure is not None:
            return Explanation(failure.message, failure)
        nodes, others = self.nodes_and_others()
        hopeless = why.hopeless_sentence(one.pod, nodes, events)
        if hopeless:
            return Explanation(hopeless, PlaceFailure("not_placed", f"the pod cannot be placed: {hopeless}", SEE))
        return Explanation(why.waiting_sentence(one.pod, events, nodes, others))

    def overdue(self, one: Awaited) -> PlaceFailure:
        """Say why a pod that waited too long is given up."""
        waited = say_seconds(time.monotonic() - one.began)
        said = self.explain(one)
        if said.failure:
            return said.failure
        if one.pod is None:
            name = names.object_name(one.mark)
            return PlaceFailure(
                "not_placed", f"the Job {name} has no pod after {waited}", "is it held in a queue? see --wait"
            )
        if pulling := why.unfinished_pull(one.pod, events_of(self.cluster, one.pod)):
            return pulling
        return PlaceFailure("not_placed", f"the pod cannot be placed: {said.sentence}; it waited {waited}", SEE)

    def _without_pod(self, one: Awaited) -> Explanation:
        """A Job whose pods are refused (a quota, Pod Security, a missing account) says so in its events."""
        if not one.by_job:
            failure = PlaceFailure("deleted", f"the pod {names.object_name(one.mark)} was deleted by someone else")
            return Explanation(failure.message, failure)
        job: Json = {}
        try:
            job = self.cluster.get(self.path("jobs", names.object_name(one.mark), BATCH))
        except ApiError as error:
            # A server that has just come back knows for a moment no rights; that we have them was checked before.
            if error.status not in (401, 403) and not may_pass(error):
                raise
        except Unreachable:
            pass  # it is waited for when the pod is looked for again
        refused = why.job_refused(job, events_of(self.cluster, job))
        if refused is not None:
            return Explanation(refused.message, refused)
        return Explanation(
            held_sentence(self.cluster, job) if at.spec(job).get("suspend") else "the Job has no pod yet"
        )

    def failure(self, one: Awaited) -> PlaceFailure | None:
        """Say why a pod that has ended failed; None where it did not, or its worker has said so itself."""
        if one.pod is None:
            return PlaceFailure("deleted", "the pod disappeared before it was seen", "a user or a quota removed it")
        return failure_of_pod(self.cluster, one.pod, gone=one.phase == "gone")

    def nodes_and_others(self) -> tuple[list[Json], list[Json]]:
        """List all nodes, and all pods that hold something; each empty where one may not look."""
        now = time.monotonic()
        if self._around is None or now - self._around[0] > self._close.around_s:
            nodes, others = list[Json](), list[Json]()
            with suppress(ClusterError):
                nodes = self.cluster.items("/api/v1/nodes")
            with suppress(ClusterError):
                others = self.cluster.items("/api/v1/pods", fieldSelector=why.ACTIVE)
            self._around = now, nodes, others
        return self._around[1], self._around[2]

    # Read

    def log(self, name: str, last: int | None = None, timeout_s: float = 30.0) -> str:
        """Read the log of a pod as it is now."""
        path = self.path("pods", f"{name}/log")
        return self.cluster.text(path, timeout_s=timeout_s, container=names.CONTAINER, tailLines=last)

    def last_words(self, name: str) -> str:
        """Return the end of a pod's log on one line, for a sentence."""
        try:
            return " / ".join(self.log(name, last=3, timeout_s=5).splitlines())[:300] or "it printed nothing"
        except ClusterError as error:
            return f"its log cannot be read: {error.message}"

    # Remove

    def remove(self, marks: Collection[str], grace_s: int | None = None) -> int:
        """Delete the pods of these marks; return how many there were."""
        found = [pod for pod in self._listed() if _mark(pod) in marks]
        return sum(each(found, lambda pod: self.cluster.delete(self.path("pods", at.name(pod)), grace_s=grace_s)))

    def remove_all(
        self,
        kinds: Sequence[tuple[str, str]] = ((BATCH, "jobs"), (CORE, "pods")),
        *,
        grace_s: int = 0,
        keep: Collection[str] = (),
    ) -> list[Json]:
        """Delete whatever carries the label but what is named in `keep`; return what there was."""
        left = [
            (self.path(kind, at.name(one), group), one)
            for group, kind in kinds
            for one in self.cluster.items(self.path(kind, group=group), labelSelector=self.selector)
            if at.name(one) not in keep
        ]
        each(left, lambda pair: self.cluster.delete(pair[0], grace_s=grace_s))
        return [one for _, one in left]


def index_of(pod: Json) -> int | None:
    """Return the pod's number in its Indexed Job; None where it is of no such Job."""
    text = str((at.metadata(pod).get("labels") or {}).get(names.INDEX_LABEL))
    return int(text) if text.isdecimal() else None


def _mark(pod: Json) -> str:
    return str((at.metadata(pod).get("labels") or {}).get(names.RUN_LABEL))


def failure_of_pod(cluster: Cluster, pod: Json, *, gone: bool = False) -> PlaceFailure | None:
    """Say why a pod failed; None where it did not, or its worker has said so itself."""
    well = exit_code(pod) == 0 and at.state(pod, "terminated").get("reason") != "OOMKilled"
    return None if well else why.failure_of(pod, events_of(cluster, pod), gone=gone)


def cut_short(cluster: Cluster, pod: Json | None, closing: Closing) -> PlaceFailure | None:
    """Return the failure of a worker that ended well, but whose last word is not in the log."""
    if pod is None or closing.seen:
        return None
    node = at.spec(pod).get("nodeName")
    return closing.failure(exit_code(pod), node, runtime_of(cluster, node))


def remove_run(cluster: Cluster, namespace: str, mark: str, *, grace_s: int | None = None) -> int:
    """Delete a run's Job and its pods, by its name, which is known; return how many of them there were."""
    pods = Pods(cluster, namespace, f"{names.RUN_LABEL}={mark}")
    removed = int(cluster.delete(pods.path("jobs", names.object_name(mark), BATCH), grace_s=grace_s))
    # The cluster removes a Job's pods with it, in its own time; these go now.
    with suppress(ClusterError):
        removed += pods.remove({mark}, grace_s)
    return removed


def each(things: Sequence[Thing], do: Callable[[Thing], Result]) -> list[Result]:
    """Do it for several at once, in order; raise the first error once those that had started have ended."""
    if len(things) <= 1:
        return [do(one) for one in things]
    with ThreadPoolExecutor(min(AT_ONCE, len(things))) as threads:
        begun = [threads.submit(do, one) for one in things]
        try:
            return [future.result() for future in begun]
        finally:
            threads.shutdown(cancel_futures=True)  # after an error: what has not begun is not begun any more
