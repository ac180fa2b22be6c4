"""`stackmark suite`: whole tables in one command. What it does is in suites.py, so that `--help` need not load it."""

import click

from stackmark.cli.options import (
    Subverbs,
    details_option,
    fail_on_option,
    json_option,
    junit_option,
    ledger_option,
    not_empty,
    read_margin,
    seconds_of,
    time_limit_option,
)


@click.group(
    "suite",
    cls=Subverbs,
    epilog="""\b
Examples:
  stackmark suite list
  stackmark suite run quick
  stackmark suite show gpu-server --toml > mine.toml
  stackmark suite run mine.toml --report study.html
""",
)
def command() -> None:
    """Measure a matrix of workloads, places and parameters: one table, one picture, one report.

    A suite is a TOML file, or one that ships. Its axes make the cells; one of them may be compared.
    """


@command.command(
    "run",
    epilog="""\b
Examples:
  stackmark suite run quick
  stackmark suite run study.toml --report study.html --junit study.xml
  stackmark suite run gpu-server --blocks 4 --fail-on slower
""",
)
@click.argument("suite", metavar="FILE | NAME", callback=not_empty)
@click.option("--blocks", type=click.IntRange(1, 10_000), metavar="N", help="Runs of each cell. [default: the suite's]")
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: the suite's, or 1%]")
@click.option("--yes", is_flag=True, help="Begin, though it has over 200 cells or takes over 12 hours.")
@click.option("--again", is_flag=True, help="Begin another one, though the same suite is not finished.")
@fail_on_option
@time_limit_option
@junit_option(
    "Also write JUnit XML: a case for each cell, a failure where --fail-on names its verdict. [default: slower]"
)
@click.option("--report", metavar="FILE", callback=not_empty, help="Also write a report: .html, .md or .pdf.")
@click.option("--anyway", is_flag=True, help="Go on where arms ran on different chips.")
@details_option
@ledger_option
@json_option
@click.pass_obj
def run(
    asked: tuple[str, ...],
    /,
    suite: str,
    blocks: int | None,
    margin: str | None,
    yes: bool,
    again: bool,
    fail_on: tuple[str, ...],
    time_limit: str | None,
    junit: str | None,
    report: str | None,
    anyway: bool,
    details: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Measure a suite: a TOML FILE, or the NAME of one that ships (`stackmark suite list`).

    The plan and its time are printed before anything runs. A cell that fails has its reason, and the rest goes on (exit code 7).
    A suite that was stopped or killed goes on with `stackmark resume`.
    """
    from stackmark.api.options import repeatable
    from stackmark.api.suites import plan_suite
    from stackmark.cli.suites import SuiteWanted, measure

    plan = plan_suite(suite, blocks=blocks, margin=read_margin(margin) if margin is not None else None)
    wanted = SuiteWanted(
        ledger=ledger, as_json=as_json, fail_on=fail_on, time_limit_s=seconds_of("--time-limit", time_limit), report=report,
        junit=junit, anyway=anyway, details=details, yes=yes, again=again, command=repeatable(asked), shows_plan=True,
    )  # fmt: skip
    return measure(plan, wanted)


@command.command("list", epilog="\b\nExamples:\n  stackmark suite list\n  stackmark suite list --json")
@json_option
def list_(as_json: bool) -> int:
    """List the suites that ship."""
    from stackmark.cli.suites import list_suites

    list_suites(as_json)
    return 0


@command.command(
    "show",
    epilog="""\b
Examples:
  stackmark suite show gpu-server
  stackmark suite show gpu-server --toml > mine.toml
  stackmark suite show mine.toml
  stackmark suite show last --format csv
""",
)
@click.argument("suite", metavar="NAME | FILE | EXPERIMENT", callback=not_empty)
@click.option("--toml", is_flag=True, help="Print the TOML of a suite that ships: the start of one of your own.")
@click.option(
    "--format", "form", type=click.Choice(["csv", "markdown"]), help="Print the table of a stored suite in this format."
)
@details_option
@ledger_option
@json_option
def show(suite: str, toml: bool, form: str | None, details: bool, ledger: str | None, as_json: bool) -> int:
    """Show the plan of a suite with its time, or the table of a stored one (x-…, last).

    Nothing is run.
    """
    from stackmark.cli.suites import SuiteWanted, show_suite

    return show_suite(suite, SuiteWanted(ledger=ledger, as_json=as_json, details=details), toml=toml, form=form)
