"""The events of a worker: one JSON object per line, and the reader of such a stream.

Every event has `event` (its kind, always the first key, so that a line can be known by its beginning), `seq` (from 0,
without gaps, per rank), `rank`, and `t` (monotonic seconds since the worker began). A kind or a field that is unknown
came from a newer worker: it is kept, and skipped. A line that does not begin as an event is foreign: a program's print;
it is kept and counted. A line that begins as an event and cannot be read is an error with its number, because then the
stream is not to be trusted.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from stackmark.errors import StreamError
from stackmark.histogram import Histogram
from stackmark.model import Field, JsonValue, Model, ValidationError
from stackmark.ranks import MOST_DEVICES
from stackmark.spec import SCHEMA_VERSION, Scalar, Spec, explain
from stackmark.units import END_OF_TIME_UNIX_S

EVENT_PREFIX = '{"event":'
# How a worker's lines for people begin, which it prints next to the events in the log of a pod (worker/readable.py).
TEXT_MARK = "[stackmark "
# The other lines for people: the table of tf_cnn_benchmarks, whose form is not ours to mark.
_FOR_PEOPLE = re.compile(
    r"""\[stackmark\ [0-9.]+\ s\]\                                  # a line of text
    | (?:PyTorch|Model|Dataset|Mode|SingleSess|Batch\ size|Num\ batches|Num\ epochs|Devices|NUMA\ bind
        |Data\ format|Optimizer|Variables|AllReduce|Sync):\ +(?<=^.{13})\S   # the header: values in one column
    | \ {13}(?:[0-9]+\ per\ device$|ResNet-)
    | ={10}$ | -{64}$
    | (?:Generating\ (?:training|evaluation)\ model|Initializing\ graph|Running\ warm\ up|Done\ warm\ up)$
    | Dumping\ trace\ to\ | Step\tImg/sec\t
    | [0-9]+\t(?:images/sec:\ |[0-9.]+\ examples/sec$|nan\ examples/sec$)
    | Accuracy\ @\ 1\ =\ | total\ images/sec:\ """,
    re.VERBOSE,
)
# Container runtimes split log lines at 16 KiB; half of that leaves room for their own decoration.
EVENT_LIMIT_BYTES = 8 * 1024
# A line of output without an end is handed on in pieces of this size, so that it cannot fill the memory.
LINE_LIMIT_BYTES = 64 * 1024
# A foreign line may be endless (a progress bar without newlines): what is kept of it, and how many are kept.
FOREIGN_LINE_BYTES = 4 * 1024
FOREIGN_LINES_KEPT = 1000
# What an event takes in memory: an object, and some times its text. Up to the first bound every event is kept, up to the second
# those that something is decided by (facts, phases, rows, results).
OBJECT_BYTES, TIMES_TEXT = 1500, 4
DISPENSABLE_BYTES = 48 * 2**20
KEPT_BYTES = 256 * 2**20

# No worker counts past this (a step a nanosecond for eleven days), and a double holds it exactly: what is computed from a
# stream stays finite, and fits a database's column.
MOST_COUNTED = 10**15
# Rows of one list; what a stream claims about its list sizes what is read and printed of it.
MOST_ROWS = 10**6
# Evaluations of one run.
MOST_EVALUATIONS = 100_000
# Seconds of a step, a run or a process: thirty years. Smaller than any clock's tick there are no times either.
LONGEST_S = 1e9
SHORTEST_S = 1e-18
# A rate, a time in nanoseconds, a count of operations or bytes: sums and products of a few of them stay finite.
LARGEST = 1e30
SMALLEST = 1e-30

Count = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
CountFromOne = Annotated[int, Field(ge=1, le=MOST_COUNTED)]
Quantity = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]

# The failures a worker can say itself, each with the exit code of the worker process. The first ten are left free for
# interpreters and shells; 128 + n is what the system gives a process that signal n ended.
FAILURE_EXIT_CODES: dict[str, int] = {
    "bad_task": 10,
    "bad_parameter": 11,
    "no_device": 12,
    "out_of_device_memory": 13,
    "out_of_host_memory": 14,
    "not_finite": 15,
    "bad_data": 16,
    "missing_package": 17,
    "bad_output": 18,
    "hardware_error": 19,
    "crash": 20,
    "lost_driver": 21,
    "command_failed": 22,
    "no_figure": 23,
    "wrong_result": 24,
    "rank_died": 25,
    "lost_rank": 26,
    "old_python": 27,
    "target_not_reached": 28,
    "no_answer": 29,
    "interrupted": 130,
    "terminated": 143,
}


class Event(Model, extra="allow"):
    """Fields that every event has. Fields of a newer worker are kept."""

    event: str
    seq: Count
    rank: int = Field(default=0, ge=0, le=MOST_DEVICES)
    t: Seconds


class Hello(Event):
    event: Literal["hello"] = "hello"
    schema_version: int = SCHEMA_VERSION
    time_unix_s: float = Field(ge=0, lt=END_OF_TIME_UNIX_S)
    pid: Count
    # As the worker, or a log, claims it: iterate over the ranks that spoke, never over this number.
    ranks: int = Field(default=1, ge=1, le=MOST_DEVICES)
    versions: dict[str, str] = {}
    # What the worker runs, so that its saved log can be imported. The driver knows it better and decides nothing by it.
    spec: Spec | None = None


class Probe(Event):
    """The resolved spec, and for each parameter that was chosen, why."""

    event: Literal["probe"] = "probe"
    spec: Spec
    choices: dict[str, str] = {}


class Facts(Event):
    """One subject a line; a subject that came in several lines is put together by key."""

    event: Literal["facts"] = "facts"
    subject: str
    facts: dict[str, JsonValue]
    problems: list[str] = []


class Phase(Event):
    """A part of the run starts, or ended after `seconds`. `expected_s` is for progress bars."""

    event: Literal["phase"] = "phase"
    phase: str
    state: Literal["begin", "end"]
    seconds: Seconds | None = None
    expected_s: Quantity | None = None
    expected_steps: Count | None = None
    note: str = ""


class Steps(Event):
    """Step seconds in order, the first being step `first` (from 0) of its phase; losses were read at some steps."""

    event: Literal["steps"] = "steps"
    phase: Literal["warm-up", "measure"]
    first: Count
    step_s: list[Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S)]]
    losses: list[tuple[Count, float]] = []
    top_1: list[tuple[Count, float]] = []
    top_5: list[tuple[Count, float]] = []


class Sampled(Event):
    """How the samples that follow were taken: what `gpu0` stands for, how often, and what the sampler itself used."""

    event: Literal["sampled"] = "sampled"
    hz: Quantity
    # At the end; more than 1/hz where a long run was thinned.
    interval_s: Quantity
    # How many were taken; fewer follow where they were thinned.
    samples_all: Count
    # CPU time of the sampler, and how long it ran.
    cpu_s: Seconds
    elapsed_s: Seconds
    gpus: dict[str, dict[str, JsonValue]] = {}
    problems: list[str] = []


class Sample(Event):
    """Telemetry at one moment: `at_s`, by the clock of `t`. The event itself comes when the measured part is over."""

    event: Literal["sample"] = "sample"
    values: dict[str, Quantity]
    at_s: Seconds | None = None


class Metric(Event):
    event: Literal["metric"] = "metric"
    name: str
    value: Quantity
    unit: str
    higher_is_better: bool


class Latencies(Event):
    """A part of a histogram of times (histogram.py): cells with their counts, or single times in nanoseconds."""

    event: Literal["latencies"] = "latencies"
    # Of whom: `latency`, `ttft`, `tpot`.
    name: str
    counts: list[tuple[Count, CountFromOne]] = []
    first_ns: list[Count] = []
    slowest_ns: list[Count] = []


class Log(Event):
    """A line of standard error, where it shares a stream with the events."""

    event: Literal["log"] = "log"
    line: str


class Figure(Model):
    """A program's own figure, where its steps cannot be timed from outside: a user's command, a foreign log."""

    name: str
    value: float = Field(ge=SMALLEST, le=LARGEST)
    unit: str
    higher_is_better: bool = True


class OpRow(Model):
    """One problem of a list: what it was, how long each sample took, whether its result was right.

    Whatever is printed of it (median, interval, TFLOP/s, share of a limit) is computed from these fields.
    """

    # Its number in its set, from 0: what a run that was cut off has not done is known by it.
    index: int = Field(ge=0, le=MOST_ROWS)
    op: str
    shape: dict[str, Scalar]
    # Of the operands, and of the sums.
    precision: str
    accumulate: str = ""
    operations: float | None = Field(default=None, ge=0, le=LARGEST)
    least_bytes: float | None = Field(default=None, ge=0, le=LARGEST)
    # Seconds of a call, a sample each: the mean over `calls_each` launches in a row.
    call_s: list[Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S)]] = []
    calls_each: CountFromOne = 1
    # Of a collective `call_s` are the slowest rank's, sample by sample; this is the median of this rank's own.
    own_s: Quantity | None = None
    # The very first call, with whatever the library does then: search for an algorithm, compile, load.
    first_call_s: Quantity | None = None
    # Launched one by one, or recorded once and replayed (a CUDA graph); by how many sets of operands in turn.
    launched: Literal["eager", "graph"] = "eager"
    copies: CountFromOne = 1
    # The largest difference from a float64 reference, relative to the result's own size, and the most it may be.
    error: float | None = None
    error_bound: float | None = None
    # How it was compared then, and again while and after it was timed.
    checked: str = ""
    # What the library says that it chose.
    kernel: str = ""
    # What the hardware's own description allows for this row (a link's generation and width), and in which words.
    limit_per_s: Quantity | None = None
    limit: str = ""
    notes: list[str] = []
    # Empty, or why there is no number: one of FAILURE_EXIT_CODES, a sentence, and what to do.
    failure_kind: str = ""
    failure_message: str = ""
    failure_hint: str = ""


class Row(Event):
    """One problem of a list is done, or failed."""

    event: Literal["row"] = "row"
    row: OpRow
    # How many this run has done with it, of how many.
    done: int = Field(ge=1, le=MOST_ROWS)
    of: int = Field(ge=1, le=MOST_ROWS)


class Evaluation(Event):
    """The quality of a model in training, and the time on the clock of the run when it was known.

    A task may ask for several qualities at once (boxes and masks): `target` has what each must reach.
    """

    event: Literal["evaluation"] = "evaluation"
    # Its number in the run, from 1.
    number: int = Field(ge=1, le=MOST_EVALUATIONS)
    # Passes over the training data, and samples seen, until then.
    epoch: float = Field(ge=0, le=LARGEST)
    samples: Count
    # Since the clock was started; a run that went on from a checkpoint counts what it lost too.
    clock_s: Seconds
    quality: dict[str, Quantity]
    target: dict[str, Quantity]
    # Whether all targets are reached.
    reached: bool


def say_evaluation(one: Evaluation) -> str:
    """Format like `epoch 3: BLEU 43.1 of 95`."""
    said = ", ".join(
        f"{name} {value:.4g}" + (f" of {one.target[name]:.4g}" if name in one.target else "")
        for name, value in one.quality.items()
    )
    return f"epoch {one.epoch:.4g}: {said}"


class Result(Event):
    """The end of a successful run, with all that a verdict needs, so that it needs no workload.

    Where there is a `figure`, it is the run's rate (its reciprocal where lower is better), and the steps are only kept.
    """

    event: Literal["result"] = "result"
    sample: str
    samples_per_step: CountFromOne
    steps: CountFromOne
    wall_s: float = Field(ge=SHORTEST_S, le=LONGEST_S)
    tick_s: float = Field(ge=SHORTEST_S, le=LONGEST_S)
    operations_per_sample: Quantity | None = None
    # The fewest bytes that the matrix operators move, and what all operators move as they are called one by one.
    least_bytes_per_sample: Quantity | None = None
    called_bytes_per_sample: Quantity | None = None
    memory_peak_mib: Quantity | None = None
    data_wait_s: Quantity | None = None
    figure: Figure | None = None
    # Of a list: how many problems it had, and how many of them gave no number.
    rows: int = Field(default=0, ge=0, le=MOST_ROWS)
    rows_failed: int = Field(default=0, ge=0, le=MOST_ROWS)
    # An error of the hardware during the run: the number is kept and is not a result.
    invalid: list[str] = []
    flags: list[str] = []


class Failed(Event):
    event: Literal["failed"] = "failed"
    kind: str
    message: str
    hint: str = ""


class Unknown(Event):
    """A kind from a newer worker, kept as received."""


_KINDS: dict[str, type[Event]] = {
    kind.model_fields["event"].default: kind
    for kind in (
        Hello,
        Probe,
        Facts,
        Phase,
        Steps,
        Sampled,
        Sample,
        Metric,
        Latencies,
        Row,
        Evaluation,
        Log,
        Result,
        Failed,
    )
}


def write_event(event: Event) -> str:
    """Format one line, without its newline."""
    return json.dumps(event.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def read_event(line: str, number: int) -> Event | None:
    """Return the event in a line, or None where the line is foreign."""
    if not line.startswith(EVENT_PREFIX):
        return None
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
        kind = data.get("event")
        return (_KINDS.get(kind, Unknown) if isinstance(kind, str) else Unknown).model_validate(data)
    except ValidationError as error:
        raise StreamError(
            f"line {number} of the worker's output is a broken event: {explain(error)}", line=number
        ) from error
    except (ValueError, RecursionError) as error:
        raise StreamError(f"line {number} of the worker's output is a broken event: {error}", line=number) from error


def is_for_people(line: str) -> bool:
    """Return whether a line of a worker's log is one that it printed for people, next to the events that say the same."""
    return _FOR_PEOPLE.match(line) is not None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class Stream:
    """One worker's output, line by line: what was received, in order, with what is missing from it.

    Past a bound, events are no longer kept as objects where nothing is decided by them (telemetry, logs, unknown kinds): the
    stored lines have them all. Of steps the seconds are kept, in 8 bytes each.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        # How many events were read and are not in `events`.
        self.not_kept = 0
        self._cost_bytes = 0
        self._measured: dict[int, array[float]] = {}
        self.foreign: list[str] = []
        self.foreign_count = 0
        self.lines = 0
        self._next_seq: dict[int, int] = {}

    def feed(self, line: str) -> Event | None:
        """Return the event in a line, None if it is foreign. A gap in `seq` is an error, a repeated event is dropped."""
        self.lines += 1
        event = read_event(line, self.lines)
        if event is None:
            self.foreign_count += 1
            if len(self.foreign) < FOREIGN_LINES_KEPT:
                self.foreign.append(line[:FOREIGN_LINE_BYTES])
            return None
        expected = self._next_seq.get(event.rank, 0)
        if event.seq < expected:
            return None
        if event.seq > expected:
            raise StreamError(
                f"events {expected} to {event.seq - 1} of rank {event.rank} are missing before line {self.lines}",
                line=self.lines,
            )
        self._next_seq[event.rank] = expected + 1
        self._keep(event, len(line))
        return event

    def _keep(self, event: Event, size: int) -> None:
        if isinstance(event, Steps) and event.phase == "measure":
            self._measured.setdefault(event.rank, array("d")).extend(event.step_s)
        cost = OBJECT_BYTES + TIMES_TEXT * size
        if isinstance(event, Steps | Sample | Log | Unknown) and self._cost_bytes + cost > DISPENSABLE_BYTES:
            self.not_kept += 1
            return
        self._cost_bytes += cost
        if self._cost_bytes > KEPT_BYTES:
            raise StreamError(
                f"the worker sent more `{event.event}` events than a run can have; {len(self.events):,} events are stored",
                line=self.lines,
            )
        self.events.append(event)

    def measured_steps(self, rank: int = 0) -> Sequence[float]:
        """Return the step seconds of the measured part, in order; all of them, whether or not their events are stored."""
        return self._measured.get(rank, array("d"))

    @property
    def ranks(self) -> int:
        """Return how many ranks there are, as the first of them says."""
        return next((event.ranks for event in self.events if isinstance(event, Hello)), 1)

    def ended(self) -> Result | Failed | None:
        """Return what closed the stream: None means that it was cut off.

        A group has failed if any of its ranks did, and is done when all are; the first rank speaks for it. A log of somebody
        else's program speaks for all of its ranks in one voice; a group of ours never does, since its agent speaks for the dead.
        """
        if self.ranks == 1 or {event.rank for event in self.events} == {0}:
            return next((event for event in reversed(self.events) if isinstance(event, Result | Failed)), None)
        if failures := [event for event in self.events if isinstance(event, Failed)]:
            return first_cause(failures)
        results = {event.rank: event for event in self.events if isinstance(event, Result)}
        return results.get(0) if len(results) == self.ranks else None

    def of(self, rank: int = 0) -> Iterator[Event]:
        return (event for event in self.events if event.rank == rank)


# Failures that only followed another: a rank that lost one says so before anybody knows of the death, and those that were
# still well were ended with the group.
_FOLLOWED = {"lost_rank": 1, "interrupted": 2, "terminated": 2, "lost_driver": 2}


def first_cause(failures: Sequence[Failed]) -> Failed:
    """Return of a group's failures, in order of arrival, the one that the others followed."""
    return min(failures, key=lambda failed: _FOLLOWED.get(failed.kind, 0))


def is_cause(failed: Failed) -> bool:
    """Return whether a failure is one of its own, and did not only follow another rank's."""
    return failed.kind not in _FOLLOWED


def histograms(events: Iterable[Event], rank: int = 0) -> dict[str, Histogram]:
    """Return the histograms of a stream by name, put together from their parts; a ValueError where one cannot be."""
    found: dict[str, Histogram] = {}
    for event in events:
        if isinstance(event, Latencies) and event.rank == rank:
            one = found.setdefault(event.name, Histogram(event.name))
            one.add_piece(event.counts, event.first_ns, event.slowest_ns)
    return found


def by_rank(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Return the events of each rank in one pass: a stream may claim any number of ranks, and name any."""
    found: dict[int, list[Event]] = {}
    for event in events:
        found.setdefault(event.rank, []).append(event)
    return found


def measured_steps(events: list[Event], rank: int = 0) -> list[float]:
    """Return the step seconds of the measured part, in order."""
    return [
        seconds
        for event in events
        if isinstance(event, Steps) and event.rank == rank and event.phase == "measure"
        for seconds in event.step_s
    ]


def gathered_facts(events: list[Event], rank: int = 0) -> dict[str, dict[str, JsonValue]]:
    """Return facts by subject, put together from their lines."""
    gathered: dict[str, dict[str, JsonValue]] = {}
    for event in events:
        if isinstance(event, Facts) and event.rank == rank:
            gathered.setdefault(event.subject, {}).update(event.facts)
    return gathered
