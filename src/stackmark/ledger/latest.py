"""Read what is new in a ledger: for programs that watch it for months.

A watcher reads all runs once, and from then on those whose ids are greater than the last (an id begins with its time, so this is
one walk along the primary key) and those that were still running. An imported ledger brings older ids: the number of runs then
differs from what was read, and the watcher reads all once more. No index is added for it: each costs every run that is stored.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import Connection, RowMapping, Text, func, select, type_coerce

from stackmark.ledger.schema import experiments, runs

_BATCH = 5000
# How many ids one question names: fewer than any database takes.
_IDS = 500
_COLUMNS = (
    runs.c.id,
    runs.c.experiment_id,
    runs.c.workload,
    runs.c.spec_digest,
    runs.c.place,
    runs.c.chip,
    runs.c.machine_id,
    runs.c.boot_id,
    # As text: most rows name no node in it, and need no parser.
    type_coerce(runs.c.handle, Text).label("handle"),
    runs.c.arm,
    runs.c.role,
    runs.c.status,
    runs.c.started_unix_s,
    runs.c.ended_unix_s,
    runs.c.rate_per_s,
    runs.c.rate_unit,
    runs.c.failure_kind,
    runs.c.precision,
    runs.c.batch,
    runs.c.framework,
    runs.c.driver_pid,
    experiments.c.kind,
    experiments.c.note,
)
_RUNS = select(*_COLUMNS).join(experiments, experiments.c.id == runs.c.experiment_id)

# Rows as the file has them: SQLite keeps whatever type was written, so who reads them validates them.
Rows = Iterator[RowMapping]


def runs_after(connection: Connection, run_id: str) -> Rows:
    """Yield the runs whose ids are greater, in the order of their ids; all of them after the empty id."""
    query = _RUNS.where(runs.c.id > run_id).order_by(runs.c.id)
    yield from connection.execution_options(yield_per=_BATCH).execute(query).mappings()


def runs_named(connection: Connection, run_ids: Sequence[str]) -> Rows:
    """Yield the runs with these ids that still exist."""
    for first in range(0, len(run_ids), _IDS):
        yield from connection.execute(_RUNS.where(runs.c.id.in_(run_ids[first : first + _IDS]))).mappings()


def count_runs(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(runs)).scalar_one())


def changes_of(file: Path | None) -> tuple[object, ...] | None:
    """Return what changes with every write to a ledger's file; None for a server, which has to be asked."""
    if file is None:
        return None
    found: list[object] = []
    for path in (file, file.with_name(file.name + "-wal")):
        try:
            seen = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found += [seen.st_ino, seen.st_size, seen.st_mtime_ns]
    return tuple(found)
