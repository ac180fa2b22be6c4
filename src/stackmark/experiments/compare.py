"""The kind `compare`: arms measured in interleaved blocks. `noise` is the same with one arm twice.

Before the first run everything is fixed in a design (design.py) and stored. A probe in the first arm's place turns the request
into the spec, and all arms have that spec. An arm that types parameters of its own is probed in its own place with everything
that defines the work held as the first arm has it; only how the work is done on a device (layout, CUDA graph, length of the run)
is chosen again, and what came out different is said.

Then the plan says what comes next (progress.py), a run is made, and the plan is asked again with what the ledger holds. Nothing
that matters is kept in memory, so an experiment that was killed goes on with `resume`. A failed run fails its block; the block is
repeated whole, at the end, in its own order.

Where an arm is a pod, a scheduler decides where it runs, and all arms follow it to the same machine and chip. Next to a host or a
container the driver must stand on the node, and the pod is pinned to it; pods alone are pinned to the node that the first of them
was given. A classic device plugin cannot be asked for a GPU, so the pod is probed first, and the other arms are given the GPU
that it got, by its UUID. What is decided there is stored in the design: `resume` keeps it.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import ClusterError, PlaceError, SpecError, WorkerError
from stackmark.experiments.arms import ArmRequest
from stackmark.experiments.caches import cache_folder, remove_cache, remove_forgotten, root
from stackmark.experiments.design import (
    MARGIN,
    SHUFFLED,
    Arm,
    Assignment,
    Design,
    StoppingRule,
    check_margin,
    order_of,
    sequences_of,
    spec_in_block,
    stored_design,
    whole_blocks,
)
from stackmark.experiments.driver import OTHER_CHIP, boot_name, machine_name
from stackmark.experiments.estimate import Estimate, of_arms
from stackmark.experiments.fitting import is_censored, is_outcome
from stackmark.experiments.kinds import require_blocks
from stackmark.experiments.list_specs import is_list, rows_of_spec
from stackmark.experiments.probing import Resolved, resolve
from stackmark.experiments.progress import Progress, StepTimes, progress
from stackmark.experiments.recorder import (
    SAMPLE_HZ_KEY,
    Position,
    Recorder,
    SuiteMember,
    Watcher,
    begin,
    new_experiment,
)
from stackmark.experiments.surroundings import KEY as SURROUNDINGS
from stackmark.experiments.surroundings import Surroundings, look_around
from stackmark.experiments.trust import Part, parts_of
from stackmark.experiments.typed import extra_of
from stackmark.experiments.verify import chip_for_others, folder_in, targets_of
from stackmark.ledger.rows import Experiment, Kind, RunRow
from stackmark.ledger.store import Ledger
from stackmark.ledger.trouble import unreadable_design
from stackmark.places.place import Place, Prepared
from stackmark.places.registry import find_kind, find_place
from stackmark.spec import SAMPLE_HZ, Request, Scalar, Spec
from stackmark.verdict.rules import RULES
from stackmark.verdict.sequential import MOST_BLOCKS as MOST_LOOKED_AT
from stackmark.verdict.sequential import planned_looks, stopping_rule
from stackmark.workloads.op.problem import say_rows
from stackmark.workloads.registry import check_spec, find

# At s_d 0.4 %, as on one quiet GPU, six blocks decide at 1 %.
BLOCKS = 6
# Until decided: as many blocks as 90 % power takes at s_d 1 % and a margin of 1 % (13), and half as many again.
MOST_BLOCKS = 20
# A primer has to reach its first steps and no more: that is when kernels are compiled and loaded. So it does not warm up either.
PRIMER_S, PRIMER_STEPS = 1.0, 10
# Of a list a few rows, each for a moment. No operator compiles anything that is kept from process to process: what a library
# chooses for a shape it chooses again in each, so the other rows would fill no cache.
PRIMER_ROWS, PRIMER_ROW_S = 3, 0.1
# Where an experiment keeps what its probe took, for the forecast of its runs.
PROBE_S = "probe_s"
ONE_MACHINE = "a pod can only be compared with a host or a container on the same machine"


@dataclass(frozen=True)
class CompareRequest:
    """A request for a comparison."""

    request: Request
    arms: Sequence[ArmRequest]
    kind: Kind = "compare"
    blocks: int | None = None
    margin: float = MARGIN
    until_decided: bool = False
    pause_s: float = 0.0
    most_repeats: int = 2
    seed: int | None = None
    primers: bool = True
    command: str = ""
    sample_hz: float = SAMPLE_HZ
    # Of a row of a suite.
    member: SuiteMember | None = None


def make_design(asked: CompareRequest, watcher: Watcher) -> tuple[Design, list[Resolved], Surroundings]:
    """Probe what must be probed and make the design. The seed decides the order; without one it is drawn, and stored."""
    check_compare(asked)
    blocks, rule = _blocks(asked, watcher)
    prepare_places(asked.arms)
    around = look_around(watcher.notice, [arm.place for arm in asked.arms])
    placed, resolved = _resolve(asked, on_the_drivers_node(asked.arms, watcher), watcher)
    arms = [
        Arm(label=arm.label, place=arm.place, place_options=arm.place_options, typed=arm.typed, spec=found.spec)
        for arm, found in zip(placed, resolved, strict=True)
    ]
    design = Design(
        arms=arms,
        blocks=blocks,
        seed=secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        margin=asked.margin,
        most_repeats=asked.most_repeats,
        pause_s=asked.pause_s,
        primers=asked.primers,
        rule=rule,
        ordering=SHUFFLED,
        rules=RULES,
        repeats_disturbed=True,
        idle_cpus=around.idle_cpus,
    )
    return design, resolved, around


def check_compare(asked: CompareRequest) -> None:
    """Refuse what can be refused without a worker."""
    check_margin(asked.margin)
    if asked.until_decided and asked.blocks and asked.blocks > MOST_LOOKED_AT:
        raise SpecError(
            f"--until-decided takes at most {MOST_LOOKED_AT} --blocks, got {asked.blocks}",
            hint=f"use --blocks {MOST_LOOKED_AT} or fewer, or a wider --margin",
        )
    if find(asked.request.workload)[1].timed == "quality":
        _check_checkpoints(asked)


def _check_checkpoints(asked: CompareRequest) -> None:
    """The runs of a block have one seed and one spec: in one folder an arm would go on from the other's checkpoint."""
    shared = asked.request.params.get("checkpoint_dir", "")
    folders = [folder for arm in asked.arms if (folder := arm.typed.get("checkpoint_dir", shared))]
    if len(set(folders)) < len(folders):
        raise SpecError(
            f"two arms have the checkpoint_dir {folders[0]}: one would go on from the other's checkpoint",
            hint="leave out --checkpoint-dir, or give each arm its own: --arm host,checkpoint_dir=DIR",
        )


def prepare_places(arms: Sequence[ArmRequest] | Sequence[Arm]) -> None:
    """Prepare all places, so that a missing one is found before the first run, not after the other arms' minutes."""
    seen: list[object] = []
    for arm in arms:
        if (arm.place, arm.place_options) in seen:
            continue
        seen.append((arm.place, arm.place_options))
        with naming(arm.label):
            place = find_place(arm.place, arm.place_options)
            if isinstance(place, Prepared):
                place.prepare()


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Say in which arm something failed."""
    try:
        yield
    except (SpecError, WorkerError, PlaceError) as error:
        made = next(kind for kind in (SpecError, WorkerError, PlaceError) if isinstance(error, kind))
        named = made(f"the arm {label!r}: {error.message}", hint=error.hint, command=error.command, kind=error.kind)
        named.arm = label
        raise named from error


def _blocks(asked: CompareRequest, watcher: Watcher) -> tuple[int, StoppingRule | None]:
    arms = len(asked.arms)
    wanted = asked.blocks or (MOST_BLOCKS if asked.until_decided else BLOCKS)
    blocks, rule = whole_blocks(arms, wanted), None
    if asked.until_decided:
        rule = _rule(arms, blocks)
        blocks = rule.looks[-1]
    if asked.blocks and blocks != wanted:
        size = sequences_of(arms)
        why = f"the order of {arms} arms is balanced in multiples of {size} blocks"
        if rule and blocks == rule.looks[0]:
            why = "--until-decided looks at the results then for the first time"
        watcher.notice(f"--blocks {wanted} becomes {blocks}: {why}")
    return blocks, rule


def _rule(arms: int, blocks: int) -> StoppingRule:
    """All pairs of arms stop together, so they share what may be spent."""
    size = sequences_of(arms)
    looks = planned_looks(min(blocks, MOST_LOOKED_AT // size * size), size)
    levels = stopping_rule(looks, comparisons=max(1, arms * (arms - 1) // 2))
    return StoppingRule(
        kind=levels.kind,
        alpha=levels.alpha,
        looks=list(levels.looks),
        levels=list(levels.one_sided),
        levels_95=list(levels.two_sided),
    )


def _resolve(
    asked: CompareRequest, arms: Sequence[ArmRequest], watcher: Watcher
) -> tuple[list[ArmRequest], list[Resolved]]:
    """The arms where they will run, and what each of them means there. The leading arm is asked first."""
    family, _ = find(asked.request.workload)
    base = asked.request.model_copy(update={"params": {**family.compared_with, **asked.request.params}})
    lead = leading(arms)
    first = arms[lead]
    request = base.model_copy(update={"params": {**base.params, **first.typed}})
    with naming(first.label):
        resolved = resolve(request, find_place(first.place, first.place_options), watcher)
    placed = following(arms, lead, resolved)
    held = held_by(base, resolved.spec, first.typed)
    found = []
    for number, arm in enumerate(placed):
        if number == lead or (not arm.typed and not first.typed):
            found.append(replace(resolved, spec=_in_own_folder(resolved.spec, base, arm)))
            continue
        own = base.model_copy(update={"params": {**base.params, **held, **arm.typed}})
        with naming(arm.label):
            found.append(resolve(own, find_place(arm.place, arm.place_options), watcher))
    return placed, found


def _in_own_folder(spec: Spec, request: Request, arm: ArmRequest) -> Spec:
    """A user's program runs where the driver stands, in every arm that has that folder, whichever arm was probed."""
    if "cwd" not in spec.params or request.typed().get("cwd"):
        return spec
    cwd = folder_in(find_place(arm.place, arm.place_options))
    return spec.model_copy(update={"params": {**spec.params, "cwd": cwd}})


def held_by(request: Request, spec: Spec, typed: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return what the first arm's spec decides for the others: the work itself, without that arm's own options."""
    fields = find(request.workload)[0].params.model_fields
    return {
        name: value
        for name, value in spec.params.items()
        if name in fields
        and name not in typed
        and (name in request.typed() or not extra_of(fields[name]).get("follows"))
    }


def leading(arms: Sequence[ArmRequest]) -> int:
    """Return which arm is probed first: one whose chip is chosen elsewhere, else the first."""
    return next((number for number, arm in enumerate(arms) if find_kind(arm.place).leads), 0)


def on_the_drivers_node(arms: Sequence[ArmRequest], watcher: Watcher) -> list[ArmRequest]:
    """Pin pods that are compared with a host or a container to this machine; refuse where it is not a node."""
    if all(find_kind(arm.place).leads for arm in arms) or not any(find_kind(arm.place).leads for arm in arms):
        return list(arms)
    pinned = []
    for arm in arms:
        with naming(arm.label):
            pinned.append(_pinned_here(arm, watcher) if find_kind(arm.place).leads else arm)
    return pinned


def _pinned_here(arm: ArmRequest, watcher: Watcher) -> ArmRequest:
    from stackmark.kubernetes.nodes import nodes_here, this_node
    from stackmark.kubernetes.refusals import explained
    from stackmark.places.pod.place import PodPlace

    place = find_place(arm.place, arm.place_options)
    if not isinstance(place, PodPlace):
        return arm  # another package's place knows where it runs
    setup = place.prepare()
    typed = arm.place_options.get("node")
    wanted = setup.node or (str(typed) if typed else None)
    try:
        node = this_node(setup.cluster, wanted, ONE_MACHINE)
        here = [one.name for one in nodes_here(setup.cluster)]
    except ClusterError as error:
        raise explained(error, "looking at the nodes") from error
    if len(here) > 1 and not typed:
        watcher.notice(f"{' and '.join(here)} are all this machine: {arm.label} runs on {node.name}")
    return replace(arm, place_options={**arm.place_options, "node": node.name})


def following(arms: Sequence[ArmRequest], lead: int, resolved: Resolved) -> list[ArmRequest]:
    """Send all arms to where the leading one was: its node for other pods, its GPU for arms that can select one.

    The node is the one that the cluster gave it. Its GPU only the worker knows: its word is held to be a UUID and no more.
    """
    if not find_kind(arms[lead].place).leads:
        return list(arms)
    node, chip = resolved.handle.get("node"), chip_for_others(resolved.facts, resolved.spec)
    followed = []
    for arm in arms:
        added: dict[str, JsonValue] = {}
        if find_kind(arm.place).leads:
            # A group is on several nodes, of which the probe saw one.
            can = "node" in find_kind(arm.place).options.model_fields and "ranks_per_node" not in arm.place_options
            added = {"node": node} if node and can else {}
        elif chip and "device" not in arm.typed and "gpus" in find_kind(arm.place).options.model_fields:
            added = {"gpus": chip}
        own = dict(arm.place_options)
        if own.get("gpus") == 1 and "gpus" in added:
            own.pop("gpus")  # a number of GPUs for all arms, of which the leading one has got one
        followed.append(replace(arm, place_options={**added, **own}))
    return followed


def start(asked: CompareRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Make the design and store it: from here on `resume` can continue."""
    remove_forgotten()
    design, resolved, around = make_design(asked, watcher)
    experiment = new_experiment(
        kind=asked.kind,
        command=asked.command,
        request={
            **asked.request.model_dump(mode="json"),
            SURROUNDINGS: around.stored(),
            PROBE_S: max(one.took_s for one in resolved),
            SAMPLE_HZ_KEY: 0.0 if is_list(asked.request.workload) else asked.sample_hz,
        },
        design=design.model_dump(mode="json"),
        member=asked.member,
    )
    return begin(ledger, experiment, [(arm.spec, arm.place, arm.place_options) for arm in design.arms])


def parts_in(design: Design) -> list[Part]:
    """Return the parts of a design's arms that need trust before they run: not typed here and not confirmed."""
    return parts_of((arm.spec, arm.place, arm.place_options) for arm in design.arms)


def design_of(experiment: Experiment) -> Design:
    require_blocks(experiment)
    design = stored_design(experiment)
    if design is None:
        raise unreadable_design(experiment.id, "it is missing")
    return design


def carry_out(
    experiment: Experiment,
    ledger: Ledger,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    may_begin: Callable[[], bool] = lambda: True,
) -> Progress:
    """Run what is missing and report progress. Interruptions pass through: what was finished is stored.

    `may_begin` is asked before each block: a suite whose time is up begins no other.
    """
    design = design_of(experiment)
    for arm in design.arms:
        check_spec(arm.spec)
    recorder = Recorder(ledger, experiment.id)
    with recorder.claim():
        before = recorder.rows()
        session = _Session(experiment, design, recorder, watcher, time_limit_s, anyway)
        watcher.experiment_begins([arm.label for arm in design.arms], design.blocks)
        times = StepTimes(ledger)
        now = progress(design, before, times)
        if isinstance(now.next, Assignment):
            session.check_machine(before)
            if expected := _expected(ledger, experiment, design, now):
                watcher.expects(expected)
            session.prime(before)
        while isinstance(now.next, Assignment):
            if not _is_begun(now.next, recorder.rows()) and not may_begin():
                return now
            if now.again:
                watcher.notice(f"other programs disturbed block {now.next.block + 1}: measuring it again")
            session.run(now.next)
            now = progress(design, recorder.rows(), times)
        remove_cache(experiment.id)
    return now


def _is_begun(wanted: Assignment, rows: Sequence[RunRow]) -> bool:
    return any((row.block, row.attempt) == (wanted.block, wanted.attempt) and is_outcome(row) for row in rows)


def _expected(ledger: Ledger, experiment: Experiment, design: Design, now: Progress) -> Estimate | None:
    """Forecast the missing blocks; the primers take about as long as the probe did."""
    took = experiment.request.get(PROBE_S)
    probe_s = float(took) if isinstance(took, int | float) else None
    missing = max(0, design.blocks - len(now.blocks))
    primers_s = len(design.arms) * ((probe_s or 0.0) + PRIMER_S) if design.primers and not now.blocks else 0.0
    arms = [(arm.label, arm.spec, arm.place) for arm in design.arms]
    pauses_s = design.pause_s * missing * len(arms)
    return of_arms(
        ledger, arms, missing, probe_s=probe_s, extra_s=primers_s + pauses_s, at_most=design.rule is not None
    )


class _Session:
    """One driver's stretch of an experiment."""

    def __init__(
        self,
        experiment: Experiment,
        design: Design,
        recorder: Recorder,
        watcher: Watcher,
        time_limit_s: float | None,
        anyway: bool,
    ) -> None:
        self._experiment, self._design, self._recorder, self._watcher = experiment, design, recorder, watcher
        self._time_limit_s, self._anyway = time_limit_s, anyway
        self._made = False
        # Emptied since, by whatever cleans such folders: the arms are primed again.
        self._primed = (root() / experiment.id).is_dir()
        self._cache: Path = cache_folder(experiment.id)
        self._places: list[Place] = [find_place(arm.place, arm.place_options, self._cache) for arm in design.arms]

    def check_machine(self, before: Sequence[RunRow]) -> None:
        """Refuse to continue an experiment on another machine than it started on."""
        elsewhere = [row for row in before if row.status == "done" and row.machine_id != machine_name()]
        if elsewhere and not self._anyway:
            raise SpecError(
                f"{self._experiment.id} was started on a different machine: its verdict would mix two machines",
                hint="resume it there, start again here, or use --anyway",
                kind=OTHER_CHIP,
            )

    def prime(self, before: Sequence[RunRow]) -> None:
        """Fill the caches that all arms share by one short unmeasured run of each arm, which also shows that each arm works."""
        if not self._design.primers:
            return
        for arm in order_of(self._design, 0):
            if not (self._primed and any(_still_primed(row, arm) for row in before)):
                self._prime(arm)

    def _prime(self, arm: int) -> None:
        asked = self._design.arms[arm]
        row = self._run_once(primer_spec(asked.spec), arm, Position(arm=arm, role="primer", label=asked.label))
        if row.status != "done" and not is_censored(row):
            raise WorkerError(
                f"the arm {asked.label!r} failed in its first run, which fills the caches: {row.failure_message}",
                hint=row.failure_hint,
                command=f"stackmark show {row.id} --log",
            )
        self._check_chip(row, asked.label)

    def run(self, wanted: Assignment) -> None:
        arm = self._design.arms[wanted.arm]
        position = Position(arm=wanted.arm, block=wanted.block, attempt=wanted.attempt, label=arm.label)
        try:
            row = self._run_once(spec_in_block(self._design, wanted.arm, wanted.block), wanted.arm, position)
        except PlaceError as error:
            # Its row says that it failed, so its block is repeated; whoever looks on should know why.
            self._watcher.notice(f"the arm {arm.label} cannot be run: {error.message}")
            return
        if is_outcome(row):
            self._check_chip(row, arm.label)

    def _run_once(self, spec: Spec, arm: int, position: Position) -> RunRow:
        if self._made and self._design.pause_s:
            time.sleep(self._design.pause_s)
        self._made = True
        number = self._recorder.next_number()
        numbered = replace(position, number=number, of=max(self._in_all(self._recorder.rows()), number + 1))
        row, _ = self._recorder.run(spec, numbered, self._places[arm], self._watcher, self._time_limit_s)
        return row

    def _in_all(self, so_far: Sequence[RunRow]) -> int:
        """How many runs it will have been, should none fail from here on."""
        arms = len(self._design.arms)
        wasted = sum(1 for row in so_far if row.role == "measured" and not is_outcome(row))
        return (arms if self._design.primers else 0) + arms * self._design.blocks + wasted

    def _check_chip(self, row: RunRow, label: str) -> None:
        """The same chip for all arms. Where an arm types its own device, another chip is the question."""
        if self._anyway or any("device" in arm.typed for arm in self._design.arms) or self._names_machines():
            return
        if self._design.scaling and all(find_kind(arm.place).leads for arm in self._design.arms):
            return  # one rank and many fit on different nodes; the verdict says so
        rows = [one for one in self._recorder.rows() if one.status == "done"]
        elsewhere = next((one for one in rows if one.ran_on != row.ran_on), None)
        if elsewhere:
            raise PlaceError(
                f"the arm {label!r} ran on a different machine than {elsewhere.id}: machines differ by more than a layer costs",
                hint="pin one node for all arms (node=), or use --anyway",
                kind=OTHER_CHIP,
            )
        if row.chip_uuid is None:
            return
        if self._design.rotation:
            self._check_models(row, label, rows)
            return
        other = next((one for one in rows if one.chip_uuid and one.chip_uuid != row.chip_uuid), None)
        if other:
            raise PlaceError(
                f"the arm {label!r} ran on {row.chip} {row.chip_uuid}, but {other.id} on {other.chip_uuid}: two chips "
                "differ by more than a container costs",
                hint="pin one chip for all arms (device=, gpu-ids=), start again on this chip, or use --anyway",
                kind=OTHER_CHIP,
            )

    def _check_models(self, row: RunRow, label: str, rows: Sequence[RunRow]) -> None:
        """The same model for all ranks: the one rank is the average device of one kind."""
        other = next((one for one in rows if one.chip and one.chip != row.chip), None)
        if other:
            raise PlaceError(
                f"{label} ran on {row.chip}, but {other.id} on {other.chip}: the average of two models is no device's rate",
                hint="select GPUs of one model (CUDA_VISIBLE_DEVICES, gpu-ids=), or use --anyway",
                kind=OTHER_CHIP,
            )

    def _names_machines(self) -> bool:
        """Whether arms name several nodes: then another machine is the question."""
        return len({str(arm.place_options["node"]) for arm in self._design.arms if "node" in arm.place_options}) > 1


def primer_spec(spec: Spec) -> Spec:
    """Return the same work with few steps."""
    params = dict(spec.params)
    for name, most in (
        ("seconds", PRIMER_S),
        ("warmup_seconds", 0.0),
        ("steps", PRIMER_STEPS),
        ("at_least_steps", 0),
        ("row_seconds", PRIMER_ROW_S),
    ):
        value = params.get(name)
        if isinstance(value, int | float):
            params[name] = min(value, most)
    if target := targets_of(spec):
        # The first evaluation is as far as a primer has to come.
        params["target"] = ",".join("0" for _ in target)
        if "checkpoint_dir" in params:
            params["checkpoint_dir"] = ""
    if is_list(spec.workload) and (rows := rows_of_spec(spec)):
        params["rows"] = say_rows(rows[:PRIMER_ROWS])
    return spec.model_copy(update={"params": params})


def _still_primed(row: RunRow, arm: int) -> bool:
    primed = row.status == "done" or is_censored(row)
    return row.role == "primer" and row.arm == arm and primed and row.boot_id == boot_name()
