"""A sweep's runs, each in a pod and a row of the ledger from its launch to its end."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from stackmark import __version__
from stackmark.errors import LedgerError, Terminated
from stackmark.events import gathered_facts
from stackmark.experiments import driver
from stackmark.experiments.judging import STDERR_PREFIX, judge
from stackmark.experiments.sweep.flight import Flight, Landed, handle_of, is_seat
from stackmark.experiments.sweep.plan import SweepPlan
from stackmark.experiments.sweep.pods import SweepPods
from stackmark.experiments.sweep.rows import about_device
from stackmark.experiments.sweep.seats import MOST_HOLDING_S, Seats
from stackmark.experiments.sweep.slots import Slot
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger.rescue import finish_or_rescue
from stackmark.ledger.rows import RunEnd, RunRow, RunStart
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
        self._experiment_id, self._ready, self._ledger, self._limit_s = experiment_id, ready, ledger, limit_s
        self._pods = SweepPods(ready, experiment_id, plan, limit_s, looker.notice)
        self.seats = Seats(plan, self._pods, looker.notice)
        # Jobs that the API server did not take: they have no pod to be looked at.
        self._refused: list[Landed] = []
        self._position = max((row.position for row in self.rows()), default=-1) + 1

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
        return self._ledger.runs_of(self._experiment_id)

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
            self._ledger.start(self._row(flight))
            self.flights[flight.mark] = flight
        self._tell_flights()
        # However long each of them may take.
        holding_s = min(MOST_HOLDING_S, (left + 1) * (self._limit_s + self._ready.options.wait_s))
        refused = self._pods.launch(flights, holding_s)
        self._refused += [Landed(flight, (), Outcome(None, failure)) for flight, failure in refused]

    def _row(self, flight: Flight) -> RunStart:
        self._position += 1
        return RunStart(
            id=flight.mark,
            experiment_id=self._experiment_id,
            position=self._position - 1,
            arm=flight.slot.number,
            block=flight.block,
            attempt=flight.number if flight.suspect is None else flight.suspect + 1,
            spec=self.plan.spec,
            place="pod",
            place_options={**self.plan.place_options, "node": flight.slot.node},
            started_unix_s=flight.launched_unix_s or time.time(),
            machine_id=driver.machine_name(),
            boot_id=driver.boot_name(),
            driver_pid=os.getpid(),
            handle={**handle_of(flight, self._ready), **driver.handle()},
            stackmark_version=__version__,
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
        stream, broken = landed.stream()
        facts = gathered_facts(stream.events)
        not_enforced = pod_not_enforced(self._ready.options, self.plan.gpus, facts)
        # The pod went on while the API server was away.
        observed_s = time.monotonic() - flight.launched
        end = judge(stream, landed.outcome, broken, not_enforced, spec=self.plan.spec, observed_s=observed_s)
        handle = {**handle_of(flight, self._ready), **about_device(facts, self.plan.gpus), **driver.handle()}
        with suppress(LedgerError):  # a ledger that fails is said by the next line, which saves what was measured
            self._ledger.set_handle(flight.mark, handle)
        lines = [*landed.lines, *(STDERR_PREFIX + line for line in landed.outcome.stderr)]
        finish_or_rescue(self._ledger, flight.mark, end, lines)
        return self._ledger.run(flight.mark)

    def store_trouble(self, slot: Slot, failure: PlaceFailure) -> None:
        """A slot that cannot be visited is a row with its reason."""
        flight = self.flight(slot)
        self._ledger.start(self._row(flight))
        self.looker.landed(self._name(flight), self._stored(Landed(flight, (), Outcome(None, failure))))

    def _end_flights(self, error: BaseException) -> None:
        kind, how = "driver", "ended by an error"
        if isinstance(error, KeyboardInterrupt | Terminated):
            kind = how = "terminated" if isinstance(error, Terminated) else "interrupted"
        for mark in self.flights:
            end = RunEnd(
                status="failed",
                ended_unix_s=time.time(),
                failure_kind=kind,
                failure_message=f"the sweep was {how}",
            )
            try:
                self._ledger.finish(mark, end, [])
            except LedgerError:
                return

    def _name(self, flight: Flight) -> str:
        slot = flight.slot
        return f"{slot.node} #{slot.index + 1}" if self.seats.needed(slot) else slot.node
