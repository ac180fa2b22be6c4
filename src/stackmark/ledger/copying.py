"""Copy the runs and experiments of another ledger into this one.

Ids are kept, so a run that is already here is skipped, and the same import can be repeated: it adds what is new. One transaction
holds all of it, read piece by piece: a million runs take no more memory than a few hundred.

What the other ledger says is input like any other. Its tables must be tables, every row is validated, columns that repeat the
spec are computed from it, and secrets are masked as if they had been typed here. Its baselines, claims and published rows stay
there. Nothing in it becomes trusted: what may run here is remembered outside of every ledger.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue
from sqlalchemy import Connection, Table, func, insert, select

from stackmark.errors import LedgerError, SpecError
from stackmark.ledger import trouble
from stackmark.ledger.masking import hide_in_arguments, hide_in_text
from stackmark.ledger.rows import Experiment, RunEnd, RunStart, of_spec
from stackmark.ledger.schema import experiments, runs, streams
from stackmark.ledger.several import two_versions
from stackmark.ledger.store import Ledger
from stackmark.ledger.streams import TooLong, check_stored
from stackmark.secrets_masking import looks_secret, masked_arm, masked_variable, masked_words

SQLITE_MAGIC = b"SQLite format 3\0"
# Experiments, and runs, that are in memory at once; and how much output.
_EXPERIMENTS, _RUNS, _BYTES = 200, 200, 16 << 20
# From 1970 to the year 5138: what a clock may say.
_LAST_MOMENT_S = 1e11
Columns = dict[str, object]


@dataclass(frozen=True)
class Copied:
    """How much of another ledger came into this one.

    `known_runs` were here already; `running` had not ended; `from_known_logs` are logs that were imported here by themselves.
    """

    where: str
    experiments: int = 0
    runs: int = 0
    known_runs: int = 0
    running: int = 0
    from_known_logs: int = 0


def is_ledger(where: str) -> bool:
    """Tell whether a file is an SQLite database, or a name is the URL of a ledger: neither is read as a log."""
    if where.lower().startswith(("postgresql://", "postgres://", "postgresql+", "sqlite://")):
        return True
    try:
        with Path(where).open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except (OSError, ValueError):
        return False


def copy_ledger(where: str, target: Ledger, *, again: bool = False) -> Copied:
    """Copy what `target` does not have. Refused with a sentence, and without a change, where any of it cannot be.

    `again` also copies runs from logs that were imported into `target` by themselves.
    """
    try:
        with Ledger.open_to_copy(where) as source:
            if source.where == target.where or _is_same_file(source, target):
                raise SpecError(f"{source.where} is the ledger to import into", hint="name another ledger's file")
            return target.writing(lambda connection: _Copying(source, target, connection, again).copied())
    except LedgerError as error:
        if error.kind and target.where in error.message:
            raise
        hint = "name the file of a ledger that stackmark wrote" if error.kind == "foreign" else error.hint
        raise SpecError(f"{error.message}; nothing was imported", hint=hint) from error


def _is_same_file(source: Ledger, target: Ledger) -> bool:
    return bool(source.file and target.file and source.file.exists() and source.file.samefile(target.file))


class _Copying:
    """One import, within the write transaction of the ledger that it goes to."""

    def __init__(self, source: Ledger, target: Ledger, connection: Connection, again: bool) -> None:
        self._source, self._target, self._into = source, target, connection
        self._again = again
        self._count = Copied(source.where)

    def copied(self) -> Copied:
        with self._source.snapshot() as connection:
            known_logs = set() if self._again else self._logs()
            for some in self._experiments(connection):
                self._add_experiments(some)
                for group in self._runs(connection, [one.id for one in some]):
                    self._add_runs(connection, group, known_logs)
        return self._count

    def _logs(self) -> set[str]:
        """The SHA-256 of the logs that were imported here."""
        query = select(runs.c.handle).join(experiments, experiments.c.id == runs.c.experiment_id)
        handles = self._into.execute(query.where(experiments.c.kind == "import")).scalars()
        return {str(one["sha256"]) for one in handles if isinstance(one, dict) and "sha256" in one}

    # Reading: errors here are the other ledger's.

    def _experiments(self, connection: Connection) -> Iterator[list[Experiment]]:
        last = ""
        while True:
            query = select(experiments).where(experiments.c.id > last).order_by(experiments.c.id).limit(_EXPERIMENTS)
            with self._source.saying():
                found = connection.execute(query).mappings().all()
                read = [_experiment(dict(row)) for row in found]
            if not read:
                return
            yield read
            last = read[-1].id

    def _runs(self, connection: Connection, of: Sequence[str]) -> Iterator[list[Columns]]:
        last = ""
        while True:
            query = select(runs).where(runs.c.experiment_id.in_(of), runs.c.id > last).order_by(runs.c.id).limit(_RUNS)
            with self._source.saying():
                found = [dict(row) for row in connection.execute(query).mappings()]
            if not found:
                return
            yield [{str(name): value for name, value in row.items()} for row in found]
            last = str(found[-1]["id"])

    def _streams(self, connection: Connection, ids: Sequence[str]) -> Iterator[list[Columns]]:
        """Read the output of runs, as much at once as should be in memory."""
        with self._source.saying():
            size = select(streams.c.run_id, func.length(streams.c.data).label("size"))
            found = connection.execute(size.where(streams.c.run_id.in_(ids))).all()
        some: list[str] = []
        total = 0
        for run_id, size_bytes in found:
            with self._source.saying():
                _check_size(run_id, size_bytes)
            if some and total + size_bytes > _BYTES:
                yield self._read_streams(connection, some)
                some, total = [], 0
            some.append(run_id)
            total += size_bytes
        if some:
            yield self._read_streams(connection, some)

    def _read_streams(self, connection: Connection, ids: Sequence[str]) -> list[Columns]:
        with self._source.saying():
            found = connection.execute(select(streams).where(streams.c.run_id.in_(ids))).mappings().all()
            for row in found:
                # SQLite keeps whatever type was written.
                if not isinstance(row["data"], bytes) or not isinstance(row["lines"], int) or row["lines"] < 0:
                    raise ValueError(f"the output of {row['run_id']} is not compressed")
        return [{"run_id": row["run_id"], "lines": row["lines"], "data": row["data"]} for row in found]

    # Writing: errors here are this ledger's.

    def _add_experiments(self, some: Sequence[Experiment]) -> None:
        there = self._there(experiments, [one.id for one in some])
        new = []
        for one in some:
            if one.id not in there:
                new.append(one.model_dump())
            elif _experiment(dict(there[one.id])) != one:
                raise two_versions(one.id, self._target.where, self._source.where)
        if new:
            self._into.execute(insert(experiments), new)
        self._count = replace(self._count, experiments=self._count.experiments + len(new))

    def _add_runs(self, connection: Connection, group: Sequence[Columns], known_logs: set[str]) -> None:
        there = self._there(runs, [str(row["id"]) for row in group])
        new: list[Columns] = []
        known = running = logs = 0
        for columns in group:
            if columns["status"] == "running":
                running += 1
                continue
            with self._source.saying():
                row = _run(columns)
            if (same := there.get(str(row["id"]))) is not None:
                if _differs(row, same):
                    raise two_versions(str(row["id"]), self._target.where, self._source.where)
                known += 1
            elif isinstance(handle := row["handle"], dict) and handle.get("sha256") in known_logs:
                logs += 1
            else:
                new.append(row)
        if new:
            self._into.execute(insert(runs), new)
            for some in self._streams(connection, [str(row["id"]) for row in new]):
                self._into.execute(insert(streams), some)
        count = self._count
        self._count = replace(
            count, runs=count.runs + len(new), known_runs=count.known_runs + known, running=count.running + running,
            from_known_logs=count.from_known_logs + logs,
        )  # fmt: skip

    def _there(self, table: Table, ids: Sequence[str]) -> dict[str, Mapping[str, object]]:
        found = self._into.execute(select(table).where(table.c.id.in_(ids))).mappings()
        return {str(row["id"]): {str(name): value for name, value in row.items()} for row in found}


def _experiment(columns: Columns) -> Experiment:
    """Validate an experiment, and mask the secrets in what was typed."""
    with trouble.naming(columns["id"]):
        one = Experiment.model_validate(columns)
    _check_moment(one.created_unix_s, one.id)
    request, design = masked_json(one.request), masked_json(one.design)
    assert isinstance(request, dict)
    return one.model_copy(
        update={
            "command": masked_line(one.command),
            "note": hide_in_text(one.note),
            "request": request,
            "design": design,
        }
    )


def _run(columns: Columns) -> Columns:
    """Validate a run that has ended, and compute the columns that repeat its spec."""
    with trouble.naming(columns["id"]):
        start = RunStart.model_validate({name: columns[name] for name in RunStart.model_fields})
        end = RunEnd.model_validate({name: columns[name] for name in RunEnd.model_fields})
    for moment in (start.started_unix_s, end.ended_unix_s):
        _check_moment(moment, start.id)
    row: Columns = {**start.model_dump(), **of_spec(start.spec), **end.model_dump()}
    row["place_options"] = masked_json(start.place_options)
    return row


def _check_size(run_id: str, size_bytes: object) -> None:
    try:
        check_stored(size_bytes if isinstance(size_bytes, int) else 0)
    except TooLong as error:
        raise ValueError(f"{run_id}: {error}") from error


def _check_moment(moment_unix_s: float, what: str) -> None:
    if not (math.isfinite(moment_unix_s) and 0 <= moment_unix_s <= _LAST_MOMENT_S):
        raise ValueError(f"{what} has an impossible time, {moment_unix_s}")


def _differs(row: Columns, same: Mapping[str, object]) -> bool:
    """Tell whether two records of one run differ. One that has not ended here has ended there: not the same."""
    if same["status"] == "running":
        return True
    return row != _run(dict(same))


def masked_line(command: str) -> str:
    """Return a stored command line without secrets, as if it had been typed now."""
    try:
        words = shlex.split(command)
    except ValueError:
        return hide_in_text(command)
    masked = masked_words(hide_in_arguments(words))
    return command if masked == words else shlex.join(masked)


def masked_json(value: JsonValue, key: str = "") -> JsonValue:
    """Return a request, a design or options of a place without the values of secret variables."""
    if isinstance(value, dict):
        if key == "env":
            return {name: "***" if looks_secret(name) and one else one for name, one in value.items()}
        return {name: masked_json(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [masked_json(one, key) for one in value]
    if isinstance(value, str) and key == "env":
        return masked_variable(value)
    return masked_arm(value) if isinstance(value, str) and key in ("label", "arms", "arm") else value
