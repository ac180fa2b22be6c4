"""What comes out of a worker: one JSON object a line, and how such a stream is read.

Every event has `event` (its kind, always the first key, so that a line can be known by its beginning), `seq` (from 0,
without gaps, per rank), `rank`, and `t` (monotonic seconds since the worker began). A kind or a field that is unknown
came from a newer worker: it is kept, and skipped. A line that does not begin as an event is foreign: somebody's print;
it is kept and counted. A line that begins as an event and cannot be read is an error with its number, because then the
stream is not to be trusted.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from stackmark.errors import StreamError
from stackmark.spec import SCHEMA_VERSION, Frozen, Spec, explain

EVENT_PREFIX = '{"event":'
# Container runtimes split log lines at 16 KiB; half of that leaves room for their own decoration.
EVENT_LIMIT_BYTES = 8 * 1024
# A foreign line may be endless (a progress bar without newlines): what is kept of it, and how many are kept.
FOREIGN_LINE_BYTES = 4 * 1024
FOREIGN_LINES_KEPT = 1000

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
    "interrupted": 130,
    "terminated": 143,
}


class Event(Frozen):
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    # What a newer worker adds is JSON too: finite, and not nested without end.
    __pydantic_extra__: dict[str, JsonValue]

    event: str
    seq: int = Field(ge=0)
    rank: int = Field(default=0, ge=0)
    t: float = Field(ge=0)


class Hello(Event):
    event: Literal["hello"] = "hello"
    schema_version: int = SCHEMA_VERSION
    time_unix_s: float
    pid: int
    ranks: int = 1
    versions: dict[str, str] = {}


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
    """A part of the run begins, or ended after `seconds`. `expected_s` is for progress bars."""

    event: Literal["phase"] = "phase"
    phase: str
    state: Literal["begin", "end"]
    seconds: float | None = None
    expected_s: float | None = None
    expected_steps: int | None = None
    note: str = ""


class Steps(Event):
    """Step seconds in order, the first being step `first` (from 0) of its phase; losses were read at some steps."""

    event: Literal["steps"] = "steps"
    phase: Literal["warm-up", "measure"]
    first: int = Field(ge=0)
    step_s: list[float]
    losses: list[tuple[int, float]] = []
    top_1: list[tuple[int, float]] = []
    top_5: list[tuple[int, float]] = []


class Sample(Event):
    """Telemetry at one moment."""

    event: Literal["sample"] = "sample"
    values: dict[str, float]


class Metric(Event):
    event: Literal["metric"] = "metric"
    name: str
    value: float
    unit: str
    higher_is_better: bool


class Log(Event):
    """A line of somebody's standard error, where it shares a stream with the events."""

    event: Literal["log"] = "log"
    line: str


class Figure(Frozen):
    """What a program said of itself, where its steps cannot be timed from outside: a user's own command, a foreign log."""

    name: str
    value: float = Field(gt=0)
    unit: str
    higher_is_better: bool = True


class Result(Event):
    """The end of a run that worked, with all that a verdict needs so that it needs no workload.

    Where there is a `figure`, it is the run's rate (its reciprocal where lower is better), and the steps are only kept.
    """

    event: Literal["result"] = "result"
    sample: str
    samples_per_step: int = Field(gt=0)
    steps: int = Field(gt=0)
    wall_s: float = Field(gt=0)
    tick_s: float = Field(gt=0)
    operations_per_sample: float | None = None
    least_bytes_per_sample: float | None = None
    memory_peak_mib: float | None = None
    data_wait_s: float | None = None
    figure: Figure | None = None
    # An error of the hardware during the run: the number is kept and is no result.
    invalid: list[str] = []
    flags: list[str] = []


class Failed(Event):
    event: Literal["failed"] = "failed"
    kind: str
    message: str
    hint: str = ""


class Unknown(Event):
    """A kind from a newer worker: kept as it came."""


Known = Annotated[
    Hello | Probe | Facts | Phase | Steps | Sample | Metric | Log | Result | Failed, Field(discriminator="event")
]
_KNOWN: TypeAdapter[Event] = TypeAdapter(Known)
_KINDS = {"hello", "probe", "facts", "phase", "steps", "sample", "metric", "log", "result", "failed"}


def write_event(event: Event) -> str:
    """One line, without its newline."""
    return json.dumps(event.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def read_event(line: str, number: int) -> Event | None:
    """The event in a line, or None where the line is foreign."""
    if not line.startswith(EVENT_PREFIX):
        return None
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
        if isinstance(data.get("event"), str) and data["event"] not in _KINDS:
            return Unknown.model_validate(data)
        return _KNOWN.validate_python(data)
    except ValidationError as error:
        raise StreamError(
            f"line {number} of the worker's output is a broken event: {explain(error)}", line=number
        ) from error
    except (ValueError, RecursionError) as error:
        raise StreamError(f"line {number} of the worker's output is a broken event: {error}", line=number) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class Stream:
    """One worker's output, line by line: what was received, in order, with what is missing from it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.foreign: list[str] = []
        self.foreign_count = 0
        self.lines = 0
        self._next_seq: dict[int, int] = {}

    def feed(self, line: str) -> Event | None:
        """Gives the event in a line, None if it is foreign. A gap in `seq` is an error, a repeated event is dropped."""
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
        self.events.append(event)
        return event

    def ended(self) -> Result | Failed | None:
        """What closed the stream: None means that it was cut off."""
        return next((event for event in reversed(self.events) if isinstance(event, Result | Failed)), None)

    def of(self, rank: int = 0) -> Iterator[Event]:
        return (event for event in self.events if event.rank == rank)


def measured_steps(events: list[Event], rank: int = 0) -> list[float]:
    """The step seconds of the measured part, in order."""
    return [
        seconds
        for event in events
        if isinstance(event, Steps) and event.rank == rank and event.phase == "measure"
        for seconds in event.step_s
    ]


def gathered_facts(events: list[Event], rank: int = 0) -> dict[str, dict[str, JsonValue]]:
    """Facts by subject, put together from their lines."""
    gathered: dict[str, dict[str, JsonValue]] = {}
    for event in events:
        if isinstance(event, Facts) and event.rank == rank:
            gathered.setdefault(event.subject, {}).update(event.facts)
    return gathered
