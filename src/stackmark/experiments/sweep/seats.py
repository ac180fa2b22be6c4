"""Which devices of a sweep's nodes are held, and by which pod.

A seat is a pod whose worker has ended, and whose second container has not (flight.py): it holds its device, whose name the
worker told. On a node with several devices every pod keeps its own until all of the node's were measured. To run on a certain
device, all others of its node are held, and the one that is meant is given up just before: then there is no other to get.
"""

from collections.abc import Callable, Collection, Sequence

from stackmark.events import gathered_facts
from stackmark.experiments.judging import read_lines
from stackmark.experiments.sweep.flight import Flight, Landed
from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.experiments.sweep.pods import SweepPods
from stackmark.experiments.sweep.rows import device_in
from stackmark.experiments.sweep.slots import Slot, devices_by_node
from stackmark.ids import new_id
from stackmark.spec import Task
from stackmark.units import counted

# A holder whose driver was killed gives its device up by itself after so long at the latest.
MOST_HOLDING_S = 4 * 3600.0


class Seats:
    def __init__(self, plan: SweepPlan, pods: SweepPods, say: Callable[[str], None]) -> None:
        self._plan, self._pods, self._say = plan, pods, say
        self._devices = devices_by_node(plan.slots)
        # By node: which device is held by whom.
        self._seats: dict[str, dict[str, str]] = {}
        # Pods that hold a device nobody could name.
        self._nameless: dict[str, list[str]] = {}

    def needed(self, slot: Slot) -> bool:
        """Whether a pod there must hold its device: another of its node would be given the same one."""
        return self._plan.gpus > 0 and self._devices[slot.node] > 1

    def take(self, nodes: Collection[str]) -> None:
        """Holds every device of these nodes that can be had, and learns which is which."""
        if not nodes:
            return
        count = sum(self._devices[node] for node in nodes)
        self._say(f"{count} devices of {counted(len(nodes), 'node')} are held for a moment, to learn which is which")
        slots = [slot for slot in self._plan.slots if slot.node in nodes and not slot.trouble]
        made = [Flight(new_id("r"), slot, Task(do="facts"), holds=True) for slot in slots]
        flights = {flight.mark: flight for flight in made}
        for flight, failure in self._pods.launch(made, MOST_HOLDING_S):
            self._say(f"{flight.slot.node}: {failure.message}")
            del flights[flight.mark]
        while flights:
            for landed in self._pods.landed(flights):
                del flights[landed.flight.mark]
                self._taken(landed)

    def _taken(self, landed: Landed) -> None:
        flight, failure = landed.flight, landed.outcome.failure
        if failure is not None:
            self._say(f"a device of {flight.slot.node} cannot be held: {failure.message}")
            self._pods.remove([flight.mark])
        else:
            facts = gathered_facts(read_lines(landed.lines)[0].events)
            self.keep(flight, device_in(facts, self._plan.gpus))

    def keep(self, flight: Flight, device: str | None) -> None:
        if device:
            self._seats.setdefault(flight.slot.node, {})[device] = flight.mark
        else:
            self._nameless.setdefault(flight.slot.node, []).append(flight.mark)

    def give_up(self, node: str, device: str) -> None:
        """Until it is free."""
        mark = self._seats.get(node, {}).pop(device, None)
        self._wait_gone([mark] if mark else [])

    def give_up_others(self, node: str, devices: Collection[str]) -> None:
        """All of the node but these, until they are free."""
        seats = self._seats.get(node, {})
        others = [mark for device, mark in seats.items() if device not in devices]
        self._seats[node] = {device: mark for device, mark in seats.items() if device in devices}
        self._wait_gone([*others, *self._nameless.pop(node, [])])

    def release(self, node: str) -> None:
        """The whole node; nobody waits for it."""
        self._pods.remove([*self._seats.pop(node, {}).values(), *self._nameless.pop(node, [])])

    def release_all(self) -> None:
        for node in list(self._seats):
            self.release(node)

    def _wait_gone(self, marks: Sequence[str]) -> None:
        self._pods.remove(marks)
        self._pods.wait_gone(marks)
