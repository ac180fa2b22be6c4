"""Handles of what is stored: experiments, runs, measurements, verdicts.

A handle holds no open ledger, unless it was given one: each call opens it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from stackmark.api.ledgers import LedgerLike, Notice, clean, opened, silent
from stackmark.api.verdicts import Verdict, VerdictTable
from stackmark.errors import Exit, SpecError, StreamError, WorkerError
from stackmark.events import EVENT_PREFIX, Log, read_event
from stackmark.experiments import operator_list
from stackmark.experiments import run as run_kind
from stackmark.experiments.caches import remove_cache
from stackmark.experiments.check import words_of_check
from stackmark.experiments.compare import carry_out, design_of, parts_in, prepare_places
from stackmark.experiments.examine import examine
from stackmark.experiments.fault_finding import FaultFinding, examine_fault
from stackmark.experiments.group_tables import tabulate_import
from stackmark.experiments.groups import examine_imported_arms, has_imported_arms
from stackmark.experiments.judging import STDERR_PREFIX
from stackmark.experiments.kinds import CHECK as CHECK
from stackmark.experiments.kinds import FAULT as FAULT
from stackmark.experiments.kinds import KINDS, kind_in
from stackmark.experiments.kinds import OPERATOR_LIST as OPERATOR_LIST
from stackmark.experiments.kinds import RUN as RUN
from stackmark.experiments.kinds import SUITE as SUITE
from stackmark.experiments.kinds import SWEEP as SWEEP
from stackmark.experiments.kinds import ExperimentKind as ExperimentKind
from stackmark.experiments.overview import ListedExperiment as ListedExperiment
from stackmark.experiments.overview import overview
from stackmark.experiments.progress import StepTimes
from stackmark.experiments.progress import progress as progress_of
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.result import ListRunResult as ListRunResult
from stackmark.experiments.result import RunResult as RunResult
from stackmark.experiments.result import StoredRun as StoredRun
from stackmark.experiments.result import list_result as list_result
from stackmark.experiments.result import run_result, stored_run
from stackmark.experiments.suite.carry_out import begun_rows
from stackmark.experiments.trust import Part as Part
from stackmark.experiments.trust import allow as allow
from stackmark.experiments.trust import remember as remember
from stackmark.experiments.trust import unknown as unknown
from stackmark.figures import figure_unit
from stackmark.ledger.rows import Experiment as ExperimentRow
from stackmark.ledger.rows import RunDetail
from stackmark.published.lookup import known_rows
from stackmark.remarks import Remark
from stackmark.schemas import with_schema
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.experiments import experiment_json, print_experiments
from stackmark.show.faults import fault_json, fault_png, fault_svg, print_fault
from stackmark.show.lists import list_json, print_list
from stackmark.show.notebook import lines_html, text_html
from stackmark.show.result import print_result, result_json, result_lines
from stackmark.show.runs import print_run, run_json, run_lines
from stackmark.show.terminal import printed
from stackmark.show.writing import check_picture, write_picture
from stackmark.spec import Spec


@dataclass(frozen=True)
class FaultResult:
    """The effects of a fault in a cluster: on the training loop, its pod, its log, and the next pod."""

    finding: FaultFinding

    @property
    def exit_code(self) -> Exit:
        """Return 0 where it was measured, whatever came out, and 6 where the cluster is not well again."""
        return Exit.DONE if self.finding.healthy else Exit.CLUSTER_FAILED

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster fault --json` prints."""
        return fault_json(self.finding)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the steps over time around the fault: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "fault.svg")
        return write_picture(target, lambda: fault_svg(self.finding), lambda: fault_png(self.finding))

    def __str__(self) -> str:
        return printed(lambda console: print_fault(console, self.finding))


# Decides whether parts of a stored spec may run that were not typed on this machine; raises where they may not.
Confirm = Callable[[Sequence[Part], str], None]


@dataclass(frozen=True)
class Experiment:
    """A stored experiment. `ledger` is where it is: a path, a URL, an open ledger, or None for the default."""

    row: ExperimentRow
    ledger: LedgerLike = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self.row.id

    def runs(self) -> tuple[RunDetail, ...]:
        with opened(self.ledger) as book:
            return tuple(book.runs_of(self.id))

    def verdict(self, margin: float | None = None) -> Verdict:
        """Recompute what it shows. Without a margin it is the one that was asked for."""
        with opened(self.ledger) as book:
            if has_imported_arms(self.row):
                return Verdict(examine_imported_arms(book, self.row, margin))
            examined = examine(book, self.id, margin)
            # A check compares with a baseline, which is not among the arms: without this line its word would be missing.
            words = words_of_check(book, self.row) if self.kind() is CHECK else ()
            found = f"the check of the baseline {self.row.request.get('baseline')} found"
            said = [Remark(f"{found} {word}: stackmark show {self.id}", "check") for word in words]
            return Verdict(replace(examined, warnings=(*said, *examined.warnings)))

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        margin: float | None = None,
        title: str | None = None,
        note: str | None = None,
        author: str | None = None,
    ) -> Path:
        """Write the report of what it shows; see `Verdict.report`."""
        return self.verdict(margin).report(path, title=title, note=note, author=author)

    def measured(self) -> "Measurement | None":
        """Return what `run` measured, with its rate; None for another kind, and where the runs are not all of one spec."""
        with opened(self.ledger) as book:
            if kind_in(book, self.row) is not RUN:
                return None
            measured = run_kind.read_measured(book, self.row)
            if measured is None:
                return None
            result = run_result(book, measured, known_rows(book), command=self.row.command)
        return Measurement(self.row, self.ledger, result=result)

    def rows(self) -> "list[Experiment]":
        """Return the experiments that are the rows of a suite, those that have runs: of each row the newest."""
        with opened(self.ledger) as book:
            begun = begun_rows(book, self.row)
            found = [begun[number].experiment for number in sorted(begun)]
            return [Experiment(one, self.ledger) for one in found if book.runs_of(one.id)]

    def delete(self) -> int:
        """Delete it with its runs and their events, for good, and return the number of runs."""
        with opened(self.ledger) as book:
            return book.delete_together([], [self.id])

    def kind(self) -> ExperimentKind:
        """Return what kind of experiment it is: a run, an operator list, a comparison …"""
        with opened(self.ledger) as book:
            return kind_in(book, self.row)

    def table(self, margin: float | None = None) -> "VerdictTable | None":
        """Compare imported arms spec by spec; None where the arms have one spec, or were not imported together."""
        with opened(self.ledger) as book:
            found = tabulate_import(book, self.row, margin)
        return VerdictTable(found) if found else None

    @property
    def has_verdict(self) -> bool:
        """Tell whether its arms are compared with each other: in blocks, or as logs that were imported together."""
        return KINDS[self.row.kind].has_blocks or has_imported_arms(self.row)

    def is_open(self) -> bool:
        """Tell whether runs of its design are missing, so that `resume` goes on."""
        with opened(self.ledger) as book:
            return progress_of(design_of(self.row), book.runs_of(self.id), StepTimes(book)).open

    def prepare(self, confirm: Confirm) -> None:
        """Ask `confirm` whether what the ledger says may run, then see that its places are there.

        Without a place each run would fail, and use up the blocks that may be repeated.
        """
        design = design_of(self.row)
        with opened(self.ledger) as book:
            confirm(parts_in(design), book.where)
        prepare_places(design.arms)

    def resume_run(
        self,
        *,
        progress: ProgressLike = None,
        time_limit_s: float | None = None,
        anyway: bool = False,
        trust_ledger: bool = False,
    ) -> "Measurement":
        """Make the missing runs of a `run` that was interrupted, then return what all of them show."""
        prepare_run(self, trust(trust_ledger))
        go_on_run(self, watcher_of(progress), time_limit_s=time_limit_s, anyway=anyway)
        found = self.measured()
        assert found is not None  # `go_on_run` refuses an experiment without runs of one spec
        return found

    def resume(
        self,
        *,
        progress: ProgressLike = None,
        time_limit_s: float | None = None,
        anyway: bool = False,
        trust_ledger: bool = False,
    ) -> Verdict:
        """Make the missing runs of a comparison, then return its verdict.

        A command or path in the ledger that you did not type on this machine is refused unless `trust_ledger` is true.
        """
        if self.is_open():
            self.prepare(trust(trust_ledger))
            carry_out_compare(self, watcher_of(progress), time_limit_s=time_limit_s, anyway=anyway)
        else:
            self.remove_cache()
        return self.verdict()

    def fault(self) -> FaultResult:
        """Return what a fault in a cluster did to the run that it interrupted."""
        with opened(self.ledger) as book:
            return FaultResult(examine_fault(book, self.id))

    def remove_cache(self) -> None:
        """Remove the compiled kernels that its runs shared."""
        remove_cache(self.id)

    def resume_list(
        self,
        *,
        failed: bool = False,
        progress: ProgressLike = None,
        time_limit_s: float | None = None,
        anyway: bool = False,
        trust_ledger: bool = False,
    ) -> "Measurement":
        """Take the problems of an operator list that are missing; with `failed` also those that gave no number."""
        prepare_list(self, trust(trust_ledger), failed=failed)
        return go_on_list(self, watcher_of(progress), time_limit_s=time_limit_s, anyway=anyway, failed=failed)

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark show x-… --json` prints."""
        with opened(self.ledger) as book:
            if kind_in(book, self.row) is OPERATOR_LIST:
                return list_json(list_result(book, self.row))
            runs = [row.model_dump(mode="json") for row in book.runs_of(self.id)]
        return with_schema("experiment", {"experiment": self.row.model_dump(mode="json"), "runs": runs})

    def _repr_html_(self) -> str:
        return self.verdict()._repr_html_()


@dataclass(frozen=True)
class Measurement(Experiment):
    """The result of `run`: one workload in one place, in several fresh processes."""

    result: RunResult | ListRunResult = field(kw_only=True, repr=False)

    @property
    def rate_per_s(self) -> float | None:
        """Return the rate over all runs, in `unit`; None where no run gave a number."""
        throughput = self.result.throughput
        return throughput.rate_per_s if throughput else None

    @property
    def interval_per_s(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the rate; None for one run."""
        throughput = self.result.throughput
        if throughput is None or throughput.low_per_s is None or throughput.high_per_s is None:
            return None
        return throughput.low_per_s, throughput.high_per_s

    @property
    def unit(self) -> str:
        """Return what the rate is counted in, as the ledger has it: `images/s`; of a time `1/s`."""
        return self.result.unit

    @property
    def figure_value(self) -> float | None:
        """Return the figure in its own terms, in `figure_unit`: of a program's wall time seconds."""
        rate = self.rate_per_s
        return figure_unit(self.unit).value(rate) if rate else None

    @property
    def figure_unit(self) -> str:
        return figure_unit(self.unit).name

    @property
    def higher_is_better(self) -> bool:
        return figure_unit(self.unit).higher_is_better

    @property
    def spec(self) -> Spec:
        """Return the workload with all parameters written out, as it ran."""
        return self.result.spec

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark run` exits with."""
        return self.result.exit_code

    @property
    def ok(self) -> bool:
        return self.exit_code == Exit.DONE

    def raise_for_failure(self) -> None:
        """Raise a WorkerError where a run failed, with its message and hint."""
        if self.ok:
            return
        bad = next((row for row in self.result.runs if row.status != "done"), None)
        message = (bad.failure_message if bad else None) or "part of the list gave no number"
        raise WorkerError(message, hint=bad.failure_hint if bad else None, command=f"stackmark show {self.id}")

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark run --json` prints of this measurement."""
        return result_json(self.result) if isinstance(self.result, RunResult) else list_json(self.result)

    def print(self, console: Console, *, details: bool = False, ledger: str = "") -> None:
        """Print the answer, or with `details` everything. `ledger` is the option that names it in commands to type next."""
        if isinstance(self.result, RunResult):
            print_result(self.result, console, details=details, ledger=ledger)
        else:
            print_list(self.result, console)

    def __str__(self) -> str:
        return printed(self.print)

    def _repr_html_(self) -> str:
        if isinstance(self.result, RunResult):
            return lines_html(self.spec.workload, result_lines(self.result))
        return text_html(str(self))


def carry_out_compare(
    experiment: Experiment, watcher: Watcher, *, time_limit_s: float | None = None, anyway: bool = False
) -> None:
    """Make the missing runs of a comparison. Interruptions pass through: what was finished is stored."""
    with opened(experiment.ledger) as book:
        carry_out(experiment.row, book, watcher, time_limit_s=time_limit_s, anyway=anyway)


def prepare_run(experiment: Experiment, confirm: Confirm) -> None:
    """Ask `confirm` whether what the ledger says may run, where a run is missing."""
    with opened(experiment.ledger) as book:
        confirm(run_kind.parts_in(book, experiment.row), book.where)


def go_on_run(
    experiment: Experiment, watcher: Watcher, *, time_limit_s: float | None = None, anyway: bool = False
) -> None:
    """Make the missing runs of a `run`. Interruptions pass through: what was finished is stored."""
    with opened(experiment.ledger) as book:
        run_kind.carry_out(experiment.row, book, watcher, time_limit_s=time_limit_s, anyway=anyway)


def prepare_list(experiment: Experiment, confirm: Confirm, *, failed: bool = False) -> None:
    """Ask `confirm` whether what the ledger says may run, where anything is left to run."""
    with opened(experiment.ledger) as book:
        before = operator_list.read_list(book, experiment.row)
        if failed or not before.whole:
            confirm(operator_list.parts_in(before), book.where)


def go_on_list(
    experiment: Experiment,
    watcher: Watcher,
    *,
    time_limit_s: float | None = None,
    anyway: bool = False,
    failed: bool = False,
) -> "Measurement":
    """Run what is missing of an operator list; with `failed` also, once, what failed."""
    with opened(experiment.ledger) as book:
        operator_list.carry_out(experiment.row, book, watcher, time_limit_s=time_limit_s, anyway=anyway, failed=failed)
        return Measurement(experiment.row, experiment.ledger, result=list_result(book, experiment.row))


def trust(trusted: bool) -> Confirm:
    """Refuse what was not typed on this machine, unless the caller trusts the ledger."""

    def confirm(parts: Sequence[Part], where: str) -> None:
        if trusted:
            allow(parts)
        if new := unknown(parts):
            lines = "; ".join(line.strip() for part in new for line in part.lines())
            raise SpecError(
                f"the ledger {where} contains commands that you did not type on this machine: {lines}",
                hint="anyone who can write to that ledger may have added them: read them, then pass trust_ledger=True",
            )

    return confirm


@dataclass(frozen=True)
class Run:
    """One stored run with the lines of its stream."""

    row: RunDetail
    lines: tuple[str, ...] = field(repr=False)
    ledger: LedgerLike = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self.row.id

    def events(self) -> list[str]:
        """Return the lines of its stream that are events."""
        return [line for line in self.lines if line.startswith(EVENT_PREFIX)]

    def log(self) -> Iterator[str]:
        """Return the lines that are not events, and those that events carry: what a user's own program printed."""
        for number, line in enumerate(self.lines, 1):
            if not line.startswith(EVENT_PREFIX):
                yield line.removeprefix(STDERR_PREFIX)
                continue
            with suppress(StreamError):
                event = read_event(line, number)
                if isinstance(event, Log):
                    yield event.line

    def judged(self) -> StoredRun:
        """Compute its numbers again from its events."""
        with opened(self.ledger) as book:
            return stored_run(book, self.row, self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark show r-… --json` prints."""
        return run_json(self.judged())

    def __str__(self) -> str:
        return printed(lambda console: print_run(self.judged(), console))

    def _repr_html_(self) -> str:
        return lines_html(self.row.workload, run_lines(self.judged()))


def load(experiment: str = "last", ledger: LedgerLike = None) -> Experiment:
    """Find a stored experiment by its id, any unique beginning of it, or `last`."""
    with opened(ledger) as book:
        return Experiment(book.experiment(experiment), ledger)


@dataclass(frozen=True)
class ExperimentList:
    """Stored experiments, the newest first; `more` tells whether older ones also match the filter."""

    experiments: tuple[ListedExperiment, ...]
    more: bool

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark experiments --json` prints."""
        listed = [experiment_json(one) for one in self.experiments]
        return with_schema("experiments", {"experiments": listed, "more": self.more})

    def __str__(self) -> str:
        return printed(lambda console: print_experiments(self.experiments, console))


def list_experiments(
    *, workload: str | None = None, limit: int = 20, ledger: LedgerLike = None, notice: Notice = silent
) -> ExperimentList:
    """List stored experiments with their verdicts. `workload` may be a glob (`train/*`)."""
    with opened(ledger) as book:
        clean(book, notice)
        rows = book.experiments(workload=workload, limit=limit + 1)
        return ExperimentList(tuple(overview(book, rows[:limit])), len(rows) > limit)


def verdicts_of(experiments: Sequence[str], margin: float | None = None, ledger: LedgerLike = None) -> list[Verdict]:
    """Recompute what several experiments show, for one report; a name that stands for one of the others is refused."""
    with opened(ledger) as book:
        named = [Experiment(book.experiment(name), book) for name in experiments]
        # The rows of a suite are experiments of their own; one that was not begun has no run to show.
        found = [row for one in named for row in (one.rows() if one.row.kind == SUITE.name else [one])]
        ids = [one.id for one in found]
        if twice := next((id_ for id_ in ids if ids.count(id_) > 1), None):
            raise SpecError(f"{twice} is named twice", hint="name each experiment once: stackmark experiments")
        return [one.verdict(margin) for one in found]


def load_run(run: str = "last", ledger: LedgerLike = None) -> Run:
    """Find a stored run by its id, any unique beginning of it, or `last`."""
    with opened(ledger) as book:
        row = book.run(run)
        return Run(row, tuple(book.stream(row.id)), ledger)
