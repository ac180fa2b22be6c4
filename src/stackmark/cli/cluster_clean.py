"""`stackmark cluster clean`."""

import click

from stackmark.cli.options import json_option, not_empty


@click.command(
    "clean",
    epilog="""\b
Examples:
  stackmark cluster clean
  stackmark cluster clean --all-namespaces --dry-run
  stackmark cluster clean --namespace team-a --force
""",
)
@click.option(
    "--namespace",
    metavar="NAME",
    callback=not_empty,
    help="Only in this one. [default: the context's, and those that a check made]",
)
@click.option("--all-namespaces", is_flag=True, help="In all of them.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--force", is_flag=True, help="Also what a driver on another machine may still wait for.")
@click.option("--canaries", is_flag=True, help="Also canaries (CronJobs) and their results.")
@click.option(
    "--context", metavar="NAME", callback=not_empty, help="The context of the kubeconfig; else the current one."
)
@click.option(
    "--kubeconfig", metavar="FILE", callback=not_empty, help="The kubeconfig; else $KUBECONFIG or ~/.kube/config."
)
@json_option
def command(
    namespace: str | None,
    all_namespaces: bool,
    dry_run: bool,
    force: bool,
    canaries: bool,
    context: str | None,
    kubeconfig: str | None,
    as_json: bool,
) -> int:
    """Remove what stackmark left in a cluster, by its labels, and say what: Jobs, pods, services, claims, ConfigMaps, and
    namespaces of checks.

    What belongs to a driver that lives on this machine stays, and what may belong to one on another machine until it is older
    than it was allowed to become. Exits with 6 where something could not be removed.
    """
    from stackmark.api.clusters import clean_cluster
    from stackmark.cli.saying import print_json
    from stackmark.show.cluster_checks import print_cleaned
    from stackmark.show.terminal import standard_output

    cleaned = clean_cluster(
        context=context, kubeconfig=kubeconfig, namespace=namespace, all_namespaces=all_namespaces, force=force,
        canaries=canaries, dry_run=dry_run,
    )  # fmt: skip
    if as_json:
        print_json(cleaned.to_dict())
    elif not cleaned.found:
        click.echo(f"nothing of stackmark's was left in {cleaned.where}")
    else:
        click.echo(f"{cleaned.where}: {print_cleaned(cleaned.found, standard_output())}")
    return cleaned.exit_code
