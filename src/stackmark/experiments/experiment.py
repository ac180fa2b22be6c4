"""Carrying out an experiment: the plan says what comes next, a run is made, the ledger remembers it, and so on to the end.

Nothing is kept in memory that matters: after each run the plan is asked again with what the ledger holds, so an experiment
that was killed goes on with `resume` as if nothing had happened. A failed run fails its block; the block is repeated whole,
at the end, in its own order.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from stackmark.errors import PlaceError, SpecError, WorkerError
from stackmark.experiments.caches import cache_folder, remove_cache, remove_forgotten, root
from stackmark.experiments.deciding import Progress, progress
from stackmark.experiments.design import Assignment, Design, order_of
from stackmark.experiments.designing import Asked, make_design, refuse_fault, refuse_sweep, stored_design
from stackmark.experiments.driver import boot_name, claim, machine_name
from stackmark.experiments.list_specs import is_list, rows_of_spec
from stackmark.experiments.placing import find_place
from stackmark.experiments.run import Slot, run_once
from stackmark.experiments.trust import Part, parts_of, remember
from stackmark.experiments.watching import Watcher
from stackmark.experiments.windows import StepTimes
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.spec import Spec
from stackmark.workloads.op.problem import say_rows
from stackmark.workloads.registry import check_spec

# A primer has to reach its first steps and no more: that is when kernels are compiled and loaded.
PRIMER_S, PRIMER_STEPS = 1.0, 10
# Of a list a few rows, each for a moment. No operator compiles anything that is kept from process to process: what a library
# chooses for a shape it chooses anew in each, so the other rows would fill no cache.
PRIMER_ROWS, PRIMER_ROW_S = 3, 0.1


def start(asked: Asked, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Makes the design and stores it: from here on `resume` can go on."""
    remove_forgotten()
    design, _ = make_design(asked, watcher)
    experiment = Experiment(
        id=new_id("x"),
        created_unix_s=time.time(),
        command=asked.command,
        request=asked.request.model_dump(mode="json"),
        kind=asked.kind,
        design=design.model_dump(mode="json"),
    )
    ledger.start_experiment(experiment)
    remember(parts_in(design))
    return experiment


def parts_in(design: Design) -> list[Part]:
    """What of a design's arms is not to be run unless it was typed here or confirmed."""
    return parts_of((arm.spec, arm.place, arm.place_options) for arm in design.arms)


def design_of(experiment: Experiment) -> Design:
    refuse_sweep(experiment)
    refuse_fault(experiment)
    design = stored_design(experiment)
    if design is None:
        raise SpecError(
            f"{experiment.id} has one arm and no order to keep: it was made by `stackmark {experiment.kind}`",
            hint="`stackmark show` lists its runs; `stackmark compare` makes an experiment with arms",
        )
    return design


def carry_out(
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
) -> Progress:
    """Runs what is missing, and says how far it came. Interruptions pass through: what was finished is stored."""
    design = design_of(experiment)
    for arm in design.arms:
        check_spec(arm.spec)
    with claim(ledger, experiment.id):
        before = ledger.runs_of(experiment.id)
        session = _Session(experiment, design, ledger, watcher, time_limit_s, anyway)
        watcher.experiment_begins([arm.label for arm in design.arms], design.blocks)
        times = StepTimes(ledger)
        now = progress(design, before, times)
        if isinstance(now.next, Assignment):
            session.check_machine(before)
            session.prime(before)
        while isinstance(now.next, Assignment):
            if now.again:
                watcher.notice(f"other programs disturbed block {now.next.block + 1}: it is measured again")
            session.run(now.next)
            now = progress(design, ledger.runs_of(experiment.id), times)
        remove_cache(experiment.id)
    return now


class _Session:
    """One driver's stretch of an experiment."""

    def __init__(
        self,
        experiment: Experiment,
        design: Design,
        ledger: Ledger,
        watcher: Watcher,
        time_limit_s: float | None,
        anyway: bool,
    ) -> None:
        self._experiment, self._design, self._ledger, self._watcher = experiment, design, ledger, watcher
        self._time_limit_s, self._anyway = time_limit_s, anyway
        self._made = False
        # Emptied since, by whatever cleans such folders: the arms are primed again.
        self._primed = (root() / experiment.id).is_dir()
        self._cache: Path = cache_folder(experiment.id)
        self._places: list[Place] = [find_place(arm.place, arm.place_options, self._cache) for arm in design.arms]

    def check_machine(self, before: Sequence[RunRow]) -> None:
        """An experiment belongs to the machine it began on."""
        elsewhere = [row for row in before if row.status == "done" and row.machine_id != machine_name()]
        if elsewhere and not self._anyway:
            raise SpecError(
                f"{self._experiment.id} was begun on another machine: its verdict would be about two machines",
                hint="resume it there, begin anew here, or take --anyway",
            )

    def prime(self, before: Sequence[RunRow]) -> None:
        """One short unmeasured run of each arm fills the caches that all arms share, and shows that each arm works."""
        if not self._design.primers:
            return
        for arm in order_of(self._design, 0):
            if not (self._primed and any(_still_primed(row, arm) for row in before)):
                self._prime(arm)

    def _prime(self, arm: int) -> None:
        asked = self._design.arms[arm]
        row = self._run_once(primer_spec(asked.spec), arm, Slot(arm=arm, role="primer", label=asked.label))
        if row.status != "done":
            raise WorkerError(
                f"the arm {asked.label!r} failed in its first run, which only fills the caches: {row.failure_message}",
                hint=row.failure_hint,
                command=f"stackmark show {row.id} --log",
            )
        self._check_chip(row, asked.label)

    def run(self, wanted: Assignment) -> None:
        arm = self._design.arms[wanted.arm]
        slot = Slot(arm=wanted.arm, block=wanted.block, attempt=wanted.attempt, label=arm.label)
        try:
            row = self._run_once(arm.spec, wanted.arm, slot)
        except PlaceError as error:
            # Its row says that it failed, so its block is repeated; whoever looks on should know why.
            self._watcher.notice(f"the arm {arm.label} could not be run: {error.message}")
            return
        if row.status == "done":
            self._check_chip(row, arm.label)

    def _run_once(self, spec: Spec, arm: int, slot: Slot) -> RunRow:
        if self._made and self._design.pause_s:
            time.sleep(self._design.pause_s)
        self._made = True
        so_far = self._ledger.runs_of(self._experiment.id)
        # Not how many there are: a run that somebody deleted leaves a gap, which is seen.
        position = max((row.position for row in so_far), default=-1) + 1
        numbered = Slot(
            position=position, of=max(self._in_all(so_far), position + 1), arm=slot.arm, block=slot.block,
            attempt=slot.attempt, role=slot.role, label=slot.label,
        )  # fmt: skip
        row, _ = run_once(
            spec, self._experiment.id, numbered, self._places[arm], self._ledger, self._watcher, self._time_limit_s
        )
        return row

    def _in_all(self, so_far: Sequence[RunRow]) -> int:
        """How many runs it will have been, should none fail from here on."""
        arms = len(self._design.arms)
        wasted = sum(1 for row in so_far if row.role == "measured" and row.status != "done")
        return (arms if self._design.primers else 0) + arms * self._design.blocks + wasted

    def _check_chip(self, row: RunRow, label: str) -> None:
        """The same chip for all arms. Where an arm types its own device, another chip is the question."""
        if self._anyway or any("device" in arm.typed for arm in self._design.arms) or self._names_machines():
            return
        rows = [one for one in self._ledger.runs_of(self._experiment.id) if one.status == "done"]
        elsewhere = next((one for one in rows if one.ran_on != row.ran_on), None)
        if elsewhere:
            raise PlaceError(
                f"the arm {label!r} ran on another machine than {elsewhere.id}: two machines differ by more than a layer costs",
                hint="pin one node for all arms (node=), or take --anyway",
            )
        if row.chip_uuid is None:
            return
        other = next((one for one in rows if one.chip_uuid and one.chip_uuid != row.chip_uuid), None)
        if other:
            raise PlaceError(
                f"the arm {label!r} ran on {row.chip} {row.chip_uuid}, and {other.id} on {other.chip_uuid}: two chips "
                "differ by more than a container costs",
                hint="pin one chip for all arms (device=, gpus=), begin anew on this chip, or take --anyway",
            )

    def _names_machines(self) -> bool:
        """Whether arms name several nodes: then another machine is the question."""
        return len({str(arm.place_options["node"]) for arm in self._design.arms if "node" in arm.place_options}) > 1


def primer_spec(spec: Spec) -> Spec:
    """The same work, cut short."""
    params = dict(spec.params)
    for name, most in (
        ("seconds", PRIMER_S),
        ("warmup_seconds", PRIMER_S),
        ("steps", PRIMER_STEPS),
        ("at_least_steps", 0),
        ("row_seconds", PRIMER_ROW_S),
    ):
        value = params.get(name)
        if isinstance(value, int | float):
            params[name] = min(value, most)
    if is_list(spec.workload) and (rows := rows_of_spec(spec)):
        params["rows"] = say_rows(rows[:PRIMER_ROWS])
    return spec.model_copy(update={"params": params})


def _still_primed(row: RunRow, arm: int) -> bool:
    return row.role == "primer" and row.arm == arm and row.status == "done" and row.boot_id == boot_name()
