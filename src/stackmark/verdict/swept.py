"""What a sweep shows: each device, where it stands in its cohort, and what became of those that were suspected.

Pure, and computed again from what the ledger holds whenever it is asked for. A device is `SLOW` only after a repetition confirmed
it; one that was flagged and not confirmed is called that, with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.units import counted
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.needed import percent
from stackmark.verdict.outliers import (
    Cohort,
    Device,
    Standing,
    cohorts,
    confirm,
    is_confirmed,
    reference_for,
    seen_from,
    slow_nodes,
)

# `measured`: it has a number, and its cohort is too small to say whether it is a good one.
State = Literal["ok", "measured", "SLOW", "flagged", "failed", "missing"]


@dataclass(frozen=True)
class Visit:
    """One slot of a sweep as it was found: a rate, or the reason why there is none."""

    slot: int
    node: str
    device: str
    rate_per_s: float | None = None
    log_rate: float | None = None
    stack: tuple[str, ...] = ()
    run_id: str = ""
    # Why there is no rate, and what to do; both empty where it was not visited yet.
    trouble: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Repetition:
    """The runs that were made again for a flagged slot: ln R of each whole block, and why blocks are missing."""

    reference: int
    flagged_logs: tuple[float, ...]
    reference_logs: tuple[float, ...]
    trouble: str = ""


@dataclass(frozen=True)
class Suspicion:
    """A flagged slot and the good one to run it beside; None where the cohort has none."""

    flagged: int
    reference: int | None


@dataclass(frozen=True)
class Line:
    """One device of the table."""

    visit: Visit
    state: State
    standing: Standing | None = None
    comparison: Comparison | None = None
    reason: str = ""


@dataclass(frozen=True)
class Swept:
    experiment_id: str
    workload: str
    unit: str
    margin: float
    # Whether all slots were visited and all suspicions settled.
    finished: bool
    lines: tuple[Line, ...]
    cohorts: tuple[Cohort, ...]
    # Nodes all of whose devices are slow, with how many.
    slow_nodes: tuple[tuple[str, int], ...]
    at_once: str = ""
    command: str = ""
    created_unix_s: float = 0.0
    ended_unix_s: float | None = None
    notes: tuple[str, ...] = ()

    def in_state(self, *states: State) -> list[Line]:
        return [line for line in self.lines if line.state in states]


def device_of(visit: Visit) -> Device:
    assert visit.log_rate is not None
    return Device(visit.node, visit.device, visit.log_rate, visit.stack)


def suspicions(visits: Sequence[Visit], margin: float) -> list[Suspicion]:
    """The flagged devices, each with its reference: what must be run again."""
    slots = {(visit.node, visit.device): visit.slot for visit in visits}
    found: list[Suspicion] = []
    busy: set[str] = set()
    for cohort in cohorts([device_of(visit) for visit in visits if visit.log_rate is not None], margin):
        for one in cohort.flagged:
            reference = reference_for(one, cohort, busy)
            busy |= {reference.node} if reference else set()
            at = slots[reference.node, reference.device] if reference else None
            found.append(Suspicion(slots[one.device.node, one.device.device], at))
    return sorted(found, key=lambda one: one.flagged)


def lines_of(
    visits: Sequence[Visit], repetitions: Mapping[int, Repetition], margin: float
) -> tuple[tuple[Line, ...], tuple[Cohort, ...], tuple[tuple[str, int], ...]]:
    """The table, the cohorts behind it, and the nodes that are slow as a whole."""
    measured = [visit for visit in visits if visit.log_rate is not None]
    found = cohorts([device_of(visit) for visit in measured], margin)
    standing = {(one.device.node, one.device.device): one for cohort in found for one in cohort.standings}
    by_slot = {visit.slot: visit for visit in visits}
    lines = []
    for visit in visits:
        at = standing.get((visit.node, visit.device)) if visit.log_rate is not None else None
        if at is None:
            lines.append(Line(visit, "failed" if visit.trouble else "missing", reason=visit.trouble))
        elif not at.flagged:
            lines.append(Line(visit, "measured" if at.p is None else "ok", at))
        else:
            lines.append(_suspected(visit, at, repetitions.get(visit.slot), by_slot, margin))
    slow = [device_of(line.visit) for line in lines if line.state == "SLOW"]
    nodes = slow_nodes([device_of(visit) for visit in measured], slow)
    return tuple(lines), found, tuple(nodes.items())


def _suspected(
    visit: Visit, at: Standing, again: Repetition | None, by_slot: Mapping[int, Visit], margin: float
) -> Line:
    if again is None:
        return Line(visit, "flagged", at, reason="it was not run again yet")
    reference = by_slot[again.reference]
    seen = confirm(device_of(visit), device_of(reference), again.flagged_logs, again.reference_logs, margin)
    if is_confirmed(seen):
        assert seen is not None
        return Line(visit, "SLOW", at, seen, reason=seen.sentence)
    if seen is None or seen.interval_90 is None:
        why = again.trouble or "too few of the runs that were made again ended well"
        return Line(visit, "flagged", at, seen, reason=f"not confirmed: {why}")
    return Line(visit, "flagged", at, seen, reason=f"not confirmed when it was run again: {seen.sentence}")


def headline(swept: Swept) -> str:
    """The answer in a sentence."""
    slow, failed = swept.in_state("SLOW"), swept.in_state("failed")
    measured = [line for line in swept.lines if line.standing]
    able = [line for cohort in swept.cohorts if not cohort.cannot for line in cohort.standings]
    if slow:
        names = [device_of(line.visit).name for line in slow]
        said = f"{counted(len(slow), 'device')} of {len(measured)} {'is' if len(slow) == 1 else 'are'} SLOW: {_some(names)}"
    elif not measured:
        said = "no device gave a number"
    elif not able:
        said = f"nobody can be named: {swept.cohorts[0].cannot}"
    else:
        least = max(seen_from(cohort, swept.margin) for cohort in swept.cohorts if not cohort.cannot)
        said = (
            f"none of {counted(len(able), 'device')} was found slow; one would be seen from {percent(least)} slower on"
        )
        if swept.in_state("flagged"):
            said += f"; {len(swept.in_state('flagged'))} flagged, and not confirmed"
    if failed:
        said += f"; {len(failed)} failed"
    missing = len(swept.in_state("missing"))
    return said + (f"; {missing} not visited yet" if missing else "")


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
