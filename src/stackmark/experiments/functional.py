"""`stackmark cluster check` and `clean`: the cluster's functional checks and the sweep, for the command line."""

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from stackmark.cluster.checks import suite
from stackmark.cluster.checks.suite import Suite, Watcher
from stackmark.cluster.cleaning import Left, clean
from stackmark.errors import ClusterError, SpecError
from stackmark.experiments.manifesting import read_pod_options
from stackmark.kubernetes.client import connect
from stackmark.kubernetes.refusals import explained


def check_cluster(
    given: Mapping[str, JsonValue],
    watcher: Watcher,
    *,
    many: int | None,
    limit_s: float,
    areas: Sequence[str],
    partly: Callable[[Suite], None],
) -> Suite:
    """`given` are a pod's options, as they were typed."""
    options = read_pod_options(given)
    return suite.check(options, watcher, many=many, limit_s=limit_s, areas=areas, partly=partly)


def clean_cluster(
    *,
    context: str | None,
    kubeconfig: str | None,
    namespace: str | None,
    all_namespaces: bool,
    force: bool,
    canaries: bool,
    dry_run: bool,
) -> tuple[str, list[Left]]:
    """Which cluster and where, in a few words, and what was found there."""
    if namespace and all_namespaces:
        raise SpecError("both --namespace and --all-namespaces were given", hint="give one of them")
    cluster = connect(context, kubeconfig, namespace)
    where = "all namespaces" if all_namespaces else f"the namespace {cluster.namespace}"
    try:
        found = clean(
            cluster,
            None if all_namespaces else [cluster.namespace],
            own_namespaces=namespace is None,
            force=force,
            canaries=canaries,
            dry_run=dry_run,
        )
        return f"{where} of {cluster.context}", list(found)
    except ClusterError as error:
        raise explained(error, f"what stackmark left in {where} is looked for") from error
