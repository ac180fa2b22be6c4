"""A sweep's rows in the ledger, read back: what each slot gave, what was run again, and what that shows.

Which device a run was on stands in its row's handle, as the worker's facts told it: the driver's UUIDs, or the word of the device
plugin where no driver answers.
"""

import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from stackmark.lab.sweep.plan import SweepPlan, at_once_sentence
from stackmark.lab.sweep.slots import Slot, devices_by_node
from stackmark.ledger.rows import Experiment, RunRow
from stackmark.ledger.store import Ledger
from stackmark.verdict.swept import Repetition, Suspicion, Swept, Visit, lines_of, suspicions

Facts = Mapping[str, Mapping[str, JsonValue]]
# Words of the device plugins that name no device.
NO_DEVICE = ("", "all", "none", "void")


def device_in(facts: Facts, gpus: int) -> str | None:
    """The devices that a pod was given, as one name; None where nothing names them."""
    given = facts.get("container", {}).get("devices_given")
    word = given if isinstance(given, str) and given not in NO_DEVICE else None
    if word and word.startswith(("GPU-", "MIG-")):
        return word
    listed = facts.get("gpu", {}).get("devices")
    uuids = (
        [str(one["uuid"]) for one in listed if isinstance(one, dict) and one.get("uuid")]
        if isinstance(listed, list)
        else []
    )
    # With more than were asked for, all of the node's are seen, and which is ours cannot be told.
    return ",".join(sorted(uuids)) if uuids and len(uuids) == gpus else word


def about_device(facts: Facts, gpus: int) -> dict[str, JsonValue]:
    """What a run's handle keeps of them: which device, and the driver, since a cohort has one stack."""
    driver = facts.get("gpu", {}).get("driver") or facts.get("gpu_amd", {}).get("driver")
    return {
        "device": device_in(facts, gpus) if gpus else None,
        "gpu_driver": driver if isinstance(driver, str) else None,
    }


def first_rows(rows: Sequence[RunRow]) -> dict[int, RunRow]:
    """Of each slot the run of the first pass that counts: the last that is done, else the last."""
    found: dict[int, RunRow] = {}
    for row in sorted((row for row in rows if row.block is None), key=lambda row: row.position):
        before = found.get(row.arm)
        if before is None or before.status != "done" or row.status == "done":
            found[row.arm] = row
    return found


def visits_of(plan: SweepPlan, rows: Sequence[RunRow]) -> list[Visit]:
    first = first_rows(rows)
    visits = [_visit(slot, first.get(slot.number), plan) for slot in plan.slots]
    return _told_twice(visits) if plan.gpus else visits


def _visit(slot: Slot, row: RunRow | None, plan: SweepPlan) -> Visit:
    known = row.handle.get("device") if row else None
    device = str(known) if known else slot.node if not plan.gpus else f"#{slot.index + 1}"
    if row is None:
        return Visit(slot.number, slot.node, device)
    if row.status == "done" and row.rate_per_s:
        driver = row.handle.get("gpu_driver")
        stack = (row.chip or "", f"driver {driver}" if driver else "", row.framework or "")
        return Visit(slot.number, slot.node, device, row.rate_per_s, math.log(row.rate_per_s), stack, row.id)
    trouble = row.failure_message or ("it is running" if row.status == "running" else "it gave no number")
    return Visit(slot.number, slot.node, device, run_id=row.id, trouble=trouble, hint=row.failure_hint or "")


def _told_twice(visits: Sequence[Visit]) -> list[Visit]:
    """A device that came twice was not held while the other run was made: the second says nothing about another."""
    seen: set[tuple[str, str]] = set()
    found = []
    for visit in visits:
        key = (visit.node, visit.device)
        if visit.log_rate is not None and key in seen:
            said = f"the node gave {visit.device} a second time, so that another of its devices was not measured"
            visit = Visit(visit.slot, visit.node, f"{visit.device} again", run_id=visit.run_id, trouble=said)
        elif visit.log_rate is not None:
            seen.add(key)
        found.append(visit)
    return found


def missing_slots(plan: SweepPlan, rows: Sequence[RunRow]) -> list[Slot]:
    """What the first pass still has to visit: slots without a number, also those that failed before."""
    given = {visit.slot for visit in visits_of(plan, rows) if visit.log_rate is not None}
    return [slot for slot in plan.slots if slot.number not in given]


def repetitions_of(plan: SweepPlan, rows: Sequence[RunRow], visits: Sequence[Visit]) -> dict[int, Repetition]:
    """By the suspected slot's number. A block counts where both its runs are done, on the devices that were meant."""
    devices = {visit.slot: visit.device for visit in visits}
    found = {}
    for one in suspicions(visits, plan.margin):
        again = [row for row in rows if row.block is not None and row.attempt == one.flagged + 1]
        cannot = _cannot_repeat(plan, visits, one)
        if cannot or one.reference is None:
            found[one.flagged] = Repetition(one.flagged, (), (), cannot)
            continue
        if not again:
            continue
        logs: dict[int, dict[int, float]] = {}
        trouble = ""
        for row in sorted(again, key=lambda row: row.position):
            why = _not_counted(row, devices, plan.gpus)
            if why:
                trouble = why
            elif row.rate_per_s and row.block is not None:
                logs.setdefault(row.block, {})[row.arm] = math.log(row.rate_per_s)
        whole = [block for _, block in sorted(logs.items()) if one.flagged in block and one.reference in block]
        found[one.flagged] = Repetition(
            one.reference,
            tuple(block[one.flagged] for block in whole),
            tuple(block[one.reference] for block in whole),
            trouble,
        )
    return found


def _cannot_repeat(plan: SweepPlan, visits: Sequence[Visit], one: Suspicion) -> str:
    if one.reference is None:
        return "there is no good device of its kind to run it beside"
    by_slot = {visit.slot: visit for visit in visits}
    for number in (one.flagged, one.reference):
        visit = by_slot[number]
        if plan.gpus and visit.device.startswith("#") and devices_by_node(plan.slots)[visit.node] > 1:
            return f"nothing tells which of its devices a pod on {visit.node} gets, so none can be had a second time"
    return ""


def _not_counted(row: RunRow, devices: Mapping[int, str], gpus: int) -> str:
    if row.status != "done":
        return row.failure_message or f"{row.id} is {row.status}"
    known = row.handle.get("device")
    if gpus and known and devices.get(row.arm) != known:
        return f"the node gave {known} where {devices.get(row.arm)} was meant"
    return ""


def blocks_left(plan: SweepPlan, rows: Sequence[RunRow]) -> list[tuple[int, int, int]]:
    """(suspected, reference, block) of what must still be run again, block by block."""
    visits = visits_of(plan, rows)
    left = []
    for one in suspicions(visits, plan.margin):
        if one.reference is None or _cannot_repeat(plan, visits, one):
            continue
        done: dict[int, set[int]] = {}
        for row in rows:
            if row.block is not None and row.attempt == one.flagged + 1 and row.status == "done":
                done.setdefault(row.block, set()).add(row.arm)
        left += [
            (one.flagged, one.reference, block)
            for block in range(plan.confirm_blocks)
            if not {one.flagged, one.reference} <= done.get(block, set())
        ]
    return left


def read_swept(ledger: Ledger, experiment: Experiment, plan: SweepPlan) -> Swept:
    rows = ledger.runs_of(experiment.id)
    visits = visits_of(plan, rows)
    lines, cohorts, slow = lines_of(visits, repetitions_of(plan, rows, visits), plan.margin)
    unit = next((row.rate_unit for row in rows if row.rate_unit), None) or ""
    missing = any(line.state == "missing" for line in lines)
    ended = [row.ended_unix_s for row in rows if row.ended_unix_s]
    return Swept(
        experiment_id=experiment.id,
        workload=plan.spec.workload,
        unit=unit,
        margin=plan.margin,
        finished=not missing and not blocks_left(plan, rows),
        lines=lines,
        cohorts=cohorts,
        slow_nodes=slow,
        at_once=at_once_sentence(plan),
        command=experiment.command,
        created_unix_s=experiment.created_unix_s,
        ended_unix_s=max(ended, default=None),
        notes=_notes(plan, rows),
    )


def _notes(plan: SweepPlan, rows: Sequence[RunRow]) -> tuple[str, ...]:
    odd = sum(
        1
        for row in first_rows(rows).values()
        if row.status == "done" and row.steady in ("no steady state", "slow-down")
    )
    notes = []
    if odd:
        notes.append(
            f"{odd} runs reached no steady state, or slowed down while they were measured: a longer --seconds tells more"
        )
    if not plan.confirm_blocks:
        notes.append("nothing was run again (--confirm 0), so nobody is named")
    return tuple(notes)
