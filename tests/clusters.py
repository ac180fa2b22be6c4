"""A real Kubernetes for the tests: ours, which a script starts and hurts, or any cluster that somebody has.

`STACKMARK_TEST_CLUSTER` names the script of a test cluster (`up`, `down`, `env`, `kill`, `image` …): it is started when the
first test asks for it, and stopped at the end if it was not running before. Without a script `STACKMARK_TEST_KUBECONFIG`, which
`make test-cluster` sets from `KUBECONFIG`, names a cluster that is used and left as it was. `KUBECONFIG` alone is not taken:
who types `make test` may have a cluster in it that other people work on.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from stackmark.kubernetes.client import ApiError, Cluster, Json, Unreachable, connect

SCRIPT_VARIABLE, KUBECONFIG_VARIABLE = "STACKMARK_TEST_CLUSTER", "STACKMARK_TEST_KUBECONFIG"
STARTER = Path(__file__).resolve().parents[1] / "scripts/test-cluster"
# A namespace gets its account within a second, but a scheduler that had lost its API server was seen to take a minute.
PATIENCE_S = 180.0
Found = TypeVar("Found")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class TestCluster:
    """A cluster that answers, and a namespace of it that nobody else uses."""

    __test__ = False  # its name makes pytest think otherwise

    kubeconfig: str
    # How it is hurt and healed; None where it is somebody's own.
    script: str | None
    cluster: Cluster
    namespace: str = "default"

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a command needs to reach it."""
        return {"KUBECONFIG": self.kubeconfig}

    def do(self, *words: str, timeout_s: float = 180) -> str:
        """What the script says to `kill api-server`, `cut 2` …"""
        assert self.script is not None, "this cluster has no script to hurt it with"
        done = subprocess.run([self.script, *words], capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{self.script} {' '.join(words)}: {done.stderr}"
        return done.stdout

    def pods(self, namespace: str | None = None) -> list[Json]:
        return self.cluster.items(f"/api/v1/namespaces/{namespace or self.namespace}/pods")

    def jobs(self, namespace: str | None = None) -> list[Json]:
        return self.cluster.items(f"/apis/batch/v1/namespaces/{namespace or self.namespace}/jobs")

    def maps(self, namespace: str | None = None) -> list[Json]:
        """The ConfigMaps, without the one that the cluster puts into every namespace."""
        found = self.cluster.items(f"/api/v1/namespaces/{namespace or self.namespace}/configmaps")
        return [one for one in found if one["metadata"]["name"] != "kube-root-ca.crt"]


def why_missing(environment: Mapping[str, str]) -> str | None:
    """Why the tests on a cluster cannot run here, in a line."""
    script = environment.get(SCRIPT_VARIABLE)
    if script:
        return None if os.access(script, os.X_OK) else f"{SCRIPT_VARIABLE}={script} is no script that can be run"
    if named := environment.get(KUBECONFIG_VARIABLE):
        return None if any(map(os.path.isfile, named.split(os.pathsep))) else f"there is no kubeconfig {named}"
    return f"no cluster for the tests: {SCRIPT_VARIABLE} names no script that starts one (or: make test-cluster, with KUBECONFIG)"


def has_script(environment: Mapping[str, str]) -> bool:
    return bool(environment.get(SCRIPT_VARIABLE))


@contextmanager
def running_cluster() -> Iterator[TestCluster]:
    """The cluster that the environment names, ready."""
    script = os.environ.get(SCRIPT_VARIABLE)
    if not script:
        kubeconfig = os.environ[KUBECONFIG_VARIABLE]
        yield TestCluster(kubeconfig, None, connect(kubeconfig=kubeconfig))
        return
    # It says `started` where it was not running, and then it is ours to stop.
    started = _starter("start").strip() == "started"
    try:
        kubeconfig = _starter("kubeconfig").strip()
        yield TestCluster(kubeconfig, str(Path(script).resolve()), connect(kubeconfig=kubeconfig))
    finally:
        if started:
            _starter("stop")


def heal(cluster: TestCluster) -> None:
    """Everything runs again, whatever a test did to it."""
    # The script's own list of nodes, since the API server may be what was killed.
    nodes = [line.split()[1] for line in cluster.do("status").splitlines() if line.startswith("machine ")]
    for node in nodes:
        cluster.do("join", node)
    cluster.do("up", str(len(nodes)))


def _starter(word: str) -> str:
    done = subprocess.run([str(STARTER), word], stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, (
        f"scripts/test-cluster {word} failed with code {done.returncode}; what it said stands above"
    )
    return done.stdout


@contextmanager
def new_namespace(cluster: TestCluster, labels: Mapping[str, str] | None = None) -> Iterator[TestCluster]:
    """The same cluster with a namespace of its own, which is gone soon afterwards with all that is in it."""
    name = f"stackmark-test-{uuid4().hex[:8]}"
    cluster.cluster.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
    try:
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until(lambda: _there(cluster.cluster, path))  # a pod before it is refused
        yield replace(cluster, namespace=name)
    finally:
        until(lambda: _deleted(cluster.cluster, f"/api/v1/namespaces/{name}"))


def _there(cluster: Cluster, path: str) -> Json | None:
    try:
        return cluster.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _deleted(cluster: Cluster, path: str) -> bool:
    """Told to go; nobody waits until it is gone. Pods that will not end are the kubelet's to kill."""
    try:
        cluster.delete(path)
    except Unreachable:
        return False
    return True


def until(look: Callable[[], Found | None], within_s: float = PATIENCE_S) -> Found:
    """The first answer that is one."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.1)
    return found
