"""`stackmark resume`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import (
    details_option,
    fail_on_option,
    json_option,
    ledger_option,
    not_empty,
    seconds_of,
    time_limit_option,
    trust_option,
)
from stackmark.errors import SpecError

if TYPE_CHECKING:
    from stackmark.api.stored import Experiment
    from stackmark.cli.comparing import Wanted


@click.command(
    "resume",
    epilog="\b\nExamples:\n  stackmark resume x-01k9\n  stackmark resume last --report report.html"
    "\n  stackmark resume last --failed",
)
@click.argument("experiment", callback=not_empty)
@fail_on_option
@time_limit_option
@click.option("--report", metavar="FILE", callback=not_empty, help="Also write a report: .html, .md or .pdf.")
@click.option("--failed", is_flag=True, help="Also try again what gave no number in an operator list or a suite.")
@click.option("--anyway", is_flag=True, help="Go on, though the machine or the chip is another one than before.")
@trust_option
@details_option
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    experiment: str,
    fail_on: tuple[str, ...],
    time_limit: str | None,
    report: str | None,
    failed: bool,
    anyway: bool,
    trusted: bool,
    details: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Go on with an EXPERIMENT that was killed or interrupted: the missing runs, in the order that was fixed before.

    Of a `run` it makes the runs that are missing, of a list of problems (`stackmark run op/gemm`) it takes those that are,
    of a suite the missing cells.
    EXPERIMENT is an id (x-…), any unique beginning of one, or `last`. Of one that is finished the result is printed again.
    """
    from stackmark.api.ledgers import Ledger, clean_up
    from stackmark.api.stored import OPERATOR_LIST, RUN, SUITE, SWEEP, ExperimentKind, load
    from stackmark.cli.comparing import Wanted, carry_on, check_report
    from stackmark.cli.saying import notice

    wanted = Wanted(
        fail_on=fail_on, time_limit_s=seconds_of("--time-limit", time_limit), report=report, anyway=anyway,
        trusted=trusted, ledger=ledger, as_json=as_json, asked=asked, details=details,
    )  # fmt: skip
    check_report(report)
    with Ledger.open(ledger, create=False) as book:
        notice(*clean_up(book))
        found = load(experiment, book)
        kind = found.kind()
        if failed and kind not in (OPERATOR_LIST, SUITE):
            raise SpecError(f"--failed is for operator lists and suites; {found.id} is {kind.title}")
        own: dict[ExperimentKind, Callable[[Experiment, Wanted], int]] = {
            OPERATOR_LIST: partial(_list, failed=failed),
            RUN: _run,
            SWEEP: _sweep,
            SUITE: partial(_suite, failed=failed),
        }
        return own.get(kind, carry_on)(found, wanted)


def _list(found: "Experiment", wanted: "Wanted", *, failed: bool) -> int:
    from stackmark.cli.listing import resume_list

    if wanted.report or wanted.fail_on:
        raise SpecError(f"{found.id} is a list of problems of one arm: it has no verdict, and no --report or --fail-on")
    return resume_list(
        found, ledger=wanted.ledger, as_json=wanted.as_json, time_limit_s=wanted.time_limit_s,
        anyway=wanted.anyway, failed=failed, trusted=wanted.trusted,
    )  # fmt: skip


def _run(found: "Experiment", wanted: "Wanted") -> int:
    from stackmark.cli.measuring import Session, resume_run

    if wanted.report or wanted.fail_on:
        raise SpecError(
            f"{found.id} is a run of one arm: it has no verdict, and `resume` no --report or --fail-on for it",
            hint=f"resume it, then: stackmark report {found.id}",
        )
    session = Session(wanted.ledger, wanted.as_json, details=wanted.details)
    return resume_run(found, session, time_limit_s=wanted.time_limit_s, anyway=wanted.anyway, trusted=wanted.trusted)


def _suite(found: "Experiment", wanted: "Wanted", *, failed: bool) -> int:
    from stackmark.cli.suites import SuiteWanted, carry_on

    same = SuiteWanted(
        ledger=wanted.ledger, as_json=wanted.as_json, fail_on=wanted.fail_on, time_limit_s=wanted.time_limit_s,
        report=wanted.report, anyway=wanted.anyway, details=wanted.details, trusted=wanted.trusted, failed=failed,
    )  # fmt: skip
    return carry_on(found, same)


def _sweep(found: "Experiment", wanted: "Wanted") -> int:
    from stackmark.cli.cluster_sweep import SweepOutput, carry_on

    if wanted.report or wanted.fail_on or wanted.anyway:
        raise SpecError(
            f"{found.id} is a sweep of a cluster, which has no --report, --fail-on and --anyway",
            hint=f"stackmark cluster sweep --resume {found.id} has --junit and -o",
        )
    same = SweepOutput(
        time_limit_s=wanted.time_limit_s, trusted=wanted.trusted, ledger=wanted.ledger, as_json=wanted.as_json
    )
    return carry_on(found, same)
