"""Run a worker in a pod: one Job, whose log is the worker's stream, and whose status says what the worker could not.

The pod lives without us: when we are killed it goes on to its end or its deadline, and is found again by its labels (the next
command through the ledger, `stackmark cluster clean`, and after a day the cluster itself by the Job's TTL). So nothing hangs
on a connection: the log is followed through lost ones, and the pod is removed only when all it said is stored.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import ClusterError, PlaceError, Terminated
from stackmark.kubernetes import names, orphans, refusals
from stackmark.kubernetes.client import ApiError, Cluster, Json, connect
from stackmark.kubernetes.manifest.request import PodGroup, PodRequest, forbidden_by_restricted
from stackmark.kubernetes.objects import matches
from stackmark.kubernetes.orphans import remove_of_dead_drivers
from stackmark.kubernetes.patience import AGAIN_S, COMING_BACK_S, patiently, wait_until_ready
from stackmark.kubernetes.pods import remove_run
from stackmark.kubernetes.rights import SERVICE_RIGHT, check_rights
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.checks import near, other_worker
from stackmark.places.mounts import not_mounted
from stackmark.places.outside import OutsideRun, params_of, read_request, refuse_worker_options, runs_outside
from stackmark.places.place import Facts, Handle, Outcome, Watch, missing_facts, not_bound
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.outside import OutsideProgram, facts_of_pod
from stackmark.places.pod.request import deadline_of, gpus_of, group_of, remarks
from stackmark.places.pod.run import PodRun
from stackmark.places.pod.setup import PodSetup, find_setup, has_resource
from stackmark.places.process import ended_from_outside, worker_environment
from stackmark.ranks import NODE_RANKS_VARIABLE
from stackmark.secrets_masking import value_of
from stackmark.spec import Request, Spec, Task
from stackmark.units import MIB, counted, say_size
from stackmark.workloads.command.definition import CommandParams

# No image has it, so a pod that is to run it only finds its node.
NO_PROGRAM = "/stackmark-finds-a-node"


class PodPlace:
    name = "pod"

    def __init__(
        self,
        options: PodOptions | None = None,
        cache: Path | None = None,
        kind: names.Kind = "run",
    ) -> None:
        self._options = options or PodOptions()
        self._cache = cache.absolute() if cache else None
        self._kind = kind
        self._environment = worker_environment(os.environ)
        for name in self._options.named_variables:
            value_of(name, self._environment)  # what is missing is said before anything is created
        self._setup: PodSetup | None = None
        self._remarked = False
        self._tidied = False
        self._offered: bool | None = None
        self._checked_group: PodGroup | None = None
        # What the table of tf_cnn_benchmarks in the pod's log needs besides the spec.
        self._table: Mapping[str, object] | None = None

    def options(self) -> dict[str, JsonValue]:
        """Return the options as typed."""
        return self._options.model_dump(mode="json", exclude_unset=True)

    def prepare(self) -> PodSetup:
        """Find the cluster, the rights, the image or the host's own software, once."""
        if self._setup is None:
            try:
                self._setup = find_setup(self._options, self._environment)
            except ClusterError as error:
                raise refusals.explained(error, "querying the cluster") from error
        return self._setup

    def has_own_files(self) -> bool:
        """Return whether the pod runs an image without the host's folders in it."""
        return self._options.has_own_files

    def _outside(self, asked: Spec | Request | None) -> bool:
        """Tell whether a pod runs a user's program and no worker. What is done to a pod on purpose needs a worker's events."""
        image = self._options.image if self._options.has_own_files and self._kind == "run" else None
        return runs_outside(asked, image)

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        if self._outside(spec):
            return []  # nobody looked from inside, which is flagged
        return not_enforced(self._options, self.gpus_for(spec), facts)

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        if self._outside(task.spec or task.request):
            refuse_worker_options(self._options.bind, self._options.python)
            if task.spec is None:
                assert task.request is not None
                return self._place_program(task, task.request, watch, mark, time_limit_s)
            with OutsideProgram(params_of(task.spec), OutsideRun(watch)) as outside:
                return self._run(task, watch, mark, time_limit_s, outside)
        return self._run(task, watch, mark, time_limit_s, None)

    def _place_program(
        self, task: Task, asked: Request, watch: Watch, mark: str, time_limit_s: float | None
    ) -> Outcome:
        """Answer a probe for a program in an image: find the node that the cluster gives it, where all other arms follow.

        A pod with its image and its devices is placed, and is given a program that no image has: the program itself may run
        for an hour. So a pod that gets no node, or an image that cannot be pulled, is known before the first run.
        """
        setup, request = self._prepared(task, watch, mark, time_limit_s)
        self._tidy(setup, watch)
        run = PodRun(setup, replace(request, command=(NO_PROGRAM,)), task, _Placing(watch), time_limit_s)
        placed = False
        try:
            run.create()
            run.wait_for_worker()
            OutsideRun(watch).probe(asked, facts_of_pod(run.handle, run.node))
            placed = True
        except ClusterError as error:
            raise refusals.explained(error, f"the Job {names.object_name(mark)}") from error
        finally:
            if not placed:
                self.stored(mark)
        return Outcome(0)

    def _run(
        self, task: Task, watch: Watch, mark: str, time_limit_s: float | None, outside: OutsideProgram | None
    ) -> Outcome:
        setup, request = self._prepared(task, watch, mark, time_limit_s)
        self._remark(request, task, watch)
        self._tidy(setup, watch)
        run = PodRun(setup, request, task, watch, time_limit_s, outside)
        interruption: BaseException | None = None
        followed = False
        try:
            run.create()
            run.wait_for_worker()
            run.read()
            followed = True
        except (KeyboardInterrupt, Terminated) as error:
            interruption, followed = error, True
        except ClusterError as error:
            raise refusals.explained(error, f"the Job {names.object_name(mark)}") from error
        finally:
            if not followed:
                self.stored(mark)
        if interruption or run.timed_out:
            run.end_early()
            failure = run.out_of_time(ended_from_outside(interruption, not run.timed_out, time_limit_s))
            if outside:
                outside.run.cut_off()
            return Outcome(run.exit_code, failure, tuple(run.stderr_lines), interruption, run.locations())
        failure = run.failure()
        if run.broken_off:
            run.end_early()
        if outside:
            failure = run.close_outside(failure)
        return Outcome(run.exit_code, failure, tuple(run.stderr_lines), locations=run.locations())

    def stored(self, mark: str) -> str | None:
        """Remove the Job and its pod: their log is in the ledger now. The ConfigMap and the claim go with the Job."""
        if self._setup is None:
            return None
        setup = self._setup
        try:
            remove_run(setup.cluster, setup.namespace, mark)
        except ClusterError as error:
            orphans.give_up(mark)
            name = f"{setup.namespace}/{names.object_name(mark)}"
            return f"the Job {name} could not be removed: {error.message}; the next stackmark command removes it"
        orphans.forget(mark)
        return None

    def _prepared(self, task: Task, watch: Watch, mark: str, time_limit_s: float | None) -> tuple[PodSetup, PodRequest]:
        """Find what the pod needs. A cluster that answered before is waited for; one that never did is an error at once.

        Every run comes after a probe, or after a command that looked at its places first.
        """
        try:
            if task.do == "run" or self._setup is not None:
                options = self._options
                known = (
                    self._setup.cluster
                    if self._setup
                    else connect(options.context, options.kubeconfig, options.namespace)
                )
                wait_until_ready(known, watch.waiting)
                setup = self._prepare_again()
            else:
                setup = self.prepare()
            return setup, patiently(lambda: self.request(setup, task, mark, time_limit_s), watch.waiting)
        except ClusterError as error:
            raise refusals.explained(error, "querying the cluster") from error

    def _prepare_again(self) -> PodSetup:
        """Prepare for a run in a cluster that was fit for it: one that has just come back knows no rights for a moment."""
        until = time.monotonic() + COMING_BACK_S
        while True:
            try:
                return self.prepare()
            except PlaceError:
                if time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)

    def _tidy(self, setup: PodSetup, watch: Watch) -> None:
        """Remove what earlier drivers left. What cannot be removed now is found by the next command."""
        said = orphans.remove_orphans(setup.cluster.server)
        if not self._tidied:
            with suppress(ClusterError):
                count = remove_of_dead_drivers(setup.cluster, setup.namespace)
                said += [orphans.removed_sentence(count, setup.namespace, setup.cluster.context)] if count else []
                self._tidied = True
        for sentence in said:
            watch.waiting(sentence)

    def request(self, setup: PodSetup, task: Task, mark: str, time_limit_s: float | None = None) -> PodRequest:
        """Make the request for this task's pod. A place that needs more in its pod adds to it."""
        asked = task.spec or task.request
        group = group_of(self._options, asked)
        if group and group != self._checked_group:
            check_rights(setup.cluster, [SERVICE_RIGHT])
            _require_nodes(setup.cluster, self._options, group.pods)
            self._checked_group = group
        if self._cache and setup.software is not None:
            self._cache.mkdir(parents=True, exist_ok=True)
        return setup.request(
            mark,
            "probe" if task.do == "probe" and self._kind == "run" else self._kind,
            task=task,
            gpus=self.gpus_for(asked),
            cache=str(self._cache) if self._cache else None,
            # The first pods of a group wait for the last one.
            deadline_s=deadline_of(task, time_limit_s) + (self._options.wait_s if group else 0),
            environment=self._environment,
            program=_program_of(task) if self._outside(asked) else None,
            table=self._table,
            group=group if task.do == "run" else None,
            # A probe is one process on one node, and has that node's GPUs.
            variables={NODE_RANKS_VARIABLE: str(group.ranks_each)} if group else None,
        )

    def _remark(self, request: PodRequest, task: Task, watch: Watch) -> None:
        """Say once what a person should know of the pod. What a namespace forbids, it will say itself."""
        forbidden = forbidden_by_restricted(request)
        for sentence in () if self._remarked else remarks(self._options, request, task):
            if sentence not in forbidden:
                watch.waiting(sentence)
        self._remarked = True

    def gpus_for(self, asked: Spec | Request | None) -> int:
        return gpus_of(self._options, asked, self._offers)

    def offers_gpus(self) -> bool:
        """Return whether a pod gets a GPU: as typed, else whether a node of the cluster has one."""
        count = self._options.gpu_count
        try:
            return self._offers() if count is None else count > 0
        except ClusterError as error:
            raise refusals.explained(error, "querying the cluster") from error

    def print_table(self, table: Mapping[str, object]) -> None:
        self._table = table

    def _offers(self) -> bool:
        if self._offered is None:
            # Once: what all runs of a place ask for must not depend on an API server that is away.
            self._offered = has_resource(self.prepare().cluster, self._options.resource)
        return self._offered


def _require_nodes(cluster: Cluster, options: PodOptions, count: int) -> None:
    """Refuse a group that has more pods than there are nodes for it: the last one would wait in vain.

    Who may not see nodes is told by the pod that waits.
    """
    nodes = list[Json]()
    with suppress(ApiError):
        nodes = cluster.items("/api/v1/nodes")
    fitting = [node for node in nodes if matches(node, {"spec": {"nodeSelector": options.labels_of_node}})]
    if nodes and len(fitting) < count:
        raise PlaceError(
            f"the run needs {counted(count, 'node')}, and the cluster has {len(fitting)} on which its pods may run",
            hint="use more --ranks-per-node, fewer --ranks, or another --node-selector",
            command=f"kubectl --context {cluster.context} get nodes",
        )


class _Placing:
    """Hands on what is said of a pod that only finds its node, but not that it cannot start its program."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def started(self, handle: Handle) -> None:
        self._watch.started(handle)

    def waiting(self, sentence: str) -> None:
        if NO_PROGRAM not in sentence:
            self._watch.waiting(sentence)

    def line(self, text: str) -> None: ...
    def stderr(self, text: str) -> None: ...


def _program_of(task: Task) -> CommandParams:
    if task.spec is not None:
        return params_of(task.spec)
    assert task.request is not None
    return read_request(task.request)[0]


# Was it done?


def not_enforced(options: PodOptions, gpus: int, facts: Facts) -> list[str]:
    """Hold what was asked of the pod against what the worker saw from inside: a sentence for each difference.

    A cluster may change what was asked for (an admission webhook, a LimitRange), and a node may not enforce it.
    """
    return [
        *missing_facts(facts),
        *(other_worker(worker_bundle().sha256, facts) if options.has_own_files else ()),
        *_inside(options, facts),
        *_limits(options, facts),
        *_gpus(options, gpus, facts),
        *not_mounted(options.mounts, facts),
        *not_bound(options.bind, facts),
    ]


def _inside(options: PodOptions, facts: Facts) -> Iterator[str]:
    container = facts.get("container", {})
    if container.get("kubernetes") is not True:
        yield "the worker sees no sign of a pod around it"
    node = container.get("node")
    if options.node is not None and node is not None and node != options.node:
        yield f"the node {options.node} was requested, but the pod ran on {node}"


def _limits(options: PodOptions, facts: Facts) -> Iterator[str]:
    cgroup, limits = facts.get("cgroup", {}), facts.get("limits", {})
    asked, seen = None if options.cpu_count is None else float(options.cpu_count), cgroup.get("cpu_limit_cpus")
    if asked is not None and not near(seen, asked):
        # With the static CPU manager newer kubelets switch the quota off: the cores are the limit then.
        cores = facts.get("process", {}).get("cpu_count")
        if not near(cores, asked):
            yield f"a limit of {asked:g} CPUs was requested, but {_has(seen, ' CPUs')}"
    memory, seen = options.memory_bytes, cgroup.get("memory_limit_mib")
    if memory is not None and not near(seen, memory / MIB):
        yield f"a memory limit of {say_size(memory)} was requested, but {_has(seen, ' MiB')}"
    shm, seen = options.shm_bytes, limits.get("shm_mib")
    if shm is not None and not near(seen, shm / MIB):
        yield f"a /dev/shm of {say_size(shm)} was requested, but it has {seen} MiB"


def _gpus(options: PodOptions, asked: int, facts: Facts) -> Iterator[str]:
    count = facts.get("gpu", {}).get("count")
    if isinstance(count, int) and count != asked and options.resource == "nvidia.com/gpu" and (asked or count):
        yield f"{asked} GPUs were requested, but {count} are visible in the pod"


def _has(seen: object, unit: str) -> str:
    return f"it is {seen:g}{unit}" if isinstance(seen, int | float) else "there is none"
