"""Measuring one spec: a probe freezes it, then so many fresh processes run it, each stored as it ends.

`stackmark run` is an experiment of one arm, so this is also the piece that comparisons are made of.
"""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field

from stackmark import __version__
from stackmark.errors import (
    LedgerError,
    PlaceError,
    SpecError,
    StackmarkError,
    StreamError,
    Terminated,
    WorkerError,
    how_ended,
)
from stackmark.events import EVENT_LIMIT_BYTES, FOREIGN_LINES_KEPT, Event, Failed, Probe, Row, Stream, gathered_facts
from stackmark.experiments import driver, trust
from stackmark.experiments.judging import STDERR_PREFIX, Facts, judge
from stackmark.experiments.list_specs import check_list
from stackmark.experiments.spool import MOST_HEARD_BYTES, Spool, too_much
from stackmark.experiments.verify import completed, folder_in, verified_spec
from stackmark.experiments.watching import Silent, Watcher
from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger.rescue import finish_or_rescue
from stackmark.ledger.rows import Experiment, Role, RunEnd, RunRow, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.place import Handle, Keeps, Outcome
from stackmark.places.place import Place as Place
from stackmark.spec import Request, Spec, Task
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.catalog import check_request
from stackmark.workloads.op.problem import COLLECTIVES

# A probe builds a model and tries a step or two; a minute is usual on a slow machine, this is where it is stuck.
PROBE_LIMIT_S = 900.0
GPU_RUNS, CPU_RUNS = 5, 3
# Rows of a list are stored as they come, this often at the most: a driver that is killed loses a few of the last.
KEEP_EVERY_S = 5.0


@dataclass
class Listener:
    """Takes in a worker's lines, hands its events on, and remembers everything for the ledger."""

    watcher: Watcher
    ledger: Ledger | None = None
    run_id: str = ""
    stream: Stream = field(default_factory=Stream)
    lines: Spool = field(default_factory=Spool)
    foreign_kept: int = 0
    # The worker's output went past a bound: what is still read of it is dropped.
    full: bool = False
    heard_bytes: int = 0
    broken: StreamError | None = None
    # When rows were last stored; the first one is at once.
    kept_s: float = -math.inf
    # What the place itself knows of the run.
    handle: Handle = field(default_factory=dict)

    def started(self, handle: Handle) -> None:
        self.handle = handle
        if self.ledger:
            self.ledger.set_handle(self.run_id, {**handle, **driver.handle()})

    def waiting(self, sentence: str) -> None:
        self.watcher.notice(sentence)

    def line(self, text: str) -> None:
        """Take in a line; raise a StreamError, once, where the output is past all bounds and the worker is to be ended."""
        if self.full:
            return
        self.heard_bytes += len(text)
        try:
            if self.heard_bytes > MOST_HEARD_BYTES:  # what is not kept: prints, and whatever follows a broken line
                raise too_much(len(self.lines))
            self._line(text)
        except StreamError:
            self.full = True
            raise

    def _line(self, text: str) -> None:
        event = None
        if self.broken is None:
            try:
                event = self.stream.feed(text)
            except StreamError as error:
                self.broken = error
        if event is not None:
            self.lines.append(text)
            if event.rank == 0:  # who speaks for its group
                self.watcher.event(event)
                self._keep(event)
        elif self.foreign_kept < FOREIGN_LINES_KEPT:
            # Somebody's print, or the broken line and what followed: as much of it as a person reads.
            self.foreign_kept += 1
            self.lines.append(text[:EVENT_LIMIT_BYTES])

    def _keep(self, event: Event) -> None:
        """A row is done, and the worker prepares the next: nothing is timed now that writing could disturb."""
        if not isinstance(event, Row) or not self.ledger or time.monotonic() - self.kept_s < KEEP_EVERY_S:
            return
        with suppress(LedgerError):  # at the end it is written whole, and then it counts
            self.ledger.keep(self.run_id, self.lines)
        self.kept_s = time.monotonic()

    def stderr(self, text: str) -> None:
        self.watcher.stderr(text)


@dataclass(frozen=True)
class Slot:
    """Where a run stands in its experiment: its number, of how many, and in a comparison its arm and block."""

    position: int = 0
    of: int = 1
    arm: int = 0
    block: int | None = None
    attempt: int = 0
    role: Role = "measured"
    label: str = ""


@dataclass(frozen=True)
class Resolved:
    """A spec that was verified against its request, with the worker's reasons and facts, and what the place knows of it."""

    spec: Spec
    choices: dict[str, str]
    facts: Facts
    handle: Handle


@dataclass(frozen=True)
class Measured:
    """An experiment of one arm. `throughput` is None where no run gave a number."""

    experiment: Experiment
    spec: Spec
    choices: dict[str, str]
    facts: Facts
    runs: tuple[RunRow, ...]
    throughput: Throughput | None
    # The events of the last run that gave a number: for set-up by part, losses and facts.
    events: tuple[Event, ...]

    @property
    def failed(self) -> tuple[RunRow, ...]:
        return tuple(run for run in self.runs if run.status != "done")


def resolve(request: Request, place: Place, watcher: Watcher) -> Resolved:
    """Ask a worker in that place what the request means there, and verify its answer."""
    check_request(request)
    check_ranks(request)
    check_list(request)
    request = completed(request, folder_in(place))
    watcher.probing(request)
    listener, outcome = _probe(request, place, watcher)
    if lost := _lost_end(outcome):
        watcher.notice(f"the probe is repeated: {lost.message}")
        listener, outcome = _probe(request, place, watcher)
    if _lost_end(outcome):
        raise _probe_failed(listener.stream, outcome)
    if listener.broken:
        raise listener.broken
    probe = next((event for event in listener.stream.events if isinstance(event, Probe)), None)
    if probe is None:
        raise _probe_failed(listener.stream, outcome)
    probe = probe.model_copy(update={"spec": verified_spec(request, probe.spec)})
    watcher.probed(probe)
    return Resolved(probe.spec, probe.choices, gathered_facts(listener.stream.events), listener.handle)


def _probe(request: Request, place: Place, watcher: Watcher) -> tuple[Listener, Outcome]:
    listener, mark = Listener(watcher), new_id("r")
    outcome = place.run(Task(do="probe", request=request), listener, mark=mark, time_limit_s=PROBE_LIMIT_S)
    _all_stored(place, mark, watcher)
    if outcome.interruption:
        raise outcome.interruption
    return listener, outcome


def _lost_end(outcome: Outcome) -> PlaceFailure | None:
    """The failure of a worker that ended well and whose last lines are lost: another try may keep them."""
    return outcome.failure if outcome.failure and outcome.failure.kind == LOG_INCOMPLETE else None


def check_ranks(request: Request) -> None:
    """Refuses ranks for what is done by one process, and one rank for what is an exchange of several."""
    family, _, name = request.workload.partition("/")
    collective = family == "op" and name in COLLECTIVES
    if request.ranks > 1 and not collective:
        known = ", ".join(f"op/{op}" for op in COLLECTIVES)
        raise SpecError(f"{request.workload} runs as one rank", hint=f"only {known} take --ranks today")
    if request.ranks == 1 and collective:
        raise SpecError(f"{request.workload} is an exchange of several ranks", hint="say how many: --ranks 2")
    device = request.typed().get("device", "cpu")
    if request.ranks > 1 and device not in ("cpu", "cuda", "cuda:0"):
        raise SpecError(
            f"--device {device}: the ranks of a group take the GPUs from cuda:0 on, one each",
            hint="choose among them with --gpus, or with CUDA_VISIBLE_DEVICES",
        )


def _probe_failed(stream: Stream, outcome: Outcome) -> Exception:
    if outcome.failure:
        return PlaceError(f"the probe failed: {outcome.failure.message}", hint=outcome.failure.hint or None)
    closed = stream.ended()
    if isinstance(closed, Failed):
        kind = SpecError if closed.kind in ("bad_parameter", "bad_task") else WorkerError
        return kind(closed.message, hint=closed.hint or None)
    last = " ".join(outcome.stderr[-3:])
    return PlaceError(f"the probe ended with code {outcome.exit_code} and said nothing: {last}")


def measure(
    request: Request,
    *,
    place: Place,
    ledger: Ledger,
    runs: int | None = None,
    watcher: Watcher | None = None,
    time_limit_s: float | None = None,
    command: str = "",
) -> Measured:
    """Probes, then runs. A run that fails is stored and does not stop the others, unless it failed before it measured."""
    watcher = watcher or Silent()
    resolved = resolve(request, place, watcher)
    spec = resolved.spec
    gpu = str(spec.params.get("device", "cpu")) != "cpu"
    count = runs if runs is not None else GPU_RUNS if gpu else CPU_RUNS
    experiment = Experiment(
        id=new_id("x"), created_unix_s=time.time(), command=command, request=request.model_dump(mode="json")
    )
    ledger.start_experiment(experiment)
    trust.remember(trust.parts_of([(spec, place.name, place.options())]))
    rows: list[RunRow] = []
    events: tuple[Event, ...] = ()
    for number in range(count):
        slot = Slot(position=number, of=count)
        row, seen = run_once(spec, experiment.id, slot, place, ledger, watcher, time_limit_s)
        rows.append(row)
        if row.status == "done":
            events = tuple(seen)
        if row.status == "failed" and number == 0:
            # What failed in the first run will fail in all of them; the reason is stored.
            if count > 1:
                watcher.notice(f"the first run failed: the other {count - 1} were not started")
            break
    rates = [row.rate_per_s for row in rows if row.status == "done" and row.rate_per_s]
    throughput = throughput_over_runs(rates) if rates else None
    return Measured(experiment, spec, resolved.choices, resolved.facts, tuple(rows), throughput, events)


def run_once(
    spec: Spec,
    experiment_id: str,
    slot: Slot,
    place: Place,
    ledger: Ledger,
    watcher: Watcher,
    time_limit_s: float | None,
) -> tuple[RunRow, list[Event]]:
    """One fresh process, from the row `running` to the row that says how it ended."""
    trust.require(spec, place.name, place.options())
    ledger.notice = watcher.notice
    run_id = new_id("r")
    ledger.start(
        RunStart(
            id=run_id,
            experiment_id=experiment_id,
            position=slot.position,
            arm=slot.arm,
            block=slot.block,
            attempt=slot.attempt,
            role=slot.role,
            spec=spec,
            place=place.name,
            place_options=place.options(),
            started_unix_s=time.time(),
            machine_id=driver.machine_name(),
            boot_id=driver.boot_name(),
            driver_pid=os.getpid(),
            handle=driver.handle(),
            stackmark_version=__version__,
        )
    )
    watcher.run_begins(run_id, slot.position + 1, slot.of, spec, label=slot.label, block=slot.block)
    listener = Listener(watcher, ledger, run_id)
    began_s = _clock_s()
    try:
        outcome = place.run(Task(do="run", spec=spec), listener, mark=run_id, time_limit_s=time_limit_s)
    except StreamError as error:
        # Past all bounds: the place has ended the worker on the way here.
        outcome = Outcome(None, PlaceFailure("broken_stream", error.message, error.hint or ""))
    except BaseException as error:
        # A row that says `running` while nothing runs would be called lost by the next command.
        with suppress(LedgerError):
            finish_or_rescue(ledger, run_id, _end_of_driver(error), listener.lines)
        raise
    end = judge(
        listener.stream,
        outcome,
        listener.broken,
        place.not_enforced(spec, gathered_facts(listener.stream.events)),
        spec=spec,
        observed_s=_clock_s() - began_s if outcome.live else None,
    )
    if end.failure_hint:
        # A worker knows no ids.
        end = end.model_copy(update={"failure_hint": end.failure_hint.replace("show RUN", f"show {run_id}")})
    for line in outcome.stderr:
        listener.lines.append_anyway(STDERR_PREFIX + line)
    finish_or_rescue(ledger, run_id, end, listener.lines)
    _all_stored(place, run_id, watcher)
    row = ledger.run(run_id)
    watcher.run_ended(row, slot.position + 1, slot.of)
    if outcome.interruption:
        raise outcome.interruption
    return row, listener.stream.events


def _clock_s() -> float:
    """Return seconds on a clock that also counts the time in which this machine was suspended: a pod's node was not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _all_stored(place: Place, mark: str, watcher: Watcher) -> None:
    if isinstance(place, Keeps) and (left := place.stored(mark)):
        watcher.notice(left)


def _end_of_driver(error: BaseException) -> RunEnd:
    """The run was ended from our side: its place failed, somebody pressed Ctrl-C once more, or we ourselves broke."""
    kind, message, hint = "driver", f"the driver failed: {type(error).__name__}: {error}", None
    if isinstance(error, KeyboardInterrupt | Terminated):
        kind, message = how_ended(error)
    elif isinstance(error, StackmarkError):
        kind = "place" if isinstance(error, PlaceError) else "driver"
        message, hint = error.message, error.hint
    return RunEnd(
        status="failed", ended_unix_s=time.time(), failure_kind=kind, failure_message=message, failure_hint=hint
    )
