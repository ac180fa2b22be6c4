"""A sweep's pods and the ledger: each is a row from its launch to its end; some of them go on as seats.

A seat holds a device: a pod whose worker has ended, and whose second container has not (sweeping_holding.py). It is known by
the device's name, which the worker told.
"""

import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from stackmark import __version__
from stackmark.errors import LedgerError, StreamError, Terminated
from stackmark.events import Stream, gathered_facts
from stackmark.lab import driver
from stackmark.lab.judging import STDERR_PREFIX, judge
from stackmark.lab.sweeping_holding import Flight, Landed, is_seat
from stackmark.lab.sweeping_plan import Slot, SweepPlan
from stackmark.lab.sweeping_pods import Pods
from stackmark.lab.sweeping_rows import about_device, device_in
from stackmark.ledger.ids import new_id
from stackmark.ledger.rows import RunEnd, RunRow, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.kubernetes import checks
from stackmark.places.kubernetes.ready import Ready
from stackmark.places.place import Outcome, PlaceFailure
from stackmark.spec import Task
from stackmark.units import counted

# A holder whose driver was killed gives its device up by itself after so long at the latest.
MOST_HOLDING_S = 4 * 3600.0
# Of the pods that run, so many are named to whoever looks on.
NAMED = 3


class Looker(Protocol):
    """Who looks on while a sweep works."""

    def notice(self, sentence: str) -> None: ...
    def stage(self, what: str, total: int, done: int) -> None:
        """A stage begins: so many runs, of which so many are there already."""

    def in_flight(self, names: Sequence[str], count: int) -> None:
        """How many pods there are now, and the names of some."""

    def landed(self, name: str, row: RunRow) -> None: ...


class Flights:
    """The pods of one driver's stretch of a sweep. To be used in a `with`: at its end nothing is left in the cluster."""

    def __init__(
        self, experiment_id: str, plan: SweepPlan, ready: Ready, ledger: Ledger, looker: Looker, limit_s: float
    ) -> None:
        self._experiment_id, self._plan, self._ready = experiment_id, plan, ready
        self._ledger, self._looker, self._limit_s = ledger, looker, limit_s
        self._pods = Pods(ready, experiment_id, plan, limit_s, looker.notice)
        self._slots = {slot.number: slot for slot in plan.slots}
        self._per_node = Counter(slot.node for slot in plan.slots if not slot.trouble)
        self._flights: dict[str, Flight] = {}
        # Jobs that the API server did not take: they have no pod to be looked at.
        self._refused: dict[str, PlaceFailure] = {}
        # By node: which device is held by whom.
        self._seats: dict[str, dict[str, str]] = {}
        # Pods that hold a device nobody could name.
        self._nameless: dict[str, list[str]] = {}
        self._position = max((row.position for row in ledger.runs_of(experiment_id)), default=-1) + 1

    def __enter__(self) -> Self:
        # What a killed driver left still holds devices.
        if left := self._pods.remove_all():
            self._looker.notice(f"{counted(left, 'Job')} left from before: removed")
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

    # Seats

    def several(self, slot: Slot) -> bool:
        return self._plan.gpus > 0 and self._per_node[slot.node] > 1

    def seat(self, nodes: Sequence[str]) -> None:
        """Holds every device of these nodes that can be had, and learns which is which."""
        if not nodes:
            return
        count = sum(self._per_node[node] for node in nodes)
        self._looker.notice(
            f"{count} devices of {counted(len(nodes), 'node')} are held for a moment, to learn which is which"
        )
        slots = [slot for slot in self._plan.slots if slot.node in nodes and not slot.trouble]
        flights = [
            Flight(new_id("r"), slot, Task(do="facts"), holds=True, measured=False, launched_unix_s=time.time())
            for slot in slots
        ]
        self._flights = {flight.mark: flight for flight in flights}
        for flight, failure in self._pods.launch(flights, MOST_HOLDING_S):
            self._looker.notice(f"{flight.slot.node}: {failure.message}")
            del self._flights[flight.mark]
        while self._flights:
            for landed in self._looked():
                self._seated(landed.flight, landed)

    def _seated(self, flight: Flight, landed: Landed) -> None:
        del self._flights[flight.mark]
        facts = gathered_facts(_read(landed)[0].events)
        device = device_in(facts, self._plan.gpus)
        if landed.outcome.failure is not None:
            self._looker.notice(f"a device of {flight.slot.node} cannot be held: {landed.outcome.failure.message}")
            self._pods.remove([flight.mark])
        elif device is None:
            self._nameless.setdefault(flight.slot.node, []).append(flight.mark)
        else:
            self._seats.setdefault(flight.slot.node, {})[device] = flight.mark

    def release(self, node: str) -> None:
        marks = [*self._seats.pop(node, {}).values(), *self._nameless.pop(node, [])]
        self._pods.remove(marks)

    def give_up(self, marks: Sequence[str]) -> None:
        self._pods.remove(marks)
        self._pods.wait_gone(marks)

    # One pod

    def flight(self, slot: Slot, block: int | None = None, suspect: int | None = None) -> Flight:
        task = Task(do="run", spec=self._plan.spec)
        return Flight(new_id("r"), slot, task, self.several(slot), block=block, suspect=suspect)

    def launch(self, flights: Sequence[Flight], left: Counter[str]) -> None:
        if not flights:
            return
        for flight in flights:
            flight.launched_unix_s, flight.began = time.time(), time.monotonic()
            self._ledger.start(self._row(flight))
            self._flights[flight.mark] = flight
        self._tell_flights()
        # A seat is held until the last of its node was measured, however long each of them may take.
        most = max(left[flight.slot.node] for flight in flights)
        holding_s = min(MOST_HOLDING_S, (most + 1) * (self._limit_s + self._ready.options.wait_s))
        for flight, failure in self._pods.launch(flights, holding_s):
            self._refused[flight.mark] = failure

    def _row(self, flight: Flight) -> RunStart:
        self._position += 1
        return RunStart(
            id=flight.mark,
            experiment_id=self._experiment_id,
            position=self._position - 1,
            arm=flight.slot.number,
            block=flight.block,
            attempt=0 if flight.suspect is None else flight.suspect + 1,
            spec=self._plan.spec,
            place="pod",
            place_options={**self._plan.place_options, "node": flight.slot.node},
            started_unix_s=flight.launched_unix_s or time.time(),
            machine_id=driver.machine_name(),
            boot_id=driver.boot_name(),
            driver_pid=os.getpid(),
            handle={**self._pods.handle(flight), **driver.handle()},
            stackmark_version=__version__,
        )

    def _looked(self) -> list[Landed]:
        """Those that have ended since, after a pause where there is none."""
        ended = self._pods.look(self._flights)
        if not ended:
            time.sleep(self._pods.pause_s())
            return []
        return self._pods.read(ended)

    def land(self) -> list[tuple[Flight, RunRow]]:
        found = []
        for mark, failure in list(self._refused.items()):
            found.append((self._flights[mark], self._stored(Landed(self._flights[mark], (), Outcome(None, failure)))))
            del self._refused[mark]
        if not found:
            found = [(landed.flight, self._stored(landed)) for landed in self._looked()]
        gone = []
        for flight, row in found:
            del self._flights[flight.mark]
            device = row.handle.get("device")
            if not is_seat(flight):
                gone.append(flight.mark)
            elif device:
                # Also where its run failed: given up, a broken device would be given to the next pod again.
                self._seats.setdefault(flight.slot.node, {})[str(device)] = flight.mark
            else:
                self._nameless.setdefault(flight.slot.node, []).append(flight.mark)
            self._looker.landed(self._name(flight), row)
        self._pods.remove(gone)
        if found:
            self._tell_flights()
        return found

    def _tell_flights(self) -> None:
        some = [self._name(flight) for flight in islice(self._flights.values(), NAMED)]
        self._looker.in_flight(some, len(self._flights))

    def _stored(self, landed: Landed) -> RunRow:
        flight = landed.flight
        stream, broken = _read(landed)
        facts = gathered_facts(stream.events)
        not_enforced = checks.not_enforced(self._ready.options, self._plan.gpus, facts)
        end = judge(stream, landed.outcome, broken, not_enforced)
        handle = {**self._pods.handle(flight), **about_device(facts, self._plan.gpus), **driver.handle()}
        self._ledger.set_handle(flight.mark, handle)
        lines = [*landed.lines, *(STDERR_PREFIX + line for line in landed.outcome.stderr)]
        self._ledger.finish(flight.mark, end, lines)
        return self._ledger.run(flight.mark)

    def store_trouble(self, slot: Slot, failure: PlaceFailure) -> None:
        """A slot that cannot be visited is a row with its reason."""
        flight = self.flight(slot)
        self._ledger.start(self._row(flight))
        self._looker.landed(self._name(flight), self._stored(Landed(flight, (), Outcome(None, failure))))

    def _end_flights(self, error: BaseException) -> None:
        kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "driver"
        kind = "terminated" if isinstance(error, Terminated) else kind
        for flight in self._flights.values():
            if flight.measured:
                end = RunEnd(
                    status="failed",
                    ended_unix_s=time.time(),
                    failure_kind=kind,
                    failure_message=f"the sweep was {_how(kind)}",
                )
                try:
                    self._ledger.finish(flight.mark, end, [])
                except LedgerError:
                    return

    def _name(self, flight: Flight) -> str:
        slot = flight.slot
        return f"{slot.node} #{slot.index + 1}" if self.several(slot) else slot.node


def _how(kind: str) -> str:
    return "ended by an error" if kind == "driver" else kind


def _read(landed: Landed) -> tuple[Stream, StreamError | None]:
    stream = Stream()
    for line in landed.lines:
        try:
            stream.feed(line)
        except StreamError as error:
            return stream, error
    return stream, None
