"""Run a worker as a Slurm job: one worker, or for a group of ranks one agent on each node.

Slurm is asked by its commands alone, and nothing is expected of the nodes but a Python with PyTorch: no shared folder, and
nothing of ours installed. See docs/slurm.md.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import PlaceError, SpecError, nearest_names
from stackmark.machine.host import boot_id
from stackmark.machine.orphans import MARK_VARIABLE
from stackmark.machine.reading import told_cpus
from stackmark.places.bundle import worker_bundle
from stackmark.places.container.checks import near, other_worker
from stackmark.places.container.launch import driver_lives
from stackmark.places.place import Facts, Outcome, Watch, cache_variables, cpus_allowed, missing_facts, not_bound
from stackmark.places.slurm.commands import ControllerAway, Partition, Slurm
from stackmark.places.slurm.options import SlurmOptions
from stackmark.places.slurm.run import NAME_PREFIX, Plan, SlurmRun, job_name
from stackmark.ranks import NODE_RANKS_VARIABLE
from stackmark.secrets_masking import value_of
from stackmark.spec import ABOUT_VARIABLE, AUTO, Request, Spec, Task
from stackmark.units import counted, say_seconds

# srun takes the partition from it, unless one is typed.
PARTITION_VARIABLE = "SLURM_PARTITION"
# A controller that was there before is waited for this long, and asked this often.
AWAY_S, AGAIN_S = 600.0, 2.0


class SlurmPlace:
    name = "slurm"

    def __init__(self, options: SlurmOptions | None = None, cache: Path | None = None) -> None:
        self._options = options or SlurmOptions()
        self._cache = cache.absolute() if cache else None
        for name in self._options.named_variables:
            value_of(name, os.environ)  # what is missing is said before anything is started
        self._slurm: Slurm | None = None
        # The partitions in which a job may run.
        self._partitions: list[Partition] = []
        # Whether Slurm holds a job to its CPUs, and to its memory.
        self._confines = (False, False)

    def options(self) -> dict[str, JsonValue]:
        """Return the options as typed."""
        return self._options.model_dump(mode="json", exclude_unset=True)

    def prepare(self) -> Slurm:
        """Find Slurm's commands and the partition, once. Jobs of dead drivers are cancelled as well."""
        if self._slurm is None:
            slurm = Slurm()
            self._partitions = self._require_partition(slurm)
            self._confines = slurm.confines()
            with suppress(PlaceError):  # the next command tries again
                remove_abandoned(slurm)
            self._slurm = slurm
        return self._slurm

    def offers_gpus(self) -> bool:
        """Return whether a job gets a GPU: as typed, else whether a node of the partition has one."""
        if self._options.gres is not None:
            return "gpu" in self._options.gres
        count = self._options.gpu_count
        return self._offers() if count is None else count > 0

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        self._plan_of_ranks(task.spec or task.request)
        first = self._slurm is None
        slurm = self.prepare()
        if first:
            self._remark(watch)
        self._wait_for_controller(slurm, watch)
        plan = self.plan(task)
        self._require_nodes(self._plan_of_ranks(task.spec or task.request)[0])
        environment = {**self._environment(slurm, mark), **self._of_probe(task)}
        return SlurmRun(slurm, self._options, plan, task, watch, mark, environment, time_limit_s).run()

    def _of_probe(self, task: Task) -> dict[str, str]:
        """Tell a probe, which is one process on one node, how many ranks that node will have."""
        nodes, each = self._plan_of_ranks(task.spec or task.request)
        return {NODE_RANKS_VARIABLE: str(each)} if task.do == "probe" and nodes > 1 else {}

    def plan(self, task: Task) -> Plan:
        """Decide how many nodes a task needs, and how many GPUs of each."""
        asked = task.spec or task.request
        nodes, each = self._plan_of_ranks(asked)
        gpus = self._gpus(asked, each)
        if task.do != "run":
            nodes = 1
        grouped = task.do == "run" and asked is not None and asked.ranks > 1
        return Plan(nodes, each if grouped else None, gpus)

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        return [
            *missing_facts(facts),
            *other_worker(worker_bundle().sha256, facts),
            *not_enforced(self._options, self._confines, facts),
            *not_bound(self._options.bind, facts),
        ]

    def _plan_of_ranks(self, asked: Spec | Request | None) -> tuple[int, int]:
        """Return how many nodes there are and how many ranks each has; ranks that do not divide are refused."""
        ranks = asked.ranks if asked else 1
        each = min(self._options.ranks_each or ranks, ranks)
        if ranks % each:
            raise SpecError(
                f"{counted(ranks, 'rank')} cannot be shared out with {each} on each node",
                hint=f"ranks_per_node must divide the ranks: {', '.join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)}",
            )
        return ranks // each, each

    def _gpus(self, asked: Spec | Request | None, each: int) -> int:
        if self._options.gpu_count is not None:
            return self._options.gpu_count
        device = str(asked.params.get("device", AUTO)) if asked else AUTO
        if self._options.gres is not None or device == "cpu" or (device == AUTO and not self._offers()):
            return 0
        return each

    def _offers(self) -> bool:
        """Tell whether a node of the partition has a GPU, so that jobs ask for none where there is none."""
        self.prepare()
        return any("gpu" in gres for one in self._partitions for gres in one.gres)

    def _require_nodes(self, nodes: int) -> None:
        """Refuse a run that no partition can ever hold: Slurm may take such a job, and let it wait."""
        largest = max(self._partitions, key=lambda one: one.nodes, default=None)
        if largest is not None and 1 < nodes > largest.nodes:
            raise PlaceError(
                f"the run needs {nodes} nodes, and the partition {largest.name} has {largest.nodes}",
                hint="use more --ranks-per-node, fewer --ranks, or another --partition",
                command="sinfo --format='%P %D'", kind="refused",
            )  # fmt: skip

    def _require_partition(self, slurm: Slurm) -> list[Partition]:
        """Return the partitions in which a job may run; one that does not exist or starts no jobs is refused."""
        known = slurm.partitions()
        names = [one.name for one in known]
        for wanted in (self._options.partition or "").split(","):
            found = next((one for one in known if one.name == wanted), None)
            if wanted and found is None:
                raise PlaceError(
                    f"Slurm has no partition {wanted!r}{nearest_names(wanted, names)}",
                    hint=f"partitions: {', '.join(names) or 'none'}", command="sinfo --summarize", kind="refused",
                )  # fmt: skip
            if found is not None and not found.is_up:
                raise PlaceError(f"the partition {wanted} is not up: it starts no jobs", command="sinfo --summarize")
        wanted = self._options.partition or slurm.environment.get(PARTITION_VARIABLE, "")
        return [one for one in known if (one.name in wanted.split(",") if wanted else one.is_default)]

    def _remark(self, watch: Watch) -> None:
        """Say once which limits this Slurm only reserves."""
        cpus, memory = self._confines
        for typed, confined, what in (
            (self._options.cpus, cpus, "cpus"), (self._options.memory, memory, "memory"),
        ):  # fmt: skip
            if typed is not None and not confined:
                watch.waiting(f"{what}={typed} is reserved, but this Slurm does not hold jobs to it (no task/cgroup)")

    def _wait_for_controller(self, slurm: Slurm, watch: Watch) -> None:
        """Wait for a controller that answered before: jobs go on without it, and new ones can wait for it."""
        deadline = time.monotonic() + AWAY_S
        said = False
        while True:
            try:
                slurm.own_jobs()
                return
            except ControllerAway as error:
                if time.monotonic() > deadline:
                    raise
                if not said:
                    watch.waiting(f"{error.message}; waiting for it, for up to {say_seconds(AWAY_S)}")
                    said = True
            time.sleep(AGAIN_S)

    def _environment(self, slurm: Slurm, mark: str) -> dict[str, str]:
        """Return what the worker's environment has besides the node's own."""
        about = {"slurm_version": slurm.version, "software": "node"}
        return {
            **cache_variables(self._cache),
            **self._options.all_variables(os.environ),
            **self._options.worker_variables,
            MARK_VARIABLE: mark,
            ABOUT_VARIABLE: json.dumps(about, separators=(",", ":")),
        }


# Was it done?


def not_enforced(options: SlurmOptions, confines: tuple[bool, bool], facts: Facts) -> Iterator[str]:
    """Hold what was asked of Slurm against what the worker saw from inside: a sentence for each difference.

    A Slurm that does not hold jobs to their CPUs or memory is no failure: there the two only reserve, which is said before.
    """
    if facts.get("container", {}).get("slurm_job_id") is None:
        yield "the worker sees no sign of a Slurm job around it"
    seen = facts.get("process", {}).get("cpus_usable")
    if options.bind != "none":
        seen = len(told_cpus(cpus_allowed(facts)))
    if options.cpu_count is not None and isinstance(seen, int) and seen < options.cpu_count:
        yield f"{counted(options.cpu_count, 'CPU')} were requested, but the worker may use {seen}"
    elif options.cpu_count is not None and confines[0] and isinstance(seen, int) and seen > 2 * options.cpu_count:
        # Slurm gives whole cores, which may have two threads each.
        yield f"{counted(options.cpu_count, 'CPU')} were requested, but the worker may use {seen}: it is not confined"
    limit = facts.get("cgroup", {}).get("memory_limit_mib")
    if options.memory_mib is not None and confines[1] and not near(limit, options.memory_mib):
        has = f"it is {limit:g} MiB" if isinstance(limit, int | float) else "there is none"
        yield f"a memory limit of {options.memory} was requested, but {has}"
    count, wanted = facts.get("gpu", {}).get("count"), options.gpu_count
    if wanted is not None and isinstance(count, int) and count != wanted:
        yield f"{counted(wanted, 'GPU')} were requested, but {count} are visible in the job"


# What a killed driver left


def remove_left(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    """Cancel the job of a killed driver's run, where it is still there."""
    _kill_client(run_id, handle.get("pid"))
    with suppress(PlaceError):  # no Slurm here any more, or its controller is away: the job ends with its lifeline
        slurm = Slurm()
        name = job_name(run_id)
        living = [job for job in slurm.jobs(name) if not job.is_over]
        if living:
            slurm.cancel(name)
            return [f"the Slurm job {living[-1].number}"]
    return []


def _kill_client(run_id: str, pid: JsonValue) -> None:
    """Kill the srun of a run that stands still. The ledger is only believed where that process names the job itself."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if isinstance(pid, int) and pid > 1 else []
        if isinstance(pid, int) and words[:1] == [b"srun"] and f"--job-name={job_name(run_id)}".encode() in words:
            os.kill(pid, signal.SIGKILL)


def remove_abandoned(slurm: Slurm) -> int:
    """Cancel our jobs whose driver has ended on this machine, also those of probes, which no ledger knows."""
    gone = [
        name
        for name, comment in slurm.own_jobs()
        if name.startswith(f"{NAME_PREFIX}r-") and _is_dead(comment.rpartition(" driver=")[2])
    ]
    for name in gone:
        slurm.cancel(name)
    return len(gone)


def _is_dead(driver: str) -> bool:
    """Tell whether a driver has ended: one of another machine, or of another boot of this one, cannot be seen from here."""
    return driver.partition(":")[0] == boot_id() and not driver_lives(driver)
