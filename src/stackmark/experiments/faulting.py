"""The kind `fault`, from the request to the ledger: which node, by which means, during which training.

The run is an ordinary run in a pod, stored as one, with a second part of its pod that keeps the heartbeat. What was done to the
cluster and seen of it stands in the experiment's design; fault_finding.py computes everything that is shown from these two.

The run's own thread follows the log; the fault has one of its own, and so has whoever looks at the cluster. They meet in
`HurtPlace`: the measured part's beginning starts the fault's clock, Ctrl-C heals before it does anything else, and the pod is
kept until its disk was read and the cluster is well again.
"""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from stackmark.cluster.faults import means as all_means
from stackmark.cluster.faults import safety
from stackmark.cluster.faults.helper import KeptPod, read_disk
from stackmark.cluster.faults.injecting import Injection, newcomer_request, start_one
from stackmark.cluster.faults.means import Means, Plan, Setting, Target
from stackmark.cluster.faults.record import PARTS as PARTS
from stackmark.cluster.faults.record import Disk, FaultRecord, Looking, Newcomer, Part, State
from stackmark.errors import ClusterError, SpecError, StackmarkError, WorkerError
from stackmark.events import Hello, Phase, Stream
from stackmark.experiments.probing import resolve
from stackmark.experiments.recorder import Position, Recorder, Watcher, begin, new_experiment
from stackmark.ids import new_id
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json, connect
from stackmark.kubernetes.manifest.build import pod_spec
from stackmark.kubernetes.nodes import nodes_here
from stackmark.kubernetes.pods import Pods
from stackmark.kubernetes.rights import RUN_RIGHTS, Right, missing_rights
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.places.place import Handle, Outcome, Watch
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Request, Spec, Task
from stackmark.workloads.registry import check_typed, find

# What else a fault takes besides its own time: set-up of pods before, and answers after.
SLACK_S = 600.0
# Before the fault there must be enough steps to know the usual ones.
LEAST_BEFORE_S = 3.0


@dataclass(frozen=True)
class FaultRequest:
    part: Part
    request: Request
    options: PodOptions
    seconds: float
    before_s: float
    after_s: float
    recover_s: float
    means: str | None = None
    plugin_selector: str | None = None
    stop_command: str | None = None
    start_command: str | None = None
    helper_image: str | None = None
    distribution: str | None = None
    only_control_plane: bool = False
    command: str = ""


@dataclass(frozen=True)
class Planned:
    """All decisions made before anything is done."""

    asked: FaultRequest
    place: KeptPod
    setup: PodSetup
    node: Json
    target: Target
    means: Means
    plan: Plan
    other_pods: tuple[str, ...]
    rights: tuple[Right, ...]
    missing: tuple[Right, ...]

    @property
    def node_name(self) -> str:
        return str(self.node["metadata"]["name"])


def plan_fault(asked: FaultRequest) -> Planned:
    """Plan a fault: which node, by which means, with which rights. Nothing is changed in the cluster."""
    _check(asked)
    cluster = connect(asked.options.context, asked.options.kubeconfig, asked.options.namespace)
    nodes = cluster.items("/api/v1/nodes")
    own_software = asked.options.image is None or asked.options.host_software == "yes"
    only = [node.name for node in nodes_here(cluster)] if own_software else None
    node = safety.choose_node(nodes, asked.options.node, only)
    name = str(node["metadata"]["name"])
    place = KeptPod(asked.options.model_copy(update={"node": name}), kind="fault")
    setup = place.prepare()
    setting = _setting(asked, setup, nodes)
    chosen = all_means.make(asked.means, setting)
    hurt = name
    if asked.part == "api-server" and chosen.name == "helper" and not asked.stop_command:
        hurt = safety.choose_control_plane(nodes, asked.only_control_plane)
    target = Target(asked.part, hurt, asked.seconds, new_id("x"))
    if chosen.name != "script":
        safety.refuse_the_only_control_plane(target, nodes)
    plan = chosen.plan(target)
    rights = tuple(dict.fromkeys((*_rights(setup.namespace), *safety.LOCK_RIGHTS, *plan.rights)))
    return Planned(
        asked, place, setup, node, target, chosen, plan,
        other_pods=tuple(safety.other_pods(cluster, hurt)),
        rights=rights,
        missing=tuple(missing_rights(cluster, rights)),
    )  # fmt: skip


def _rights(namespace: str) -> tuple[Right, ...]:
    """For the run, its heartbeat on disk, the new pods, and to see the node."""
    new = (Right("create", "", "pods"), Right("create", "", "pods", "exec"))
    nodes = (Right("list", "", "nodes", namespace=None), Right("get", "", "nodes", namespace=None))
    return (*(one.within(namespace) for one in (*RUN_RIGHTS, *new)), *nodes)


def _check(asked: FaultRequest) -> None:
    check_typed(asked.request)
    all_means.choose(asked.means, asked.part)
    if find(asked.request.workload)[1].timed != "steps":
        raise SpecError(
            f"{asked.request.workload} is not measured step by step, but a fault shows as gaps between steps",
            hint="use a training workload, e.g. train/resnet50",
        )
    for name in ("seconds", "steps"):
        if name in asked.request.typed():
            raise SpecError(
                f"--{name} cannot be used here: the fault's times decide how long the workload trains",
                hint="set --before, --for and --after instead",
            )
    if asked.before_s < LEAST_BEFORE_S:
        raise SpecError(
            f"--before must be at least {LEAST_BEFORE_S:g} s, got {asked.before_s:g} s", hint="give it a longer time"
        )


def _setting(asked: FaultRequest, setup: PodSetup, nodes: Sequence[Json]) -> Setting:
    """A helper is made like a bare pod of the worker's: image, mounts and account."""
    spec = pod_spec(newcomer_request(setup, new_id("x"), 0))
    own = asked.helper_image is not None
    return Setting(
        cluster=setup.cluster,
        part=asked.part,
        namespace=setup.namespace,
        image=asked.helper_image or setup.image,
        plugin_selector=asked.plugin_selector,
        stop_command=asked.stop_command,
        start_command=asked.start_command,
        distribution=asked.distribution,
        worker={} if own else spec["containers"][0],
        volumes=() if own else tuple(spec["volumes"]),
        nodes=tuple(nodes),
    )


def plan_lines(planned: Planned) -> list[tuple[str, str]]:
    """Describe exactly what would be done, with which rights, and what heals it."""
    asked, plan = planned.asked, planned.plan
    lines = [
        ("trains", f"{asked.request.workload} in a pod on {planned.node_name}, in the namespace {planned.setup.namespace}: "
         f"{asked.before_s:g} s, then the fault for {asked.seconds:g} s, then {asked.after_s:g} s"),
        *(("does", sentence) for sentence in plan.does),
        *(("heals", sentence) for sentence in plan.heals),
        ("allowed by", f"the label {safety.ALLOWED}=true of {planned.target.node}"),
        ("lock", f"the Lease {safety.LOCK} in {safety.LOCK_NAMESPACE}: one fault at a time in this cluster"),
        *(("right", str(right)) for right in planned.rights),
        *(("lacks", f"you have no right to {right}") for right in planned.missing),
    ]  # fmt: skip
    if planned.other_pods:
        named = ", ".join(planned.other_pods[:5]) + (" …" if len(planned.other_pods) > 5 else "")
        lines.append(
            (
                "affected",
                f"{len(planned.other_pods)} other pods run on {planned.target.node} and are affected too: {named}",
            )
        )
    if asked.seconds >= safety.EVICTION_S and asked.part in ("kubelet", "runtime", "node-network"):
        lines.append(("warning", f"after {safety.EVICTION_S:g} s without its node, Kubernetes evicts all its pods"))
    lines += [("warning", sentence) for sentence in plan.warnings]
    return [*lines, ("done", "nothing: this was a dry run; use --yes to inject the fault")]


class HurtPlace:
    """The pod's place together with a fault. The pod stays until its disk is read and the cluster has recovered."""

    name = "pod"

    def __init__(self, place: KeptPod, injection: Injection, watcher: Watcher) -> None:
        self._place, self._injection, self._watcher = place, injection, watcher
        self.offset_s: float | None = None
        self.states: tuple[State, ...] = ()
        self.disk: Disk | None = None

    def options(self) -> Handle:
        return self._place.options()

    def not_enforced(self, spec: Spec, facts: dict[str, Handle]) -> list[str]:
        return self._place.not_enforced(spec, facts)

    def stored(self, mark: str) -> str | None:
        return self._place.stored(mark)

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        injection = self._injection
        setup = self._place.prepare()
        looking = Looking(setup.cluster, injection.node, injection.resource, setup.namespace, mark)
        listening = _Listening(watch, injection, self._watcher)
        looking.start()
        injection.start()
        try:
            outcome = self._place.run(task, listening, mark=mark, time_limit_s=time_limit_s)
            injection.ended.set()
            self._wait(outcome)
            if outcome.interruption is None and listening.pod:
                self.disk = read_disk(setup, listening.pod, listening.stream.events)
            return outcome
        finally:
            injection.ended.set()
            injection.join()
            looking.stop()
            self.offset_s, self.states = listening.offset_s, looking.states

    def _wait(self, outcome: Outcome) -> None:
        injection = self._injection
        if injection.begun and not injection.over:
            what = "the node heals itself" if outcome.interruption else "waiting until the cluster has recovered"
            self._watcher.notice(f"{what}: at most {injection.target.seconds + injection.recover_s:.0f} s")
        injection.join()


class _Listening:
    """Hands on what the run says, hears when its measured part begins, and reads the two clocks against each other."""

    def __init__(self, watch: Watch, injection: Injection, watcher: Watcher) -> None:
        self._watch, self._injection, self._watcher = watch, injection, watcher
        self._hello: Hello | None = None
        self._told = False
        self.stream = Stream()
        self.offset_s: float | None = None
        self.pod = ""

    def started(self, handle: Handle) -> None:
        self.pod = str(handle.get("pod") or "")
        self._watch.started(handle)

    def waiting(self, sentence: str) -> None:
        self._watch.waiting(sentence)

    def stderr(self, text: str) -> None:
        self._watch.stderr(text)

    def line(self, text: str) -> None:
        self._watch.line(text)
        if self._injection.error is not None and not self._told:
            # What was to be measured cannot be: the run ends here, and not minutes later.
            self._told = True
            raise self._injection.error
        if self._injection.begun and not self._told:
            self._told = True
            self._watcher.notice(f"now: {self._injection.target.part} on {self._injection.target.node}")
        with suppress(StackmarkError):
            event = self.stream.feed(text)
            if isinstance(event, Hello):
                self._hello = event
            if event is not None and self._hello is not None:
                late = time.time() - (self._hello.time_unix_s - self._hello.t + event.t)
                self.offset_s = late if self.offset_s is None else min(self.offset_s, late)
            if isinstance(event, Phase) and event.phase == "measure" and event.state == "begin":
                self._injection.measuring.set()


@contextmanager
def healing_at_once(heal: threading.Event) -> Iterator[None]:
    """Heal first on Ctrl-C and SIGTERM: the exceptions they raise may take a while to arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # One that is ignored (a job in the background of a script) stays ignored, and one that ends us leaves it to the healer.
    found = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
    before = {number: handler for number, handler in found if callable(handler)}

    def healing(number: int, frame: FrameType | None) -> None:
        heal.set()
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, healing)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fault(planned: Planned, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Train, inject the fault, heal, wait, and store; raise ClusterError where the fault could not be applied."""
    asked, cluster = planned.asked, planned.setup.cluster
    if planned.missing:
        raise ClusterError(
            f"rights are missing: {', '.join(map(str, planned.missing))}", hint="ask for a role that has them"
        )
    mark = planned.target.mark
    longest = asked.before_s + asked.seconds + asked.after_s + asked.recover_s + planned.means.lead_s + SLACK_S
    with safety.locked(cluster, mark, longest):
        try:
            return _hurt(planned, ledger, watcher)
        finally:
            with suppress(ClusterError):
                selector = f"{names.RUN_LABEL}={mark}"
                Pods(cluster, planned.setup.namespace, selector).remove({mark}, grace_s=0)


def _hurt(planned: Planned, ledger: Ledger, watcher: Watcher) -> Experiment:
    asked, cluster = planned.asked, planned.setup.cluster
    seconds = asked.before_s + planned.means.lead_s + asked.seconds + asked.after_s
    params = {**asked.request.params, "seconds": seconds}
    params.setdefault("at_least_steps", 0)
    request = asked.request.model_copy(update={"params": params})
    spec = resolve(request, planned.place, watcher).spec
    injection = Injection(
        cluster, planned.means, planned.target, planned.node_name, asked.options.resource, planned.setup,
        planned.place.gpus_for(spec), asked.before_s, asked.recover_s,
    )  # fmt: skip
    injection.look_before()
    first = _first_newcomer(planned, injection, watcher)
    record = FaultRecord(
        part=asked.part,
        means=planned.means.name,
        node=planned.node_name,
        hurt_node=planned.target.node if planned.target.node != planned.node_name else None,
        asked_s=asked.seconds,
        before_s=asked.before_s,
        after_s=asked.after_s,
        recover_s=asked.recover_s,
        resource=asked.options.resource,
        plan=(*planned.plan.does, *planned.plan.heals),
        newcomer_before=first,
    )
    place = HurtPlace(planned.place, injection, watcher)
    experiment = new_experiment(
        kind="fault", command=asked.command, request=asked.request.model_dump(mode="json"),
        design=record.model_dump(mode="json"), experiment_id=planned.target.mark,
    )  # fmt: skip
    begin(ledger, experiment, [(spec, place.name, place.options())])
    try:
        with healing_at_once(injection.heal):
            row, _ = Recorder(ledger, experiment.id).run(spec, Position(), place, watcher)
    except StackmarkError as error:
        # Why the fault could not be applied says more than that the run was ended for it.
        raise injection.error or error from None
    finally:
        ledger.set_design(experiment.id, _filled(record, place, injection).model_dump(mode="json"))
    if injection.error:
        raise injection.error
    if not injection.begun:
        raise WorkerError(
            f"the run ended before the fault was applied: {row.failure_message or row.status}",
            hint=row.failure_hint or f"look at it: stackmark show {row.id} --log",
        )
    return ledger.experiment(experiment.id)


def _first_newcomer(planned: Planned, injection: Injection, watcher: Watcher) -> Newcomer:
    watcher.notice(f"starting a pod on {planned.node_name} to see how long that takes without the fault")
    gpus = 1 if injection.free > 0 else 0
    wanted = newcomer_request(planned.setup, f"{planned.target.mark}-old", gpus)
    seen = start_one(planned.setup.cluster, wanted, planned.asked.recover_s, threading.Event())
    if seen.running_unix_s is None:
        raise ClusterError(
            f"no fault was injected: a new pod did not start on {planned.node_name} even without it: {seen.why}",
            hint="examine the cluster: stackmark cluster doctor",
        )
    return seen


def _filled(record: FaultRecord, place: HurtPlace, injection: Injection) -> FaultRecord:
    return record.model_copy(
        update={
            "done": injection.done,
            "offset_s": place.offset_s,
            "states": place.states,
            "newcomer_after": injection.newcomer,
            "disk": place.disk,
            "healthy_unix_s": injection.healthy_unix_s,
            "sick": injection.sick or (injection.error.message if injection.error else ""),
        }
    )
