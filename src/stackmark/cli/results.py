"""`stackmark results`."""

import click

from stackmark.cli.options import filter_options, json_option, ledger_option, not_empty, parse_when
from stackmark.cli.saying import notice, print_json, repeatable
from stackmark.errors import SpecError
from stackmark.experiments.cleaning import clean_up

# Not through the API, which loads the whole engine: a list of runs would take half as long again.
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
    epilog="""\b
Examples:
  stackmark results --since 7d
  stackmark results --workload 'train/*' --status failed --json
  stackmark results --from-cluster --namespace canaries --place pod
""",
)
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    default=20,
    help="How many, newest first. [default: 20]",
)
@click.option("--from-cluster", is_flag=True, help="First store what canaries, and other printed manifests, measured.")
@click.option("--namespace", metavar="NAME", callback=not_empty, help="With --from-cluster: the namespace.")
@click.option("--context", metavar="NAME", callback=not_empty, help="With --from-cluster: the context.")
@click.option("--kubeconfig", metavar="FILE", callback=not_empty, help="With --from-cluster: the kubeconfig.")
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...] | None,
    /,
    workload: str | None,
    since: str | None,
    until: str | None,
    chip: str | None,
    place: str | None,
    status: str | None,
    limit: int,
    from_cluster: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    ledger: str | None,
    as_json: bool,
) -> int:
    """List stored runs, the newest first. A failed run is listed with its reason, never as a zero."""
    wanted = read_filter(workload, since, until, chip, place, status)
    named = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    if not from_cluster and (given := next((name for name, value in named.items() if value is not None), None)):
        raise SpecError(f"--{given} says where to collect from, and nothing is collected", hint="add --from-cluster")
    with Ledger.open(ledger, create=from_cluster) as book:
        notice(clean_up(book))
        if from_cluster:
            from stackmark.experiments.collecting import collect

            notice(collect(book, **named, command=repeatable(asked or ("results",))).sentences())
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
