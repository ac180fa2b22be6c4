"""The ledger's tables, and their migrations: numbered SQL files, applied in order, in one transaction.

Alembic was considered. It brings a second configuration and a template engine for what is here: read files in order,
run them, write the number down. The files are SQL that a database administrator can read; the three words that SQLite
and PostgreSQL spell differently are filled in. A test compares the tables below with what the files make.

Two processes may open a new ledger at the same moment: whoever is second waits for the first's transaction (SQLite's
write lock, an advisory lock in PostgreSQL) and then finds nothing left to do.
"""

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from pydantic import JsonValue
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    inspect,
    text,
)

import stackmark
from stackmark.errors import LedgerError
from stackmark.ledger.address import POSTGRES_SCHEMA

# "StMk": written into the header of the SQLite file, which tells our ledger from anybody else's database.
APPLICATION_ID = 0x53744D6B
# Any number that nobody else's program takes a lock on in the same database.
_ADVISORY_LOCK = APPLICATION_ID
_WORDS = {
    "sqlite": {"key": "TEXT", "blob": "BLOB", "real": "DOUBLE"},
    # In "C" order '-' counts and a prefix is a range, whatever the language of the database.
    "postgresql": {"key": 'TEXT COLLATE "C"', "blob": "BYTEA", "real": "DOUBLE PRECISION"},
}


class JsonText(TypeDecorator[JsonValue]):
    """JSON as text. PostgreSQL's own JSON types refuse a NUL inside a string, and SQLite has none."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: JsonValue, dialect: Dialect) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> JsonValue:
        decoded: JsonValue = None if value is None else json.loads(value)
        return decoded


metadata = MetaData()

versions = Table(
    "schema_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("applied_unix_s", Double, nullable=False),
    Column("stackmark_version", Text, nullable=False),
)

experiments = Table(
    "experiments",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_unix_s", Double, nullable=False),
    Column("command", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("request", JsonText, nullable=False),
    Column("kind", Text, nullable=False),
    Column("design", JsonText, nullable=False),
    Column("suite_id", Text),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("experiment_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("workload", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_unix_s", Double, nullable=False),
    Column("ended_unix_s", Double),
    Column("place", Text, nullable=False),
    Column("device", Text),
    Column("chip", Text),
    Column("chip_uuid", Text),
    Column("precision", Text),
    Column("batch", BigInteger),
    Column("tune", Text),
    Column("framework", Text),
    Column("rate_per_s", Double),
    Column("rate_unit", Text),
    Column("steps_total", BigInteger),
    Column("steps_used", BigInteger),
    Column("steady", Text),
    Column("step_p50_s", Double),
    Column("step_p90_s", Double),
    Column("step_p99_s", Double),
    Column("step_cv", Double),
    Column("wall_s", Double),
    Column("setup_s", Double),
    Column("memory_peak_mib", Double),
    Column("energy_j", Double),
    Column("data_share", Double),
    Column("machine_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("driver_pid", BigInteger, nullable=False),
    Column("stackmark_version", Text, nullable=False),
    Column("spec_digest", Text, nullable=False),
    Column("failure_kind", Text),
    Column("failure_message", Text),
    Column("failure_hint", Text),
    Column("flags", JsonText, nullable=False),
    Column("place_options", JsonText, nullable=False),
    Column("handle", JsonText, nullable=False),
    Column("spec", JsonText, nullable=False),
    Column("arm", Integer, nullable=False),
    Column("block", Integer),
    Column("attempt", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("slot", Integer),
    Column("suspect", Integer),
    Column("pass_number", Integer),
    Column("piece", Integer),
)

streams = Table(
    "streams",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("lines", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

baselines = Table(
    "baselines",
    metadata,
    Column("name", Text, primary_key=True),
    Column("experiment_id", Text, primary_key=True),
    Column("saved_unix_s", Double, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("experiment_id", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("pid_namespace", BigInteger),
    Column("driver_pid", BigInteger, nullable=False),
    Column("driver_start_ticks", BigInteger),
    Column("taken_unix_s", Double, nullable=False),
    Column("expires_unix_s", Double, nullable=False),
)

progress = Table(
    "progress",
    metadata,
    Column("experiment_id", Text, primary_key=True),
    Column("updated_unix_s", Double, nullable=False),
    Column("progress", JsonText, nullable=False),
)

published = Table(
    "published",
    metadata,
    Column("id", Text, primary_key=True),
    Column("added_unix_s", Double, nullable=False),
    Column("file", Text, nullable=False),
    Column("entry", JsonText, nullable=False),
)


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    sql: str

    def statements(self, dialect: str) -> list[str]:
        """Return the file's statements in a database's dialect. A statement ends in `;` at the end of a line."""
        spelled = Template(self.sql).substitute(_WORDS[dialect])
        bare = re.sub(r"^\s*--.*$", "", spelled, flags=re.MULTILINE)
        return [part.strip() for part in re.split(r";\s*$", bare, flags=re.MULTILINE) if part.strip()]


def migrations(folder: Traversable | None = None) -> list[Migration]:
    """Return the numbered files (`0001_ledger.sql`) in order; a gap or a repeated number is a mistake of ours."""
    folder = folder or files(__package__) / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    found = [
        Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text(encoding="utf-8"))
        for name in names
    ]
    assert [migration.number for migration in found] == list(range(1, len(found) + 1)), names
    return found


def version_of(connection: Connection, shown: str) -> int:
    """Return the version of the ledger behind a connection; 0 for an empty database. Refuse another program's database."""
    sqlite = connection.dialect.name == "sqlite"
    present = set(inspect(connection).get_table_names(schema=None if sqlite else POSTGRES_SCHEMA))
    if not present:
        return 0
    ours = versions.name in present
    if ours and sqlite:
        ours = connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID
    if not ours:
        kind = "a database" if sqlite else f"a schema {POSTGRES_SCHEMA!r}"
        raise LedgerError(
            f"{shown} contains {kind} of another program, not a ledger; it was not changed",
            hint="use another place with --ledger, or set STACKMARK_LEDGER",
            kind="foreign",
        )
    return int(connection.execute(text("SELECT max(version) FROM schema_versions")).scalar() or 0)


def refuse_newer(version: int, newest: int, shown: str) -> None:
    if version > newest:
        raise LedgerError(
            f"the ledger {shown} has version {version}; stackmark {stackmark.__version__} supports versions up to {newest}",
            hint="use the newer stackmark that wrote it (pip install -U stackmark), or use another --ledger",
            kind="newer",
        )


def check_copyable(connection: Connection, shown: str) -> None:
    """Refuse a ledger of another version, and an SQLite file whose tables compute what they return: views, virtual tables."""
    version, newest = version_of(connection, shown), len(migrations())
    if version == 0:
        raise LedgerError(f"{shown} is empty, not a ledger", hint="name a ledger's file", kind="foreign")
    refuse_newer(version, newest, shown)
    if version < newest:
        raise LedgerError(
            f"the ledger {shown} has version {version}, this stackmark imports version {newest}",
            hint=f"update it first, or a copy of it: stackmark results --ledger {shlex.quote(shown)}",
            kind="older",
        )
    if connection.dialect.name != "sqlite":
        return
    for table in (experiments, runs, streams):
        query = text("SELECT type, sql FROM sqlite_master WHERE name = :name")
        found = connection.execute(query, {"name": table.name}).first()
        columns = connection.exec_driver_sql(f"PRAGMA table_xinfo({table.name})").mappings().all()
        plain = found is not None and found.type == "table" and not str(found.sql).upper().startswith("CREATE VIRTUAL")
        names = {column["name"] for column in columns if column["hidden"] == 0}
        if not plain or len(names) != len(columns) or not names >= set(table.c.keys()):
            raise LedgerError(
                f"{shown} is not a ledger that stackmark wrote: its {table.name} are not a plain table",
                hint="import the ledger of somebody you know",
                kind="foreign",
            )


def migrate(connection: Connection, shown: str, wanted: Sequence[Migration]) -> list[int]:
    """Migrate a ledger within the connection's write transaction; return the numbers applied."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    version = version_of(connection, shown)
    refuse_newer(version, len(wanted), shown)
    if version == 0:
        _found(connection)
    due = [migration for migration in wanted if migration.number > version]
    for migration in due:
        for statement in migration.statements(dialect):
            connection.exec_driver_sql(statement)
        connection.execute(
            versions.insert().values(
                version=migration.number,
                name=migration.name,
                applied_unix_s=time.time(),
                stackmark_version=stackmark.__version__,
            )
        )
    return [migration.number for migration in due]


def _found(connection: Connection) -> None:
    """Marks an empty database as a ledger."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    # Asked first: PostgreSQL's IF NOT EXISTS wants the right to create even where an administrator made the schema.
    elif not inspect(connection).has_schema(POSTGRES_SCHEMA):
        connection.exec_driver_sql(f"CREATE SCHEMA {POSTGRES_SCHEMA}")
    versions.create(connection)
