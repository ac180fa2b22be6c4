"""Carrying out a sweep: pods are launched as far as there is room, stored as they end, and the suspected ones run again.

On a node with several devices every pod holds its own until all of the node's were measured. To run on a certain device, all
others of its node are held (a seat each), and the one that is meant is given up just before: then there is no other to get.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stackmark.lab.sweeping_flights import Flights, Looker
from stackmark.lab.sweeping_holding import Flight
from stackmark.lab.sweeping_plan import Slot
from stackmark.lab.sweeping_rows import blocks_left, first_rows, missing_slots
from stackmark.ledger.rows import RunRow
from stackmark.places.place import PlaceFailure

__all__ = ["Looker", "Session"]


@dataclass
class _Lane:
    """One suspicion: the runs that are made again for it, one after another."""

    suspect: int
    machines: frozenset[str]
    todo: deque[tuple[int, int]] = field(default_factory=deque)  # (slot, block)


class Session(Flights):
    """One driver's stretch of a sweep."""

    # The first pass

    def first_pass(self) -> None:
        """Every slot once; on `resume` those without a number."""
        rows = self._ledger.runs_of(self._experiment_id)
        missing = missing_slots(self._plan, rows)
        self._looker.stage("devices", len(self._plan.slots), len(self._plan.slots) - len(missing))
        for slot in [slot for slot in missing if slot.trouble]:
            self.store_trouble(slot, PlaceFailure("node", slot.trouble, "see: stackmark cluster doctor"))
        waiting = deque(_in_turn([slot for slot in missing if not slot.trouble]))
        self._hold_measured(rows, waiting)
        left = Counter(slot.node for slot in waiting)
        while waiting or self._flights:
            self.launch(self._room_for(waiting), left)
            for flight, _ in self.land():
                left[flight.slot.node] -= 1
                if not left[flight.slot.node]:
                    self.release(flight.slot.node)

    def _room_for(self, waiting: deque[Slot]) -> list[Flight]:
        """Takes from the waiting as many as may run now."""
        plan, taken = self._plan, []
        on_machine = Counter(flight.slot.machine for flight in self._flights.values())
        total = len(self._flights)
        for _ in range(len(waiting)):
            if plan.at_once is not None and total >= plan.at_once:
                break
            slot = waiting.popleft()
            if plan.per_machine is not None and on_machine[slot.machine] >= plan.per_machine:
                waiting.append(slot)
                continue
            on_machine[slot.machine] += 1
            total += 1
            taken.append(self.flight(slot))
        return taken

    def _hold_measured(self, rows: Sequence[RunRow], waiting: Iterable[Slot]) -> None:
        """On a node of which some devices were measured before, those are held, so that the others are what is left."""
        measured: dict[str, set[str]] = {}
        for row in first_rows(rows).values():
            slot, device = self._slots.get(row.arm), row.handle.get("device")
            if slot and device and row.status == "done":
                measured.setdefault(slot.node, set()).add(str(device))
        nodes = {slot.node for slot in waiting if self.several(slot)} & measured.keys()
        self.seat(sorted(nodes))
        for node in nodes:
            free = [mark for device, mark in self._seats.get(node, {}).items() if device not in measured[node]]
            self._seats[node] = {d: m for d, m in self._seats.get(node, {}).items() if d in measured[node]}
            self.give_up([*free, *self._nameless.pop(node, [])])

    # Again

    def repeat(self) -> None:
        """Suspected devices beside good ones, in blocks AB BA; suspicions on different machines at the same time."""
        rows = self._ledger.runs_of(self._experiment_id)
        lanes = self._lanes(blocks_left(self._plan, rows))
        if not lanes:
            return
        runs = sum(len(lane.todo) for lane in lanes)
        self._looker.notice(f"{len(lanes)} flagged: each is run again beside a good one, {runs} runs")
        self._looker.stage("again", runs, 0)
        slots = [self._slots[number] for lane in lanes for number, _ in lane.todo]
        self.seat(sorted({slot.node for slot in slots if self.several(slot)}))
        flying: dict[str, _Lane] = {}
        while lanes or self._flights:
            self._start_lanes(lanes, flying)
            for flight, _ in self.land():
                lane = flying.pop(flight.mark)
                if not lane.todo:
                    lanes.remove(lane)
        for node in list(self._seats):
            self.release(node)

    def _lanes(self, left: Sequence[tuple[int, int, int]]) -> list[_Lane]:
        lanes: dict[int, _Lane] = {}
        for suspect, reference, block in left:
            machines = frozenset(self._slots[number].machine for number in (suspect, reference))
            lane = lanes.setdefault(suspect, _Lane(suspect, machines))
            pair = (suspect, reference) if block % 2 == 0 else (reference, suspect)
            lane.todo.extend((number, block) for number in pair)
        return list(lanes.values())

    def _start_lanes(self, lanes: Sequence[_Lane], flying: dict[str, _Lane]) -> None:
        """A machine belongs to one suspicion at a time, and each suspicion has one pod at a time."""
        busy = {machine for lane in flying.values() for machine in lane.machines}
        at_once = self._plan.at_once or len(lanes)
        for lane in lanes:
            if lane.machines & busy or len(flying) >= at_once or not lane.todo:
                continue
            busy |= lane.machines
            number, block = lane.todo.popleft()
            slot = self._slots[number]
            if self.several(slot):
                self._make_free(slot)
            flight = self.flight(slot, block=block, suspect=lane.suspect)
            flying[flight.mark] = lane
            self.launch([flight], Counter({slot.node: len(self._plan.slots)}))

    def _make_free(self, slot: Slot) -> None:
        """Gives up the seat of the device that the slot's first run was on."""
        row = first_rows(self._ledger.runs_of(self._experiment_id)).get(slot.number)
        device = str(row.handle.get("device")) if row else ""
        mark = self._seats.get(slot.node, {}).pop(device, None)
        self.give_up([mark] if mark else [])


def _in_turn(slots: Sequence[Slot]) -> list[Slot]:
    """The first device of each node, then the second …: what slows one node in one minute is not its neighbour's fault."""
    return sorted(slots, key=lambda slot: (slot.index, slot.number))
