"""A real PostgreSQL server for the tests: Debian's package `postgresql`, a cluster in a temporary folder, a free port.

The server refuses to run as root, so as root it runs as the user `postgres` that the package makes. On its Unix socket
it trusts everybody, on TCP it wants the password, so that a wrong one can be tried.
"""

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import quote

PACKAGES = "postgresql"
PASSWORD = "open sesame"
_PR_SET_PDEATHSIG = 1


@dataclass
class PostgresServer:
    binaries: Path
    folder: Path
    port: int
    user: str | None = None
    process: "subprocess.Popen[bytes] | None" = None
    _numbers: Iterator[int] = field(default_factory=count)
    _shared: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Starts the server, also again once it has ended; its data are those of before."""
        if self.process is not None:
            self.process.wait(timeout=60)
        with (self.folder / "log").open("ab") as log:
            self.process = _start(self, self.user, log.fileno())
        _wait_ready(self, self.process)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        self.process.wait(timeout=30)

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"ledger_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def emptied_database(self) -> str:
        """The URL of a database without a ledger: always the same one, since making one takes longer than most tests."""
        if not self._shared:
            self.sql("CREATE DATABASE shared")
            self._shared.append("shared")
        self.sql("SET client_min_messages = error; DROP SCHEMA IF EXISTS stackmark CASCADE", "shared")
        return self.url("shared")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}&port={self.port}"

    def tcp_url(self, database: str, password: str) -> str:
        return f"postgresql://postgres:{quote(password)}@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What psql, which shares no code with us, answers."""
        command = [
            "psql",
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            str(self.folder),
            "-p",
            str(self.port),
        ]
        arguments = [*command, "-U", "postgres", "-d", database, "-c", statement]
        done = subprocess.run(
            [str(self.binaries / arguments[0]), *arguments[1:]], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def find_binaries() -> Path | None:
    """Debian keeps the server out of PATH, in a folder by version; the newest is taken."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True
    )
    on_path = shutil.which("initdb")
    candidates = [*folders, *([Path(on_path).parent] if on_path else [])]
    return next((folder for folder in candidates if (folder / "postgres").exists()), None)


@contextmanager
def running_server(binaries: Path) -> Iterator[PostgresServer]:
    """A server that is ready, and is gone afterwards, whatever happens to us."""
    user = "postgres" if os.getuid() == 0 else None
    # Not pytest's folder, which nobody but its owner may enter; and short, since a socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="stackmark-pg-", dir="/tmp"))
    try:
        (folder / "password").write_text(PASSWORD)
        if user:
            entry = pwd.getpwnam(user)
            for path in (folder, folder / "password"):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        with (folder / "log").open("wb") as log:
            _initdb(binaries, folder, user, log.fileno())
        server = PostgresServer(binaries, folder, _free_port(), user)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _initdb(binaries: Path, folder: Path, user: str | None, log: int) -> None:
    options = ["--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "-U", "postgres", f"--pwfile={folder / 'password'}"]
    subprocess.run(
        [str(binaries / "initdb"), "-D", str(folder / "data"), *options, "--auth-local=trust", "--auth-host=scram-sha-256"],
        check=True, stdout=log, stderr=log, user=user, group=user, extra_groups=[] if user else None, cwd=folder, timeout=120,
    )  # fmt: skip


def _start(server: PostgresServer, user: str | None, log: int) -> "subprocess.Popen[bytes]":
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(server.port),
        "unix_socket_directories": str(server.folder),
        "fsync": "off",  # nobody keeps these data
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return subprocess.Popen(
        [str(server.binaries / "postgres"), "-D", str(server.folder / "data"), *arguments],
        stdout=log, stderr=log, user=user, group=user, extra_groups=[] if user else None, cwd=server.folder,
        preexec_fn=_end_with_parent,
    )  # fmt: skip


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _wait_ready(server: PostgresServer, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    probe = [str(server.binaries / "pg_isready"), "-q", "-h", str(server.folder), "-p", str(server.port)]
    while subprocess.run(probe).returncode != 0:
        log = (server.folder / "log").read_text(errors="replace")
        assert process.poll() is None, f"PostgreSQL ended:\n{log}"
        assert time.monotonic() < deadline, f"PostgreSQL was not ready in a minute:\n{log}"
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
