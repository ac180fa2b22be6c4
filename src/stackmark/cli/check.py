"""`stackmark check`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import (
    check_fail_on_option,
    check_junit,
    json_option,
    ledger_option,
    not_empty,
    read_margin,
    seconds_of,
    time_limit_option,
    trust_option,
)
from stackmark.cli.saying import notice, print_json, say, watching
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
@click.option(
    "--junit", metavar="FILE", callback=not_empty,
    help="Also write JUnit XML, in which verdicts that --fail-on names are failures. [default: slower]",
)  # fmt: skip
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
    """Measure what the baseline NAME holds and compare it: the verdict, what changed in the stack, a line for each workload.

    What is measured now is judged on its own; earlier checks on the same stack are lines of their own. A verdict needs three
    series in the baseline; with fewer, a large difference is LIKELY SLOWER or LIKELY FASTER. Figures that are
    neither rates nor times are WORSE or BETTER.
    """
    from stackmark.api.baselines import CheckPlan, CheckResult, carry_out_check
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.cli.trusting import confirm_trust
    from stackmark.show.writing import write_whole

    plan = CheckPlan(name, read_margin(margin), runs, seconds_of("--time-limit", time_limit), anyway, repeatable(asked))
    check_junit(junit, "check.xml")

    def unfinished(part: CheckResult) -> None:
        if part.workloads and not as_json:
            _print(part)
        say(
            f"the check of {name} is not finished: {counted(len(part.workloads), 'workload')} checked",
            "finished runs are stored; the next check shows them on a line of their own",
        )

    with Ledger.open(ledger, create=False) as book:
        found = carry_out_check(plan, book, lambda: watching(quiet=as_json), confirm_trust(trusted), unfinished)
    if found.undecided and fail_on and "inconclusive" not in fail_on:
        # An exit code of 0 is read as `not slower`.
        undecided = ", ".join(one.label for one in found.undecided)
        notice(
            f"--fail-on {fail_on[0]}: nothing was decided about {undecided}; --fail-on inconclusive makes that a failure too"
        )
    if junit:
        write_whole(Path(junit), found.junit(fail_on).encode())
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    return found.exit_code(fail_on)


def _print(found: "CheckResult") -> None:
    from stackmark.show.check import print_check
    from stackmark.show.terminal import standard_output

    print_check(found.workloads, standard_output(), found.command)
