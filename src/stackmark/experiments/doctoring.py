"""`stackmark cluster doctor`: send pods to the nodes, diagnose what they saw, and remove them.

A visit is up to three short pods on a node, one after the other: one with the GPUs that are asked for and one without any tell
what they see, a third adds vectors. Nodes are visited side by side. The pods are those of every other run (kubernetes/):
what keeps the doctor's from running keeps a benchmark's from running too.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from stackmark.cluster.doctor import cluster_diagnostics, pod_diagnostics
from stackmark.cluster.doctor.diagnosing import examined, make_report, worth_a_visit, worth_adding
from stackmark.cluster.doctor.evidence import Addition, ClusterView, Look, NodeVisit, Wish, gather
from stackmark.cluster.doctor.results import Report
from stackmark.errors import ClusterError, StackmarkError
from stackmark.events import Facts as FactsEvent
from stackmark.events import Failed, Metric, Result, gathered_facts
from stackmark.experiments.manifesting import read_pod_options
from stackmark.experiments.recorder import Listener, Silent
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Cluster, connect
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.pods import Pods
from stackmark.places.place import Handle, Outcome
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace
from stackmark.spec import Spec, Task
from stackmark.workloads.check.definition import CheckParams

# Looking takes seconds; a driver that hangs is where it takes longer.
LOOK_S, ADD_S = 120.0, 300.0
# What a pod waits for here was seen to be free: who comes first meanwhile has it for longer than anybody waits for a doctor.
WAIT = "2min"
VISITS_AT_ONCE = 4
# A visit takes some ten seconds: of this many nodes it is said beforehand.
MANY = 20
# Where a pod that could go anywhere was not placed at all.
NOWHERE = "no node"
# A pod of the class Guaranteed, small: a CPU manager gives it a CPU of its own.
OWN_CPUS, OWN_MEMORY = 1, "4g"
# A pod as people write them has no volume there.
WITHOUT_SHM = {"volumeMounts": [{"mountPath": "/dev/shm", "$patch": "delete"}]}  # noqa: S108 - the pod's own

Say = Callable[[str], None]


def diagnose(
    given: Mapping[str, JsonValue], nodes: Sequence[str], *, pods: bool = True, say: Say = lambda _: None
) -> Report:
    """Diagnose the cluster. `given` are a pod's options, as typed. Without `pods` nothing is created in the cluster."""
    options = read_pod_options(given)
    if options.node:
        nodes = (*nodes, options.node)
    wish = wish_of(options, nodes)
    cluster = connect(options.context, options.kubeconfig, options.namespace)
    seen = gather(cluster, wish.named)
    visits = _Visitor(cluster, seen, wish, options, say).all(pods)
    return make_report(seen, wish, visits)


def wish_of(options: PodOptions, nodes: Sequence[str]) -> Wish:
    count = options.gpu_count
    return Wish(
        gpus=1 if count is None else count,
        resource=options.resource,
        dra=options.dra,
        runtime_class=options.runtime_class,
        tolerations=options.all_tolerations(True),
        labels=options.labels_of_node,
        named=tuple(dict.fromkeys(nodes)),
    )


class _Listening(Listener):
    """Remembers what the place says of the pod, too."""

    def started(self, handle: Handle) -> None:
        self.handle = dict(handle)


@dataclass(frozen=True)
class _Ran:
    """One pod from its making to its removal."""

    heard: _Listening
    failure: PlaceFailure | None
    seconds: float
    # The ids of the devices that it was given, where the cluster tells them.
    allocated: tuple[str, ...] | None = None


class _Visitor:
    def __init__(self, cluster: Cluster, seen: ClusterView, wish: Wish, options: PodOptions, say: Say) -> None:
        self._cluster, self._seen, self._wish, self._options, self._say = cluster, seen, wish, options, say
        self._stop = threading.Event()

    def all(self, pods: bool) -> dict[str, NodeVisit]:
        if self._seen.trouble:
            return {}
        nodes = examined(self._seen, self._wish)
        why = cluster_diagnostics.may_run_pods(self._seen) if pods else "--no-pods was given"
        if why:
            return {node.name: NodeVisit(why_not=why) for node in nodes}
        if self._seen.nodes is None and not nodes:
            return self._anywhere()
        visited = [node for node in nodes if worth_a_visit(node, nodes, self._wish)]
        if len(visited) > MANY:
            self._say(
                f"visiting {len(visited)} nodes, {VISITS_AT_ONCE} at a time; --node selects nodes, --no-pods skips them all"
            )
        return self._side_by_side(visited)

    def _side_by_side(self, nodes: Sequence[Node]) -> dict[str, NodeVisit]:
        found: dict[str, NodeVisit] = {}
        with ThreadPoolExecutor(max_workers=min(VISITS_AT_ONCE, max(1, len(nodes)))) as pool:
            running: dict[Future[NodeVisit], str] = {pool.submit(self._visit, node): node.name for node in nodes}
            try:
                for future in as_completed(running):
                    found[running[future]] = future.result()
                    self._say(f"{running[future]}: {len(found)} of {len(nodes)} nodes visited")
            finally:
                if len(found) < len(nodes):
                    # Ctrl-C: the visits end when their pods are gone.
                    self._stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    self._remove_all()
                    pool.shutdown(wait=True)
                    self._remove_all()
        return found

    def _anywhere(self) -> dict[str, NodeVisit]:
        """Where one may not see nodes a pod goes where the scheduler puts it, and says where that is."""
        visit, where = self._pods(None, None)
        return {where or NOWHERE: visit}

    def _visit(self, node: Node) -> NodeVisit:
        why = cluster_diagnostics.closed(node, self._wish)
        if why:
            return NodeVisit(why_not=why)
        visit, _ = self._pods(node.name, pod_diagnostics.why_no_pod(node, self._seen, self._wish))
        return visit

    def _pods(self, node: str | None, without_gpus: str | None) -> tuple[NodeVisit, str]:
        """What pods on a node see. `without_gpus` is why none with GPUs is sent."""
        wish, where = self._wish, node or ""
        visit = NodeVisit(why_not=without_gpus or "")
        try:
            if wish.gpus and not without_gpus:
                look, where = self._look(node, wish.gpus)
                visit = replace(visit, with_gpus=look)
            # One that goes where it is put may be put elsewhere than the first, and would tell of another node.
            if not self._stop.is_set() and (node or visit.with_gpus is None):
                plain, second = self._look(node, 0)
                visit, where = replace(visit, plain=plain), where or second
            if worth_adding(visit, wish) and not self._stop.is_set():
                visit = replace(visit, addition=self._add(node))
        except _NotReady as error:
            hint = f" ({error.hint})" if error.hint else ""
            visit = replace(visit, why_not=f"{error.message}{hint}")
        return visit, where or node or ""

    def _look(self, node: str | None, gpus: int) -> tuple[Look, str]:
        self._say(f"{node or 'the scheduler'}: {_a_pod(gpus)} collects facts")
        given: dict[str, JsonValue] = {"gpus": str(gpus) if gpus else "none"}
        cpus = self._own_cpus(node)
        if cpus is not None:
            given |= {"cpus": str(cpus), "memory": self._options.memory or OWN_MEMORY}
        with tempfile.TemporaryDirectory(prefix="stackmark-doctor-") as folder:
            if gpus == 0 and self._options.patch is None:
                given["patch"] = _patch(Path(folder))
            ran = self._run(node, given, Task(do="facts", lifeline=False), LOOK_S)
        handle, events, failure = ran.heard.handle, ran.heard.stream.events, ran.failure
        where, pod = (str(handle.get(key) or "") for key in ("node", "pod"))
        look = Look(gpus=gpus, cpus=cpus, allocated=ran.allocated, pod=pod, seconds=ran.seconds)
        if failure:
            return replace(look, kind=failure.kind, trouble=failure.message, hint=failure.hint), where
        problems = tuple(problem for event in events if isinstance(event, FactsEvent) for problem in event.problems)
        return replace(look, facts=gathered_facts(events), problems=problems), where

    def _own_cpus(self, node: str | None) -> int | None:
        """Whole CPUs, where the kubelet's configuration cannot be read and must be told by what a pod gets."""
        typed = self._options.cpu_count
        if typed is not None:
            return int(typed) if typed.denominator == 1 and self._options.memory else None
        return None if node and node in self._seen.kubelets else OWN_CPUS

    def _add(self, node: str | None) -> Addition:
        self._say(f"{node or 'the scheduler'}: a pod adds vectors")
        device = "cuda:0" if self._wish.gpus else "cpu"
        params = CheckParams(device=device, every_gpu=self._wish.gpus > 1).model_dump(mode="json")
        spec = Spec(workload="check/vector-add", params=params)
        given: dict[str, JsonValue] = {"gpus": str(self._wish.gpus) if self._wish.gpus else "none"}
        ran = self._run(node, given, Task(do="run", spec=spec, lifeline=False), ADD_S)
        if failure := ran.failure:
            return Addition(kind=failure.kind, trouble=failure.message, hint=failure.hint, seconds=ran.seconds)
        ended = ran.heard.stream.ended()
        assert isinstance(ended, Result)
        metrics = {event.name: event.value for event in ran.heard.stream.events if isinstance(event, Metric)}
        figure = f"{ended.figure.value:.4g} {ended.figure.unit}" if ended.figure else ""
        checked, devices = int(metrics.get("elements_checked", 0)), int(metrics.get("devices_checked", 1))
        return Addition(figure, checked, devices, seconds=ran.seconds)

    def _run(self, node: str | None, given: Mapping[str, JsonValue], task: Task, limit_s: float) -> _Ran:
        began = time.monotonic()
        base = self._options.model_dump(mode="json", exclude_unset=True)
        wait = {} if "wait" in base else {"wait": WAIT}
        options = read_pod_options({**base, **wait, "node": node, **given})
        place, mark = PodPlace(options, kind="doctor"), new_id("r")
        heard = _Listening(_Watching(self._say, node))
        try:
            place.prepare()
        except StackmarkError as error:
            raise _NotReady(error) from error
        allocated, failure = None, None
        try:
            outcome = place.run(task, heard, mark=mark, time_limit_s=limit_s)
            allocated = self._allocated(heard.handle)
        except StackmarkError as error:
            outcome, failure = Outcome(None), PlaceFailure("place", error.message, error.hint or "")
        finally:
            place.stored(mark)
        if outcome.interruption:
            raise outcome.interruption
        failure = failure or _failure(heard, task, outcome)
        return _Ran(heard, failure, round(time.monotonic() - began, 3), allocated)

    def _allocated(self, handle: Handle) -> tuple[str, ...] | None:
        """The devices' ids by the pod's own status, where the kubelet tells them (KEP-4680)."""
        path = f"/api/v1/namespaces/{self._seen.namespace}/pods/{handle.get('pod')}"
        with suppress(ClusterError):
            status = self._cluster.get(path).get("status") or {}
            ids = [
                str(one.get("resourceID"))
                for container in status.get("containerStatuses") or ()
                for resource in container.get("allocatedResourcesStatus") or ()
                if resource.get("name") == self._wish.resource
                for one in resource.get("resources") or ()
            ]
            return tuple(ids) or None
        return None

    def _remove_all(self) -> None:
        """Whatever this process made as a doctor, in the namespace that it works in."""
        selector = f"{names.KIND_LABEL}=doctor,{names.DRIVER_LABEL}={names.driver_label()}"
        with suppress(ClusterError):
            Pods(self._cluster, self._seen.namespace, selector).remove_all()


class _NotReady(Exception):
    """No pod can be made at all, and why."""

    def __init__(self, error: StackmarkError) -> None:
        super().__init__(error.message)
        self.message, self.hint = error.message, error.hint


class _Watching(Silent):
    def __init__(self, say: Say, node: str | None) -> None:
        self._tell, self._node = say, node

    def notice(self, sentence: str) -> None:
        self._tell(f"{self._node or 'the scheduler'}: {sentence}")


def _failure(heard: _Listening, task: Task, outcome: Outcome) -> PlaceFailure | None:
    """Why there is no result, in the words of whoever knows best: the place, the worker, or what it last said."""
    ended = heard.stream.ended()
    if task.do == "facts" and not isinstance(ended, Failed) and "stackmark" in gathered_facts(heard.stream.events):
        return None
    if isinstance(ended, Result):
        return PlaceFailure("hardware_error", "; ".join(ended.invalid)) if ended.invalid else None
    if isinstance(ended, Failed):
        return PlaceFailure(ended.kind, ended.message, ended.hint)
    if outcome.failure is not None:
        return outcome.failure
    if heard.broken:
        return PlaceFailure("broken_stream", heard.broken.message)
    said = " ".join(outcome.stderr[-3:]) or "nothing"
    return PlaceFailure(
        "cut_off", f"the pod ended without a result; its output: {said}", "does the image contain stackmark?"
    )


def _a_pod(gpus: int) -> str:
    return f"a pod with {gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "a pod without a GPU"


def _patch(folder: Path) -> str:
    path = folder / "plain-pod.json"
    container = {"name": names.CONTAINER, **WITHOUT_SHM}
    path.write_text(json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}}))
    return str(path)
