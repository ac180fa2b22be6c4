"""`stackmark results`."""

import click

from stackmark.cli.options import filter_options, json_option, ledger_option, parse_when
from stackmark.cli.saying import notice, print_json
from stackmark.lab.cleaning import clean_up
from stackmark.ledger.rows import RunFilter, RunRow
from stackmark.ledger.store import Ledger


def read_filter(
    workload: str | None, since: str | None, until: str | None, chip: str | None, place: str | None, status: str | None
) -> RunFilter:
    return RunFilter.model_validate(
        {
            "workload": workload,
            "since_unix_s": parse_when("--since", since) if since is not None else None,
            "until_unix_s": parse_when("--until", until) if until is not None else None,
            "chip": chip,
            "place": place,
            "status": status,
        }
    )


@click.command(
    "results",
    epilog="\b\nExamples:\n  stackmark results --since 7d\n  stackmark results --workload 'train/*' --status failed --json",
)
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    default=20,
    help="How many, newest first. [default: 20]",
)
@ledger_option
@json_option
def command(
    workload: str | None,
    since: str | None,
    until: str | None,
    chip: str | None,
    place: str | None,
    status: str | None,
    limit: int,
    ledger: str | None,
    as_json: bool,
) -> int:
    """List stored runs, the newest first. A failed run is listed with its reason, never as a zero."""
    wanted = read_filter(workload, since, until, chip, place, status)
    with Ledger.open(ledger, create=False) as book:
        notice(clean_up(book))
        rows = book.runs(wanted, limit=limit)
        if as_json:
            print_json({"runs": [row.model_dump(mode="json") for row in rows]})
            return 0
        _print(rows)
        if len(rows) == limit and (total := book.count(wanted)) > limit:
            click.echo(f"{limit} of {total}; more with --limit", err=True)
    return 0


def _print(rows: list[RunRow]) -> None:
    from stackmark.show.runs import print_runs

    if rows:
        print_runs(rows)
    else:
        click.echo("no stored run fits; measure one with: stackmark run train/resnet50", err=True)
