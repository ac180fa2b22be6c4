"""Read a sweep's rows back from the ledger: the result of each slot, what was run again, and what that shows.

Which device a run was on stands in its row's handle, as the worker's facts told it: the driver's UUIDs, or the word of the device
plugin where no driver answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from pydantic import JsonValue

from stackmark.experiments.progress import CUT_OFF
from stackmark.experiments.sweep.plan import MORE_RUNS, Slot, SweepPlan, at_once_sentence, devices_by_node
from stackmark.ledger.rows import Experiment, RunFilter, RunRow
from stackmark.ledger.store import Ledger
from stackmark.units import counted, say_percent, say_rate
from stackmark.verdict.swept import Repetition, Suspicion, Swept, Visit, lines_of, open_cohorts, suspicions

Facts = Mapping[str, Mapping[str, JsonValue]]
# Words of the device plugins that name no device.
NO_DEVICE = ("", "all", "none", "void")
# The driver was ended, which says nothing about the device.
ENDED_BY_DRIVER = CUT_OFF | {"driver"}
# Runs of other experiments that are read for a second yardstick, and experiments that are told of.
OTHERS_READ, OTHERS_SHOWN = 2000, 3


def device_in(facts: Facts, gpus: int) -> str | None:
    """Return the devices that a pod was assigned, as one name; None where nothing names them."""
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
    """Return what a run's handle stores about its device: name, driver (a cohort has one stack), what sets its speed."""
    driver = facts.get("gpu", {}).get("driver") or facts.get("gpu_amd", {}).get("driver")
    speed: dict[str, JsonValue] = {**speed_facts(facts, gpus)}
    return {
        "device": device_in(facts, gpus) if gpus else None,
        "gpu_driver": driver if isinstance(driver, str) else None,
        "speed_facts": speed,
    }


def speed_facts(facts: Facts, gpus: int) -> dict[str, str]:
    """Return facts that set a device's speed and are not part of its stack: devices that differ in one are different kinds."""
    found = {}
    for subject, key, name, unit in OF_NODE:
        value = facts.get(subject, {}).get(key)
        if value is not None:
            found[name] = f"{value}{unit}"
    listed = facts.get("gpu", {}).get("devices")
    devices = [one for one in listed if isinstance(one, dict)] if gpus and isinstance(listed, list) else []
    for key, name, unit in OF_GPU if len(devices) == gpus else ():
        values = {f"{one[key]:g}{unit}" if isinstance(one[key], float) else f"{one[key]}{unit}"
                  for one in devices if one.get(key) is not None}  # fmt: skip
        if values:
            found[name] = ", ".join(sorted(values))
    return found


# Of a GPU, and of its node: where the fact stands, what it is called, and its unit.
OF_GPU = (
    ("power_limit_w", "power limit", " W"),
    ("clock_sm_max_mhz", "maximum clock", " MHz"),
    ("application_clock_sm_mhz", "application clock", " MHz"),
    ("memory_total_mib", "memory", " MiB"),
    ("ecc", "ECC", ""),
    ("mig", "MIG", ""),
    ("pcie_generation", "PCIe generation", ""),
    ("pcie_width", "PCIe lanes", ""),
    ("nvlinks_active", "NVLinks", ""),
)
OF_NODE = (
    ("cpu", "model", "CPU", ""),
    ("cpu", "governor", "CPU governor", ""),
    ("cgroup", "cpu_limit_cpus", "CPU limit", " CPUs"),
    ("process", "cpus_usable", "usable CPUs", ""),
)


def first_rows(rows: Sequence[RunRow], number: int = 0) -> dict[int, RunRow]:
    """Return of each slot the run of the first pass that counts: the last successful one, else the last. Or of pass `number`."""
    found: dict[int, RunRow] = {}
    of_pass = (row for row in rows if row.pass_number == number)
    for row in sorted(of_pass, key=lambda row: row.position):
        before = found.get(_slot(row))
        if before is None or before.status != "done" or row.status == "done":
            found[_slot(row)] = row
    return found


def _slot(row: RunRow) -> int:
    """Return the slot of a run; one without, which only a damaged ledger has, belongs to none."""
    return -1 if row.slot is None else row.slot


def visits_of(plan: SweepPlan, rows: Sequence[RunRow]) -> list[Visit]:
    """Return each slot with all runs of its device in the first pass and the second."""
    first = first_rows(rows)
    visits = [_visit(slot, first.get(slot.number), plan) for slot in plan.slots]
    return _with_more_runs(_told_twice(visits) if plan.gpus else visits, plan, rows)


def _with_more_runs(visits: Sequence[Visit], plan: SweepPlan, rows: Sequence[RunRow]) -> list[Visit]:
    """The runs of the second pass, by node and device: a slot may have got another device of its node than before."""
    nodes = {slot.number: slot.node for slot in plan.slots}
    counts = devices_by_node(plan.slots)
    logs: dict[tuple[str, str], list[float]] = {}
    for row in sorted((row for row in rows if row.pass_number), key=lambda row: row.position):
        if row.status == "done" and row.rate_per_s and row.slot in nodes:
            node = nodes[row.slot]
            device = row.handle.get("device") if plan.gpus else node
            if not device and counts[node] == 1:
                device = "#1"
            logs.setdefault((node, str(device)), []).append(math.log(row.rate_per_s))
    found = []
    for visit in visits:
        more = logs.get((visit.node, visit.device), []) if visit.log_rate is not None else []
        if more:
            whole = (*visit.logs, *more)
            visit = replace(visit, logs=whole, log_rate=fmean(whole), rate_per_s=math.exp(fmean(whole)))
        found.append(visit)
    return found


def _visit(slot: Slot, row: RunRow | None, plan: SweepPlan) -> Visit:
    known = row.handle.get("device") if row else None
    device = str(known) if known else slot.node if not plan.gpus else f"#{slot.index + 1}"
    if row is None:
        return Visit(slot.number, slot.node, device)
    if row.status == "done" and row.rate_per_s:
        driver = row.handle.get("gpu_driver")
        stack = (row.chip or "", f"driver {driver}" if driver else "", row.framework or "")
        log, facts = math.log(row.rate_per_s), row.handle.get("speed_facts")
        return Visit(
            slot.number, slot.node, device, row.rate_per_s, log, stack, row.id, logs=(log,),
            facts={key: str(value) for key, value in facts.items()} if isinstance(facts, dict) else {},
        )  # fmt: skip
    trouble = row.failure_message or ("it is running" if row.status == "running" else "it gave no number")
    return Visit(slot.number, slot.node, device, run_id=row.id, trouble=trouble, hint=row.failure_hint or "")


def _told_twice(visits: Sequence[Visit]) -> list[Visit]:
    """A device that came twice was not held while the other run was made: the second says nothing about another."""
    seen: set[tuple[str, str]] = set()
    found = []
    for visit in visits:
        key = (visit.node, visit.device)
        if visit.log_rate is not None and key in seen:
            said = f"the node assigned {visit.device} a second time, so another of its devices was not measured"
            visit = Visit(visit.slot, visit.node, f"{visit.device} again", run_id=visit.run_id, trouble=said)
        elif visit.log_rate is not None:
            seen.add(key)
        found.append(visit)
    return found


def missing_slots(plan: SweepPlan, rows: Sequence[RunRow]) -> list[Slot]:
    """Return the slots that the first pass still has to visit: those without a number, including failed ones."""
    given = {visit.slot for visit in visits_of(plan, rows) if visit.log_rate is not None}
    return [slot for slot in plan.slots if slot.number not in given]


def second_pass_left(plan: SweepPlan, rows: Sequence[RunRow]) -> list[tuple[int, Slot]]:
    """Return (pass, slot) of what must be run again because the first pass is undecided; passes count from 1.

    All slots of the nodes concerned: a pod cannot ask for one device of its node. A run that failed is not tried again, since
    the device has a number already; one whose driver was ended is."""
    if not plan.more_runs:
        return []
    visits = visits_of(plan, [row for row in rows if row.pass_number == 0])
    nodes = {visit.node for members in open_cohorts(visits, plan.margin, plan.most_unasked) for visit in members}
    counts = devices_by_node(plan.slots)
    nameless = {visit.node for visit in visits if plan.gpus and _is_nameless(visit, counts)}
    made = {
        (row.pass_number, row.slot)
        for row in rows
        if row.pass_number and row.status != "running" and row.failure_kind not in ENDED_BY_DRIVER
    }
    return [
        (number, slot)
        for number in range(1, plan.more_runs + 1)
        for slot in plan.slots
        if slot.node in nodes - nameless and not slot.trouble and (number, slot.number) not in made
    ]


def repetitions_of(plan: SweepPlan, rows: Sequence[RunRow], visits: Sequence[Visit]) -> dict[int, Repetition]:
    """Return repetitions by the suspected slot's number. A block counts if both its runs succeeded on the intended devices."""
    devices = {visit.slot: visit.device for visit in visits}
    found = {}
    for one in suspicions(visits, plan.margin, plan.blocks):
        again = [row for row in rows if row.suspect == one.flagged]
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
                logs.setdefault(row.block, {})[_slot(row)] = math.log(row.rate_per_s)
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
        return "there is no good device of its kind to run it with"
    by_slot = {visit.slot: visit for visit in visits}
    for number in (one.flagged, one.reference):
        visit = by_slot[number]
        if plan.gpus and _is_nameless(visit, devices_by_node(plan.slots)):
            return f"pods on {visit.node} do not report which device they get, so no device can be run again"
    return ""


def _is_nameless(visit: Visit, devices: Mapping[str, int]) -> bool:
    """Whether nothing tells which of its node's devices it is. `devices` is how many each node has."""
    return visit.device.startswith("#") and devices[visit.node] > 1


def _not_counted(row: RunRow, devices: Mapping[int, str], gpus: int) -> str:
    if row.status != "done":
        return row.failure_message or f"{row.id} is {row.status}"
    known = row.handle.get("device")
    if gpus and known and devices.get(_slot(row)) != known:
        return f"the node assigned {known} instead of {devices.get(_slot(row))}"
    return ""


def blocks_left(plan: SweepPlan, rows: Sequence[RunRow]) -> list[tuple[int, int, int]]:
    """Return (suspected, reference, block) of what must still be run again, block by block."""
    if second_pass_left(plan, rows) or not plan.confirm_blocks:
        # Whom it suspects is known when the second pass is whole.
        return []
    visits = visits_of(plan, rows)
    left = []
    for one in suspicions(visits, plan.margin, plan.blocks):
        if one.reference is None or _cannot_repeat(plan, visits, one):
            continue
        done: dict[int, set[int]] = {}
        for row in rows:
            if row.block is not None and row.suspect == one.flagged and row.status == "done":
                done.setdefault(row.block, set()).add(_slot(row))
        left += [
            (one.flagged, one.reference, block)
            for block in range(one.blocks)
            if not {one.flagged, one.reference} <= done.get(block, set())
        ]
    return left


def read_swept(ledger: Ledger, experiment: Experiment, plan: SweepPlan) -> Swept:
    rows = ledger.runs_of(experiment.id)
    visits = visits_of(plan, rows)
    lines, judged, slow = lines_of(visits, repetitions_of(plan, rows, visits), plan.margin)
    unit = next((row.rate_unit for row in rows if row.rate_unit), None) or ""
    missing = any(line.state == "missing" for line in lines)
    ended = [row.ended_unix_s for row in rows if row.ended_unix_s]
    return Swept(
        experiment_id=experiment.id,
        workload=plan.spec.workload,
        unit=unit,
        margin=plan.margin,
        finished=not missing and not second_pass_left(plan, rows) and not blocks_left(plan, rows),
        lines=lines,
        cohorts=judged.cohorts,
        slow_nodes=slow,
        splits=judged.splits,
        seen_from=judged.seen_from(plan.margin),
        at_once=at_once_sentence(plan),
        command=experiment.command,
        created_unix_s=experiment.created_unix_s,
        ended_unix_s=max(ended, default=None),
        notes=(*_notes(plan, rows, visits), *other_cohorts(ledger, experiment.id, rows)),
    )


def other_cohorts(ledger: Ledger, experiment_id: str, rows: Sequence[RunRow]) -> tuple[str, ...]:
    """Describe runs of the same spec on the same model from elsewhere in the ledger, as a second yardstick."""
    said = []
    mine: dict[tuple[str, str], list[float]] = {}
    for row in first_rows(rows).values():
        if row.status == "done" and row.rate_per_s and row.chip:
            mine.setdefault((row.chip, row.spec_digest), []).append(row.rate_per_s)
    for (chip, digest), rates in mine.items():
        wanted = RunFilter(workload=rows[0].workload, chip=chip, status="done")
        others: dict[str, list[float]] = {}
        for row in ledger.runs(wanted, limit=OTHERS_READ):
            if row.experiment_id != experiment_id and row.spec_digest == digest and row.rate_per_s:
                others.setdefault(row.experiment_id, []).append(row.rate_per_s)
        here = median(rates)
        for other, found in list(others.items())[:OTHERS_SHOWN]:
            there = median(found)
            gap = say_percent(abs(here / there - 1), 1)
            said.append(
                f"{other} has {counted(len(found), 'run')} of this spec on {chip} with a median of {say_rate(there)}: "
                f"this sweep's is {gap} {'lower' if here < there else 'higher'}"
            )
    return tuple(said)


def _notes(plan: SweepPlan, rows: Sequence[RunRow], visits: Sequence[Visit]) -> tuple[str, ...]:
    odd = sum(
        1
        for row in first_rows(rows).values()
        if row.status == "done" and row.steady in ("no steady state", "slow-down")
    )
    notes = []
    if odd:
        notes.append(
            f"{odd} runs reached no steady state, or slowed down during the measurement: use a longer --seconds"
        )
    more = sum(len(visit.logs) - 1 for visit in visits if len(visit.logs) > 1)
    if more:
        notes.append(
            f"the first pass was undecided, so the devices were run again: {counted(more, 'run')} more; each rate is the mean of "
            "the device's runs"
        )
    elif open_cohorts(visits, plan.margin, None) and not second_pass_left(plan, rows):
        count = sum(len(members) for members in open_cohorts(visits, plan.margin, None))
        notes.append(
            f"one run of each device is undecided; {MORE_RUNS} more of each ({MORE_RUNS * count} runs) may decide: "
            f"--more-runs {MORE_RUNS}"
        )
    if not plan.confirm_blocks:
        notes.append("nothing was run again (--confirm 0), so no device is named")
    return tuple(notes)
