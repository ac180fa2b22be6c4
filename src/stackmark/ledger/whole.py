"""Runs that are already over when they come to the ledger: an import is stored whole, in one transaction, or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from stackmark.ledger.rows import Experiment, RunEnd, RunStart, of_spec
from stackmark.ledger.schema import experiments, runs, streams
from stackmark.ledger.store import Ledger
from stackmark.ledger.streams import Lines, pack_lines


@dataclass(frozen=True)
class WholeRun:
    start: RunStart
    end: RunEnd
    lines: Lines


def add_whole(ledger: Ledger, experiment: Experiment, found: Sequence[WholeRun]) -> None:
    """The experiment with all its runs and their streams."""
    ledger.writing(lambda connection: _insert(connection, experiment, found))


def add_new(ledger: Ledger, experiment: Experiment, found: Sequence[WholeRun]) -> list[str]:
    """The experiment with those of its runs that the ledger does not have; their ids. Nothing where it has them all."""

    def work(connection: Connection) -> list[str]:
        ids = [run.start.id for run in found]
        there = {str(row.id) for row in connection.execute(select(runs.c.id).where(runs.c.id.in_(ids)))}
        new = [run for run in found if run.start.id not in there]
        if new:
            _insert(connection, experiment, new)
        return [run.start.id for run in new]

    return ledger.writing(work)


def known_runs(ledger: Ledger, key: str, values: Sequence[str]) -> set[str]:
    """Which of these values stand under that key in the handle of some run in a pod."""
    wanted = set(values)

    def work(connection: Connection) -> set[str]:
        query = select(runs.c.handle).where(runs.c.place == "pod", runs.c.status != "running")
        found = (handle.get(key) for (handle,) in connection.execute(query) if isinstance(handle, dict))
        return {str(value) for value in found if value in wanted}

    return ledger.reading(work) if wanted else set()


def _insert(connection: Connection, experiment: Experiment, found: Sequence[WholeRun]) -> None:
    rows = [{**run.start.model_dump(), **of_spec(run.start.spec), **run.end.model_dump()} for run in found]
    said = [{"run_id": run.start.id, "lines": len(run.lines), "data": pack_lines(run.lines)} for run in found]
    connection.execute(insert(experiments).values(experiment.model_dump()))
    if rows:
        connection.execute(insert(runs), rows)
        connection.execute(insert(streams), said)


def imported_before(ledger: Ledger, digests: Sequence[str]) -> dict[str, list[str]]:
    """By the SHA-256 of a file, the runs that were made of it; files that are new are not in it."""
    wanted = set(digests)

    def work(connection: Connection) -> dict[str, list[str]]:
        query = (
            select(runs.c.id, runs.c.handle)
            .join(experiments, experiments.c.id == runs.c.experiment_id)
            .where(experiments.c.kind == "import")
            .order_by(runs.c.id)
        )
        known: dict[str, list[str]] = {}
        for run_id, handle in connection.execute(query):
            digest = handle.get("sha256") if isinstance(handle, dict) else None
            if digest in wanted:
                known.setdefault(digest, []).append(run_id)
        return known

    return ledger.reading(work)
