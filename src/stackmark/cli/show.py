"""`stackmark show`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click

from stackmark.api.ledgers import Ledger, clean_up
from stackmark.api.options import repeatable
from stackmark.api.stored import (
    CHECK,
    FAULT,
    OPERATOR_LIST,
    RUN,
    SUITE,
    Experiment,
    ExperimentKind,
    StoredRun,
    list_result,
    load,
    load_run,
)
from stackmark.cli.listing import print_list_as, show_list
from stackmark.cli.options import check_format, details_option, format_option, json_option, ledger_option, not_empty
from stackmark.cli.saying import notice, print_json
from stackmark.errors import SpecError
from stackmark.show.runs import print_run, print_runs, run_json
from stackmark.show.safe import safe
from stackmark.show.terminal import standard_output
from stackmark.show.verdict import print_verdict


@click.command(
    "show",
    epilog="\b\nExamples:\n  stackmark show last\n  stackmark show r-01k9 --json\n  stackmark show last --log"
    "\n  stackmark show x-01k9",
)
@click.argument("run", callback=not_empty)
@click.option("--events", "what", flag_value="events", help="Print the worker's events as they came, one a line.")
@click.option("--log", "what", flag_value="log", help="Print what else the worker and its libraries wrote.")
@format_option
@click.option("--spec", "what", flag_value="spec", help="Print the spec: the workload with all its parameters.")
@details_option
@ledger_option
@json_option
def command(run: str, what: str | None, form: str | None, details: bool, ledger: str | None, as_json: bool) -> int:
    """Show one stored RUN whole: its numbers, computed again from its events, its settings and its facts.

    RUN is an id, any unique beginning of one, or `last`. With the id of an experiment (x-…) it prints what the command printed
    that made it: the result of `run`, the verdict of `compare`; with --details
    everything about it. Its runs: stackmark results --experiment x-…
    """
    with Ledger.open(ledger, create=False) as book:
        notice(*clean_up(book))
        if run.lower().startswith("x-"):
            _show_experiment(load(run, book), book, as_json, form, Look(details, ledger))
            return 0
        found = load_run(run, book)
        stored = found.judged() if what is None else None
    check_format(form, as_json, [found.row.workload])
    if stored is not None:
        _show_run(stored, as_json, form)
    elif what == "events":
        for line in found.events():
            click.echo(safe(line))
    elif what == "log":
        for line in found.log():
            click.echo(safe(line))
    else:
        click.echo(found.row.spec.canonical())
    return 0


def _show_run(run: StoredRun, as_json: bool, form: str | None) -> None:
    if form:
        if run.listed is None:
            raise SpecError(f"{run.row.id} went through no list: --format prints lists only")
        print_list_as(form, run.row.spec, run.listed)
    elif as_json:
        print_json(run_json(run))
    else:
        print_run(run, standard_output())


@dataclass(frozen=True)
class Look:
    """How much is shown, and the ledger that was typed."""

    details: bool = False
    ledger: str | None = None

    @property
    def option(self) -> str:
        """Return the option that names the ledger in commands to type next."""
        return repeatable(["--ledger", self.ledger]).removeprefix("stackmark ") if self.ledger else ""


def _show_experiment(experiment: Experiment, book: Ledger, as_json: bool, form: str | None, look: Look) -> None:
    kind = experiment.kind()
    if form and kind is not OPERATOR_LIST:
        raise SpecError(f"{experiment.id} went through no list: --format prints lists only")
    own: dict[ExperimentKind, Callable[[Experiment, Ledger, bool], None]] = {
        OPERATOR_LIST: partial(_show_list, form=form),
        FAULT: _show_fault,
        CHECK: _show_check,
        RUN: partial(_show_measurement, look=look),
        SUITE: partial(_show_suite, look=look),
    }
    if experiment.has_verdict:
        own[kind] = partial(_show_verdict, look=look)
    own.get(kind, _show_runs)(experiment, book, as_json)


def _show_list(experiment: Experiment, book: Ledger, as_json: bool, *, form: str | None) -> None:
    found = list_result(book, experiment.row)
    check_format(form, as_json, [found.spec.workload])
    show_list(found, as_json, form)
    if as_json:
        print_json(experiment.to_dict())


def _show_suite(experiment: Experiment, _book: Ledger, as_json: bool, *, look: Look) -> None:
    from stackmark.cli.suites import SuiteWanted, show_table

    show_table(experiment, SuiteWanted(ledger=look.ledger, as_json=as_json, details=look.details))


def _show_fault(experiment: Experiment, _book: Ledger, as_json: bool) -> None:
    from stackmark.cli.cluster_fault import print_fault_result

    print_fault_result(experiment.fault(), as_json)


def _show_measurement(experiment: Experiment, book: Ledger, as_json: bool, *, look: Look) -> None:
    found = None if as_json else experiment.measured()
    if found is None:
        _show_runs(experiment, book, as_json)
    else:
        found.print(standard_output(), details=look.details, ledger=look.option)


def _show_verdict(experiment: Experiment, book: Ledger, as_json: bool, *, look: Look) -> None:
    if as_json or not experiment.runs():
        _show_runs(experiment, book, as_json)
    else:
        print_verdict(experiment.verdict().examined, standard_output(), look.option, details=look.details)


def _show_check(experiment: Experiment, book: Ledger, as_json: bool) -> None:
    from stackmark.api.baselines import stored_check
    from stackmark.show.check import print_check

    found = None if as_json else stored_check(experiment.row, book)
    if found is None:
        _show_runs(experiment, book, as_json)
    else:
        print_check(found.workloads, standard_output(), found.command)


def _show_runs(experiment: Experiment, _book: Ledger, as_json: bool) -> None:
    if as_json:
        print_json(experiment.to_dict())
        return
    click.echo(f"{experiment.id}  {safe(experiment.row.command)}")
    print_runs(experiment.runs())
