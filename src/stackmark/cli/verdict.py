"""`stackmark verdict`."""

import click

from stackmark.cli.options import fail_on_option, json_option, ledger_option, not_empty, read_margin
from stackmark.errors import SpecError

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
""",
)
@click.argument("names", nargs=-1, required=True, metavar="EXPERIMENT | RUN…", callback=not_empty)
@click.option("--against", multiple=True, metavar="RUN…", callback=not_empty, help="The side that came before.")
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@fail_on_option
@click.option("--anyway", is_flag=True, help="Compare what is not comparable; the reasons stand beside the verdict.")
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    names: tuple[str, ...],
    against: tuple[str, ...],
    margin: str | None,
    fail_on: tuple[str, ...],
    anyway: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """What an EXPERIMENT shows, or RUNs against other runs: recomputed from the ledger, at any margin.

    Ids may be shortened; `last` is the latest experiment. With --against both sides are ids of runs or of experiments with
    one arm; RUNs are held against those that stand after it.
    """
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.api.stored import load, verdict_of_groups
    from stackmark.cli.comparing import Wanted, report

    chosen = read_margin(margin) if margin is not None else None
    wanted = Wanted(fail_on=fail_on, ledger=ledger, as_json=as_json)
    if not against and len(names) > 1:
        raise SpecError("several runs need another side", hint="stackmark verdict RUN… --against RUN…")
    if not against and names[0].strip().lower().startswith("r-"):
        raise SpecError(
            f"{names[0]} is one run", hint="hold it against others with --against, or name its experiment x-…"
        )
    with Ledger.open(ledger, create=False) as book:
        if against:
            line = repeatable(asked)
            found = verdict_of_groups(names, against, margin=chosen, anyway=anyway, ledger=book, command=line)
        else:
            found = load(names[0], book).verdict(chosen)
    if not against and fail_on and len(found.examined.arms) == 1:
        raise SpecError(
            f"{found.examined.experiment_id} has one arm, so there is no verdict for --fail-on to name",
            hint=f"hold it against another: stackmark verdict {found.examined.experiment_id} --against RUN…",
        )
    return report(found, wanted)
