"""`stackmark verdict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import (
    check_junit,
    fail_on_option,
    json_option,
    junit_option,
    ledgers_option,
    not_empty,
    read_margin,
)
from stackmark.errors import SpecError

if TYPE_CHECKING:
    from stackmark.api.verdicts import VerdictTable
    from stackmark.cli.comparing import Wanted

AGAINST = "--against"


class TwoLists(click.Command):
    """`RUN… --against RUN…`: every name after `--against` is of the other side, whatever options stand between.

    An option of click takes one value, so each of these names is given an `--against` of its own.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {name for param in self.params if isinstance(param, click.Option) and not param.is_flag
                       for name in param.opts} - {AGAINST}  # fmt: skip
        spread: list[str] = []
        against = value_follows = False
        for arg in args:
            if value_follows:
                spread.append(arg)
                value_follows = False
            elif arg == AGAINST or arg.startswith(f"{AGAINST}="):
                against = True
                spread += [arg] if "=" in arg else []
            elif arg.startswith("-"):
                spread.append(arg)
                value_follows = arg in takes_value
            else:
                spread += [AGAINST, arg] if against else [arg]
        if against and not any(arg.startswith(AGAINST) for arg in spread):
            raise click.UsageError(f"{AGAINST} names no run", ctx)
        return super().parse_args(ctx, spread)


@click.command(
    "verdict",
    cls=TwoLists,
    epilog="""\b
Examples:
  stackmark verdict last
  stackmark verdict x-01k9 --margin 2%
  stackmark verdict r-01k9a r-01k9b --against r-01k8c r-01k8d
  stackmark verdict --runs chip=V100,workload=train/resnet50 --against chip=P100,workload=train/resnet50
  stackmark verdict --runs chip=V100 --against chip=P100 --by workload,precision
  stackmark verdict --runs precision=fp16 --against precision=fp32 --by chip
""",
)
@click.argument("names", nargs=-1, metavar="EXPERIMENT | RUN…", callback=not_empty)
@click.option(
    "--runs",
    "selected",
    multiple=True,
    metavar="KEY=VALUE,…",
    callback=not_empty,
    help="Instead of RUN…: the runs that meet all conditions. Keys: workload, chip, gpu, machine, host, node, place, framework, "
    "ranks, label, experiment, version, or a parameter (precision=fp16); a value may be a glob.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="RUN… | KEY=VALUE,…",
    callback=not_empty,
    help="The side that came before, or that is the reference: ids, or conditions as of --runs.",
)
@click.option(
    "--by",
    metavar="KEY,…",
    callback=not_empty,
    help="Compare row by row: one verdict for each value that both sides have, e.g. precision.",
)
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@click.option("--why", is_flag=True, help="Print everything that the verdict rests on.")
@fail_on_option
@junit_option(
    "Also write JUnit XML: a case for each pair, a failure where --fail-on names its verdict. [default: slower]"
)
@click.option(
    "--anyway", is_flag=True, help="Compare what is not comparable; the reasons are printed with the verdict."
)
@ledgers_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    names: tuple[str, ...],
    selected: tuple[str, ...],
    against: tuple[str, ...],
    by: str | None,
    margin: str | None,
    why: bool,
    fail_on: tuple[str, ...],
    junit: str | None,
    anyway: bool,
    ledger: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the verdict of an EXPERIMENT, or compare RUNs with other runs, computed again at any margin.

    Ids may be shortened; `last` is the latest experiment. With --against both sides are ids of runs or of experiments with
    one arm, or conditions that select runs; RUNs are compared with those that follow it. Where both sides name a chip or a
    machine, that is the question; else runs on two chips are not compared.
    """
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.api.stored import SUITE, load
    from stackmark.api.verdicts import VerdictTable, table_of_groups, verdict_of_groups
    from stackmark.cli.comparing import Wanted, report

    chosen = read_margin(margin) if margin is not None else None
    check_junit(junit, "verdict.xml")
    one_ledger = ledger[0] if ledger else None
    wanted = Wanted(fail_on=fail_on, junit=junit, ledger=one_ledger, as_json=as_json, details=why)
    _check_sides(names, selected, against, by, ledger)
    if not against and len(names) > 1:
        raise SpecError("several runs need another side", hint="stackmark verdict RUN… --against RUN…")
    if not against and names[0].strip().lower().startswith("r-"):
        raise SpecError(
            f"{names[0]} is one run", hint="hold it against others with --against, or name its experiment x-…"
        )
    sides: dict[str, Any] = {
        "margin": chosen, "anyway": anyway, "ledger": ledger,
        "command": repeatable([word for word in asked if word != "--why"]),
    }  # fmt: skip
    if by is not None:
        return _report_table(table_of_groups(selected or names, against, read_keys(by), **sides), wanted)
    if against:
        return report(verdict_of_groups(selected or names, against, **sides), wanted)
    with Ledger.open(one_ledger, create=False) as book:
        experiment = load(names[0], book)
        if experiment.kind() is SUITE:
            from stackmark.cli.suites import SuiteWanted, show_table

            same = SuiteWanted(ledger=one_ledger, as_json=as_json, fail_on=fail_on, junit=junit, details=why)
            return show_table(experiment, same, margin=chosen)
        table: VerdictTable | None = experiment.table(chosen)
        if table is not None:
            return _report_table(table, wanted)
        found = experiment.verdict(chosen)
    if not against and (fail_on or junit) and len(found.examined.arms) == 1:
        what = "--fail-on to name" if fail_on else "--junit to write"
        raise SpecError(
            f"{found.examined.experiment_id} has one arm, so there is no verdict for {what}",
            hint=f"hold it against another: stackmark verdict {found.examined.experiment_id} --against RUN…",
        )
    return report(found, wanted)


def _check_sides(
    names: tuple[str, ...], selected: tuple[str, ...], against: tuple[str, ...], by: str | None, ledger: tuple[str, ...]
) -> None:
    """Refuse what does not make two sides, or one experiment."""
    if names and selected:
        raise SpecError(
            f"{names[0]} is named next to --runs", hint="name runs by their ids, or select them with --runs, not both"
        )
    if not names and not selected:
        raise SpecError("no experiment and no run was named", hint="stackmark verdict last, or --runs … --against …")
    if wrong := [text for text in selected if "=" not in text]:
        raise SpecError(f"--runs: {wrong[0]!r} is not a condition", hint="write KEY=VALUE, e.g. --runs chip=V100")
    if selected and not against:
        raise SpecError("--runs needs another side", hint="e.g. --runs chip=V100 --against chip=P100")
    if by is not None and not against:
        raise SpecError("--by needs two sides", hint="e.g. --runs chip=V100 --against chip=P100 --by precision")
    if len(ledger) > 1 and not against:
        raise SpecError(
            "several ledgers are for two sides of runs",
            hint="add --against, or name the ledger that has the experiment",
        )


def read_keys(text: str) -> list[str]:
    keys = [key.strip().lower() for key in text.split(",")]
    if not all(keys):
        raise SpecError(f"--by {text!r}: a key is empty", hint="e.g. --by workload,precision")
    return keys


def _report_table(found: "VerdictTable", wanted: "Wanted") -> int:
    """Print a comparison row by row, write its JUnit file, and return the exit code."""
    from stackmark.cli.saying import print_json
    from stackmark.show.group_table import print_group_table
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import write_whole

    if wanted.as_json:
        print_json(found.to_dict())
    else:
        print_group_table(found.table, standard_output(), details=wanted.details)
    if wanted.junit:
        write_whole(Path(wanted.junit), found.junit(wanted.fail_on).encode())
    return found.exit_code(wanted.fail_on)
