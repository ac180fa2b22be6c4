"""Run a sweep: each run in a pod and a row of the ledger, from launch to end, in the planned order.

Every slot is run once, as many at a time as may be; all slots again some times, where one run of each device leaves something
open; and then the suspected ones. On a node with several devices the runs take seats (pods.py), so that each gets the device that
is meant.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from stackmark.errors import Terminated
from stackmark.events import gathered_facts
from stackmark.experiments.recorder import Output, Position, Recorder
from stackmark.experiments.sweep.plan import Slot, SweepPlan
from stackmark.experiments.sweep.pods import MOST_HOLDING_S, Flight, Landed, Seats, SweepPods, handle_of, is_seat
from stackmark.experiments.sweep.rows import about_device, blocks_left, first_rows, missing_slots, second_pass_left
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome
from stackmark.places.pod.place import not_enforced as pod_not_enforced
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Task
from stackmark.units import counted

# Of the pods that run, this many are named to whoever looks on.
NAMED = 3


class Looker(Protocol):
    """An observer of a sweep."""

    def notice(self, sentence: str) -> None: ...
    def stage(self, what: str, total: int, done: int) -> None:
        """Start a stage: the number of its runs, and how many already exist."""

    def in_flight(self, names: Sequence[str], count: int) -> None:
        """Show how many pods there are now, and the names of some."""

    def landed(self, name: str, row: RunRow) -> None: ...


class Runs:
    """One driver's part of a sweep. Use it in a `with`: at its end nothing is left in the cluster."""

    def __init__(
        self, experiment_id: str, plan: SweepPlan, ready: PodSetup, ledger: Ledger, looker: Looker, limit_s: float
    ) -> None:
        self.plan, self.looker = plan, looker
        # Those that are in a pod now, by their marks.
        self.flights: dict[str, Flight] = {}
        self._ready, self._limit_s = ready, limit_s
        self._recorder = Recorder(ledger, experiment_id)
        self._pods = SweepPods(ready, experiment_id, plan, limit_s, looker.notice)
        self.seats = Seats(plan, self._pods, looker.notice)
        # Jobs that the API server did not take: they have no pod to be looked at.
        self._refused: list[Landed] = []
        self._number = self._recorder.next_number()

    def __enter__(self) -> Self:
        # What a killed driver left still holds devices.
        if left := self._pods.remove_all():
            self.looker.notice(f"removed {counted(left, 'Job')} left from before")
        try:
            self._pods.share_worker()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._end_flights(error)
        finally:
            self._pods.remove_all()
            self._pods.close()

    def rows(self) -> Sequence[RunRow]:
        return self._recorder.rows()

    def flight(self, slot: Slot, block: int | None = None, suspect: int | None = None, number: int = 0) -> Flight:
        task = Task(do="run", spec=self.plan.spec)
        return Flight(new_id("r"), slot, task, self.seats.needed(slot), block=block, suspect=suspect, number=number)

    def launch(self, flights: Sequence[Flight], left: int) -> None:
        """Launch pods. `left` is how many runs their nodes still get: a seat is held until the last of its node is measured."""
        if not flights:
            return
        for flight in flights:
            flight.launched_unix_s, flight.launched = time.time(), time.monotonic()
            flight.began = flight.launched
            self._start(flight)
            self.flights[flight.mark] = flight
        self._tell_flights()
        # However long each of them may take.
        holding_s = min(MOST_HOLDING_S, (left + 1) * (self._limit_s + self._ready.options.wait_s))
        refused = self._pods.launch(flights, holding_s)
        self._refused += [Landed(flight, (), Outcome(None, failure)) for flight, failure in refused]

    def _start(self, flight: Flight) -> None:
        position = Position(
            number=self._number,
            slot=flight.slot.number,
            block=flight.block,
            suspect=flight.suspect,
            pass_number=flight.number if flight.suspect is None else None,
        )
        self._number += 1
        self._recorder.start(
            self.plan.spec,
            position,
            "pod",
            {**self.plan.place_options, "node": flight.slot.node},
            run_id=flight.mark,
            handle=handle_of(flight, self._ready),
            started_unix_s=flight.launched_unix_s or None,
        )

    def land(self) -> list[Flight]:
        """Store the pods that have ended; those that hold a device stay as seats."""
        ended = self._refused or self._pods.landed(self.flights)
        self._refused = []
        found = [(landed.flight, self._stored(landed)) for landed in ended]
        gone = []
        for flight, row in found:
            del self.flights[flight.mark]
            if is_seat(flight):
                # Also where its run failed: given up, a broken device would be given to the next pod again.
                device = row.handle.get("device")
                self.seats.keep(flight, str(device) if device else None)
            else:
                gone.append(flight.mark)
            self.looker.landed(self._name(flight), row)
        self._pods.remove(gone)
        if found:
            self._tell_flights()
        return [flight for flight, _ in found]

    def _tell_flights(self) -> None:
        some = [self._name(flight) for flight in islice(self.flights.values(), NAMED)]
        self.looker.in_flight(some, len(self.flights))

    def _stored(self, landed: Landed) -> RunRow:
        flight = landed.flight
        output = Output.read(landed.lines)
        facts = gathered_facts(output.stream.events)
        not_enforced = pod_not_enforced(self._ready.options, self.plan.gpus, facts)
        # The pod went on while the API server was away.
        observed_s = time.monotonic() - flight.launched
        handle = {**handle_of(flight, self._ready), **about_device(facts, self.plan.gpus)}
        return self._recorder.finish(
            flight.mark, self.plan.spec, output, landed.outcome, not_enforced, observed_s=observed_s, handle=handle
        )

    def store_trouble(self, slot: Slot, failure: PlaceFailure) -> None:
        """Store a slot that cannot be visited as a row with its reason."""
        flight = self.flight(slot)
        self._start(flight)
        self.looker.landed(self._name(flight), self._stored(Landed(flight, (), Outcome(None, failure))))

    def _end_flights(self, error: BaseException) -> None:
        kind, how = "driver", "ended by an error"
        if isinstance(error, KeyboardInterrupt | Terminated):
            kind = how = "terminated" if isinstance(error, Terminated) else "interrupted"
        self._recorder.give_up(self.flights, kind, f"the sweep was {how}")

    def _name(self, flight: Flight) -> str:
        slot = flight.slot
        return f"{slot.node} #{slot.index + 1}" if self.seats.needed(slot) else slot.node


def first_pass(runs: Runs) -> None:
    """Run every slot once; on `resume` those without a number."""
    rows, plan = runs.rows(), runs.plan
    missing = missing_slots(plan, rows)
    runs.looker.stage("devices", len(plan.slots), len(plan.slots) - len(missing))
    for slot in [slot for slot in missing if slot.trouble]:
        runs.store_trouble(slot, PlaceFailure("node", slot.trouble, "see: stackmark cluster doctor"))
    _visit(runs, [slot for slot in missing if not slot.trouble])


def second_pass(runs: Runs) -> None:
    """Run every slot of undecided cohorts some more times."""
    left = second_pass_left(runs.plan, runs.rows())
    if not left:
        return
    passes = runs.plan.more_runs
    runs.looker.notice(
        f"one run of each device is undecided: {counted(len(left), 'run')} more, up to {passes} of each device"
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
    """Run suspected devices together with good ones, in blocks AB BA; suspects on different machines at the same time."""
    lanes = _lanes(runs.plan, blocks_left(runs.plan, runs.rows()))
    if not lanes:
        return
    slots = [slot for lane in lanes for slot, _ in lane.todo]
    runs.looker.notice(f"{len(lanes)} flagged: each is run again together with a good one, {len(slots)} runs")
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
