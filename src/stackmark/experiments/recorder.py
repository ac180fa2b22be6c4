"""Record runs: the only code that creates, feeds and finishes the ledger's rows of runs.

A run is recorded in one of three ways, and judged by the same rules in each:

- `Recorder.run`: one worker in a place, from the row `running` through every line to the row that says how it ended;
- `Recorder.start` and `Recorder.finish`: a worker that other code follows; a sweep has hundreds at once;
- `finished_run` and `store_finished`: a run that ended before the ledger knew it: a log, or a pod without a waiting driver.

What was received goes to the ledger in one transaction. Where the ledger fails then, it is saved in a file (ledger/rescue.py).
"""

import io
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Protocol

from pydantic import JsonValue

from stackmark.errors import LedgerError, PlaceError, StackmarkError, StreamError, Terminated, how_ended
from stackmark.events import EVENT_LIMIT_BYTES, FOREIGN_LINES_KEPT, Event, Probe, Row, Stream, gathered_facts
from stackmark.experiments import driver, trust
from stackmark.experiments.estimate import Estimate
from stackmark.experiments.judging import STDERR_PREFIX, judge, read_lines
from stackmark.experiments.publishing import Publisher
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger.rescue import WholeRun, add_new, add_whole, finish_or_rescue
from stackmark.ledger.rows import Experiment, Json, Kind, Role, RunEnd, RunRow, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.place import Handle, Keeps, Outcome, Place
from stackmark.spec import MOST_SAMPLE_HZ, Request, Spec, Task
from stackmark.units import say_size
from stackmark.version import version

# Rows of a list are stored as they come, this often at the most: a driver that is killed loses a few of the last.
KEEP_EVERY_S = 5.0
IN_MEMORY_BYTES = 16 * 2**20
# A day of telemetry, one line a second, is 20 MiB; a run of a million steps, 12 MiB. What is kept must fit into what a ledger
# reads again (ledger/streams.py), with what Python takes for each line.
MOST_BYTES = 160 * 2**20
MOST_LINES = 1_500_000
# Of all that a worker prints, what is not kept too.
MOST_HEARD_BYTES = 4 * MOST_BYTES


class Watcher(Protocol):
    """Follows an experiment while it is carried out: a terminal, a log file, a test. The engine itself never prints."""

    def notice(self, sentence: str) -> None:
        """Show a notice that is not part of a run."""

    def probing(self, request: Request) -> None: ...
    def probed(self, probe: Probe) -> None: ...
    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None:
        """Start an experiment, also after a pause: `blocks` are those of the whole design."""

    def expects(self, estimate: Estimate) -> None:
        """Before the first run: how long all of them will take. Not called where nothing tells."""

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        """Start a run. `label` is the arm's; `block` counts from 0 and is None for a run that only fills the caches."""

    def event(self, event: Event) -> None: ...
    def stderr(self, line: str) -> None: ...
    def run_ended(self, row: RunRow, number: int, of: int) -> None: ...


class Silent:
    """A watcher that shows nothing."""

    def notice(self, sentence: str) -> None: ...
    def probing(self, request: Request) -> None: ...
    def probed(self, probe: Probe) -> None: ...
    def experiment_begins(self, labels: Sequence[str], blocks: int) -> None: ...
    def expects(self, estimate: Estimate) -> None: ...
    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None: ...
    def event(self, event: Event) -> None: ...
    def stderr(self, line: str) -> None: ...
    def run_ended(self, row: RunRow, number: int, of: int) -> None: ...


@dataclass(frozen=True)
class Position:
    """A run's position in its experiment: its number from 0, of how many, and in a comparison its arm and block."""

    number: int = 0
    of: int = 1
    arm: int = 0
    block: int | None = None
    attempt: int = 0
    role: Role = "measured"
    label: str = ""
    # Of a sweep: its device, the one that is suspected in a repetition, and its pass; of an operator list: its pass and piece.
    slot: int | None = None
    suspect: int | None = None
    pass_number: int | None = None
    piece: int | None = None
    # What a training to a target adds to its seed; None: the block, or the number.
    repetition: int | None = None


class Spool:
    """Lines in the order in which they came, on their way to the ledger; sized, and readable as often as needed.

    A driver may listen to a worker for days, and to one that floods its output. The lines are kept as bytes, so that a million
    of them are not a million objects; past 16 MiB they go to a temporary file without a name, which only this user can read and
    which ends with the process. Past an absolute bound the run has failed: a worker's output does not fill the disk.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._on_disk = False
        self._lines = self._bytes = 0

    def append(self, line: str) -> None:
        """Add a line; raise a StreamError where it is one too many."""
        # surrogatepass: bytes that were no UTF-8 may have been decoded to lone surrogates, and are to come back so.
        data = line.encode("utf-8", "surrogatepass") + b"\n"
        if self._lines >= MOST_LINES or self._bytes + len(data) > MOST_BYTES:
            raise _too_much(self._lines)
        self._add(data)

    def _add(self, data: bytes) -> None:
        if not self._on_disk and self._bytes + len(data) > IN_MEMORY_BYTES:
            self._go_to_disk()
        self._file.write(data)
        self._lines += 1
        self._bytes += len(data)

    def append_anyway(self, line: str) -> None:
        """Add a line past any bound: one that was bounded before, or one of our own at the end."""
        self._add(line.encode("utf-8", "surrogatepass") + b"\n")

    def _go_to_disk(self) -> None:
        memory, self._file = self._file, tempfile.TemporaryFile(prefix="stackmark-")  # noqa: SIM115 - `__del__` closes it
        self._on_disk = True
        memory.seek(0)
        shutil.copyfileobj(memory, self._file)

    def __del__(self) -> None:
        # With its last user: where a run ends in an exception there are several, and none of them has to think of it.
        self._file.close()

    def __len__(self) -> int:
        return self._lines

    def __iter__(self) -> Iterator[str]:
        self._file.seek(0)
        try:
            for data in self._file:
                yield data[:-1].decode("utf-8", "surrogatepass")
        finally:
            self._file.seek(0, os.SEEK_END)


def _too_much(lines: int) -> StreamError:
    """Return the error that ends a run whose worker floods its output."""
    return StreamError(
        f"the worker's output was cut off after {lines:,} lines; the limit is {MOST_LINES:,} lines or {say_size(MOST_BYTES)}",
        line=lines + 1,
        hint="make the run shorter (--seconds, --steps), or let the program print less",
    )


@dataclass
class Output:
    """The output received from a worker: its events, the lines to store, and the error at the line where the stream breaks."""

    stream: Stream = field(default_factory=Stream)
    lines: Spool = field(default_factory=Spool)
    broken: StreamError | None = None

    @classmethod
    def read(cls, lines: Sequence[str]) -> "Output":
        """Read the lines of a worker that has ended."""
        stream, broken = read_lines(lines)
        output = cls(stream, Spool(), broken)
        for line in lines:
            output.lines.append_anyway(line)
        return output

    def judge(
        self,
        outcome: Outcome,
        not_enforced: Sequence[str] = (),
        *,
        spec: Spec | None = None,
        observed_s: float | None = None,
    ) -> RunEnd:
        """Return how the run ended (judging.py), with its standard error added to the lines to store."""
        end = judge(self.stream, outcome, self.broken, not_enforced, spec=spec, observed_s=observed_s)
        for line in outcome.stderr:
            self.lines.append_anyway(STDERR_PREFIX + line)
        return end


class Listener(Output):
    """Reads the lines of a live worker, passes its events on, and stores everything for the ledger."""

    def __init__(
        self, watcher: Watcher, ledger: Ledger | None = None, run_id: str = "", publisher: Publisher | None = None
    ) -> None:
        super().__init__()
        self._watcher, self._ledger, self._run_id, self._publisher = watcher, ledger, run_id, publisher
        # What the place itself knows of the run.
        self.handle: Handle = {}
        self._foreign_kept = 0
        # The worker's output went past a bound: what is still read of it is dropped.
        self._full = False
        self._heard_bytes = 0
        # When rows were last stored; the first one is at once.
        self.kept_s = -math.inf

    def started(self, handle: Handle) -> None:
        self.handle = handle
        if self._ledger:
            self._ledger.set_handle(self._run_id, {**handle, **driver.handle()})

    def waiting(self, sentence: str) -> None:
        self._watcher.notice(sentence)

    def stderr(self, text: str) -> None:
        self._watcher.stderr(text)

    def line(self, text: str) -> None:
        """Take in a line; raise a StreamError, once, where the output is past all bounds and the worker is to be ended."""
        if self._full:
            return
        self._heard_bytes += len(text)
        try:
            if self._heard_bytes > MOST_HEARD_BYTES:  # what is not kept: prints, and whatever follows a broken line
                raise _too_much(len(self.lines))
            self._line(text)
        except StreamError:
            self._full = True
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
                self._watcher.event(event)
                if self._publisher:
                    self._publisher.event(event)
                self._keep(event)
        elif self._foreign_kept < FOREIGN_LINES_KEPT:
            # A program's print, or the broken line and what followed: as much of it as a person reads.
            self._foreign_kept += 1
            self.lines.append(text[:EVENT_LIMIT_BYTES])

    def _keep(self, event: Event) -> None:
        """Store what there is after a row: the worker prepares the next, so nothing is timed that writing could disturb."""
        if not isinstance(event, Row) or not self._ledger or time.monotonic() - self.kept_s < KEEP_EVERY_S:
            return
        with suppress(LedgerError):  # at the end it is written whole, and then it counts
            self._ledger.keep(self._run_id, self.lines)
        self.kept_s = time.monotonic()


@dataclass(frozen=True)
class SuiteMember:
    """The place of an experiment in a suite: the suite's id, and what is stored of it with the request."""

    suite_id: str
    stored: Json


# Where an experiment keeps its place in a suite, and how often its runs are sampled: next to what was asked.
SUITE_KEY = "suite"
SAMPLE_HZ_KEY = "sample_hz"


def new_experiment(
    *,
    kind: Kind = "run",
    command: str = "",
    request: Json | None = None,
    note: str = "",
    design: Json | None = None,
    experiment_id: str | None = None,
    member: SuiteMember | None = None,
) -> Experiment:
    """Make an experiment that begins now; it is not stored yet."""
    if member:
        request = {**(request or {}), SUITE_KEY: member.stored}
    return Experiment(
        id=experiment_id or new_id("x"),
        created_unix_s=time.time(),
        command=command,
        request=request or {},
        note=note,
        kind=kind,
        design=design,
        suite_id=member.suite_id if member else None,
    )


def begin(
    ledger: Ledger, experiment: Experiment, runs: Iterable[tuple[Spec, str, Mapping[str, JsonValue]]]
) -> Experiment:
    """Store an experiment before its first run. `runs` were typed here, and may be run again without a question (trust.py)."""
    ledger.start_experiment(experiment)
    trust.remember(trust.parts_of(runs))
    return experiment


class Recorder:
    """Records the runs of one experiment."""

    def __init__(self, ledger: Ledger, experiment_id: str) -> None:
        self._ledger, self._experiment_id = ledger, experiment_id
        # One value for all arms and for `resume`: a sampler on one side only would be unfair.
        self._sample_hz = _sample_hz(ledger.experiment(experiment_id))
        # While the experiment is claimed: who tells other processes how far it is.
        self._publisher: Publisher | None = None

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Claim the experiment for this process: two drivers would each make the runs that are missing."""
        with driver.claim(self._ledger, self._experiment_id), Publisher(self._ledger, self._experiment_id) as publisher:
            self._publisher = publisher
            try:
                yield
            finally:
                self._publisher = None

    def rows(self) -> Sequence[RunRow]:
        return self._ledger.runs_of(self._experiment_id)

    def next_number(self) -> int:
        """Return the number of the next run. It is not how many there are: a run that was deleted leaves a gap, which is seen."""
        return max((row.position for row in self.rows()), default=-1) + 1

    def run(
        self, spec: Spec, position: Position, place: Place, watcher: Watcher, time_limit_s: float | None = None
    ) -> tuple[RunRow, list[Event]]:
        """Run one fresh process, from the row `running` to the row that says how it ended."""
        trust.require(spec, place.name, place.options())
        self._ledger.notice = watcher.notice
        run_id = self.start(spec, position, place.name, place.options())
        block = position.block if position.pass_number is None else position.pass_number
        watcher.run_begins(run_id, position.number + 1, position.of, spec, label=position.label, block=block)
        publisher = self._publisher
        if publisher:
            publisher.run_begins(
                run_id, position.number + 1, position.of, spec, label=position.label, block=position.block
            )
        listener = Listener(watcher, self._ledger, run_id, publisher)
        began_s = _clock_s()
        try:
            outcome = place.run(
                Task(do="run", spec=spec, repetition=_repetition(position), sample_hz=self._sample_hz),
                listener,
                mark=run_id,
                time_limit_s=time_limit_s,
            )
        except StreamError as error:
            # Past all bounds: the place has ended the worker on the way here.
            outcome = Outcome(None, PlaceFailure("broken_stream", error.message, error.hint or ""))
        except BaseException as error:
            # A row that says `running` while nothing runs would be called lost by the next command.
            with suppress(LedgerError):
                finish_or_rescue(self._ledger, run_id, _end_of_driver(error), listener.lines)
            raise
        not_enforced = place.not_enforced(spec, gathered_facts(listener.stream.events))
        observed_s = _clock_s() - began_s if outcome.live else None
        row = self.finish(run_id, spec, listener, outcome, not_enforced, observed_s=observed_s)
        all_stored(place, run_id, watcher)
        watcher.run_ended(row, position.number + 1, position.of)
        if publisher:
            publisher.run_ended()
        if outcome.interruption:
            raise outcome.interruption
        return row, listener.stream.events

    def start(
        self,
        spec: Spec,
        position: Position,
        place: str,
        place_options: Mapping[str, JsonValue],
        *,
        run_id: str | None = None,
        handle: Handle | None = None,
        started_unix_s: float | None = None,
    ) -> str:
        """Store the row of a run that begins, driven by this process on this machine; return its id."""
        row = _row(
            run_id or new_id("r"), spec, place, place_options,
            experiment_id=self._experiment_id,
            position=position,
            started_unix_s=time.time() if started_unix_s is None else started_unix_s,
            machine_id=driver.machine_name(),
            boot_id=driver.boot_name(),
            handle={**(handle or {}), **driver.handle()},
        )  # fmt: skip
        self._ledger.start(row)
        return row.id

    def finish(
        self,
        run_id: str,
        spec: Spec,
        output: Output,
        outcome: Outcome,
        not_enforced: Sequence[str] = (),
        *,
        observed_s: float | None = None,
        handle: Handle | None = None,
    ) -> RunRow:
        """Judge a run by what was received of it and by what its place saw, and store its end and its lines."""
        end = output.judge(outcome, not_enforced, spec=spec, observed_s=observed_s)
        if end.failure_hint:
            # A worker knows no ids.
            end = end.model_copy(update={"failure_hint": end.failure_hint.replace("show RUN", f"show {run_id}")})
        if handle is not None:
            with suppress(LedgerError):  # a ledger that fails is said by the next line, which saves what was measured
                self._ledger.set_handle(run_id, {**handle, **driver.handle()})
        finish_or_rescue(self._ledger, run_id, end, output.lines)
        return self._ledger.run(run_id)

    def give_up(self, run_ids: Iterable[str], kind: str, message: str) -> None:
        """End the rows of runs that nobody will finish; a ledger that cannot be written leaves them to be called lost."""
        with suppress(LedgerError):
            for run_id in run_ids:
                self._ledger.finish(run_id, _failed(kind, message), [])


def _sample_hz(experiment: Experiment) -> float:
    """Return how often runs are sampled, as the experiment was stored; 0 where it says nothing, as in older ones."""
    hz = experiment.request.get(SAMPLE_HZ_KEY)
    return float(hz) if isinstance(hz, int | float) and 0 <= hz <= MOST_SAMPLE_HZ else 0.0


def _repetition(position: Position) -> int:
    """Return the block of a comparison, so that its arms get the same one, else the number of the run, unless it is given."""
    if position.repetition is not None:
        return position.repetition
    return position.number if position.block is None else position.block


def finished_run(
    spec: Spec,
    output: Output,
    end: RunEnd,
    *,
    place: str,
    started_unix_s: float,
    arm: int = 0,
    place_options: Mapping[str, JsonValue] | None = None,
    run_id: str | None = None,
    machine_id: str = "",
    boot_id: str = "",
    handle: Handle | None = None,
    stackmark_version: str | None = None,
) -> WholeRun:
    """Make the record of a run that is over. Machine and boot stay empty where they are unknown."""
    start = _row(
        run_id or new_id("r"), spec, place, place_options or {},
        experiment_id="",
        position=Position(arm=arm),
        started_unix_s=started_unix_s,
        machine_id=machine_id,
        boot_id=boot_id,
        handle=handle or {},
        stackmark_version=stackmark_version,
    )  # fmt: skip
    return WholeRun(start, end, output.lines)


def store_finished(
    ledger: Ledger, experiment: Experiment, runs: Sequence[WholeRun], *, only_new: bool = False
) -> list[str]:
    """Store an experiment with runs that are over, in one transaction; return their ids.

    With `only_new` those that the ledger has already are left out, and the experiment too if it has them all.
    """
    numbered = [
        WholeRun(run.start.model_copy(update={"experiment_id": experiment.id, "position": number}), run.end, run.lines)
        for number, run in enumerate(runs)
    ]
    if only_new:
        return add_new(ledger, experiment, numbered)
    add_whole(ledger, experiment, numbered)
    return [run.start.id for run in numbered]


def _row(
    run_id: str,
    spec: Spec,
    place: str,
    place_options: Mapping[str, JsonValue],
    *,
    experiment_id: str,
    position: Position,
    started_unix_s: float,
    machine_id: str,
    boot_id: str,
    handle: Handle,
    stackmark_version: str | None = None,
) -> RunStart:
    return RunStart(
        id=run_id,
        experiment_id=experiment_id,
        position=position.number,
        arm=position.arm,
        block=position.block,
        attempt=position.attempt,
        role=position.role,
        slot=position.slot,
        suspect=position.suspect,
        pass_number=position.pass_number,
        piece=position.piece,
        spec=spec,
        place=place,
        place_options=dict(place_options),
        started_unix_s=started_unix_s,
        machine_id=machine_id,
        boot_id=boot_id,
        driver_pid=os.getpid(),
        handle=handle,
        stackmark_version=stackmark_version or version(),
    )


def all_stored(place: Place, mark: str, watcher: Watcher) -> None:
    """Tell the place that a run is stored: what it kept until then may go."""
    if isinstance(place, Keeps) and (left := place.stored(mark)):
        watcher.notice(left)


def _clock_s() -> float:
    """Return seconds on a clock that also counts the time in which this machine was suspended: a pod's node was not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _end_of_driver(error: BaseException) -> RunEnd:
    """Say how a run ended that was ended from our side: its place failed, it was interrupted again, or we ourselves broke."""
    kind, message, hint = "driver", f"stackmark failed: {type(error).__name__}: {error}", None
    if isinstance(error, KeyboardInterrupt | Terminated):
        kind, message = how_ended(error)
    elif isinstance(error, StackmarkError):
        kind = "place" if isinstance(error, PlaceError) else "driver"
        message, hint = error.message, error.hint
    return _failed(kind, message, hint)


def _failed(kind: str, message: str, hint: str | None = None) -> RunEnd:
    return RunEnd(
        status="failed", ended_unix_s=time.time(), failure_kind=kind, failure_message=message, failure_hint=hint
    )
