"""The result of `run`: the runs of one request, and what they are compared with. Frozen; `show/` renders it.

A result is made once, when the runs are done, from the runs themselves, the ledger's ceilings and the published table. The
terminal, the JSON and the Python API all show the same one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from stackmark.errors import Exit, SpecError
from stackmark.events import Stream, gathered_facts
from stackmark.experiments.fitting import curve_of
from stackmark.experiments.judging import Facts, judged_again, read_stored, setup_parts
from stackmark.experiments.limits import NO_LIMITS, Limits, limits_of_measured, limits_of_run
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.operator_list import ListedRuns, read_list
from stackmark.experiments.operator_list import run_result as one_run_of_list
from stackmark.experiments.progress import StepTimes
from stackmark.experiments.remembered import pinned_command
from stackmark.experiments.run import Measured
from stackmark.experiments.scaling import times_of
from stackmark.experiments.serving import ServingResult, served
from stackmark.experiments.surroundings import idle_cpus_before
from stackmark.figures import rate_unit_of
from stackmark.ledger.rows import Experiment, RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.published.lookup import (
    AgainstPublished,
    Reference,
    against,
    choose,
    find_reference,
    known_operators,
    near,
)
from stackmark.published.near import Match
from stackmark.published.operators import OperatorIndex
from stackmark.published.stack import stack_lines, stack_of_facts, stack_of_row
from stackmark.published.table import Published
from stackmark.spec import Request, Scalar, Spec
from stackmark.verdict.cautions import (
    INTERFERENCE,
    Caution,
    RunEvidence,
    Unusable,
    caution,
    find_unusable,
    in_order,
)
from stackmark.verdict.interference import say_interference
from stackmark.verdict.noise import LONGEST_GAP_S
from stackmark.verdict.operators import ListResult
from stackmark.verdict.published_pairs import StackLine
from stackmark.verdict.scaling import GroupTimes
from stackmark.verdict.telemetry import Telemetry, read_telemetry
from stackmark.verdict.throughput import Throughput, worth_of_runs
from stackmark.verdict.time_to_quality import Evaluation
from stackmark.workloads.registry import find, is_own_program, known

# With fewer runs it is said what they are worth.
ENOUGH_RUNS = 5
_NUMBERS = re.compile(r"[\d.,]+")


@dataclass(frozen=True)
class RunResult:
    """The runs of one workload in one place. `command` is the command line that repeats them."""

    measured: Measured
    command: str = ""
    # The nearest published rows, which are context.
    published: tuple[Match, ...] = ()
    # The published row that was asked for.
    against: AgainstPublished | None = None
    # Our stack next to that of the row that was asked for, else of the nearest.
    published_stack: tuple[StackLine, ...] = ()
    limits: Limits = NO_LIMITS
    # What speaks against it, the worst first.
    cautions: tuple[Caution, ...] = ()
    # Why the runs are not usable together; None where they are.
    unusable: Unusable | None = None
    # Of a network that answers queries: percentiles of latency, and LoadGen's verdict.
    served: ServingResult | None = None
    # What was sampled next to each good run, by its id.
    sampled: Mapping[str, Telemetry] = field(default_factory=dict)

    @property
    def took_s(self) -> float | None:
        """Return the wall time of the experiment, from its start to the end of its last run, without pauses of somebody's."""
        spans = [(row.started_unix_s, row.ended_unix_s) for row in self.measured.runs if row.ended_unix_s is not None]
        return time_taken(self.experiment.created_unix_s, spans)

    @property
    def experiment(self) -> Experiment:
        return self.measured.experiment

    @property
    def spec(self) -> Spec:
        return self.measured.spec

    @property
    def runs(self) -> Sequence[RunRow]:
        return self.measured.runs

    @property
    def throughput(self) -> Throughput | None:
        return self.measured.throughput

    @property
    def exit_code(self) -> Exit:
        return Exit.RUN_FAILED if self.measured.failed else Exit.DONE

    @property
    def repeat(self) -> str:
        """Return the command line that repeats these runs, with every choice typed out."""
        return pinned_command(self.command, self.experiment, self.spec, self.measured.choices)

    @property
    def good(self) -> list[RunRow]:
        return [row for row in self.measured.runs if row.status == "done"]

    @property
    def shown_run(self) -> RunRow | None:
        """Return a run to read the chip and the stack from: one that gave a number, if any."""
        return shown_run(self.measured)

    @property
    def unit(self) -> str:
        """Return the unit of the rate. A program's own figure is not counted in samples."""
        run = self.shown_run
        return (run.rate_unit if run else None) or unit_of(self.measured.spec.workload)

    def median_of(self, name: str) -> float | None:
        """Return the median of a column over the runs that gave a number."""
        values = [value for row in self.good if (value := getattr(row, name)) is not None]
        return median(values) if values else None

    @property
    def group(self) -> GroupTimes | None:
        """Return where the time of a step goes, by the last good run of several ranks."""
        return times_of(self.measured.events, self.measured.spec.ranks)

    @property
    def energy_j_per_sample(self) -> float | None:
        energies = [
            row.energy_j / (row.steps_total * row.batch * row.ranks)
            for row in self.good
            if row.energy_j and row.steps_total and row.batch
        ]
        return median(energies) if energies else None

    @property
    def energy_j_per_run(self) -> float | None:
        """Return the energy of a whole run of a program, whose samples are not counted."""
        return self.median_of("energy_j") if is_own_program(self.spec.workload) else None


@dataclass(frozen=True)
class ListRunResult:
    """An operator list measured in one arm. `choices` are the probe's reasons, known only to the command that made it."""

    listed: ListedRuns
    command: str
    published: OperatorIndex
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeat(self) -> str:
        """Return the command line that repeats this list, with every choice typed out."""
        return pinned_command(self.command, self.experiment, self.spec, self.choices)

    @property
    def experiment(self) -> Experiment:
        return self.listed.experiment

    @property
    def spec(self) -> Spec:
        return self.listed.spec

    @property
    def runs(self) -> Sequence[RunRow]:
        return self.listed.runs

    @property
    def throughput(self) -> Throughput | None:
        """Return the rate of the whole list."""
        return self.listed.result.aggregate

    @property
    def unit(self) -> str:
        return self.listed.result.unit

    @property
    def exit_code(self) -> Exit:
        return self.listed.exit_code


def shown_run(measured: Measured) -> RunRow | None:
    return next((row for row in measured.runs if row.status == "done"), next(iter(measured.runs), None))


def unit_of(workload: str) -> str:
    return find(workload)[1].unit


def run_result(
    ledger: Ledger,
    measured: Measured,
    rows: Sequence[Published],
    *,
    command: str = "",
    reference: Reference | None = None,
    margin: float | None = None,
) -> RunResult:
    """Hold runs against the published `rows`, the row that `reference` names, and the ceilings of their machine."""
    run = shown_run(measured)
    workload = measured.spec.workload
    unit = (run.rate_unit if run else None) or unit_of(workload)
    chip, framework = (run.chip, run.framework) if run else (None, None)
    times = StepTimes(ledger)
    cautions, unusable = _against_it(measured, times)
    published = tuple(near(measured.spec, unit, chip, framework, rows))
    asked = _against_published(measured, run, reference, margin)
    nearest = asked.match if asked else next(iter(published), None)
    ours = stack_of_facts(measured.facts, chip, measured.spec.ranks, framework)
    return RunResult(
        measured,
        command,
        published,
        asked,
        stack_lines(ours, stack_of_row(nearest.row)) if nearest else (),
        limits_of_measured(ledger, measured),
        cautions,
        unusable,
        served(times, workload, [row for row in measured.runs if row.status == "done"]),
        {row.id: found for row in measured.runs if row.status == "done" and (found := times.sampled(row))},
    )


def _against_it(measured: Measured, times: StepTimes) -> tuple[tuple[Caution, ...], Unusable | None]:
    """Find what speaks against a result: other programs, flags of its runs, runs that differ by a factor, few of them."""
    good = [row for row in measured.runs if row.status == "done" and row.rate_per_s]
    met = say_interference([times.load(row) for row in good], idle_cpus_before(measured.experiment))
    evidence = [RunEvidence(row.rate_per_s or 0.0, row.steady, times.metrics(row)) for row in good]
    found = [caution(INTERFERENCE, met)] if met else []
    found += [caution(kind, said) for kind, said in flags_of_runs(good)]
    if 0 < len(good) < ENOUGH_RUNS:
        found.append(caution("few-runs", worth_of_runs(len(good))))
    return in_order(found), find_unusable(evidence, met)


def flags_of_runs(rows: Sequence[RunRow]) -> list[tuple[str, str]]:
    """Return each flag of runs once, with its kind and with how many runs had it. The sentence is the first run's; its numbers
    differ from run to run."""
    kinds = [{_NUMBERS.sub("#", flag): flag for flag in row.flags} for row in rows]
    counts = Counter(kind for of_run in kinds for kind in of_run)
    first = {kind: flag for of_run in reversed(kinds) for kind, flag in of_run.items()}
    of = f" of {len(rows)} runs)"
    said = []
    for kind, count in counts.items():
        key, sentence = split_flag(first[kind])
        said.append((key or "counter", sentence + (f" ({count}{of}" if len(rows) > 1 else "")))
    return said


def split_flag(flag: str) -> tuple[str, str]:
    """Split a flag into the key that some begin with for programs, `clocks-disagree: …`, and the sentence for people."""
    key, colon, sentence = flag.partition(": ")
    return (key, sentence) if colon and " " not in key and sentence else ("", flag)


def time_taken(began_unix_s: float, runs: Iterable[tuple[float, float]]) -> float | None:
    """Add up the time from the beginning to the end of the last run, without gaps that a person made."""
    spent, at = 0.0, began_unix_s
    known = sorted(runs)
    for started, ended in known:
        spent += (max(started - at, 0.0) if started - at <= LONGEST_GAP_S else 0.0) + max(ended - max(started, at), 0.0)
        at = max(at, ended)
    return spent if known else None


def _against_published(
    measured: Measured, run: RunRow | None, reference: Reference | None, margin: float | None
) -> AgainstPublished | None:
    """None where no row was asked for, or no run gave a number."""
    rates = [row.rate_per_s for row in measured.runs if row.status == "done" and row.rate_per_s]
    if reference is None or not rates or run is None:
        return None
    unit = run.rate_unit or unit_of(measured.spec.workload)
    match = choose(reference, measured.spec, unit, run.chip, run.framework)
    if match is None:
        return None
    return against("this", rates, match) if margin is None else against("this", rates, match, margin)


def list_result(
    ledger: Ledger, experiment: Experiment, *, command: str | None = None, choices: Mapping[str, str] | None = None
) -> ListRunResult:
    """Read an operator list from the ledger, with all published times of single operators."""
    command = experiment.command if command is None else command
    return ListRunResult(read_list(ledger, experiment), command, known_operators(ledger), dict(choices or {}))


def reference_for(request: Request, text: str | None, rows: Sequence[Published]) -> Reference | None:
    """Find the published rows that `text` may mean, before anything is measured: a typo is found at once."""
    if text is None:
        return None
    if is_list(request.workload):
        raise SpecError(
            f"--published compares one rate with one row, but {request.workload} is a list",
            hint="leave it out: the table shows published times next to each row that has them",
        )
    metric = find(request.workload)[1].metric_by({**_defaults(request.workload), **request.typed()})
    unit = rate_unit_of(metric.unit, higher_is_better=metric.higher_is_better) if metric else unit_of(request.workload)
    return find_reference(text, request.workload, request.typed(), unit, rows)


def _defaults(workload: str) -> dict[str, Scalar]:
    """Return the parameters whose value is known without a machine."""
    fields = find(workload)[0].params.model_fields
    return {name: info.default for name, info in fields.items() if not info.is_required()}


@dataclass(frozen=True)
class StoredRun:
    """One stored run, with numbers recomputed from its events."""

    row: RunDetail
    setup: tuple[tuple[str, float], ...]
    facts: Facts
    # What could not be read of its stream, or does not agree with what is stored.
    doubts: tuple[str, ...]
    limits: Limits = NO_LIMITS
    # Of a run that went through an operator list.
    listed: ListResult | None = None
    # Of a run of several ranks: where the time of a step goes.
    group: GroupTimes | None = None
    # Of a run that was trained to a quality.
    evaluations: tuple[Evaluation, ...] = ()
    # What was sampled next to it.
    sampled: Telemetry | None = None
    # Of a run that answered queries, also of one that failed after it had measured some.
    served: ServingResult | None = None


def stored_run(ledger: Ledger, row: RunDetail, lines: Sequence[str]) -> StoredRun:
    """Judge a run again from the lines of its stream."""
    stream, _, broken = read_stored(lines)
    doubts = [broken.message] if broken else []
    if row.status in ("done", "invalid") and not doubts:
        again = judged_again(stream)
        if again is None or not row.rate_per_s or abs(again / row.rate_per_s - 1) > 1e-9:
            doubts.append(f"the stored rate is {row.rate_per_s}, but its events give {again} by today's rules")
    return StoredRun(
        row,
        tuple(setup_parts(stream.events)),
        gathered_facts(stream.events),
        tuple(doubts),
        limits_of_run(ledger, row),
        one_run_of_list(row, stream.events),
        times_of(stream.events, stream.ranks),
        curve_of(stream, row.spec),
        read_telemetry(stream.events, gathered_facts(stream.events)),
        _served_of(ledger, row, stream),
    )


def _served_of(ledger: Ledger, row: RunDetail, stream: Stream) -> ServingResult | None:
    times = StepTimes(ledger)
    times.remember(row, stream)
    definition, said = known(row.workload), times.metrics(row)
    counted = definition is not None and any(one.name in said for one in definition.compared)
    # An imported run shows what its file says.
    if "import" in gathered_facts(stream.events) or not (counted or "answered" in said):
        return None
    return served(times, row.workload, [row])
