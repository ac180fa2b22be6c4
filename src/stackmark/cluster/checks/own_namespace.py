"""A namespace of the check's own: made at its beginning, gone at its end, and found by its labels where it was not."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stackmark.errors import ClusterError, PlaceError, SpecError, Terminated
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster
from stackmark.places.pod.options import PodOptions

ENFORCE = "pod-security.kubernetes.io/enforce"
Notice = Callable[[str], None]
# What belongs to a namespace, and so cannot be in one that was made a moment ago.
OF_A_NAMESPACE = ("pull_secret", "service_account", "queue", "network_attachment")

# A new namespace has no account for its pods for a fraction of a second, and refuses them until then.
ACCOUNT_WITHIN_S = 15.0
GONE_WITHIN_S = 60.0


@contextmanager
def namespace_for(cluster: Cluster, options: PodOptions, notice: Notice) -> Iterator[str]:
    """The one that was named; else one of our own, which is gone afterwards."""
    if options.namespace:
        yield options.namespace
        return
    for key in OF_A_NAMESPACE:
        if getattr(options, key):
            option = f"--{key.replace('_', '-')}"
            raise SpecError(
                f"{option} names something in a namespace, and the check makes a new one", hint="give --namespace, too"
            )
    mark = f"check-{secrets.token_hex(4)}"
    # Folders of the host need a namespace that takes them, whatever the cluster's default is.
    level = {ENFORCE: "privileged"} if options.image is None or options.host_software == "yes" else {}
    refused = False
    try:
        try:
            made_namespace(cluster, mark, level)
        except ApiError as error:
            refused = True
            raise _refusal(cluster, error) from error
        yield names.object_name(mark)
    finally:
        if not refused:
            _remove(cluster, names.object_name(mark), notice)


def _refusal(cluster: Cluster, error: ApiError) -> ClusterError | PlaceError:
    if error.status != 403:
        return error
    return PlaceError(
        f"the check makes a namespace of its own, and may not: {error.message}",
        hint="give one in which you may make pods: --namespace NAME",
        command=f"kubectl --context {cluster.context} auth can-i create namespaces",
    )


def _remove(cluster: Cluster, name: str, notice: Notice) -> None:
    """However often it is interrupted: once more, and then it is said how it can be done later."""
    for _ in range(2):
        with suppress(KeyboardInterrupt, Terminated):
            try:
                if remove_namespace(cluster, name, wait_s=GONE_WITHIN_S):
                    return
                notice(f"the namespace {name} is being deleted, and takes its time")
            except ClusterError as error:
                notice(f"the namespace {name} could not be removed: {error.message}; later: stackmark cluster clean")
            return


def made_namespace(cluster: Cluster, mark: str, labels: dict[str, str] | None = None) -> str:
    name = names.object_name(mark)
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {**names.labels("check", mark), **(labels or {})}},
    }
    cluster.create("/api/v1/namespaces", body)
    deadline = time.monotonic() + ACCOUNT_WITHIN_S
    with suppress(ClusterError):  # who may not look at it finds out by the first pod
        while not cluster.items(f"/api/v1/namespaces/{name}/serviceaccounts") and time.monotonic() < deadline:
            time.sleep(0.05)
    return name


def remove_namespace(cluster: Cluster, name: str, wait_s: float = 0.0) -> bool:
    """Whether it is gone; with `wait_s` it is waited for."""
    path = f"/api/v1/namespaces/{name}"
    cluster.delete(path)
    deadline = time.monotonic() + wait_s
    while True:
        left = cluster.items("/api/v1/namespaces", fieldSelector=f"metadata.name={name}")
        if not left or time.monotonic() >= deadline:
            return not left
        time.sleep(0.25)
