"""All results of an experiment, gathered from the ledger: reports are made from these data.

Plain data, without a ledger and without a terminal: experiments/examine.py builds it; the terminal, the HTML report and the plots
only read it. Everything in it is recomputed from stored streams; nothing is measured here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from stackmark.figures import FigureUnit, figure_unit
from stackmark.spec import Scalar
from stackmark.verdict.cautions import Unusable
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.operators import ListRatio, RowResult
from stackmark.verdict.published_pairs import PublishedPair
from stackmark.verdict.rules import RULES
from stackmark.verdict.scaling import Scaling
from stackmark.verdict.telemetry import Telemetry
from stackmark.verdict.throughput import Throughput, Window
from stackmark.verdict.time_to_quality import QualityResult

Facts = dict[str, dict[str, JsonValue]]
# What runs are selected by where another chip or machine is the question.
CHIP_KEYS = frozenset({"chip", "gpu", "machine", "host", "node"})


@dataclass(frozen=True)
class ExaminedRun:
    run_id: str
    arm: int
    block: int | None
    attempt: int
    role: Literal["measured", "primer"]
    # "running", "done", "failed" or "invalid"; `counted` is whether it is part of the verdict.
    status: str
    counted: bool
    started_unix_s: float
    ended_unix_s: float | None
    # Over the common window where there is one, else over the run's own steady steps.
    rate_per_s: float | None
    # flat, warm-up, slow-down, no steady state, too short to tell; and the first step that counts.
    steady: str | None
    first_step: int
    step_s: tuple[float, ...]
    # From the driver's call to the worker's first word: the engine, the interpreter. None where it cannot be told.
    start_s: float | None
    setup: tuple[tuple[str, float], ...]
    # Clock, temperature, power, throttled periods, load: whatever the run's metrics and facts say in numbers.
    covariates: dict[str, float]
    flags: tuple[str, ...]
    failure_kind: str | None
    failure_message: str | None
    failure_hint: str | None
    chip: str | None
    chip_uuid: str | None
    # The rate as it is stored, over the run's own steady steps.
    own_rate_per_s: float | None = None
    # Its warm-up ended after half of its time, so that the window holds a part of it: a bad run of its arm.
    late: bool = False
    # Of its time, what pauses (steps of at least 1.5 times the usual length) added.
    pause_share: float = 0.0
    # What was sampled next to it; None where nothing was.
    telemetry: Telemetry | None = None


@dataclass(frozen=True)
class ExaminedArm:
    index: int
    label: str
    place: str
    place_options: dict[str, JsonValue]
    typed: dict[str, Scalar]
    params: Mapping[str, Scalar]
    # Over the runs that count; None where there is none.
    throughput: Throughput | None
    unit: str
    # How many of its good runs fell into which class of steadiness.
    steadiness: tuple[tuple[str, int], ...]
    # Median seconds of each part, `start` first.
    setup: tuple[tuple[str, float], ...]
    facts: Facts
    chip: str | None
    # How far its rate is from the limits of its machine, a sentence each; nothing where its operations are not counted.
    limits: tuple[str, ...] = ()
    # How many of its good runs were still warming up at half of their time: bad runs.
    late_runs: int = 0
    # Of the time of its good runs, what pauses added: the median.
    pause_share: float = 0.0
    # Why its runs are not usable together; None where they are.
    unusable: Unusable | None = None
    # Too few of its runs reached their target quality for a time. JSON has it in `quality`.
    missed_target: bool = False

    @property
    def figure_unit(self) -> FigureUnit:
        """Return what its figure is counted in; `unit` is as the ledger has it."""
        return figure_unit(self.unit)


@dataclass(frozen=True)
class FactDifference:
    """A fact in which arms differ, with the value of each arm, and why it may matter."""

    subject: str
    key: str
    values: tuple[str, ...]
    why: str
    # From 0 (a curiosity) to 100 (known to decide): the order in which they are shown.
    weight: int
    # True where the fact itself shows an effect on the measured rate (throttled 312 times), not just a difference.
    shows_effect: bool = False


@dataclass(frozen=True)
class CovariateLine:
    """One covariate over the experiment: its median in each arm, and what that says."""

    name: str
    unit: str
    medians: tuple[float | None, ...]
    remark: str = ""


@dataclass(frozen=True)
class PublishedNeighbour:
    value: float
    unit: str
    what: str
    source: str
    date: str
    # Of the first arm that it can be compared with, this arm's figure over the published one.
    arm: str
    ratio: float
    differs: tuple[str, ...]
    # What the row is worth next to the result, in one sentence.
    sure: str = ""


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of the runs, judged as their figure is: a percentile of latency next to the one that the run is about."""

    name: str
    unit: str
    higher_is_better: bool
    # The geometric mean over each arm's runs.
    values: tuple[float, ...]
    pairs: tuple[Comparison, ...]


@dataclass(frozen=True)
class LatencyCurve:
    """How long the queries of an arm took, of all its counted runs together: percents with the seconds that they stay within."""

    name: str
    arm: int
    queries: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class PublishedTime:
    """What somebody else printed for the same problem of an operator list."""

    chip: str
    precision: str
    seconds: float
    source: str
    date: str
    # Everything that keeps it from being compared to the per cent.
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorProblem:
    """One problem of an operator list: what it took in each arm (None where an arm did not try it), and what was published."""

    index: int
    name: str
    rows: tuple[RowResult | None, ...]
    published: tuple[PublishedTime, ...] = ()


@dataclass(frozen=True)
class Examined:
    experiment_id: str
    kind: Literal["run", "compare", "noise", "import", "check", "fault", "sweep", "suite", "scale"]
    # done: the whole design; open: `stackmark resume` goes on; short: it ended before it was whole.
    state: Literal["done", "open", "short"]
    state_sentence: str
    created_unix_s: float
    ended_unix_s: float | None
    # What repeats it, and what was asked in it.
    command: str
    workload: str
    title: str
    sample: str
    seed: int | None
    margin: float
    blocks_planned: int | None
    blocks_whole: int
    blocks_repeated: int
    # Arm numbers of each block in the order they ran.
    order: tuple[tuple[int, ...], ...]
    arms: tuple[ExaminedArm, ...]
    runs: tuple[ExaminedRun, ...]
    comparisons: tuple[Comparison, ...]
    differences: tuple[FactDifference, ...]
    covariates: tuple[CovariateLine, ...]
    published: tuple[PublishedNeighbour, ...]
    # This GPU, this boot, these hours.
    scope: str
    # What was held equal, and what could not be, each a sentence.
    held: tuple[str, ...]
    not_held: tuple[str, ...]
    # How it was measured, a sentence each: for the end of a report.
    method: tuple[str, ...]
    # Warnings that a reader must see with the verdict.
    warnings: tuple[str, ...] = field(default=())
    # Of arms that went through a list: every pair of them row by row, next to the verdict, which is by the list's own rate.
    lists: tuple[ListRatio, ...] = field(default=())
    # Of an operator list: every problem with its times. JSON leaves it out: `show --json` has the rows with all their numbers.
    operators: tuple[OperatorProblem, ...] = field(default=())
    # The part of each run that the verdict is about; None where runs have no steps, or there is one arm.
    window: Window | None = None
    # What moved with the ratio from block to block, a sentence each.
    associations: tuple[str, ...] = field(default=())
    # The version of the rules that judged it, which are always today's, and that under which it was designed; None without one.
    rules: int = RULES
    rules_made: int | None = None
    # Each benchmark (an arm, or a spec of an import) next to the nearest published number of its metric.
    published_pairs: tuple[PublishedPair, ...] = field(default=())
    # Commands that answer what this does not: runs of several settings, compared row by row.
    instead: tuple[str, ...] = field(default=())
    # The command with every choice typed out, where choices are known: of one arm.
    pinned: str = ""
    # Of stored runs: the keys by which the sides were selected and in which they differ: chip, precision.
    selected_by: tuple[str, ...] = field(default=())
    # Of a workload that is trained to a quality, how the runs of each arm came to their target; None of an arm without such runs.
    quality: tuple[QualityResult | None, ...] = field(default=())
    # What else the runs say that the workload names for it, by the same blocks.
    compared: tuple[ComparedMetric, ...] = field(default=())
    # Of what answers queries: the whole distributions of its latencies.
    latencies: tuple[LatencyCurve, ...] = field(default=())
    # Of arms that are rank counts: how the rate grows with them, and what is lost.
    scaling: Scaling | None = None

    @property
    def repeat(self) -> str:
        """Return the command line that measures the same again."""
        return self.pinned or self.command

    @property
    def is_about_chips(self) -> bool:
        """Tell whether another chip or machine is the question, so that what else differs comes first."""
        return bool(CHIP_KEYS & set(self.selected_by))
