"""A sweep's runs, each in a pod and a row of the ledger from its launch to its end."""

import time
from collections.abc import Sequence
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from stackmark.errors import Terminated
from stackmark.events import gathered_facts
from stackmark.experiments.recorder import Output, Position, Recorder
from stackmark.experiments.sweep.flight import Flight, Landed, handle_of, is_seat
from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.experiments.sweep.pods import SweepPods
from stackmark.experiments.sweep.rows import about_device
from stackmark.experiments.sweep.seats import MOST_HOLDING_S, Seats
from stackmark.experiments.sweep.slots import Slot
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome
from stackmark.places.pod.place import not_enforced as pod_not_enforced
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Task
from stackmark.units import counted

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


class Runs:
    """One driver's stretch of a sweep. To be used in a `with`: at its end nothing is left in the cluster."""

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
            self.looker.notice(f"{counted(left, 'Job')} left from before: removed")
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
        """`left` is how many runs their nodes may still see: a seat is held until the last of its node was measured."""
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
        """Stores those that have ended since; those that hold a device go on as seats."""
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
        """A slot that cannot be visited is a row with its reason."""
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
