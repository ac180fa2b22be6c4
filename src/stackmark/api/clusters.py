"""Work with clusters: the doctor, the functional tests, clean-up, and the manifest of a measurement.

The options of these functions are those of a pod, by the names of the command line with `_` for `-`: `image`, `gpus`,
`namespace`, `context` …
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Notice, silent
from stackmark.api.options import Option, command_of, read_request
from stackmark.cluster.checks import suite
from stackmark.cluster.checks.suite import Suite
from stackmark.cluster.checks.suite import Watcher as TestWatcher
from stackmark.cluster.cleaning import Left, clean
from stackmark.cluster.doctor.results import Report
from stackmark.errors import ClusterError, Exit, SpecError
from stackmark.experiments.doctoring import diagnose
from stackmark.experiments.manifesting import Kind as ManifestKind
from stackmark.experiments.manifesting import Manifest, manifest_for, read_pod_options
from stackmark.kubernetes.client import connect
from stackmark.kubernetes.refusals import explained
from stackmark.schemas import VERSIONS, with_schema
from stackmark.show.cluster_checks import about, checks_json, junit_case, print_checks
from stackmark.show.doctor import junit_cases, print_doctor
from stackmark.show.junit import render_junit
from stackmark.show.terminal import printed
from stackmark.spec import Request
from stackmark.units import say_moment
from stackmark.workloads.command.definition import OWN_COMMAND

# 2: `diagnostic`, which was `rung`.
# Of each functional test: longer than a pod takes to come and go on a busy cluster.
TEST_LIMIT_S = 120.0


def _given(options: Mapping[str, Option]) -> dict[str, JsonValue]:
    """Return the options that were given, as JSON has them."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: value if isinstance(value, str | int | float) else list(value) for name, value in given.items()}


def _when(began_unix_s: float) -> str:
    return say_moment(began_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)


# --- doctor -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's findings, node by node."""

    report: Report
    began_unix_s: float

    @property
    def status(self) -> str:
        """Return `ok`, `warning` or `failed`."""
        return self.report.status

    @property
    def exit_code(self) -> Exit:
        return Exit.CLUSTER_FAILED if self.status == "failed" else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster doctor --json` prints."""
        # `schema_version` is what this object had before all objects had a schema.
        told = {"schema_version": VERSIONS["cluster-doctor"], "status": self.status, **asdict(self.report)}
        return with_schema("cluster-doctor", told)

    def junit(self) -> str:
        """Return JUnit XML: a case for each diagnostic and node."""
        report = self.report
        where = [("context", report.context), ("server", report.server), ("kubernetes", report.version)]
        return render_junit("stackmark.cluster.doctor", junit_cases(report), where, _when(self.began_unix_s))

    def __str__(self) -> str:
        return printed(lambda console: print_doctor(self.report, console))


def doctor(nodes: Sequence[str] = (), *, pods: bool = True, notice: Notice = silent, **options: Option) -> Diagnosis:
    """Ask whether a cluster is fit for GPU work, or these nodes of it. Without `pods` nothing is made in the cluster."""
    began_unix_s = time.time()
    return Diagnosis(diagnose(_given(options), nodes, pods=pods, say=notice), began_unix_s)


# --- functional tests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterTests:
    """The results of a cluster's functional tests, case by case."""

    suite: Suite
    began_unix_s: float

    @property
    def exit_code(self) -> Exit:
        return Exit.CLUSTER_FAILED if self.suite.count("failed") else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster check --json` prints."""
        return checks_json(self.suite)

    def junit(self) -> str:
        """Return JUnit XML: a case for each test."""
        cases = [junit_case(one) for one in self.suite.checked]
        return render_junit("stackmark cluster check", cases, about(self.suite), _when(self.began_unix_s))

    def __str__(self) -> str:
        return printed(lambda console: print_checks(self.suite, console))


class _Notices:
    """Passes on what a person should read, and nothing else."""

    def __init__(self, notice: Notice) -> None:
        self.notice = notice

    def begins(self, case: object, number: int, of: int) -> None: ...
    def ended(self, checked: object) -> None: ...


def run_cluster_tests(
    *,
    pods: int | None = None,
    areas: Sequence[str] = (),
    limit_s: float = TEST_LIMIT_S,
    notice: Notice = silent,
    watcher: TestWatcher | None = None,
    partly: Callable[[ClusterTests], None] = lambda _: None,
    **options: Option,
) -> ClusterTests:
    """Try what a cluster should do with pods: create, logs, exec, delete; GPUs given and returned.

    `pods` is how many are many. Where it is interrupted, `partly` gets what was done until then.
    """
    began_unix_s = time.time()
    found = suite.check(
        read_pod_options(_given(options)),
        watcher or _Notices(notice),
        many=pods,
        limit_s=limit_s,
        areas=areas,
        partly=lambda part: partly(ClusterTests(part, began_unix_s)),
    )
    return ClusterTests(found, began_unix_s)


# --- what was left ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CleanedCluster:
    """The objects that stackmark had left in a cluster, and the fate of each."""

    # Which cluster and which namespaces, in a few words.
    where: str
    found: tuple[Left, ...]

    @property
    def exit_code(self) -> Exit:
        return Exit.CLUSTER_FAILED if any(one.fate == "refused" for one in self.found) else Exit.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark cluster clean --json` prints."""
        return with_schema("cluster-clean", {"where": self.where, "found": [asdict(one) for one in self.found]})


def clean_cluster(
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    dry_run: bool = False,
    force: bool = False,
    canaries: bool = False,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> CleanedCluster:
    """Remove what stackmark left in a cluster, by its labels. What belongs to a driver that lives stays."""
    if namespace and all_namespaces:
        raise SpecError("--namespace and --all-namespaces cannot be combined", hint="leave one of them out")
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
        return CleanedCluster(f"{where} of {cluster.context}", tuple(found))
    except ClusterError as error:
        raise explained(error, f"looking for objects that stackmark left in {where}") from error


# --- manifest -----------------------------------------------------------------------------------------------------------


def make_manifest(
    request: Request,
    place_options: Mapping[str, JsonValue],
    *,
    kind: ManifestKind = "job",
    schedule: str | None = None,
    history: int | None = None,
    command: str = "",
    with_worker: bool = True,
) -> Manifest:
    """Make the manifest of a request; `place_options` are a pod's."""
    options = read_pod_options(place_options)
    return manifest_for(
        request, options, kind, schedule=schedule, history=history, command=command, with_worker=with_worker
    )


def manifest(
    workload: str,
    *,
    kind: ManifestKind = "job",
    schedule: str | None = None,
    history: int | None = None,
    with_worker: bool = True,
    ranks: int = 1,
    **options: Option,
) -> Manifest:
    """Return what would be applied to a cluster to measure a workload there; it needs no cluster."""
    if workload == OWN_COMMAND:
        options.setdefault("cwd", ".")  # the pod's own folder: this one is not there
    request, place_options = read_request(workload, ranks, options)
    typed = {"kind": kind if kind != "job" else None, "schedule": schedule, "history": history}
    command = command_of(["manifest"], workload, {**typed, "ranks": ranks if ranks > 1 else None, **options})
    return make_manifest(
        request,
        place_options,
        kind=kind,
        schedule=schedule,
        history=history,
        command=command,
        with_worker=with_worker,
    )
