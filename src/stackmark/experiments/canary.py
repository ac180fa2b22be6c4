"""A canary: a baseline is checked again and again, and what a check says is reduced to one state.

Each turn stores ordinary checks (experiments/check.py), so whatever reads the ledger sees them. What a canary adds is when not to
measure and what not to believe: it never overlaps another canary of this machine, it leaves a machine alone on which
somebody else's job runs, and a check that such a job disturbed on its way is inconclusive, whatever its verdict says.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from stackmark.errors import Exit, SpecError
from stackmark.experiments.baseline import HeldWorkload, SeriesOptions, Trouble, held_by
from stackmark.experiments.check import Checked, StoredCheck, check_held, decided
from stackmark.experiments.driver import machine_name
from stackmark.experiments.estimate import run_time
from stackmark.experiments.manifesting import read_pod_options
from stackmark.experiments.progress import StepTimes
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.surroundings import Surroundings, look_around
from stackmark.experiments.sweep.plan import find_slots
from stackmark.ledger.rows import Experiment, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.pod.place import PodPlace
from stackmark.units import say_seconds
from stackmark.verdict.interference import allowance_cpus, disturbances

# passed: nothing is slower; busy and overlap: nothing was measured, on purpose.
State = Literal["slower", "failed", "inconclusive", "busy", "overlap", "passed"]
# Runs of the baseline whose streams are read for what the machine usually does besides.
USUAL_FROM = 5
# After the measured time of all runs: starting, looking around, storing.
SLACK_S = 3.0
# How long a busy machine is looked at again.
AGAIN_S = 1.0


@dataclass(frozen=True)
class CanaryPlan:
    """What is checked each time, and against what."""

    name: str
    # A workload of the baseline, or the label of one; None: all.
    workload: str | None = None
    # A place, such as pod; None: all.
    place: str | None = None
    margin: float = 0.01
    runs: int | None = None
    # A turn must fit into this time.
    within_s: float | None = None
    command: str = ""
    anyway: bool = False
    # Say which nodes of the cluster the baseline does not have.
    each_node: bool = False


@dataclass(frozen=True)
class CanaryTurn:
    """One turn: what each workload says, and what that means together."""

    state: State
    began_unix_s: float
    seconds: float
    checked: tuple[Checked, ...] = ()
    # Why nothing was measured, or why what was measured decides nothing.
    why: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.checked)

    @property
    def exit_code(self) -> Exit:
        """Return 8 for slower; a failure's own code; 0 for everything that accuses nobody."""
        if self.state == "slower":
            return Exit.VERDICT_NAMED
        if self.state == "failed":
            return next((one.trouble.code for one in self.checked if one.trouble), Exit.RUN_FAILED)
        return Exit.DONE


def held_of(ledger: Ledger, plan: CanaryPlan) -> list[HeldWorkload]:
    """Return the part of the baseline that is checked; raise a sentence where there is none, or its time cannot be kept."""
    every = held_by(ledger, plan.name)
    held = [
        one
        for one in every
        if plan.workload in (None, one.spec.workload, one.label) and plan.place in (None, one.place)
    ]
    if not held:
        wanted = " on ".join(filter(None, [plan.workload or "a workload", plan.place]))
        raise SpecError(
            f"the baseline {plan.name!r} has no {wanted}; it has: {', '.join(one.label for one in every)}",
            hint=f"measure it while the machine is good: stackmark baseline save {plan.name} {plan.workload or 'WORKLOAD'}",
        )
    if plan.within_s is not None:
        needed = time_needed(ledger, plan, held)
        if needed is not None and needed > plan.within_s:
            raise SpecError(
                f"a turn takes about {say_seconds(needed)}, more than the {say_seconds(plan.within_s)} of --within",
                hint="make fewer runs (--runs 1), name one workload, or save a baseline of shorter runs (--seconds)",
            )
    return held


def time_needed(ledger: Ledger, plan: CanaryPlan, held: Sequence[HeldWorkload]) -> float | None:
    """Forecast a turn from runs of these specs here; None where nothing tells."""
    times = [run_time(ledger, one.spec, one.place) for one in held]
    known = [
        time.seconds * runs_of(plan, one)
        for time, one in zip(times, held, strict=True)
        if time and time.measured_before
    ]
    return sum(known) + SLACK_S if known and len(known) == len(held) else None


def runs_of(plan: CanaryPlan, held: HeldWorkload) -> int:
    return plan.runs or held.runs_a_series


def take_turn(ledger: Ledger, plan: CanaryPlan, watcher: Watcher) -> CanaryTurn:
    """Check what the plan names, unless the machine is in use. A failure is a result; only the ledger's own passes through."""
    began_unix_s, began = time.time(), time.monotonic()

    def turn(state: State, why: str = "", checked: Sequence[Checked] = ()) -> CanaryTurn:
        return CanaryTurn(state, began_unix_s, time.monotonic() - began, tuple(checked), why)

    held = held_of(ledger, plan)
    if plan.each_node and (missing := nodes_not_held(held)):
        watcher.notice(
            f"not in the baseline {plan.name}, and not checked: {', '.join(missing)}; add each while it is good: "
            f"stackmark baseline save {plan.name} {held[0].spec.workload} --on pod,node={missing[0]}"
        )
    with alone() as is_alone:
        if not is_alone:
            return turn("overlap", "another canary runs on this machine")
        usual = usual_cpus(ledger, [row for one in held for row in one.rows])
        places = [one.place for one in held]
        # The first look is short, and a shell that just started does not count as a job: what is still there in the second does.
        if in_use(look_around(_silent, places), usual) and (
            why := in_use(look_around(_silent, places, AGAIN_S), usual)
        ):
            return turn("busy", why)
        checked = []
        for one in held:
            left = None if plan.within_s is None else plan.within_s - (time.monotonic() - began)
            checked.append(_checked(ledger, plan, one, watcher, left))
        checked = decided(checked)
        disturbed = [disturbance(ledger, one, usual) for one in checked]
        return turn(*_state(checked, disturbed), checked)


def _silent(_sentence: str) -> None:
    """Say nothing: a turn has one line."""


def _checked(ledger: Ledger, plan: CanaryPlan, held: HeldWorkload, watcher: Watcher, left_s: float | None) -> Checked:
    if left_s is not None and left_s <= 0:
        blank = Checked(held.label, held.spec.workload, held.place, held.rows[0].rate_unit or "", 0.0)
        late = Trouble("no time was left of --within", "make fewer runs, or give it more time", Exit.RUN_FAILED)
        return replace(blank, trouble=late)
    limit_s = None if left_s is None else left_s / runs_of(plan, held)
    how = SeriesOptions(watcher, plan.runs, limit_s, plan.command)
    return check_held(ledger, plan.name, held, how, plan.margin, plan.anyway, canary=True)


def _state(checked: Sequence[Checked], disturbed: Sequence[str]) -> tuple[State, str]:
    """Return the worst state that undisturbed checks prove, and why where it needs a reason."""
    calm = [one for one, why in zip(checked, disturbed, strict=True) if not why]
    if any(one.comparison and one.comparison.is_slower for one in calm):
        return "slower", ""
    if failed := [one for one in checked if one.trouble]:
        return "failed", f"{failed[0].label}: {failed[0].trouble.message}" if failed[0].trouble else ""
    if any(disturbed):
        return "inconclusive", next(filter(None, disturbed))
    if all(one.comparison and one.comparison.word == "INCONCLUSIVE" for one in checked):
        return "inconclusive", ""
    return "passed", ""


def nodes_not_held(held: Sequence[HeldWorkload]) -> list[str]:
    """Return the nodes on which a pod of this baseline could run now, and which it has no series of."""
    like = next(one for one in held if one.place == "pod")
    place = PodPlace(read_pod_options({name: value for name, value in like.place_options.items() if name != "node"}))
    ready, gpus = place.prepare(), place.gpus_for(like.spec)
    slots = find_slots(ready.cluster.items("/api/v1/nodes"), ready.options, gpus).slots
    known = {one.place_options.get("node") for one in held}
    return list(dict.fromkeys(slot.node for slot in slots if not slot.trouble and slot.node not in known))


# --- other people's jobs ------------------------------------------------------------------------------------------------


def usual_cpus(ledger: Ledger, rows: Sequence[RunRow]) -> float:
    """Return how many CPUs other programs usually keep busy here: while the newest runs of the baseline were made."""
    times = StepTimes(ledger)
    newest = sorted(rows, key=lambda row: row.started_unix_s)[-USUAL_FROM:]
    busy = [load.busy_cpus for load in map(times.load, newest) if load.busy_cpus is not None]
    return median(busy) if busy else 0.0


def in_use(around: Surroundings, usual: float) -> str:
    """Say what keeps this machine clearly busier than when the baseline was made; nothing where it is free."""
    cpus = around.cpus
    if cpus and cpus.cpus - usual <= allowance_cpus(cpus.cores):
        around = replace(around, cpus=None)
    return "; ".join(around.sentences())


def disturbance(ledger: Ledger, checked: Checked, usual: float) -> str:
    """Say what disturbed a check while it ran, by the rule for blocks of a comparison; nothing where nobody did."""
    if not checked.experiment_id:
        return ""
    times = StepTimes(ledger)
    for row in ledger.runs_of(checked.experiment_id):
        if row.status == "done":
            for found in disturbances([times.load(row)], usual):
                return f"{checked.label}: {found.sentence} while run {row.id} was measured"
    return ""


def stored_disturbance(ledger: Ledger, experiment: Experiment, stored: StoredCheck) -> str:
    """Say what disturbed a stored turn of a canary; nothing where nobody did, and of a check that a person made."""
    if experiment.request.get("canary") is not True or stored.checked.comparison is None:
        return ""
    return disturbance(ledger, stored.checked, usual_cpus(ledger, stored.before))


@contextmanager
def alone() -> Iterator[bool]:
    """Hold the lock of this machine's canaries for this user; False where another process has it.

    The kernel lets it go with the process, so nothing is left after kill -9. The name holds the machine, since a home folder may
    be shared.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stackmark"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in machine_name())
    descriptor = os.open(folder / f"canary-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
