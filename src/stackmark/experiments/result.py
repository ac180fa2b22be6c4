"""What `run` gives: the runs of one request, and what they are held against. Frozen; `show/` renders it.

A result is made once, when the runs are done, from the runs themselves, the ledger's ceilings and the published table. The
terminal, the JSON and the Python API all show the same one.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from stackmark.errors import Exit, SpecError
from stackmark.events import gathered_facts
from stackmark.experiments.judging import Facts, judged_again, read_stored, setup_parts
from stackmark.experiments.limits import NO_LIMITS, Limits, limits_of_measured, limits_of_run
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.operator_list import ListedRuns, read_list
from stackmark.experiments.operator_list import run_result as one_run_of_list
from stackmark.experiments.remembered import typed_in
from stackmark.experiments.run import Measured
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
from stackmark.published.table import Published
from stackmark.spec import Request, Scalar, Spec
from stackmark.verdict.operators import ListResult
from stackmark.verdict.throughput import Throughput
from stackmark.workloads.registry import find


@dataclass(frozen=True)
class RunResult:
    """The runs of one workload in one place. `command` is the command line that repeats them."""

    measured: Measured
    command: str = ""
    # The nearest published rows, which are context.
    published: tuple[Match, ...] = ()
    # The published row that was asked for.
    against: AgainstPublished | None = None
    limits: Limits = NO_LIMITS

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
        """Return the command line that repeats these runs, with every choice typed out.

        One that measures several things is left as it is: what was chosen for one is not for the others.
        """
        words = [word for word in shlex.split(self.command) if word != "--choose-again"]
        texts = [self.spec.workload, *(text for text in typed_in(self.experiment).values() if isinstance(text, str))]
        if not all(any(word == text or word.endswith(f"={text}") for word in words) for text in texts):
            return self.command
        pins = [_pin(name, self.spec.params.get(name)) for name in self.measured.choices]
        return shlex.join([*words, *(word for pin in pins if pin and pin[0] not in words for word in pin)])

    @property
    def good(self) -> list[RunRow]:
        return [row for row in self.measured.runs if row.status == "done"]

    @property
    def shown_run(self) -> RunRow | None:
        """A run to read the chip and the stack from: one that gave a number, if there is one."""
        return shown_run(self.measured)

    @property
    def unit(self) -> str:
        """Of the rate. A program's own figure is not counted in samples."""
        run = self.shown_run
        return (run.rate_unit if run else None) or unit_of(self.measured.spec.workload)

    def median_of(self, name: str) -> float | None:
        """Return the median of a column over the runs that gave a number."""
        values = [value for row in self.good if (value := getattr(row, name)) is not None]
        return median(values) if values else None

    @property
    def energy_j_per_sample(self) -> float | None:
        energies = [
            row.energy_j / (row.steps_total * row.batch)
            for row in self.good
            if row.energy_j and row.steps_total and row.batch
        ]
        return median(energies) if energies else None


def _pin(name: str, value: Scalar) -> list[str]:
    """Return a parameter as it is typed; nothing where it is empty."""
    option = name.replace("_", "-")
    if value is None or value == "":
        return []
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value).removesuffix(".0")]


@dataclass(frozen=True)
class ListRunResult:
    """An operator list that one arm went through. `choices` are the probe's reasons, known only to the command that made it."""

    listed: ListedRuns
    command: str
    published: OperatorIndex
    choices: Mapping[str, str] = field(default_factory=dict)

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
    return RunResult(
        measured,
        command,
        tuple(near(measured.spec, unit, chip, framework, rows)),
        _held_against(measured, run, reference, margin),
        limits_of_measured(ledger, measured),
    )


def _held_against(
    measured: Measured, run: RunRow | None, reference: Reference | None, margin: float | None
) -> AgainstPublished | None:
    """None where no row was asked for, or no run gave a number."""
    rates = [row.rate_per_s for row in measured.runs if row.status == "done" and row.rate_per_s]
    if reference is None or not rates or run is None:
        return None
    match = choose(reference, measured.spec, unit_of(measured.spec.workload), run.chip, run.framework)
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
            f"--published holds one rate against one row, and {request.workload} is a list",
            hint="leave it out: published times stand beside each problem of the list that has any",
        )
    return find_reference(text, request.workload, request.typed(), unit_of(request.workload), rows)


@dataclass(frozen=True)
class StoredRun:
    """One stored run, its numbers computed again from its events."""

    row: RunDetail
    setup: tuple[tuple[str, float], ...]
    facts: Facts
    # What could not be read of its stream, or does not agree with what is stored.
    doubts: tuple[str, ...]
    limits: Limits = NO_LIMITS
    # Of a run that went through an operator list.
    listed: ListResult | None = None


def stored_run(ledger: Ledger, row: RunDetail, lines: Sequence[str]) -> StoredRun:
    """Judge a run again from the lines of its stream."""
    stream, _, broken = read_stored(lines)
    doubts = [broken.message] if broken else []
    if row.status in ("done", "invalid") and not doubts:
        again = judged_again(stream)
        if again is None or not row.rate_per_s or abs(again / row.rate_per_s - 1) > 1e-9:
            doubts.append(f"the stored rate is {row.rate_per_s}; its events give {again} by the rules of today")
    return StoredRun(
        row,
        tuple(setup_parts(stream.events)),
        gathered_facts(stream.events),
        tuple(doubts),
        limits_of_run(ledger, row),
        one_run_of_list(row, stream.events),
    )
