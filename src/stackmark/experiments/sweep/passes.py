"""The order of a sweep's runs: every slot once, as many at a time as may be; all slots again some times, where one run of each
device leaves something open; and then the suspected ones.

On a node with several devices the runs take seats (seats.py), so that each gets the device that is meant.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stackmark.experiments.sweep.flight import Flight
from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.experiments.sweep.rows import blocks_left, first_rows, missing_slots, second_pass_left
from stackmark.experiments.sweep.runs import Runs
from stackmark.experiments.sweep.slots import Slot
from stackmark.failures import PlaceFailure
from stackmark.ledger.rows import RunRow
from stackmark.units import counted


def first_pass(runs: Runs) -> None:
    """Every slot once; on `resume` those without a number."""
    rows, plan = runs.rows(), runs.plan
    missing = missing_slots(plan, rows)
    runs.looker.stage("devices", len(plan.slots), len(plan.slots) - len(missing))
    for slot in [slot for slot in missing if slot.trouble]:
        runs.store_trouble(slot, PlaceFailure("node", slot.trouble, "see: stackmark cluster doctor"))
    _visit(runs, [slot for slot in missing if not slot.trouble])


def second_pass(runs: Runs) -> None:
    """Every slot of the cohorts of which the first pass leaves something open, some times more."""
    left = second_pass_left(runs.plan, runs.rows())
    if not left:
        return
    passes = runs.plan.more_runs
    runs.looker.notice(
        f"one run of each device leaves it open: {counted(len(left), 'run')} more, up to {passes} of each device"
    )
    runs.looker.stage("more", len(left), 0)
    for number in range(1, passes + 1):
        _visit(runs, [slot for of, slot in left if of == number], number)


def _visit(runs: Runs, slots: Sequence[Slot], number: int = 0) -> None:
    """Each of these slots once, as many at a time as may be; `number` is the pass."""
    # The first device of each node, then the second …: what slows one node in one minute is not its neighbour's fault.
    waiting = deque(sorted(slots, key=lambda slot: (slot.index, slot.number)))
    _hold_measured(runs, runs.rows(), waiting, number)
    left = Counter(slot.node for slot in waiting)
    while waiting or runs.flights:
        now = _room_for(waiting, runs.flights.values(), runs.plan)
        flights = [runs.flight(slot, number=number) for slot in now]
        runs.launch(flights, max((left[slot.node] for slot in now), default=0))
        for flight in runs.land():
            left[flight.slot.node] -= 1
            if not left[flight.slot.node]:
                runs.seats.release(flight.slot.node)


def _room_for(waiting: deque[Slot], flights: Iterable[Flight], plan: SweepPlan) -> list[Slot]:
    """Takes from the waiting as many as may run now."""
    on_machine = Counter(flight.slot.machine for flight in flights)
    total, taken = on_machine.total(), list[Slot]()
    for _ in range(len(waiting)):
        if plan.at_once is not None and total + len(taken) >= plan.at_once:
            break
        slot = waiting.popleft()
        if plan.per_machine is not None and on_machine[slot.machine] >= plan.per_machine:
            waiting.append(slot)
            continue
        on_machine[slot.machine] += 1
        taken.append(slot)
    return taken


def _hold_measured(runs: Runs, rows: Sequence[RunRow], waiting: Iterable[Slot], number: int) -> None:
    """On a node of which some devices were measured in this pass before, those are held, so that the others are left."""
    nodes = {slot.number: slot.node for slot in runs.plan.slots}
    measured: dict[str, set[str]] = {}
    for row in first_rows(rows, number).values():
        device = row.handle.get("device")
        if row.slot in nodes and device and row.status == "done":
            measured.setdefault(nodes[row.slot], set()).add(str(device))
    held = sorted({slot.node for slot in waiting if runs.seats.needed(slot)} & measured.keys())
    runs.seats.take(held)
    for node in held:
        runs.seats.give_up_others(node, measured[node])


@dataclass
class _Lane:
    """One suspicion: the runs that are made again for it, one after another."""

    suspect: int
    machines: frozenset[str]
    todo: deque[tuple[Slot, int]] = field(default_factory=deque)  # with its block


def repeat(runs: Runs) -> None:
    """Suspected devices beside good ones, in blocks AB BA; suspicions on different machines at the same time."""
    lanes = _lanes(runs.plan, blocks_left(runs.plan, runs.rows()))
    if not lanes:
        return
    slots = [slot for lane in lanes for slot, _ in lane.todo]
    runs.looker.notice(f"{len(lanes)} flagged: each is run again beside a good one, {len(slots)} runs")
    runs.looker.stage("again", len(slots), 0)
    runs.seats.take(sorted({slot.node for slot in slots if runs.seats.needed(slot)}))
    flying: dict[str, _Lane] = {}
    while lanes or runs.flights:
        _start_lanes(runs, lanes, flying)
        for flight in runs.land():
            lane = flying.pop(flight.mark)
            if not lane.todo:
                lanes.remove(lane)
    runs.seats.release_all()


def _lanes(plan: SweepPlan, left: Sequence[tuple[int, int, int]]) -> list[_Lane]:
    slots = {slot.number: slot for slot in plan.slots}
    lanes: dict[int, _Lane] = {}
    for suspect, reference, block in left:
        pair = (slots[suspect], slots[reference])
        lane = lanes.setdefault(suspect, _Lane(suspect, frozenset(slot.machine for slot in pair)))
        lane.todo.extend((slot, block) for slot in (pair if block % 2 == 0 else reversed(pair)))
    return list(lanes.values())


def _start_lanes(runs: Runs, lanes: Sequence[_Lane], flying: dict[str, _Lane]) -> None:
    """A machine belongs to one suspicion at a time, and each suspicion has one pod at a time."""
    busy = {machine for lane in flying.values() for machine in lane.machines}
    at_once = runs.plan.at_once or len(lanes)
    for lane in lanes:
        if lane.machines & busy or len(flying) >= at_once or not lane.todo:
            continue
        busy |= lane.machines
        slot, block = lane.todo.popleft()
        if runs.seats.needed(slot):
            # The device that the slot's first run was on.
            row = first_rows(runs.rows()).get(slot.number)
            runs.seats.give_up(slot.node, str(row.handle.get("device")) if row else "")
        flight = runs.flight(slot, block=block, suspect=lane.suspect)
        flying[flight.mark] = lane
        runs.launch([flight], len(runs.plan.slots))
