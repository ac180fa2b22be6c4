"""`stackmark experiments`."""

import click

from stackmark.cli.options import json_option, ledger_option, not_empty


@click.command(
    "experiments",
    epilog="\b\nExamples:\n  stackmark experiments\n  stackmark experiments --workload 'train/*' --limit 5 --json",
)
@click.option("--workload", metavar="GLOB", callback=not_empty, help="Filter by workload, e.g. 'train/*'.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), metavar="N", default=20, help="How many, newest first. [default: 20]"
)
@ledger_option
@json_option
def command(workload: str | None, limit: int, ledger: str | None, as_json: bool) -> int:
    """List stored experiments, the newest first: kind, workload, arms, state and verdict.

    `stackmark show x-…` prints one again, and `stackmark resume x-…` goes on with one that is open. A verdict is computed from
    the stored runs; where those are too many for a list, `stackmark verdict x-…` computes it.
    """
    from stackmark.api.stored import list_experiments
    from stackmark.cli.saying import notice, print_json
    from stackmark.show.experiments import print_experiments
    from stackmark.show.terminal import standard_output

    found = list_experiments(workload=workload, limit=limit, ledger=ledger, notice=notice)
    if as_json:
        print_json(found.to_dict())
        return 0
    if found.experiments:
        print_experiments(found.experiments, standard_output())
    else:
        notice("no stored experiment fits; begin one with: stackmark run train/resnet50")
    if found.more:
        notice("there are older ones; more with --limit")
    return 0
