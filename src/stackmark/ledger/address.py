"""Locate the ledger: a path or a URL becomes an engine.

SQLite unless a URL says PostgreSQL. Three choices for SQLite:

- WAL, so that `stackmark results` reads while a run is being written. It is a property of the file and set once, when
  the ledger is made (store.py).
- `synchronous=FULL`. With NORMAL a killed process loses nothing either, but a power failure may take back runs that
  were already reported as stored. FULL costs one fsync a transaction, three a run, outside of what is measured.
- Every write begins with BEGIN IMMEDIATE. A transaction that begins as a reader and becomes a writer fails at once when
  another wrote in between, whatever the busy timeout is; one that begins as a writer waits its turn. Python's own
  implicit BEGIN is switched off for it (`isolation_level = None`), which makes DDL transactional too, for migrations.
"""

import os
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from stackmark.errors import LedgerError, SpecError
from stackmark.ledger.glance import default_file as default_file
from stackmark.ledger.masking import is_ambiguous, is_connection_string, render
from stackmark.spec import LEDGER_VARIABLE as VARIABLE

# Our writes take milliseconds; who holds the lock for this long is another program, or stuck.
BUSY_S = 15.0
# PostgreSQL: our tables live in a schema of their own, so that they can share a database with anybody's.
POSTGRES_SCHEMA = "stackmark"
_CONNECT_S = 10
# Of a value in a ledger that is imported: the longest stream (streams.py), and a row around it.
LARGEST_VALUE = 176 << 20


@dataclass(frozen=True)
class Address:
    """A ledger's address: `file` or `url` is set. `shown` is its name in messages, without a password."""

    shown: str
    file: Path | None = None
    url: URL | None = field(default=None, repr=False)


def find(where: str | None, environment: Mapping[str, str] | None = None) -> Address:
    """Find the ledger: `--ledger`, else STACKMARK_LEDGER, else the default file."""
    environment = os.environ if environment is None else environment
    text = where or environment.get(VARIABLE) or str(default_file(environment))
    if text == ":memory:":
        raise SpecError("a ledger in memory would lose its runs", hint="use a file or a PostgreSQL URL")
    if "://" not in text:
        if is_connection_string(text):
            raise SpecError("the ledger's name is neither a path nor a URL", hint=_FORMS)
        return _file(Path(text))
    if is_ambiguous(text) and not text.lower().startswith("sqlite"):
        raise SpecError(
            "the ledger's URL contains several @", hint=f"write an @ in a user or password as %40; {_FORMS}"
        )
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise SpecError("the ledger's URL cannot be read", hint=_FORMS) from error
    kind = url.drivername.split("+")[0]
    if kind == "sqlite":
        if not url.database or url.database == ":memory:":
            raise SpecError("the ledger's URL contains no file", hint=_FORMS)
        return _file(Path(url.database))
    if kind not in ("postgresql", "postgres"):
        raise SpecError(f"{kind!r} is not supported for a ledger", hint=_FORMS)
    url = url.set(drivername="postgresql+psycopg")
    return Address(shown=render(url).replace("+psycopg", ""), url=url)


_FORMS = "write a path, or postgresql://USER@HOST/DATABASE"


def _file(path: Path) -> Address:
    try:
        file = path.expanduser().absolute()
    except RuntimeError as error:
        raise SpecError(f"the home folder in {path} does not exist") from error
    return Address(shown=str(file), file=file)


def make_private(file: Path) -> None:
    """Create a ledger's file for this user alone; SQLite gives its -wal and -shm files the same mode.

    A ledger in the default place that an older stackmark made readable to all is closed too. Of one that was named, the modes
    are its owner's choice: others may be meant to read it.
    """
    with suppress(OSError):  # where it cannot be made, SQLite says why
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if file != _default_or_none():
        return
    for path in (file, *(file.with_name(file.name + ending) for ending in ("-wal", "-shm"))):
        with suppress(OSError):
            seen = path.lstat()
            if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid() and seen.st_mode & 0o077:
                path.chmod(0o600)


def _default_or_none() -> Path | None:
    try:
        return default_file(os.environ)
    except LedgerError:
        return None


def is_read_only(file: Path) -> bool:
    """Return whether the ledger is read-only: SQLite writes a journal next to its file, so the folder must be writable too."""
    return file.exists() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


def make_engine(address: Address, *, busy_s: float = BUSY_S, untouched: bool = False, durable: bool = True) -> Engine:
    """Make an engine that has not connected yet. `untouched`: of a file that somebody else wrote, which is only read.

    What is not `durable` does not wait for the disk, and may be lost with the power.
    """
    if address.file is not None:
        return _sqlite(address.file, busy_s, untouched, durable)
    assert address.url is not None
    try:
        engine = create_engine(
            address.url,
            pool_pre_ping=True,  # hours pass between the start of a run and its end: the server may have hung up
            connect_args={} if "connect_timeout" in address.url.query else {"connect_timeout": _CONNECT_S},
        )
    except ImportError as error:
        raise LedgerError(
            "a ledger in PostgreSQL needs the package psycopg, which is not installed",
            hint="pip install 'stackmark[postgres]'",
            kind="no-driver",
        ) from error
    event.listen(engine, "connect", _enter_schema)
    return engine


def _sqlite(file: Path, busy_s: float, untouched: bool = False, durable: bool = True) -> Engine:
    options = "?mode=rwc"
    if untouched or is_read_only(file):
        # Without a -wal file nobody is writing, and `immutable` lets SQLite read where it cannot make its -shm file.
        options = "?mode=ro" if file.with_name(file.name + "-wal").exists() else "?immutable=1"
    uri = f"file:{quote(os.fsencode(file))}{options}"  # a name may hold bytes that are not UTF-8

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    event.listen(engine, "connect", _distrust if untouched else _configure if durable else _configure_news)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _configure_news(connection: sqlite3.Connection, record: object) -> None:
    _configure(connection, record)
    connection.execute("PRAGMA synchronous = NORMAL")


def _distrust(connection: sqlite3.Connection, _record: object) -> None:
    """Read a file that may have been made to do harm: its schema calls no functions, and no value is larger than a stream."""
    connection.isolation_level = None
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _enter_schema(connection: object, _record: object) -> None:
    # psycopg's connection, untyped here so that psycopg is imported by SQLAlchemy alone, when it is used.
    connection.execute(f"SET search_path TO {POSTGRES_SCHEMA}")  # type: ignore[attr-defined]
    connection.commit()  # type: ignore[attr-defined]
