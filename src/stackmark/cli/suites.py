"""What `suite`, and `run` and `compare` of several workloads, do: a plan is shown, carried out, and its table printed.

Standard output holds the table and nothing else; the plan and the progress go to standard error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from stackmark.api.ledgers import Ledger
from stackmark.api.measuring import check_sample_hz
from stackmark.api.options import check_margin, repeatable
from stackmark.api.stored import SUITE, Experiment, load
from stackmark.api.suites import (
    MARGIN,
    Suite,
    SuitePlan,
    carry_out_suite,
    forecast_of,
    needs_yes,
    plan_lists,
    plan_suite,
    prepare_suite,
    read_suite,
    row_results,
    shipped_suites,
    start_suite,
)
from stackmark.cli.comparing import Wanted, check_report
from stackmark.cli.options import check_junit
from stackmark.cli.saying import is_quiet, notice, print_json, say, watching
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, SpecError, Terminated
from stackmark.schemas import with_schema
from stackmark.show.suite import print_suite
from stackmark.show.suite_plan import plan_json, print_plan, print_suites, say_forecast
from stackmark.show.terminal import standard_error, standard_output
from stackmark.show.writing import STANDARD_OUTPUT, write_whole
from stackmark.spec import Request


@dataclass(frozen=True)
class SuiteWanted:
    """What was typed next to the plan."""

    ledger: str | None = None
    as_json: bool = False
    fail_on: Sequence[str] = ()
    time_limit_s: float | None = None
    report: str | None = None
    junit: str | None = None
    anyway: bool = False
    details: bool = False
    yes: bool = False
    again: bool = False
    trusted: bool = False
    # Of `resume`: also begin rows again in which a cell failed.
    failed: bool = False
    command: str = ""
    shows_plan: bool = False


def measure(plan: SuitePlan, wanted: SuiteWanted) -> Exit:
    """Show the plan, measure it, and print its table."""
    check_report(wanted.report)
    check_junit(wanted.junit, "suite.xml")
    expected = forecast_of(plan, wanted.ledger)
    if wanted.shows_plan and not wanted.as_json and not is_quiet():
        print_plan(plan, expected, standard_error())
    if needs_yes(plan, expected) and not wanted.yes:
        raise SpecError(
            f"the suite {plan.name!r} has {plan.cells:,} cells and {expected.runs:,} runs: {say_forecast(expected)}",
            hint="leave out axes or values, or begin with --yes",
        )
    with Ledger.open(wanted.ledger) as book:
        with watching(quiet=wanted.as_json, details=wanted.details) as watcher:
            experiment = start_suite(plan, book, watcher, command=wanted.command, again=wanted.again)
        return carry_on(experiment, wanted, prepared=True)


def measure_lists(plan: SuitePlan, wanted: SuiteWanted) -> Exit:
    """Measure the lists of `run`. With --json it prints what each would have printed alone, and the table."""
    if not wanted.as_json:
        return measure(plan, wanted)
    with Ledger.open(wanted.ledger) as book:
        with watching(quiet=True) as watcher:
            experiment = start_suite(plan, book, watcher, command=wanted.command, again=True)
            with _unfinished(experiment, wanted):
                found = carry_out_suite(experiment, watcher, time_limit_s=wanted.time_limit_s)
        print_json(with_schema("run", {"results": row_results(found, book), "suite": found.to_dict()}))
        return found.exit_code()


def compare_several(requests: Sequence[Request], wanted: Wanted) -> Exit:
    """Compare the same arms on several workloads or settings."""
    for option, given in (("--until-decided", wanted.until_decided), ("--published", wanted.published)):
        if given:
            raise SpecError(
                f"{option} is for one comparison, and {len(requests)} were asked for",
                hint="name one workload and one value of each parameter, or leave it out",
            )
    if len(wanted.arms) < 2:
        raise SpecError(
            f"a comparison needs 2 arms, got {len(wanted.arms)}" if wanted.arms else "--arm is missing",
            hint="give one for each side: --arm host --arm container",
        )
    if twice := next((arm for arm in wanted.arms if wanted.arms.count(arm) > 1), None):
        raise SpecError(
            f"the arm {twice!r} is named twice", hint="a table has one column per arm; see: stackmark noise"
        )
    margin = MARGIN if wanted.margin is None else wanted.margin
    check_margin(margin)
    design: dict[str, int] = {} if wanted.order_seed is None else {"seed": wanted.order_seed}
    plan = plan_lists(
        "compare", requests, wanted.arms, place_options=wanted.place_options, blocks=wanted.blocks, margin=margin,
        pause_s=wanted.pause_s, most_repeats=wanted.repeats, primers=wanted.primers,
        sample_hz=check_sample_hz(wanted.sample_hz), **design,
    )  # fmt: skip
    return measure(
        plan,
        SuiteWanted(
            ledger=wanted.ledger, as_json=wanted.as_json, fail_on=wanted.fail_on, time_limit_s=wanted.time_limit_s,
            report=wanted.report, junit=wanted.junit, anyway=wanted.anyway, details=wanted.details, yes=True, again=True,
            command=repeatable(wanted.asked), shows_plan=True,
        ),
    )  # fmt: skip


def carry_on(experiment: Experiment, wanted: SuiteWanted, *, prepared: bool = False) -> Exit:
    """Make what is missing, then print the table: of a suite that is whole, what it showed before."""
    with _unfinished(experiment, wanted):
        if not prepared:
            prepare_suite(experiment, confirm_trust(wanted.trusted), failed=wanted.failed)
        with watching(quiet=wanted.as_json, details=wanted.details) as watcher:
            found = carry_out_suite(
                experiment, watcher, time_limit_s=wanted.time_limit_s, anyway=wanted.anyway, failed=wanted.failed
            )
    return report(found, wanted)


@contextmanager
def _unfinished(experiment: Experiment, wanted: SuiteWanted) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        again = repeatable(["resume", experiment.id, *(("--ledger", wanted.ledger) if wanted.ledger else ())])
        say(f"{experiment.id} is not finished", f"go on with: {again}")
        raise


def report(found: Suite, wanted: SuiteWanted) -> Exit:
    """Print a table, write what was asked for, and return the exit code."""
    if wanted.as_json:
        print_json(found.to_dict())
    else:
        print_suite(found.result, standard_output(), ledger=_ledger_option(wanted), details=wanted.details)
    if wanted.report:
        path = found.report(wanted.report)
        if path != STANDARD_OUTPUT:
            notice(f"report of {found.id} written to {path}")
    if wanted.junit:
        write_whole(Path(wanted.junit), found.junit(wanted.fail_on).encode())
    return found.exit_code(wanted.fail_on)


def _ledger_option(wanted: SuiteWanted) -> str:
    return repeatable(["--ledger", wanted.ledger]).removeprefix("stackmark ") if wanted.ledger else ""


def list_suites(as_json: bool) -> None:
    found = shipped_suites()
    if as_json:
        listed = [{"name": one.name, "title": one.title, "about": one.about, "cells": one.plan.cells} for one in found]
        print_json(with_schema("suites", {"suites": listed}))
    else:
        print_suites([(one.name, one.title, one.plan.cells) for one in found], standard_output())


def show_suite(text: str, wanted: SuiteWanted, *, toml: bool = False, form: str | None = None) -> Exit:
    """Show a stored suite, or the plan of one that ships or of a file."""
    if _is_stored(text):
        if toml:
            raise SpecError("--toml prints a suite that ships", hint="list them with: stackmark suite list")
        with Ledger.open(wanted.ledger, create=False) as book:
            experiment = load(text, book)
            return show_table(experiment, wanted, form)
    if form:
        raise SpecError(
            "--format is for a stored suite", hint="name it by its id: stackmark suite show x-01k9 --format csv"
        )
    if toml:
        shipped = {one.name: one.toml for one in shipped_suites()}
        if text not in shipped:
            plan_suite(text)  # says which ones ship
            raise SpecError(f"{text} is a file already", hint="--toml prints a suite that ships")
        click.echo(shipped[text], nl=False)
        return Exit.DONE
    plan = plan_suite(text)
    expected = forecast_of(plan, wanted.ledger)
    if wanted.as_json:
        print_json(plan_json(plan, expected))
    else:
        print_plan(plan, expected, standard_output(), about=True)
    return Exit.DONE


def _is_stored(text: str) -> bool:
    return text.strip().lower() == "last" or text.strip().lower().startswith("x-")


def show_table(
    experiment: Experiment, wanted: SuiteWanted, form: str | None = None, margin: float | None = None
) -> Exit:
    """Print the table of a stored suite; it is never a failure to look at one, unless a verdict is named."""
    if experiment.kind() is not SUITE:
        raise SpecError(
            f"{experiment.id} is {experiment.kind().title}, not a suite", hint=f"stackmark show {experiment.id}"
        )
    found = read_suite(experiment, margin)
    if form == "csv":
        click.echo(found.csv(), nl=False)
    elif form == "markdown":
        from stackmark.show.report.suite import suite_markdown

        click.echo(suite_markdown(found.result), nl=False)
    elif wanted.as_json:
        print_json(found.to_dict())
    else:
        print_suite(found.result, standard_output(), ledger=_ledger_option(wanted), details=wanted.details)
    if wanted.junit:
        write_whole(Path(wanted.junit), found.junit(wanted.fail_on).encode())
    code = found.exit_code(wanted.fail_on)
    return code if code == Exit.VERDICT_NAMED else Exit.DONE
