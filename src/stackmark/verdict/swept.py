"""Compute the result of a sweep: each device, its position in its cohort, and the outcome for suspected ones.

Pure, and computed again from what the ledger holds whenever it is asked for. Cohorts of two kinds are split first
(cohorts.py). A device is `SLOW` only after a repetition confirmed it; one that was flagged and not confirmed is called
that, with the reason. The devices of a slow group are called that and not named one by one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stackmark.figures import say_figure
from stackmark.units import counted
from stackmark.verdict.cohorts import (
    MOST_UNASKED,
    Cohort,
    Device,
    Split,
    Spread,
    Standing,
    blocks_to_confirm,
    cohorts,
    confirm,
    find_split,
    is_confirmed,
    needs_more,
    reference_for,
    seen_with_runs,
    slow_nodes,
    spread_of,
    with_runs,
)
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.family import holm
from stackmark.verdict.needed import percent

# `measured`: it has a number, and its cohort is too small to say whether it is a good one.
# `slow group`: it is like many of its cohort, which together are slower than the others.
State = Literal["ok", "measured", "SLOW", "slow group", "flagged", "failed", "missing"]


@dataclass(frozen=True)
class Visit:
    """One slot of a sweep: a rate, or the reason why there is none.

    log_rate is the mean of ln R over the runs of the device; `logs` has each of them, the first pass first.
    """

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
    logs: tuple[float, ...] = ()
    # What sets the speed of a device and is not part of its stack: power limit, link, memory.
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repetition:
    """The repeated runs for a flagged slot: ln R of each complete block, and why blocks are missing."""

    reference: int
    flagged_logs: tuple[float, ...]
    reference_logs: tuple[float, ...]
    trouble: str = ""


@dataclass(frozen=True)
class Suspicion:
    """A flagged slot, the good one to run it together with (None where the cohort has none), and in how many blocks."""

    flagged: int
    reference: int | None
    blocks: int


@dataclass(frozen=True)
class Blocks:
    """The number of blocks of a repetition: `least`, and up to `most` where the spread of repeated runs requires more."""

    least: int
    most: int


@dataclass(frozen=True)
class Judged:
    """The devices by kind: the cohorts after splitting, the splits by the stack they were found in, and the spreads of runs."""

    cohorts: tuple[Cohort, ...]
    splits: tuple[tuple[tuple[str, ...], Split], ...]
    # By the stack of a cohort.
    spreads: Mapping[tuple[str, ...], Spread | None]

    def seen_from(self, margin: float) -> float | None:
        """Return the resolution of the least able cohort; None where none can be judged."""
        able = [cohort for cohort in self.cohorts if not cohort.cannot]
        return max((seen_with_runs(one, self.spreads[one.stack], margin) for one in able), default=None)

    def in_slow_group(self, stack: tuple[str, ...]) -> bool:
        """Return whether a cohort with this stack is the slow side of a split that no fact explains."""
        return any(not split.fact and stack == (*whole, split.parts[-1].label) for whole, split in self.splits)


@dataclass(frozen=True)
class Line:
    """One device of the table."""

    visit: Visit
    state: State
    standing: Standing | None = None
    comparison: Comparison | None = None
    reason: str = ""
    # Whether a flagged one was run again, or cannot be: the reason says what came of it.
    settled: bool = False


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
    # Cohorts that hold two kinds of devices, by their stack.
    splits: tuple[tuple[tuple[str, ...], Split], ...] = ()
    # How much slower than the others a single device must be to be flagged in each cohort that can be judged.
    seen_from: float | None = None
    at_once: str = ""
    command: str = ""
    created_unix_s: float = 0.0
    ended_unix_s: float | None = None
    notes: tuple[str, ...] = ()

    def of_fastest(self, line: Line) -> float | None:
        """Return its rate over the median of its cohort, or of the fastest kind of a split cohort; None without a rate."""
        if line.visit.log_rate is None:
            return None
        whole = line.visit.stack
        middles = [one.log_median for one in self.cohorts if one.stack[: len(whole)] == whole]
        return math.exp(line.visit.log_rate - max(middles))

    def in_state(self, *states: State) -> list[Line]:
        return [line for line in self.lines if line.state in states]


def device_of(visit: Visit) -> Device:
    assert visit.log_rate is not None
    return Device(visit.node, visit.device, visit.log_rate, visit.stack)


def judge_devices(visits: Sequence[Visit], margin: float) -> Judged:
    """Split the cohorts that hold two kinds of devices, and hold each device against its own kind."""
    by_stack: dict[tuple[str, ...], list[Visit]] = {}
    for visit in visits:
        if visit.log_rate is not None:
            by_stack.setdefault(visit.stack, []).append(visit)
    devices: list[Device] = []
    splits: list[tuple[tuple[str, ...], Split]] = []
    spreads: dict[tuple[str, ...], Spread | None] = {}
    while by_stack:
        stack, members = by_stack.popitem()
        spread = spread_of([visit.logs for visit in members])
        logs = [visit.log_rate for visit in members if visit.log_rate is not None]
        split = find_split(logs, [visit.facts for visit in members], margin, spread)
        if split is None:
            spreads[stack] = spread
            devices += [Device(visit.node, visit.device, log, stack) for visit, log in zip(members, logs, strict=True)]
            continue
        splits.append((stack, split))
        # A population may hold a slow group, so each part is asked again: it is smaller, and there is an end.
        by_stack |= {(*stack, part.label): [members[i] for i in part.members] for part in split.parts}
    order = {(visit.node, visit.device): visit.slot for visit in visits}
    devices.sort(key=lambda device: order[device.node, device.device])
    found = tuple(with_runs(cohort, spreads[cohort.stack], margin) for cohort in cohorts(devices, margin))
    return Judged(found, tuple(splits), spreads)


def open_cohorts(visits: Sequence[Visit], margin: float, most: int | None = MOST_UNASKED) -> list[list[Visit]]:
    """Return the cohorts that the first pass leaves undecided, by the first runs only: their devices are run again."""
    by_stack: dict[tuple[str, ...], list[Visit]] = {}
    for visit in visits:
        if visit.logs:
            by_stack.setdefault(visit.stack, []).append(visit)
    return [
        members
        for stack, members in by_stack.items()
        if (most is None or len(members) <= most)
        and needs_more([Device(visit.node, visit.device, visit.logs[0], stack) for visit in members], margin)
    ]


def suspicions(visits: Sequence[Visit], margin: float, blocks: Blocks) -> list[Suspicion]:
    """Return the flagged devices, each with its reference: what must be run again."""
    slots = {(visit.node, visit.device): visit.slot for visit in visits}
    judged = judge_devices(visits, margin)
    suspects = sum(len(cohort.flagged) for cohort in judged.cohorts)
    found: list[Suspicion] = []
    busy: set[str] = set()
    for cohort in judged.cohorts:
        for one in cohort.flagged:
            reference = reference_for(one, cohort, busy)
            busy |= {reference.node} if reference else set()
            at = slots[reference.node, reference.device] if reference else None
            spread = judged.spreads[cohort.stack]
            count = blocks_to_confirm(one, suspects, spread, margin, blocks.least, blocks.most)
            found.append(Suspicion(slots[one.device.node, one.device.device], at, count))
    return sorted(found, key=lambda one: one.flagged)


def lines_of(
    visits: Sequence[Visit], repetitions: Mapping[int, Repetition], margin: float
) -> tuple[tuple[Line, ...], Judged, tuple[tuple[str, int], ...]]:
    """Return the table, its cohorts, and the nodes that are slow as a whole."""
    judged = judge_devices(visits, margin)
    standing = {(one.device.node, one.device.device): one for cohort in judged.cohorts for one in cohort.standings}
    by_slot = {visit.slot: visit for visit in visits}
    seen = _confirmations(repetitions, by_slot, margin)
    lines = []
    for visit in visits:
        at = standing.get((visit.node, visit.device)) if visit.log_rate is not None else None
        if at is None:
            lines.append(Line(visit, "failed" if visit.trouble else "missing", reason=visit.trouble))
        elif at.flagged:
            again = repetitions.get(visit.slot)
            line = _suspected(visit, at, again, seen.get(visit.slot))
            lines.append(line if line.state != "SLOW" else _with_odd_facts(line, visits, judged))
        elif judged.in_slow_group(at.device.stack):
            lines.append(Line(visit, "slow group", at, reason="it belongs to a group that is slower than the others"))
        else:
            lines.append(Line(visit, "measured" if at.p is None else "ok", at))
    measured = [device_of(visit) for visit in visits if visit.log_rate is not None]
    slow = [device_of(line.visit) for line in lines if line.state in ("SLOW", "slow group")]
    return tuple(lines), judged, tuple(slow_nodes(measured, slow).items())


def _confirmations(
    repetitions: Mapping[int, Repetition], by_slot: Mapping[int, Visit], margin: float
) -> dict[int, Comparison]:
    """What the repetitions show, by the suspected slot: Holm decides over all suspects of the sweep."""
    compared = {
        slot: found
        for slot, again in repetitions.items()
        if (
            found := confirm(
                device_of(by_slot[slot]),
                device_of(by_slot[again.reference]),
                again.flagged_logs,
                again.reference_logs,
                margin,
            )
        )
    }
    return dict(zip(compared, holm(list(compared.values()), multiple=2), strict=True))


def _with_odd_facts(line: Line, visits: Sequence[Visit], judged: Judged) -> Line:
    """A device that is slow, with the facts in which it differs from most of its cohort."""
    cohort = next(one for one in judged.cohorts if line.standing in one.standings)
    names = {(one.device.node, one.device.device) for one in cohort.standings}
    fellows = [visit.facts for visit in visits if (visit.node, visit.device) in names]
    odd = []
    for key, value in line.visit.facts.items():
        usual, count = Counter(facts.get(key, "unknown") for facts in fellows).most_common(1)[0]
        if usual != value and 2 * count > len(fellows):
            odd.append(f"{key} {value}, where most have {usual}")
    return replace(line, reason=f"{line.reason}; it differs in: {'; '.join(odd)}") if odd else line


def _suspected(visit: Visit, at: Standing, again: Repetition | None, seen: Comparison | None) -> Line:
    if again is None:
        return Line(visit, "flagged", at, reason="it has not been run again yet")
    if is_confirmed(seen):
        assert seen is not None
        return Line(visit, "SLOW", at, seen, reason=seen.sentence, settled=True)
    if seen is None or seen.interval_90 is None:
        why = again.trouble or "too few of the repeated runs succeeded"
        return Line(visit, "flagged", at, seen, reason=f"not confirmed: {why}", settled=True)
    why = f"not confirmed by repeated runs: {seen.sentence}"
    return Line(visit, "flagged", at, seen, reason=why, settled=True)


def say_split(stack: tuple[str, ...], split: Split, unit: str = "") -> str:
    """Describe a cohort that contains two kinds of devices, in a sentence."""
    what = ", ".join(part for part in stack if part) or "devices of an unknown model"
    parts = "; ".join(
        f"{len(part.members)} × {part.label} at {say_figure(math.exp(part.log_median), unit)}" for part in split.parts
    )
    slower = f"{percent(-math.expm1(split.log_ratio))} slower (p {split.p:.2g})"
    if split.fact:
        return (
            f"{what} form {counted(len(split.parts), 'population')} by {split.fact}: {parts}; the slowest is {slower}"
        )
    return f"{what} form two groups that differ in no known fact: {parts}; the slow group is {slower}"


def headline(swept: Swept) -> str:
    """Return the answer in a sentence."""
    said = "; ".join([*_groups_said(swept), _devices_said(swept)])
    failed = swept.in_state("failed")
    if failed:
        said += f"; {len(failed)} failed"
    missing = len(swept.in_state("missing"))
    return said + (f"; {missing} not measured yet" if missing else "")


def _groups_said(swept: Swept) -> list[str]:
    said = []
    for _, split in swept.splits:
        slow, of = split.parts[-1], sum(len(part.members) for part in split.parts)
        much = percent(-math.expm1(split.log_ratio))
        if split.fact:
            said.append(f"{counted(len(split.parts), 'population')} by {split.fact}, up to {much} apart")
        else:
            said.append(f"{len(slow.members)} of {counted(of, 'device')} are SLOW as a group, by {much}")
    return said


def _devices_said(swept: Swept) -> str:
    slow = swept.in_state("SLOW")
    measured = [line for line in swept.lines if line.standing]
    able = [line for cohort in swept.cohorts if not cohort.cannot for line in cohort.standings]
    if slow:
        names = [device_of(line.visit).name for line in slow]
        verb = "is" if len(slow) == 1 else "are"
        return f"{counted(len(slow), 'device')} of {len(measured)} {verb} SLOW: {_some(names)}"
    if not measured:
        return "no device gave a number"
    if not able:
        return f"no slow device can be named: {swept.cohorts[0].cannot}"
    least = swept.seen_from or swept.margin
    within = " within its kind" if swept.splits else ""
    said = f"none of {counted(len(able), 'device')} is slow{within}; a device {percent(least)} slower would be found"
    if swept.in_state("flagged"):
        said += f"; {len(swept.in_state('flagged'))} flagged but not confirmed"
    return said


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
