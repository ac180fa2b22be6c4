"""The ledger: stores runs, experiments and streams, and reads them back.

A run is a row `running` from the moment it begins, and becomes whole in one transaction, with its stream, when it ends;
no transaction is open in between. So a process that is killed loses at most the run in flight, and the row that it
leaves behind tells the next command that it was lost (`abandoned`, `mark_lost`).

Only rows of the same machine are called abandoned: a PostgreSQL ledger is shared, and whether a process lives can be
seen only where it runs. Should a run end after all when it was already called lost, its end is believed.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    RowMapping,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from stackmark import ids
from stackmark.errors import LedgerError, SpecError
from stackmark.ledger import address as addresses
from stackmark.ledger import claims, queries, schema, trouble
from stackmark.ledger.address import BUSY_S, Address
from stackmark.ledger.rows import (
    LOST,
    Cursor,
    Experiment,
    ExperimentFilter,
    ExperimentRow,
    Json,
    RunDetail,
    RunEnd,
    RunFilter,
    RunRow,
    RunStart,
    of_spec,
    ranks_in,
    storable,
)
from stackmark.ledger.schema import experiments, runs, streams
from stackmark.ledger.streams import Lines, TooLong, check_stored, pack_lines, unpack_lines

T = TypeVar("T")
# How long a PostgreSQL server that went away is waited for: as long as a locked file, and a restart takes a few seconds.
PATIENCE_S = BUSY_S + 5.0
# What is only news is left out where another writer has the file.
NEWS_BUSY_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# How many ids an ambiguous prefix is answered with, and how many rows an export holds in memory.
_CANDIDATES = 5
_BATCH = 2000
# How many ids one question names: fewer than any database takes.
_IDS = 500
_EVERYTHING = RunFilter()


class NotOpen(LedgerError):
    """The run was deleted or has already ended, so that its end cannot be stored."""


class Ledger:
    """An open ledger. Safe to use from several threads; close it, or use it in a `with`."""

    def __init__(self, engine: Engine, address: Address, *, read_only: bool = False) -> None:
        self._engine = engine
        self._address = address
        self._wrote = False
        self.where = address.shown
        self.file = address.file
        self.read_only = read_only
        # How long a server that went away is waited for.
        self.patience_s = PATIENCE_S
        # The token of each experiment that this process has a claim on (claims.py).
        self.claimed: dict[str, str] = {}
        # Who is told that the server is waited for.
        self.notice: Callable[[str], None] = lambda _sentence: None

    @classmethod
    def open(cls, where: str | None = None, *, create: bool = True, busy_s: float = BUSY_S) -> Self:
        """Open the ledger at a path or URL, else at STACKMARK_LEDGER, else the default file.

        A missing file is made, with its folder, unless `create` is off: only this user can read and write them. An older
        ledger is migrated.
        """
        address = addresses.find(where)
        file = address.file
        if file is not None:
            if not file.exists() and not create:
                raise LedgerError(
                    f"the ledger {file} does not exist",
                    hint="`stackmark run` creates one; --ledger selects another",
                    kind="no-ledger",
                )
            try:
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise trouble.cannot_open(file, f"its folder cannot be created: {error.strerror}") from error
            addresses.make_private(file)
        ledger = cls(
            addresses.make_engine(address, busy_s=busy_s),
            address,
            read_only=file is not None and addresses.is_read_only(file),
        )
        try:
            with trouble.said(address):
                ledger._prepare(schema.migrations(), busy_s)
        except BaseException:
            ledger._engine.dispose()
            raise
        return ledger

    @classmethod
    def open_to_copy(cls, where: str) -> Self:
        """Open somebody else's ledger to read it, without changing anything: it is neither migrated nor made private."""
        address = addresses.find(where)
        if address.file is not None and not address.file.is_file():
            raise LedgerError(f"the ledger {address.file} does not exist", hint="name its file", kind="no-ledger")
        ledger = cls(addresses.make_engine(address, untouched=True), address, read_only=True)
        try:
            with ledger.saying(), ledger.snapshot() as connection:
                schema.check_copyable(connection, address.shown)
        except BaseException:
            ledger._engine.dispose()
            raise
        return ledger

    def for_news(self) -> "Ledger":
        """Return this ledger on connections of its own that wait neither for a lock nor for the disk: for what may be lost."""
        engine = addresses.make_engine(self._address, busy_s=NEWS_BUSY_S, durable=False)
        return Ledger(engine, self._address, read_only=self.read_only)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read the ledger as it is now, in one transaction. Errors are those of the database (see `saying`)."""
        with self._engine.connect().execution_options(writes=False) as connection, connection.begin():
            yield connection

    def saying(self) -> AbstractContextManager[None]:
        """Turn errors of the database, and of rows that cannot be read, into sentences about this ledger."""
        return trouble.said(self._address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._wrote and self._address.file is not None:
            self._refresh_statistics()
        self._engine.dispose()

    # Writing

    def start_experiment(self, experiment: Experiment) -> None:
        self.writing(lambda connection: _insert_once(connection, experiments, experiment.model_dump()))

    def start(self, run: RunStart) -> None:
        """Add the row `running`. Refused where another driver took over the experiment that this one had a claim on."""
        row = {**run.model_dump(), **of_spec(run.spec), "status": "running", "flags": []}

        def work(connection: Connection) -> None:
            if not self._still_claimed(connection, run.experiment_id):
                raise claims.lost(run.experiment_id)
            _insert_once(connection, runs, row)

        self.writing(work)

    def _still_claimed(self, connection: Connection, experiment_id: str) -> bool:
        """True also where this process has no claim, as on an experiment that nobody else can add runs to."""
        token = self.claimed.get(experiment_id)
        return token is None or claims.renew(connection, experiment_id, token)

    def set_design(self, experiment_id: str, design: Json) -> None:
        """Set what an experiment is about, where that is complete only at its end: what was done to a cluster, and observed."""

        def work(connection: Connection) -> None:
            change = update(experiments).where(experiments.c.id == experiment_id).values(design=design)
            if _changed(connection.execute(change)) == 0:
                raise LedgerError(f"the experiment {experiment_id} is no longer in the ledger {self.where}")

        self.writing(work)

    def set_handle(self, run_id: str, handle: Json) -> None:
        """Set what the place needs to find the worker again."""

        def work(connection: Connection) -> None:
            change = update(runs).where(runs.c.id == run_id, runs.c.status == "running").values(handle=handle)
            if _changed(connection.execute(change)) == 0:
                raise LedgerError(f"the run {run_id} is no longer running: it was deleted or marked lost")

        self.writing(work)

    def finish(self, run_id: str, end: RunEnd, lines: Lines) -> None:
        """Finish a run with its output, in one transaction. The same end may be written twice."""
        stream = {"run_id": run_id, "lines": len(lines), "data": pack_lines(lines)}

        def work(connection: Connection) -> None:
            open_still = or_(runs.c.status == "running", runs.c.failure_kind == LOST)
            change = update(runs).where(runs.c.id == run_id, open_still).values(self._counted(connection, run_id, end))
            if _changed(connection.execute(change)) == 1:
                connection.execute(delete(streams).where(streams.c.run_id == run_id))
                connection.execute(insert(streams).values(stream))
                return
            stored = connection.execute(select(runs.c.status, runs.c.ended_unix_s).where(runs.c.id == run_id)).first()
            if stored is None:
                raise NotOpen(f"the run {run_id} is no longer in the ledger {self.where}: it was deleted")
            if tuple(stored) != (end.status, end.ended_unix_s):
                raise NotOpen(f"the run {run_id} has already ended, with status {stored.status}")

        self.writing(work)

    def _counted(self, connection: Connection, run_id: str, end: RunEnd) -> Json:
        """The columns of an end. A run during which another driver took over has no number: that one may have made it too."""
        of_run = select(runs.c.experiment_id).where(runs.c.id == run_id)
        experiment_id = connection.execute(of_run).scalar() if self.claimed else None
        if experiment_id is None or self._still_claimed(connection, experiment_id):
            return end.model_dump()
        message = f"another stackmark took over {experiment_id} during this run"
        cut = RunEnd(status="failed", ended_unix_s=end.ended_unix_s, failure_kind=LOST, failure_message=message)
        return cut.model_dump()

    def keep(self, run_id: str, lines: Lines) -> None:
        """Store a run's output so far: if its driver is killed, only what came later is lost."""
        stream = {"run_id": run_id, "lines": len(lines), "data": pack_lines(lines)}

        def work(connection: Connection) -> None:
            still = select(runs.c.id).where(runs.c.id == run_id, runs.c.status == "running")
            if connection.execute(still).first() is not None:
                connection.execute(delete(streams).where(streams.c.run_id == run_id))
                connection.execute(insert(streams).values(stream))

        # While a worker runs its output is to be read, and at the end all of it is written again.
        self.writing(work, patient=False)

    def abandoned(self, *, machine_id: str, alive: Callable[[RunRow], bool]) -> list[RunRow]:
        """Return the rows `running` of this machine whose driver has ended, according to `alive`."""
        query = (
            select(*queries.WITHOUT_SPEC)
            .where(runs.c.status == "running", runs.c.machine_id == machine_id)
            .order_by(*queries.NEWEST_FIRST)
        )
        rows = self.reading(lambda connection: [run_of(row) for row in connection.execute(query).mappings()])
        return [row for row in rows if not alive(row)]

    def mark_lost(self, run_id: str, message: str, *, hint: str | None = None) -> bool:
        """Mark an abandoned run as lost; False where another process was faster."""
        lost = {
            "status": "failed",
            "ended_unix_s": time.time(),
            "failure_kind": LOST,
            "failure_message": storable(message),
            "failure_hint": None if hint is None else storable(hint),
        }
        change = update(runs).where(runs.c.id == run_id, runs.c.status == "running").values(lost)
        return self.writing(lambda connection: _changed(connection.execute(change)) == 1)

    def delete(self, run_ids: Sequence[str], *, force: bool = False) -> int:
        """Delete runs with their streams, and the experiments that they leave empty. All of them, or none.

        A run that is still running is refused unless forced; whether its process lives is the caller's to know.
        """

        return self.writing(lambda connection: self._delete(connection, run_ids, force))

    def _delete(self, connection: Connection, run_ids: Sequence[str], force: bool) -> int:
        deleted = 0
        for run_id in dict.fromkeys(run_ids):
            row = connection.execute(select(runs.c.status, runs.c.experiment_id).where(runs.c.id == run_id)).first()
            if row is None:
                raise SpecError(f"the ledger {self.where} has no run {run_id}; nothing was deleted")
            if row.status == "running" and not force:
                raise SpecError(f"the run {run_id} is still running; nothing was deleted", hint="end it first")
            connection.execute(delete(runs).where(runs.c.id == run_id))
            left = select(runs.c.id).where(runs.c.experiment_id == row.experiment_id).limit(1)
            if connection.execute(left).first() is None:
                connection.execute(delete(experiments).where(experiments.c.id == row.experiment_id))
            deleted += 1
        return deleted

    def delete_together(self, run_ids: Sequence[str], experiment_ids: Sequence[str]) -> int:
        """Delete runs, and experiments with all their runs, also those without any; return the number of runs.

        The rows of a suite are deleted with it.

        All of them, or none: a run that is still running is refused, also one of an experiment.
        """

        def work(connection: Connection) -> int:
            wanted = [*run_ids]
            of_suites = select(experiments.c.id).where(experiments.c.suite_id.in_(experiment_ids))
            every = [*experiment_ids, *(str(row.id) for row in connection.execute(of_suites))]
            for experiment_id in every:
                mine = select(runs.c.id).where(runs.c.experiment_id == experiment_id)
                wanted += [str(run_id) for (run_id,) in connection.execute(mine)]
            deleted = self._delete(connection, wanted, force=False)
            connection.execute(delete(experiments).where(experiments.c.id.in_(every)))
            return deleted

        return self.writing(work)

    # Reading

    def runs(self, wanted: RunFilter = _EVERYTHING, *, limit: int = 50, before: Cursor | None = None) -> list[RunRow]:
        """Return one page of runs, newest first; `before` is the cursor of the previous page's last row."""

        def work(connection: Connection) -> list[RunRow]:
            query = queries.page(wanted, queries.resolve(connection, wanted), limit, before)
            return [run_of(row) for row in connection.execute(query).mappings()]

        return self.reading(work)

    def count(self, wanted: RunFilter = _EVERYTHING) -> int:
        def work(connection: Connection) -> int:
            where = queries.conditions(wanted, queries.resolve(connection, wanted))
            return connection.execute(select(func.count()).select_from(runs).where(*where)).scalar_one()

        return self.reading(work)

    def values_of(self, column: str) -> list[str]:
        """Return the values of an indexed column of runs: workload, chip or place."""
        return self.reading(lambda connection: queries.distinct(connection, runs.c[column]))

    def every(
        self, wanted: RunFilter = _EVERYTHING, *, within: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Mapping[str, object]]:
        """Yield all columns of the selected runs, oldest first, one batch in memory at a time; for exports.

        `within` names the values that indexed columns may have. Reads one snapshot: what is written meanwhile is not in it.
        """
        with trouble.said(self._address), self._engine.connect() as connection:
            where = queries.conditions(wanted, queries.resolve(connection, wanted))
            where += [runs.c[name].in_(values) for name, values in (within or {}).items()]
            query = select(runs).where(*where).order_by(runs.c.started_unix_s, runs.c.id)
            for row in connection.execution_options(yield_per=_BATCH).execute(query).mappings():
                yield {str(name): value for name, value in row.items()}

    def run(self, prefix: str) -> RunDetail:
        """Return the run whose id starts like this, or the `last` one."""

        def work(connection: Connection) -> RunDetail:
            run_id = self._one(connection, runs, ids.RUN, prefix)
            row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
            return _detail(row)

        return self.reading(work)

    def run_id(self, prefix: str) -> str:
        """Return the id that starts like this, or that of the `last` run; the row itself may be unreadable."""
        return self.reading(lambda connection: self._one(connection, runs, ids.RUN, prefix))

    def experiment(self, prefix: str) -> Experiment:
        """Return the experiment whose id starts like this, or the `last` one."""

        def work(connection: Connection) -> Experiment:
            found = self._one(connection, experiments, ids.EXPERIMENT, prefix)
            row = connection.execute(select(experiments).where(experiments.c.id == found)).mappings().one()
            return Experiment.model_validate(dict(row))

        return self.reading(work)

    def experiment_id(self, prefix: str) -> str:
        """Return the id that starts like this, or that of the `last` experiment; the row itself may be unreadable."""
        return self.reading(lambda connection: self._one(connection, experiments, ids.EXPERIMENT, prefix))

    def experiments(self, *, workload: str | None = None, limit: int = 50) -> list[ExperimentRow]:
        """Return one page of experiments, newest first; `workload` may be a glob."""

        def work(connection: Connection) -> list[ExperimentRow]:
            query = queries.experiments_page(connection, ExperimentFilter(workload=workload), limit)
            return with_counts(connection, connection.execute(query).mappings().all())

        return self.reading(work)

    def rows_of(self, suite_id: str) -> list[ExperimentRow]:
        """Return the rows of a suite as they are listed: with how many runs of which status each has."""
        mine = select(experiments).where(experiments.c.suite_id == suite_id).order_by(experiments.c.id)
        return self.reading(lambda connection: with_counts(connection, connection.execute(mine).mappings().all()))

    def experiments_of(self, suite_id: str) -> list[Experiment]:
        """Return the experiments that are rows of a suite, the oldest first."""
        mine = select(experiments).where(experiments.c.suite_id == suite_id).order_by(experiments.c.id)

        def work(connection: Connection) -> list[Experiment]:
            return [Experiment.model_validate(dict(row)) for row in connection.execute(mine).mappings()]

        return self.reading(work)

    def has_run(self, run_id: str) -> bool:
        query = select(runs.c.id).where(runs.c.id == run_id)
        return self.reading(lambda connection: connection.execute(query).first() is not None)

    def runs_of(self, experiment_id: str) -> list[RunDetail]:
        """Return all runs of an experiment with their specs, in the order started."""

        def work(connection: Connection) -> list[RunDetail]:
            query = (
                select(runs)
                .where(runs.c.experiment_id == experiment_id)
                .order_by(runs.c.position, runs.c.started_unix_s, runs.c.id)
            )
            return [_detail(row) for row in connection.execute(query).mappings()]

        return self.reading(work)

    def stream(self, run_id: str) -> list[str]:
        """Yield a run's whole output, line by line; for one that was lost or still runs, what is stored so far."""

        def work(connection: Connection) -> list[str]:
            size = select(streams.c.lines, func.length(streams.c.data).label("size")).where(streams.c.run_id == run_id)
            found = connection.execute(size).first()
            if found is None or found.lines == 0:
                return []
            check_stored(found.size)
            data: object = connection.execute(select(streams.c.data).where(streams.c.run_id == run_id)).scalar_one()
            if not isinstance(data, bytes):  # SQLite keeps whatever type was written
                raise zlib.error("its output is not compressed")
            return unpack_lines(data)

        try:
            return self.reading(work)
        except TooLong as error:
            raise LedgerError(
                f"the run {run_id} of the ledger {self.where} cannot be read completely: {error}",
                hint="the ledger was edited or damaged; `stackmark delete RUN` removes a run",
                kind="too-long",
            ) from error

    # How it is done

    def _one(self, connection: Connection, table: Table, letter: str, text: str) -> str:
        if text.strip().lower() == "last":
            when = table.c.started_unix_s if table is runs else table.c.created_unix_s
            newest = select(table.c.id).order_by(when.desc(), table.c.id.desc()).limit(1)
            # The last experiment of a suite is the suite: its rows belong to it.
            last = connection.execute(
                newest if table is runs else newest.where(experiments.c.suite_id.is_(None))
            ).scalar()
            if last is None:
                raise SpecError(f"the ledger {self.where} is empty", hint="`stackmark run train/resnet50` adds a run")
            return str(last)
        prefix = ids.as_prefix(text, letter)
        found: list[str] = []
        if prefix is not None:
            matches = select(table.c.id).where(queries.starts_with(table.c.id, prefix)).order_by(table.c.id.desc())
            found = [str(row.id) for row in connection.execute(matches.limit(_CANDIDATES + 1))]
        if len(found) == 1:
            return found[0]
        name = "run" if table is runs else "experiment"
        run_prefix = ids.as_prefix(text, ids.RUN)
        if not found and table is experiments and text.strip().lower().startswith("r-") and run_prefix:
            of_run = select(runs.c.experiment_id).where(queries.starts_with(runs.c.id, run_prefix)).limit(1)
            if meant := connection.execute(of_run).scalar():
                raise SpecError(
                    f"{text!r} is a run, but this command needs an experiment", hint=f"its experiment is {meant}"
                )
        if not found:
            raise SpecError(
                f"the ledger {self.where} has no {name} {text!r}",
                hint="`stackmark results` lists the runs" if table is runs else "`stackmark experiments` lists them",
            )
        some = ", ".join(found[:_CANDIDATES]) + (", …" if len(found) > _CANDIDATES else "")
        raise SpecError(f"{text!r} matches several {name}s: {some}", hint="use a longer id")

    def _prepare(self, wanted: list[schema.Migration], busy_s: float) -> None:
        with self._engine.connect() as connection:
            version = schema.version_of(connection, self.where)
        schema.refuse_newer(version, len(wanted), self.where)
        if version < len(wanted):
            self._writable()
            with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
                schema.migrate(connection, self.where, wanted)
        if self._address.file is not None and not self.read_only:
            self._use_wal(busy_s)

    def _use_wal(self, busy_s: float) -> None:
        """The switch needs the file for itself and does not wait for it, so we do."""
        deadline = time.monotonic() + busy_s
        with self._engine.connect() as connection:
            raw = connection.connection.cursor()
            while True:
                try:
                    raw.execute("PRAGMA journal_mode = WAL")
                    return
                except self._engine.dialect.loaded_dbapi.OperationalError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def _refresh_statistics(self) -> None:
        """Lets SQLite count again what its indexes hold, where that has changed much; a sample is enough."""
        try:
            with self._engine.connect() as connection:
                connection.execute(text("PRAGMA analysis_limit = 1000"))
                connection.execute(text("PRAGMA optimize"))
                connection.commit()
        except DBAPIError:
            pass  # somebody else is writing, or the disk is full: the next one does it

    def _writable(self) -> None:
        if self.read_only:
            raise trouble.read_only(self.where)

    def reading(self, work: Callable[[Connection], T]) -> T:
        return self._transact(work, writes=False)

    def writing(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        self._writable()
        self._wrote = True
        return self._transact(work, writes=True, patient=patient)

    def _transact(self, work: Callable[[Connection], T], *, writes: bool, patient: bool = True) -> T:
        """One transaction. Where the server hangs up or is away, all of it is done again: once, or for PATIENCE_S."""

        def once() -> T:
            with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                return work(connection)

        deadline = time.monotonic() + (self.patience_s if patient else 0.0)
        pause_s = 0.0
        with trouble.said(self._address):
            while True:
                try:
                    return once()
                except DBAPIError as error:
                    # The first repetition is at once: a connection that was cut says nothing about the server.
                    if not trouble.is_away(self._address, error) or (pause_s and time.monotonic() > deadline):
                        raise
                if pause_s == _FIRST_PAUSE_S:
                    self.notice(f"the ledger {self.where} does not answer; trying again for {self.patience_s:.0f} s")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) or _FIRST_PAUSE_S


def _insert_once(connection: Connection, table: Table, row: Mapping[str, object]) -> None:
    """Add a row with an id of its own. It is there already where the server went away after it had stored it."""
    if connection.execute(select(table.c.id).where(table.c.id == row["id"])).first() is None:
        connection.execute(insert(table).values(row))


def run_of(row: RowMapping) -> RunRow:
    """Return a row of `queries.LISTED` as frozen data."""
    with trouble.naming(row["id"]):
        columns = dict(row)
        ranks = ranks_in(columns.pop(queries.SPEC_TEXT, ""))
        return RunRow.model_validate({**columns, "ranks": ranks})


def with_counts(connection: Connection, page: Sequence[RowMapping]) -> list[ExperimentRow]:
    """Return experiments as they are listed: with how many runs of which status each has."""
    counted: dict[str, list[RowMapping]] = {}
    for first in range(0, len(page), _IDS):
        some = [str(row["id"]) for row in page[first : first + _IDS]]
        for group in connection.execute(queries.runs_counted(some)).mappings():
            counted.setdefault(str(group["experiment_id"]), []).append(group)
    return [_listed(row, counted.get(str(row["id"]), [])) for row in page]


def _listed(row: RowMapping, groups: Sequence[RowMapping]) -> ExperimentRow:
    counts: dict[str, int] = {}
    for group in groups:
        if group["role"] == "measured":
            counts[group["status"]] = counts.get(group["status"], 0) + group["count"]
    with trouble.naming(row["id"]):
        return ExperimentRow.model_validate(
            {
                "experiment": dict(row),
                "workloads": sorted({group["workload"] for group in groups}),
                "places": sorted({group["place"] for group in groups}),
                "runs": counts,
                "stored_bytes": sum(group["bytes"] for group in groups),
            }
        )


def _detail(row: RowMapping) -> RunDetail:
    with trouble.naming(row["id"]):
        return RunDetail.model_validate(dict(row))


def _changed(result: CursorResult[object]) -> int:
    return result.rowcount
