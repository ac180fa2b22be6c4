"""A test case, its end, and its tools: pods created in parallel, one query for all of them, and an
end to every wait.

A case passes with what was seen, fails with the cause, or is left out with the reason. One that cannot be tried here (no GPU, not
enough of them free, a right that the account lacks) has neither failed nor passed: it stands in the table with its reason, so
that nobody reads silence as success.

Pods of one case may be the next one's (created, read, entered and deleted are four cases about the same pods): they are kept
under a name. Whatever a case made carries the suite's label, so that everything can be removed by it, and nothing else is.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stackmark.cluster.checks import programs
from stackmark.errors import ClusterError
from stackmark.kubernetes import names, refusals, status
from stackmark.kubernetes.client import ApiError, Cluster, Executed, Json
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.objects import requests
from stackmark.kubernetes.pods import BATCH, CORE, LOOK_S, Awaited, NotReached, Pods, each
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.setup import PodSetup

Scope = Literal["one", "many"]
Result = Literal["passed", "failed", "left out"]


class CaseFailed(ClusterError):
    """The cluster did not do what it should."""


class LeftOut(ClusterError):
    """The case cannot be tested here."""


@dataclass(frozen=True)
class Case:
    """A test case. `do` returns what it saw, in a few words, or raises CaseFailed or LeftOut."""

    area: str
    name: str
    scope: Scope
    do: "Callable[[Work], str]"


@dataclass(frozen=True)
class Checked:
    area: str
    case: str
    scope: Scope
    result: Result
    seconds: float
    # What was seen, or why it failed or was left out.
    evidence: str
    hint: str = ""
    command: str = ""


SUITE_LABEL = "stackmark.io/suite"
GONE_WITHIN_S = 20.0
# What a suite makes, in the order in which it is removed.
KINDS = ((BATCH, "jobs"), (CORE, "pods"), (CORE, "services"))


@dataclass(frozen=True)
class Group:
    """Pods that belong together. `seconds` is how long it took until the last of them ran."""

    pods: tuple[str, ...]
    gpus: int
    seconds: float = 0.0


@dataclass
class Work:
    """A running suite; `limit_s` applies to each case."""

    setup: PodSetup
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
        software = self.setup.software if host_software else None
        return replace(self, setup=replace(self.setup, namespace=namespace, software=software), groups={})

    @property
    def options(self) -> PodOptions:
        return self.setup.options

    @property
    def cluster(self) -> Cluster:
        return self.setup.cluster

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
        return f"{group}/namespaces/{self.setup.namespace}/{kind}{f'/{name}' if name else ''}"

    # What is made

    def request(self, name: str, command: Sequence[str], *, gpus: int = 0, node: str | None = None) -> PodRequest:
        mark = f"{self.mark}-{name}"
        return self.setup.request(
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
        """Return objects with the suite's label; a Job's pods have it too."""
        made["metadata"].setdefault("labels", {})[SUITE_LABEL] = self.mark
        template = (made.get("spec") or {}).get("template")
        if template:
            template.setdefault("metadata", {}).setdefault("labels", {})[SUITE_LABEL] = self.mark
        return made

    def create(self, pods: Iterable[Json]) -> tuple[str, ...]:
        """Create all at once, and return their names. The first refusal is the case's failure."""
        made = each(list(pods), lambda body: self.cluster.create(self.path("pods"), body))
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
        """Start pods and keep them under this name for later cases. With `nodes` they are distributed over these."""
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

    @property
    def all_pods(self) -> Pods:
        """Return all pods of the suite. A server that does not answer is the case's failure."""
        return Pods(self.cluster, self.setup.namespace, self.selector, patience_s=0.0)

    def pods(self) -> dict[str, Json]:
        """List all of the suite's, by name."""
        return {names.object_name(mark): pod for mark, pod in self.all_pods.by_mark().items()}

    def wait(
        self, pods: Sequence[str], until: Callable[[Json | None], bool], verb: str, *, early: bool = True
    ) -> dict[str, Json]:
        """Wait until all are so. A pod that will never be ends the wait before its time, with the cause (`early`)."""
        awaited = [Awaited(names.mark_of(name)) for name in pods]
        known = self.all_pods
        try:
            known.wait(awaited, lambda one: until(None if one.gone else one.pod), self.left_s, early=early)
        except NotReached as error:
            name = names.object_name(error.one.mark)
            described = self.by_hand("describe", "pod", name)
            if not error.timed_out:
                ended = error.failure.kind == "ended"
                said = f"the pod {name} ended too early: {known.last_words(name)}" if ended else error.message
                raise CaseFailed(said, hint=error.hint, command=described) from error
            how_many = f"{error.waiting} of {len(pods)} pods do" if len(pods) > 1 else "the pod does"
            raise CaseFailed(
                f"{how_many} not {verb} after {time.monotonic() - self.began:.0f} s: {known.explain(error.one).sentence}",
                hint="raise --time-limit if an image must be pulled first",
                command=described,
            ) from error
        return {names.object_name(one.mark): one.pod for one in awaited if one.pod is not None and not one.gone}

    def why(self, pod: Json) -> str:
        """Say why a pod is not where it should be, from its own status and events."""
        return self.all_pods.explain(Awaited(names.mark_of(str(pod["metadata"]["name"])), pod=pod)).sentence

    def nodes(self) -> list[Json]:
        return self.all_pods.nodes_and_others()[0]

    def others(self) -> list[Json]:
        """List whatever holds something in the cluster; empty where one may not look."""
        return self.all_pods.nodes_and_others()[1]

    def log(self, pod: str) -> str:
        return self.all_pods.log(pod)

    def execute(self, pod: str, command: Sequence[str]) -> Executed:
        return self.cluster.execute(
            self.setup.namespace, pod, command, container=names.CONTAINER, timeout_s=max(1.0, min(30.0, self.left_s))
        )

    def by_hand(self, *words: str) -> str | None:
        """Return the command to see it; None where what it would show is gone by then."""
        if self.own_namespace:
            return None
        return " ".join(("kubectl", "--context", self.cluster.context, "-n", self.setup.namespace, *words))

    # What is removed

    def delete(self, pods: Sequence[str], grace_s: int | None = None) -> float:
        """Delete them, wait until they are gone, and return the seconds it took."""
        began = time.monotonic()
        each(pods, lambda name: self.cluster.delete(self.path("pods", name), grace_s=grace_s))
        self.wait(pods, lambda pod: pod is None, "go away", early=False)
        return time.monotonic() - began

    def remove_leftovers(self, wait_for_all: bool = False) -> None:
        """Remove what the suite made and no case is to use any more: all but the pods of the groups that are kept.

        Not without any grace period: the API server would forget a pod whose devices its node still holds, and the next one
        there would be refused them. Pods with devices are waited for, for the same reason.
        """
        stay = {name for group in self.groups.values() for name in group.pods}
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := self.all_pods.remove_all(KINDS, grace_s=1, keep=stay):
            awaited = wait_for_all or any(requests(one).get(self.options.resource) for one in left)
            if not awaited or time.monotonic() >= deadline:
                return
            time.sleep(LOOK_S)


def runs(pod: Json | None) -> bool:
    return pod is not None and status.phase_of(pod) == "running"


def ended(pod: Json | None) -> bool:
    return pod is not None and status.phase_of(pod) == "ended"


def node_of(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def explained(error: ClusterError, doing: str) -> ClusterError:
    """Turn a refusal of the API server into a case's end. A quota, or a right that the account lacks, means left out:
    the cluster does what it was told to."""
    if not isinstance(error, ApiError):
        return error
    said = refusals.explained(error, doing)
    ours = error.status == 403 and ("exceeded quota" in error.message or " cannot " in error.message)
    return (LeftOut if ours else CaseFailed)(said.message, hint=said.hint, command=said.command)
