"""Fixtures that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from containers import docker_variables, why_missing
from leaving_out import leave_out
from postgres import PACKAGES, PostgresServer, find_binaries, running_server


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
