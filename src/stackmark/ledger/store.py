"""The ledger: what was run and what was seen.

A run is a row `running` from the moment it begins, and becomes whole in one transaction, with its stream, when it ends;
no transaction is open in between. So a process that is killed loses at most the run in flight, and the row that it
leaves behind tells the next command that it was lost (`abandoned`, `mark_lost`).

Only rows of the same machine are called abandoned: a PostgreSQL ledger is shared, and whether a process lives can be
seen only where it runs. Should a run end after all when it was already called lost, its end is believed.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from stackmark.errors import LedgerError, SpecError
from stackmark.ledger import address as addresses
from stackmark.ledger import ids, queries, schema, trouble
from stackmark.ledger.address import BUSY_S, Address
from stackmark.ledger.rows import (
    LOST,
    Cursor,
    Experiment,
    Json,
    RunDetail,
    RunEnd,
    RunFilter,
    RunRow,
    RunStart,
    of_spec,
    storable,
)
from stackmark.ledger.schema import experiments, runs, streams

T = TypeVar("T")
# How many ids an ambiguous prefix is answered with, and how many rows an export holds in memory.
_CANDIDATES = 5
_BATCH = 2000
_EVERYTHING = RunFilter()


class Ledger:
    """A ledger that is open. Safe to use from several threads; to be closed, or used in a `with`."""

    def __init__(self, engine: Engine, address: Address, *, read_only: bool = False) -> None:
        self._engine = engine
        self._address = address
        self._wrote = False
        self.where = address.shown
        self.read_only = read_only

    @classmethod
    def open(cls, where: str | None = None, *, create: bool = True, busy_s: float = BUSY_S) -> Self:
        """Opens the ledger at a path or URL, else at STACKMARK_LEDGER, else the default file.

        A missing file is made, with its folder, unless `create` is off; an older ledger is migrated.
        """
        address = addresses.find(where)
        file = address.file
        if file is not None:
            if not file.exists() and not create:
                raise LedgerError(
                    f"there is no ledger at {file}", hint="`stackmark run` makes one; --ledger names another place"
                )
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise trouble.cannot_open(file, f"its folder cannot be made: {error.strerror}") from error
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
        self.writing(lambda connection: connection.execute(insert(experiments).values(experiment.model_dump())))

    def start(self, run: RunStart) -> None:
        """The row `running`."""
        row = {**run.model_dump(), **of_spec(run.spec), "status": "running", "flags": []}
        self.writing(lambda connection: connection.execute(insert(runs).values(row)))

    def set_design(self, experiment_id: str, design: Json) -> None:
        """What an experiment is about, where that is known whole only at its end: what was done to a cluster, and seen."""

        def work(connection: Connection) -> None:
            change = update(experiments).where(experiments.c.id == experiment_id).values(design=design)
            if _changed(connection.execute(change)) == 0:
                raise LedgerError(f"the experiment {experiment_id} is not in the ledger {self.where} any more")

        self.writing(work)

    def set_handle(self, run_id: str, handle: Json) -> None:
        """What the place needs to find the worker again, once it knows."""

        def work(connection: Connection) -> None:
            change = update(runs).where(runs.c.id == run_id, runs.c.status == "running").values(handle=handle)
            if _changed(connection.execute(change)) == 0:
                raise LedgerError(f"the run {run_id} is not running any more: it was deleted or called lost")

        self.writing(work)

    def finish(self, run_id: str, end: RunEnd, lines: Sequence[str]) -> None:
        """Makes a run whole, with its output, in one transaction. The same end may be written twice."""
        stream = {"run_id": run_id, "lines": len(lines), "data": pack_lines(lines)}

        def work(connection: Connection) -> None:
            open_still = or_(runs.c.status == "running", runs.c.failure_kind == LOST)
            change = update(runs).where(runs.c.id == run_id, open_still).values(end.model_dump())
            if _changed(connection.execute(change)) == 1:
                connection.execute(delete(streams).where(streams.c.run_id == run_id))
                connection.execute(insert(streams).values(stream))
                return
            stored = connection.execute(select(runs.c.status, runs.c.ended_unix_s).where(runs.c.id == run_id)).first()
            if stored is None:
                raise LedgerError(f"the run {run_id} is not in the ledger {self.where} any more: somebody deleted it")
            if tuple(stored) != (end.status, end.ended_unix_s):
                raise LedgerError(f"the run {run_id} has already ended, with status {stored.status}")

        self.writing(work)

    def keep(self, run_id: str, lines: Sequence[str]) -> None:
        """What a run has said so far, while it runs: with its driver killed, no more is lost than what came after."""
        stream = {"run_id": run_id, "lines": len(lines), "data": pack_lines(lines)}

        def work(connection: Connection) -> None:
            still = select(runs.c.id).where(runs.c.id == run_id, runs.c.status == "running")
            if connection.execute(still).first() is not None:
                connection.execute(delete(streams).where(streams.c.run_id == run_id))
                connection.execute(insert(streams).values(stream))

        self.writing(work)

    def abandoned(self, *, machine_id: str, alive: Callable[[RunRow], bool]) -> list[RunRow]:
        """The rows `running` of this machine whose driver is gone, as `alive` tells."""
        query = (
            select(*queries.WITHOUT_SPEC)
            .where(runs.c.status == "running", runs.c.machine_id == machine_id)
            .order_by(*queries.NEWEST_FIRST)
        )
        rows = self.reading(lambda connection: [_run(row) for row in connection.execute(query).mappings()])
        return [row for row in rows if not alive(row)]

    def mark_lost(self, run_id: str, message: str, *, hint: str | None = None) -> bool:
        """Ends a run that was abandoned; False where somebody else was quicker."""
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
        """Deletes runs with their streams, and the experiments that they leave empty. All of them, or none.

        A run that is still running is refused unless forced; whether its process lives is the caller's to know.
        """

        def work(connection: Connection) -> int:
            deleted = 0
            for run_id in dict.fromkeys(run_ids):
                row = connection.execute(select(runs.c.status, runs.c.experiment_id).where(runs.c.id == run_id)).first()
                if row is None:
                    raise SpecError(f"there is no run {run_id} in the ledger {self.where}; nothing was deleted")
                if row.status == "running" and not force:
                    raise SpecError(f"the run {run_id} is still running; nothing was deleted", hint="end it first")
                connection.execute(delete(runs).where(runs.c.id == run_id))
                left = select(runs.c.id).where(runs.c.experiment_id == row.experiment_id).limit(1)
                if connection.execute(left).first() is None:
                    connection.execute(delete(experiments).where(experiments.c.id == row.experiment_id))
                deleted += 1
            return deleted

        return self.writing(work)

    # Reading

    def runs(self, wanted: RunFilter = _EVERYTHING, *, limit: int = 50, before: Cursor | None = None) -> list[RunRow]:
        """One page of runs, newest first; `before` is the cursor of the last row of the page before."""

        def work(connection: Connection) -> list[RunRow]:
            query = queries.page(wanted, queries.resolve(connection, wanted), limit, before)
            return [_run(row) for row in connection.execute(query).mappings()]

        return self.reading(work)

    def count(self, wanted: RunFilter = _EVERYTHING) -> int:
        def work(connection: Connection) -> int:
            where = queries.conditions(wanted, queries.resolve(connection, wanted))
            return connection.execute(select(func.count()).select_from(runs).where(*where)).scalar_one()

        return self.reading(work)

    def every(self, wanted: RunFilter = _EVERYTHING) -> Iterator[Mapping[str, object]]:
        """All columns of all runs that are meant, oldest first, a batch in memory at a time; for exports.

        Reads one snapshot: what is written meanwhile is not in it.
        """
        with trouble.said(self._address), self._engine.connect() as connection:
            where = queries.conditions(wanted, queries.resolve(connection, wanted))
            query = select(runs).where(*where).order_by(runs.c.started_unix_s, runs.c.id)
            for row in connection.execution_options(yield_per=_BATCH).execute(query).mappings():
                yield {str(name): value for name, value in row.items()}

    def run(self, prefix: str) -> RunDetail:
        """The run whose id begins like this, or the `last` one."""

        def work(connection: Connection) -> RunDetail:
            run_id = self._one(connection, runs, ids.RUN, prefix)
            row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
            return _detail(row)

        return self.reading(work)

    def run_id(self, prefix: str) -> str:
        """The id that begins like this, or that of the `last` run; the row itself may be unreadable."""
        return self.reading(lambda connection: self._one(connection, runs, ids.RUN, prefix))

    def experiment(self, prefix: str) -> Experiment:
        """The experiment whose id begins like this, or the `last` one."""

        def work(connection: Connection) -> Experiment:
            found = self._one(connection, experiments, ids.EXPERIMENT, prefix)
            row = connection.execute(select(experiments).where(experiments.c.id == found)).mappings().one()
            return Experiment.model_validate(dict(row))

        return self.reading(work)

    def runs_of(self, experiment_id: str) -> list[RunDetail]:
        """All runs of an experiment with their specs, in the order in which they began."""

        def work(connection: Connection) -> list[RunDetail]:
            query = (
                select(runs)
                .where(runs.c.experiment_id == experiment_id)
                .order_by(runs.c.position, runs.c.started_unix_s, runs.c.id)
            )
            return [_detail(row) for row in connection.execute(query).mappings()]

        return self.reading(work)

    def stream(self, run_id: str) -> list[str]:
        """A run's whole output, line by line; of one that was lost or still runs, what was kept meanwhile."""

        def work(connection: Connection) -> list[str]:
            row = connection.execute(select(streams).where(streams.c.run_id == run_id)).first()
            return [] if row is None or row.lines == 0 else _unpack(row.data)

        return self.reading(work)

    # How it is done

    def _one(self, connection: Connection, table: Table, letter: str, text: str) -> str:
        if text.strip().lower() == "last":
            when = table.c.started_unix_s if table is runs else table.c.created_unix_s
            last = connection.execute(select(table.c.id).order_by(when.desc(), table.c.id.desc()).limit(1)).scalar()
            if last is None:
                raise SpecError(f"the ledger {self.where} is empty", hint="`stackmark run train/resnet50` makes a run")
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
                raise SpecError(f"{text!r} is a run, and an experiment is asked for", hint=f"its experiment is {meant}")
        if not found:
            raise SpecError(
                f"there is no {name} {text!r} in the ledger {self.where}", hint="`stackmark results` lists the runs"
            )
        some = ", ".join(found[:_CANDIDATES]) + (", …" if len(found) > _CANDIDATES else "")
        raise SpecError(f"{text!r} is the beginning of several {name}s: {some}", hint="type more of it")

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

    def writing(self, work: Callable[[Connection], T]) -> T:
        self._writable()
        self._wrote = True
        return self._transact(work, writes=True)

    def _transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """One transaction. If the server hangs up in the middle of it, all of it is done again, once."""

        def once() -> T:
            with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                return work(connection)

        with trouble.said(self._address):
            try:
                return once()
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            return once()


def _run(row: RowMapping) -> RunRow:
    with trouble.naming(row["id"]):
        return RunRow.model_validate(dict(row))


def _detail(row: RowMapping) -> RunDetail:
    with trouble.naming(row["id"]):
        return RunDetail.model_validate(dict(row))


def _changed(result: CursorResult[object]) -> int:
    return result.rowcount


# surrogatepass: a worker's bytes that were no UTF-8 may have been decoded to lone surrogates, and are to come back so.
def pack_lines(lines: Sequence[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode("utf-8", "surrogatepass"))


def _unpack(data: bytes) -> list[str]:
    return zlib.decompress(data).decode("utf-8", "surrogatepass").split("\n")
