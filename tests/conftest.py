"""Fixtures that several test files share."""

import os
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from shutil import which
from types import ModuleType
from typing import NoReturn

import hypothesis
import pytest

import clusters
import slurm_clusters
from clusters import TestCluster
from containers import docker_variables, why_missing
from leaving_out import leave_out
from postgres import PACKAGES, PostgresServer, find_binaries, running_server
from slurm_clusters import TestSlurm, running_slurm
from worker_images import IMAGE_VARIABLE, load_worker_image, named_image

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)  # on top of the one that hypothesis takes by itself in CI
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("tests"), max_examples=20)

# What a test of `make quick` does not do. Found out while it runs: whoever imports torch or starts a program is left out there.
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
_QUICK_PROGRAMS = ("git", "uname")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what needs torch or starts a program")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("quick" if config.getoption("quick") else "tests")


def pytest_collection(session: pytest.Session) -> None:
    config = session.config
    starts_workers = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if config.getoption("quick") and not starts_workers:
        sys.addaudithook(_leave_out_what_starts_a_program)
        sys.meta_path.insert(0, _LeavesOutTorch())


class _LeavesOutTorch(MetaPathFinder, Loader):
    """Finds torch, so that whoever only asks whether it is installed is told the truth, and does not load it."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name) if name == "torch" else None
        if spec:
            spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        pytest.skip("not quick: needs torch", allow_module_level=True)

    def exec_module(self, module: ModuleType) -> None: ...


def _leave_out_what_starts_a_program(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS and Path(str(arguments[0]) if arguments else "").name not in _QUICK_PROGRAMS:
        pytest.skip("not quick: starts a program", allow_module_level=True)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else this machine does while tests run is not what they are about: nothing is said of it before a first run."""
    monkeypatch.setattr("stackmark.experiments.surroundings.look", lambda _seconds: None)


@pytest.fixture(scope="session", autouse=True)
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was typed in a test is not noted among what the person typed who runs the tests, and their settings do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL for the session. Skipped where Debian's package is not installed, but not in CI."""
    binaries = find_binaries()
    if binaries is None:
        leave_out(f"PostgreSQL's server is not installed (apt-get install {PACKAGES})")
    with running_server(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made, once for each database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite3")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.emptied_database()


@pytest.fixture(scope="session")
def docker_reach() -> Iterator[dict[str, str]]:
    """What the environment needs so that docker answers."""
    _need_engine("docker")
    with docker_variables() as reach:
        yield reach


@pytest.fixture(scope="session")
def podman_reach() -> dict[str, str]:
    _need_engine("podman")
    return {}


def _need_engine(kind: str) -> None:
    """Left out where the engine is not there, but not in CI."""
    reason = why_missing(kind)
    if reason is not None:
        leave_out(reason)


# A build, and the way into the nodes, on a machine that has other work as well.
IMAGE_LIMIT_S = 900
_LEFT_OUT = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a cluster come last: it starts with the first of them, and takes no time from the others before.

    Where there is none they are left out, but not in CI: one line says so at the end, and not one for each.
    """
    if config.getoption("quick"):
        slow = [item for item in items if any(map(item.get_closest_marker, ("slow", "cluster", "slurm")))]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in {*slow}]
    # Those that hurt it at the very end: a part that was killed and is back may not be quite what it was.
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("cluster", "cluster_hurt")])
    for item in items:
        if "worker_image" in getattr(item, "fixturenames", ()) and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(IMAGE_LIMIT_S))  # the first of them waits for the image
    if os.environ.get("CI"):
        return
    reason = clusters.why_missing(os.environ)
    unhurt = None if clusters.has_script(os.environ) else "this cluster has no script that hurts and heals it"
    left_out = config.stash.setdefault(_LEFT_OUT, [])
    slurmless = slurm_clusters.why_missing(os.environ)
    for marker, why in (("cluster", reason), ("cluster_hurt", unhurt), ("slurm", slurmless)):
        found = [item for item in items if item.get_closest_marker(marker)] if why else []
        if found:
            config.hook.pytest_deselected(items=found)
            items[:] = [item for item in items if item not in found]
            left_out.append(f"{len(found)} tests marked {marker} are left out: {why}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_LEFT_OUT, []):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(autouse=True)
def _what_a_marked_test_needs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The cluster runs; and a test that hurts it leaves it whole."""
    if request.node.get_closest_marker("cluster") is None:
        yield
        return
    test_cluster: TestCluster = request.getfixturevalue("test_cluster")
    hurts = request.node.get_closest_marker("cluster_hurt") is not None
    if hurts and test_cluster.script is None:
        leave_out("this cluster has no script that hurts and heals it")
    yield
    if hurts:
        clusters.heal(test_cluster)


@pytest.fixture(scope="session")
def test_slurm() -> Iterator[TestSlurm]:
    """A real Slurm for the session."""
    reason = slurm_clusters.why_missing(os.environ)
    if reason is not None:
        leave_out(reason)
    with running_slurm() as running:
        yield running


@pytest.fixture(scope="session")
def test_cluster() -> Iterator[TestCluster]:
    """A real Kubernetes for the session; its own namespace is `default`, which tests leave alone."""
    reason = clusters.why_missing(os.environ)
    if reason is not None:
        leave_out(reason)
    with clusters.running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(test_cluster: TestCluster) -> Iterator[TestCluster]:
    """The cluster with a namespace for this file's tests. KUBECONFIG is set to it for as long."""
    with pytest.MonkeyPatch.context() as patch, clusters.new_namespace(test_cluster) as inside:
        patch.setenv("KUBECONFIG", inside.kubeconfig)
        yield inside


@pytest.fixture(scope="module")
def restricted_cluster(test_cluster: TestCluster) -> Iterator[TestCluster]:
    """As `cluster`, with a namespace that takes only what Pod Security's `restricted` allows."""
    with pytest.MonkeyPatch.context() as patch, clusters.new_namespace(test_cluster, clusters.RESTRICTED) as inside:
        patch.setenv("KUBECONFIG", inside.kubeconfig)
        yield inside


@pytest.fixture(scope="session")
def worker_image(test_cluster: TestCluster, request: pytest.FixtureRequest) -> str:
    """The name of a worker image with torch that the cluster's nodes have, or can pull."""
    named = named_image(os.environ)
    if named is not None:
        return named
    if test_cluster.script is None:
        leave_out(f"{IMAGE_VARIABLE} names no worker image that this cluster can pull")
    request.getfixturevalue("podman_reach")
    if which("mmdebstrap") is None:
        leave_out("a base is made by mmdebstrap (apt-get install mmdebstrap)")
    return load_worker_image(test_cluster)
