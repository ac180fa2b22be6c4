"""`stackmark check`."""

import click

from stackmark.cli.options import (
    check_fail_on_option,
    json_option,
    ledger_option,
    not_empty,
    read_margin,
    seconds_of,
    time_limit_option,
    trust_option,
)


@click.command(
    "check",
    epilog="""\b
Examples:
  stackmark check before-driver-580
  stackmark check before-driver-580 --fail-on slower --junit check.xml
""",
)
@click.argument("name", callback=not_empty)
@click.option("--margin", default="1%", metavar="SHARE", help="What counts as a difference. [default: 1%]")
@click.option(
    "--runs", type=click.IntRange(1, 1000), metavar="N", help="Fresh processes. [default: as in the baseline]"
)
@check_fail_on_option
@click.option("--junit", metavar="FILE", callback=not_empty, help="Also write JUnit XML.")
@time_limit_option
@click.option("--anyway", is_flag=True, help="Compare with another chip or machine too; the reasons are said.")
@trust_option
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    name: str,
    margin: str,
    runs: int | None,
    fail_on: tuple[str, ...],
    junit: str | None,
    time_limit: str | None,
    anyway: bool,
    trusted: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Measure what the baseline NAME holds and compare it: what changed in the stack, then a line for each workload.

    Today's series is judged on its own; earlier checks on the same stack are a second line. Three series in the baseline are
    asked for; with fewer, a large difference is LIKELY SLOWER or LIKELY FASTER.
    """
    from stackmark.cli.checking import Check, check_now

    return check_now(
        Check(name, read_margin(margin), runs, fail_on, junit, seconds_of("--time-limit", time_limit), anyway, ledger,
              as_json, asked, trusted)
    )  # fmt: skip
