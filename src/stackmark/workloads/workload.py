"""The interface of an implementation: a probe that completes the parameters, and a function that sets up and yields.

The function yields one `TimedSteps` when it stands at its first measured step; the worker times its steps and then lets it go
on to its end. So a workload holds no clock and the worker knows no network. What cannot be cut into steps from outside (a
user's own program) yields a `TimedWhole` instead, which the worker runs once; a list of problems yields `TimedRows`, which
times each of them by rules of its own; what is trained to a quality yields `TimedTraining`. Which of the four a workload is
stands in its definition (`Definition.timed`).
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from stackmark.events import Figure, OpRow
from stackmark.histogram import Histogram
from stackmark.machine.reading import Metric as Metric
from stackmark.model import JsonValue
from stackmark.ranks import Rank
from stackmark.spec import AnyParams, Request

Values = dict[str, float]


class WorkloadFailure(Exception):
    """A failure that the workload understands; `kind` is one of events.FAILURE_EXIT_CODES.

    `metrics` were measured before it, and are kept with the failed run.
    """

    def __init__(self, kind: str, message: str, hint: str = "", metrics: Sequence[Metric] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.metrics = metrics


class Rig(Protocol):
    """The worker's services for a workload during set-up."""

    @property
    def rank(self) -> Rank:
        """This process's rank: 0 of 1 unless the run has several."""

    @property
    def repetition(self) -> int:
        """The run's number in its experiment, or its block."""

    def part(self, name: str, note: str = "") -> AbstractContextManager[None]:
        """Time a part of the set-up: model, compile, first step …"""

    def flag(self, sentence: str) -> None:
        """Flag something that a reader of the result must know."""


@dataclass(frozen=True)
class Kernel:
    """A program of the device, or an operator of the framework on a CPU, called in one step."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Together:
    """How the ranks of a group step together. All ranks call the same things in the same order."""

    # The largest of each number over all ranks; every rank gets the same, and waits for the others.
    most: Callable[..., list[float]]
    # Makes steps run without their exchange, so that each rank's own time can be seen; None: they cannot.
    alone: AbstractContextManager[None] | None = None
    # The size of what a rank hands over in a step.
    exchanged_bytes: int = 0
    # Kept under the subject `ranks`.
    facts: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedSteps:
    """A workload at its first step.

    `step` does one step, or enqueues it on the device. `peek` starts to read the loss of the step just done without
    waiting for it, and gives a function that may be called once that step is complete.
    """

    step: Callable[[], None]
    device: str
    sample: str
    samples_per_step: int
    peek: Callable[[], Callable[[], Values]] | None = None
    peek_every: int = 10
    operations_per_sample: float | None = None
    # Bytes at the least, and as the framework calls its operators one by one (train/impl/nets/moving.py).
    least_bytes_per_sample: float | None = None
    called_bytes_per_sample: float | None = None
    # Called before a stretch of steps with how often it may peek: what `peek` needs is taken then, and not in the loop.
    reserve: Callable[[int], None] = field(default=lambda _peeks: None)
    # Seconds in which the loop waited for its next batch, since the beginning.
    data_wait_s: Callable[[], float] = field(default=lambda: 0.0)
    # Called between warm-up and the measured part: what is summed up begins here.
    reset: Callable[[], None] = field(default=lambda: None)
    # Called once after warm-up and once after the measured part, when the device is idle; raises WorkloadFailure.
    check: Callable[[], None] = field(default=lambda: None)
    metrics: Callable[[], list[Metric]] = field(default=list)
    # Does one more step under a profiler, after everything else was read, and gives what it called. None: it cannot.
    profile: Callable[[], list[Kernel]] | None = None
    # Of a group of ranks; None: this process steps by itself.
    together: Together | None = None


@dataclass(frozen=True)
class TimedFigure:
    """The result of a `TimedWhole`: its own figure, and what was observed from outside."""

    figure: Figure
    wall_s: float
    metrics: tuple[Metric, ...] = ()
    memory_peak_mib: float | None = None
    # Latencies of what it answered, by name; percentiles among its metrics are taken of them.
    histograms: tuple[Histogram, ...] = ()


@dataclass(frozen=True)
class TimedWhole:
    """A workload that runs once, from start to end. `run` gets the receiver of its printed lines.

    `facts` are what is known about it beforehand, kept under the subject `subject`.
    """

    run: Callable[[Callable[[str], None]], TimedFigure]
    device: str
    facts: dict[str, JsonValue] = field(default_factory=dict)
    subject: str = "command"


@dataclass(frozen=True)
class TimedRows:
    """A list of problems, each measured once, in one process. `run` passes on each row when it is done.

    A problem that cannot be done is a row with a failure, and the others go on; `TimedFigure.figure` is over the good ones.
    """

    run: Callable[[Callable[[OpRow], None]], TimedFigure]
    device: str
    rows: int
    # What is known beforehand (threads, caches), kept under the subject `op`.
    facts: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """The quality of a model after some training. `clock_s` is the time on the run's clock when it was known."""

    epoch: float
    samples: int
    clock_s: float
    quality: Values
    target: Values

    @property
    def reached(self) -> bool:
        return all(self.quality.get(name, -math.inf) >= least for name, least in self.target.items())


@dataclass(frozen=True)
class TimedTraining:
    """A model that is trained until it reaches a quality.

    `run` passes on each evaluation when it is done, and the lines of a log. `facts` are what is known beforehand (the seed, the
    data and their hash), kept under the subject `fit`. A target that is not reached within its limit is a WorkloadFailure
    `target_not_reached`: the evaluations so far are kept.
    """

    run: Callable[[Callable[[Evaluated], None], Callable[[str], None]], TimedFigure]
    device: str
    # How many evaluations there are at the most, for progress bars.
    evaluations: int
    facts: dict[str, JsonValue] = field(default_factory=dict)


class Workload(Protocol):
    """One family. `name` is the part after the family: `resnet50` of `train/resnet50`."""

    def probe(self, request: Request, rig: Rig) -> tuple[AnyParams, dict[str, str]]:
        """Complete a request for this device, with the reason for each value."""

    def run(
        self, name: str, params: AnyParams, rig: Rig
    ) -> Generator[TimedSteps | TimedWhole | TimedRows | TimedTraining, None, None]:
        """Set up, yield once, tear down. A `TimedSteps` comes from a workload whose parameters are `Params`."""
