"""`stackmark check`."""

from pathlib import Path
from typing import TYPE_CHECKING

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
from stackmark.cli.saying import notice, print_json, say
from stackmark.errors import SpecError
from stackmark.units import counted

if TYPE_CHECKING:
    from stackmark.api.baselines import CheckResult


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
    from stackmark.api.baselines import CheckPlan, CheckResult, carry_out_check
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.cli.trusting import confirm_trust
    from stackmark.show.live import watching
    from stackmark.show.writing import write_whole

    plan = CheckPlan(name, read_margin(margin), runs, seconds_of("--time-limit", time_limit), anyway, repeatable(asked))
    _check_junit(junit)

    def unfinished(part: CheckResult) -> None:
        if part.workloads and not as_json:
            _print(part)
        say(
            f"the check of {name} is not finished: {counted(len(part.workloads), 'workload')} checked",
            "finished runs are stored, and the next check within the hour counts them as one series with its own",
        )

    with Ledger.open(ledger, create=False) as book:
        found = carry_out_check(plan, book, lambda: watching(quiet=as_json), confirm_trust(trusted), unfinished)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if junit:
        write_whole(Path(junit), found.junit(fail_on).encode())
    if found.undecided and fail_on and "inconclusive" not in fail_on:
        # An exit code of 0 is read as `not slower`.
        undecided = (
            f"--fail-on {fail_on[0]}: nothing was decided about {', '.join(one.label for one in found.undecided)}"
        )
        notice(f"{undecided}, which is no failure; --fail-on inconclusive makes it one")
    return found.exit_code(fail_on)


def _print(found: "CheckResult") -> None:
    from stackmark.show.check import print_check
    from stackmark.show.terminal import standard_output

    print_check(found.workloads, standard_output(), found.command)


def _check_junit(path: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured. Standard output has the result already."""
    from stackmark.show.writing import check_writable

    if path is None:
        return
    hint = "give a file in a folder that may be written, e.g. --junit check.xml"
    if path == "-":
        raise SpecError("--junit: standard output holds the result already", hint=hint)
    try:
        check_writable(Path(path))
    except SpecError as error:
        raise SpecError(f"--junit: {error.message}", hint=hint) from error
