"""`stackmark results --from-cluster`: store runs that ended in a cluster without a waiting driver.

A pod's log is the worker's whole stream, so a run that is collected is judged as one that was waited for. Each is stored once:
its id is made from the pod's UID and the worker's first moment, and the ledger has an id once. What cannot be taken, since its
log is gone or has lost its beginning, is said and not stored: that a number is missing is not that a run failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.errors import ClusterError, StackmarkError
from stackmark.events import Event, Hello, Probe
from stackmark.experiments.recorder import Output, finished_run, new_experiment, store_finished
from stackmark.experiments.verify import verified_spec
from stackmark.ids import derived_id
from stackmark.kubernetes import status
from stackmark.kubernetes.client import Cluster, Json, connect
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.refusals import explained
from stackmark.ledger.rescue import WholeRun, known_runs
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import STDERR_LINES_KEPT, Outcome
from stackmark.places.pod.finished import FinishedPod, find_pods, handle_of, options_of, read_pods, task_of
from stackmark.spec import Request, Spec, Task
from stackmark.units import counted
from stackmark.version import version

# How far a node's clock may be from the cluster's before it is not believed.
CLOCKS_DIFFER_S = 3600.0


@dataclass(frozen=True)
class Collected:
    namespace: str
    context: str
    taken: tuple[RunRow, ...]
    known: int
    unfinished: int
    # Pods that could not be taken, a sentence each.
    left: tuple[str, ...]

    def sentences(self) -> list[str]:
        done = sum(row.status == "done" for row in self.taken)
        failed = f", {len(self.taken) - done} of them failed" if done < len(self.taken) else ""
        where = f"the namespace {self.namespace} of {self.context}"
        rest = [f"{counted(self.known, 'run')} already collected"] if self.known else []
        rest += [f"{counted(self.unfinished, 'pod')} still running"] if self.unfinished else []
        took = f"collected {counted(len(self.taken), 'run')} from {where}{failed}"
        return ["; ".join([took, *rest]), *(f"not collected: {sentence}" for sentence in self.left)]


def collect(
    ledger: Ledger,
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    namespace: str | None = None,
    command: str = "",
) -> Collected:
    cluster = connect(context, kubeconfig, namespace)
    try:
        return _collected(cluster, ledger, command)
    except ClusterError as error:
        raise explained(error, f"looking for pods in the namespace {cluster.namespace}") from error


def _collected(cluster: Cluster, ledger: Ledger, command: str) -> Collected:
    pods = find_pods(cluster)
    before = _taken_before(ledger, pods.ended)
    left: list[str] = []
    found: dict[str, list[tuple[WholeRun, Task | None]]] = {}
    nodes: dict[str, Node | None] = {}
    for pod in pods.ended:
        if pod["metadata"]["uid"] in before:
            continue
        told = read_pods(cluster, pod, pods.mates.get(pod["metadata"]["uid"], ()))
        run = _whole(cluster, told, nodes)
        if isinstance(run, str):
            left.append(f"the pod {told.name}: {run}")
        else:
            found.setdefault(told.mark, []).append((run, task_of(pod)))
    taken: list[RunRow] = []
    for mark, runs in found.items():
        taken += _stored(ledger, cluster, mark, runs, command)
    return Collected(cluster.namespace, cluster.context, tuple(taken), len(before), pods.unfinished, tuple(left))


def _taken_before(ledger: Ledger, pods: Sequence[Json]) -> set[str]:
    """The UIDs of those whose run is in the ledger: their logs need not be read again."""
    return known_runs(ledger, "pod_uid", [str(pod["metadata"]["uid"]) for pod in pods])


def _stored(
    ledger: Ledger, cluster: Cluster, mark: str, runs: list[tuple[WholeRun, Task | None]], command: str
) -> list[RunRow]:
    """All new runs of one manifest, as an experiment of theirs."""
    request = next((task.request for _, task in runs if task and task.request), None)
    experiment = new_experiment(
        command=command,
        note=f"collected from the namespace {cluster.namespace} of {cluster.context}: {mark}",
        request=request.model_dump(mode="json") if request else None,
    )
    stored = store_finished(ledger, experiment, [run for run, _ in runs], only_new=True)
    return [ledger.run(run_id) for run_id in stored]


def _whole(cluster: Cluster, told: FinishedPod, nodes: dict[str, Node | None]) -> WholeRun | str:
    """The run, or why there is none."""
    output = Output.read(told.events)
    if told.missing and told.failure is None:
        return f"its log cannot be read completely: {told.missing}"
    task = task_of(told.pod)
    try:
        spec = _spec(output.stream.events, task)
    except StackmarkError as error:
        return error.message
    if spec is None:
        return "it does not contain its spec"
    hello = next((event for event in output.stream.events if isinstance(event, Hello)), None)
    times = status.timeline(told.pod, [])
    began = _began(hello, times)
    stderr = tuple(told.others[-STDERR_LINES_KEPT:])
    # The cluster's own clock, which counts whole seconds.
    observed_s = times.ended - times.started + 1.0 if times.ended and times.started else None
    end = output.judge(Outcome(told.exit_code, told.failure, stderr), spec=spec, observed_s=observed_s)
    handle = handle_of(cluster, told, nodes)
    return finished_run(
        spec,
        output,
        end.model_copy(update={"ended_unix_s": times.ended or end.ended_unix_s}),
        run_id=derived_id("r", began, f"{told.uid} {began!r}"),
        place="pod",
        place_options=options_of(told.pod),
        started_unix_s=began,
        machine_id=str(handle.get("node_machine_id") or ""),
        boot_id=str(handle.get("node_boot_id") or ""),
        handle=handle,
        stackmark_version=hello.versions.get("stackmark", version()) if hello else version(),
    )


def _began(hello: Hello | None, times: status.Timeline) -> float:
    """Return when the worker began: by its own word if the cluster saw it there at that time, else by the cluster's."""
    seen = times.started or times.created or 0.0
    if hello is None:
        return seen
    return hello.time_unix_s if not seen or abs(hello.time_unix_s - seen) < CLOCKS_DIFFER_S else seen


def _spec(events: Sequence[Event], task: Task | None) -> Spec | None:
    """Return what the pod was to do: what its probe froze, if the request allows it, or what was typed.

    Of a pod whose task cannot be read, what it says is verified by the definition alone.
    """
    probed = next((event.spec for event in events if isinstance(event, Probe)), None)
    request = task.request if task else None
    if task is not None and task.spec is not None:
        return task.spec
    if probed is not None:
        return verified_spec(
            request or Request(workload=probed.workload, params=probed.params, ranks=probed.ranks), probed
        )
    return Spec(workload=request.workload, params=request.typed(), ranks=request.ranks) if request else None
