"""`stackmark results`."""

import click

from stackmark.api.ledgers import RunFilter, collect_runs, list_runs
from stackmark.api.options import repeatable
from stackmark.cli.options import filter_options, json_option, ledger_option, not_empty, parse_when
from stackmark.cli.saying import notice, print_json
from stackmark.errors import SpecError


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
    "--experiment", metavar="ID", callback=not_empty, help="Only the runs of this experiment: x-…, or `last`."
)
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
    experiment: str | None,
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
    if from_cluster:
        collected = collect_runs(**named, ledger=ledger, notice=notice, command=repeatable(asked or ("results",)))
        notice(*collected.sentences())
    found = list_runs(wanted, experiment=experiment, limit=limit, ledger=ledger, notice=notice)
    if as_json:
        print_json(found.to_dict())
        return 0
    from stackmark.show.runs import print_runs  # reads results of the engine, which --json does without

    if found.runs:
        print_runs(found.runs)
    else:
        notice("no stored run fits; measure one with: stackmark run train/resnet50")
    if found.total > limit:
        notice(f"{limit} of {found.total}; more with --limit")
    return 0
