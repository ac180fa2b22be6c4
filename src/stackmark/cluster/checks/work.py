"""What a case has in its hands: pods made at once and in parallel, one look at all of them, and an end to every wait.

Pods of one case may be the next one's (created, read, entered and deleted are four cases about the same pods): they are kept
under a name. Whatever a case made carries the suite's label, so that everything can be removed by it, and nothing else is.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stackmark.cluster.checks import programs, room
from stackmark.cluster.checks.case import CaseFailed, LeftOut
from stackmark.errors import ClusterError
from stackmark.kubernetes import names, refusals, status, why
from stackmark.kubernetes.client import ApiError, Cluster, Executed, Json
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.why import ACTIVE
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.setup import PodSetup

SUITE_LABEL = "stackmark.io/suite"
# An API server takes far more calls at once; the driver's own cores do not.
AT_ONCE = 16
LOOK_S = 0.2
GONE_WITHIN_S = 20.0
# A list of a thousand pods takes the server a second: the more pods, the rarer the look.
PODS_A_LOOK_PER_S = 500
# What a waiting container says when it will not start without somebody's help.
STUCK = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError",
)  # fmt: skip
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Group:
    """Pods that belong together. `seconds` is how long it took until the last of them ran."""

    pods: tuple[str, ...]
    gpus: int
    seconds: float = 0.0


@dataclass
class Work:
    """One suite at work; `limit_s` is each case's own."""

    ready: PodSetup
    mark: str
    many: int
    limit_s: float
    # Whether the namespace was made for this suite, and goes with it.
    own_namespace: bool = True
    tools: frozenset[str] = frozenset()
    groups: dict[str, Group] = field(default_factory=dict)
    began: float = 0.0
    deadline: float = 0.0

    def elsewhere(self, namespace: str, *, host_software: bool = True) -> "Work":
        """Return the same in another namespace, on demand without the host's folders."""
        software = self.ready.software if host_software else None
        return replace(self, ready=replace(self.ready, namespace=namespace, software=software), groups={})

    @property
    def options(self) -> PodOptions:
        return self.ready.options

    @property
    def cluster(self) -> Cluster:
        return self.ready.cluster

    @property
    def selector(self) -> str:
        return f"{names.SELECTOR},{SUITE_LABEL}={self.mark}"

    def begin(self, limit_s: float) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + limit_s

    def pause(self) -> None:
        time.sleep(min(LOOK_S, self.left_s))

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def path(self, kind: str, name: str = "", group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.ready.namespace}/{kind}{f'/{name}' if name else ''}"

    # What is made

    def request(self, name: str, command: Sequence[str], *, gpus: int = 0, node: str | None = None) -> PodRequest:
        mark = f"{self.mark}-{name}"
        return self.ready.request(
            mark,
            "check",
            command=tuple(command),
            node=node,
            gpus=gpus,
            # Should nobody be left to remove them: after all cases that may use them.
            deadline_s=int(10 * self.limit_s) + 300,
            variables={programs.NAME_VARIABLE: names.object_name(mark)},
        )

    def pod(self, request: PodRequest) -> Json:
        return self.ours(build.pod(request))

    def ours(self, made: Json) -> Json:
        """With the suite's label; a Job's pods have it too."""
        made["metadata"].setdefault("labels", {})[SUITE_LABEL] = self.mark
        template = (made.get("spec") or {}).get("template")
        if template:
            template.setdefault("metadata", {}).setdefault("labels", {})[SUITE_LABEL] = self.mark
        return made

    def create(self, pods: Iterable[Json]) -> tuple[str, ...]:
        """All at once; their names. The first refusal is the case's failure."""
        made = self.each(list(pods), lambda body: self.cluster.create(self.path("pods"), body))
        return tuple(str(one["metadata"]["name"]) for one in made)

    def start(
        self,
        name: str,
        count: int,
        command: Sequence[str],
        *,
        gpus: int = 0,
        nodes: Sequence[str] = (),
        keep: bool = True,
    ) -> Group:
        """Pods that run, kept under this name for the cases to come. With `nodes` they are shared out among these."""
        width = len(str(count - 1))
        wanted = [
            self.request(f"{name}-{i:0{width}d}", command, gpus=gpus, node=nodes[i % len(nodes)] if nodes else None)
            for i in range(count)
        ]
        began = time.monotonic()
        made = self.create(self.pod(one) for one in wanted)
        self.wait(made, runs, "run")
        group = Group(made, gpus, time.monotonic() - began)
        if keep:
            self.groups[name] = group
        return group

    def group(self, name: str) -> Group:
        if name not in self.groups:
            raise LeftOut("its pods do not run: see `create` above")
        return self.groups[name]

    # What is looked at

    def pods(self) -> dict[str, Json]:
        """All of the suite's, by name."""
        return {
            str(one["metadata"]["name"]): one
            for one in self.cluster.items(self.path("pods"), labelSelector=self.selector)
        }

    def wait(
        self, pods: Sequence[str], until: Callable[[Json | None], bool], verb: str, *, early: bool = True
    ) -> dict[str, Json]:
        """Until all are so. A pod that will never be ends the wait before its time, with the cause (`early`)."""
        pause_s = max(LOOK_S, len(pods) / PODS_A_LOOK_PER_S)
        while True:
            seen = self.pods()
            open_ones = [name for name in pods if not until(seen.get(name))]
            if not open_ones:
                return {name: seen[name] for name in pods if name in seen}
            if early:
                for name in open_ones:
                    self._stop_if_hopeless(name, seen.get(name), verb)
            if not self.left_s:
                first = open_ones[0]
                how_many = f"{len(open_ones)} of {len(pods)} pods do" if len(pods) > 1 else "the pod does"
                raise CaseFailed(
                    f"{how_many} not {verb} after {time.monotonic() - self.began:.0f} s: {self.why(seen.get(first))}",
                    hint="raise --time-limit where an image has to be pulled first",
                    command=self.by_hand("describe", "pod", first),
                )
            time.sleep(min(pause_s, self.left_s))

    def _stop_if_hopeless(self, name: str, pod: Json | None, verb: str) -> None:
        """A pod that has ended, or whose container cannot be made, will not become what is waited for."""
        if verb == "go away":
            return
        if pod is None:
            raise CaseFailed(f"the pod {name} is gone: somebody, or something, removed it")
        status = pod.get("status") or {}
        states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
        finished = status.get("phase") in room.FINISHED
        if not finished and not any((one.get("waiting") or {}).get("reason") in STUCK for one in states):
            return
        failure = why.failure_of(pod, self.events(pod))
        # An image whose first pull failed is tried again: that is no failure yet.
        if failure is not None or finished:
            raise CaseFailed(
                failure.message if failure else f"the pod {name} ended too early: {self._last_words(name)}",
                hint=failure.hint if failure else None,
                command=self.by_hand("describe", "pod", name),
            )

    def why(self, pod: Json | None) -> str:
        """Why a pod is not where it should be, from its own status and events."""
        if pod is None:
            return "it is gone"
        events = self.events(pod)
        failure = why.failure_of(pod, events)
        if failure:
            return failure.message
        return why.waiting_sentence(pod, events, self.nodes(), self.others())

    def events(self, thing: Json) -> list[Json]:
        return events_of(self.cluster, thing)

    def nodes(self) -> list[Json]:
        with suppress(ClusterError):
            return self.cluster.items("/api/v1/nodes")
        return []

    def others(self) -> list[Json]:
        """Whatever holds something in the cluster; empty where one may not look."""
        with suppress(ClusterError):
            return self.cluster.items("/api/v1/pods", fieldSelector=ACTIVE)
        return []

    def log(self, pod: str, last: int | None = None) -> str:
        return self.cluster.text(self.path("pods", f"{pod}/log"), container=names.CONTAINER, tailLines=last)

    def _last_words(self, pod: str) -> str:
        with suppress(ClusterError):
            lines = self.log(pod, last=3).splitlines()
            return " / ".join(lines)[:300] or "it said nothing"
        return "its log cannot be read"

    def execute(self, pod: str, command: Sequence[str]) -> Executed:
        return self.cluster.execute(
            self.ready.namespace, pod, command, container=names.CONTAINER, timeout_s=max(1.0, min(30.0, self.left_s))
        )

    def by_hand(self, *words: str) -> str | None:
        """The command to see it; none where what it would show is gone by the time that somebody types it."""
        if self.own_namespace:
            return None
        return " ".join(("kubectl", "--context", self.cluster.context, "-n", self.ready.namespace, *words))

    def each(self, things: Sequence[A], do: Callable[[A], B]) -> list[B]:
        """Several at once, in order; the first error is raised once those that had begun have ended."""
        if len(things) == 1:
            return [do(things[0])]
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(things)))) as threads:
            begun = [threads.submit(do, one) for one in things]
            try:
                return [future.result() for future in begun]
            finally:
                threads.shutdown(cancel_futures=True)  # after an error: what has not begun is not begun any more

    # What is removed

    def delete(self, pods: Sequence[str], grace_s: int | None = None) -> float:
        """Until they are gone; the seconds it took."""
        began = time.monotonic()
        self.each(pods, lambda name: self.cluster.delete(self.path("pods", name), grace_s=grace_s))
        self.wait(pods, lambda pod: pod is None, "go away")
        return time.monotonic() - began

    def remove_leftovers(self, wait_for_all: bool = False) -> None:
        """What the suite made and no case is to use any more: all but the pods of the groups that are kept.

        Not without any grace period: the API server would forget a pod whose devices its node still holds, and the next one
        there would be refused them. Pods with devices are waited for, for the same reason.
        """
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := self._left():
            self.each(list(left), lambda path: self.cluster.delete(path, grace_s=1))
            awaited = wait_for_all or any(room.asks(one, self.options.resource) for one in left.values())
            if not awaited or time.monotonic() >= deadline:
                return
            time.sleep(LOOK_S)

    def _left(self) -> dict[str, Json]:
        """By their paths."""
        stay = {name for group in self.groups.values() for name in group.pods}
        return {
            self.path(kind, str(one["metadata"]["name"]), group): one
            for kind, group in (("jobs", "/apis/batch/v1"), ("pods", "/api/v1"), ("services", "/api/v1"))
            for one in self.cluster.items(self.path(kind, group=group), labelSelector=self.selector)
            if one["metadata"]["name"] not in stay
        }


def runs(pod: Json | None) -> bool:
    return pod is not None and status.phase_of(pod) == "running"


def ended(pod: Json | None) -> bool:
    return pod is not None and status.phase_of(pod) == "ended"


def node_of(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def explained(error: ClusterError, doing: str) -> ClusterError:
    """A refusal of the API server as a case's end. A quota, and a right that the account lacks, are reasons to leave it out:
    the cluster does what it was told to."""
    if not isinstance(error, ApiError):
        return error
    said = refusals.explained(error, doing)
    ours = error.status == 403 and ("exceeded quota" in error.message or " cannot " in error.message)
    return (LeftOut if ours else CaseFailed)(said.message, hint=said.hint, command=said.command)
