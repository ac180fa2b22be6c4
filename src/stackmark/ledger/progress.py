"""How far the run at hand is: one row for each experiment that runs, which its driver replaces and other processes read.

It is news and not a result: a write that is late is left out, one that is lost with the power is no loss, and the row goes when
the experiment ends. So it is written on connections of its own, which wait neither for another writer nor for the disk.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field
from sqlalchemy import Connection, Delete, delete, insert, select

from stackmark.frozen import Frozen
from stackmark.ledger import schema
from stackmark.ledger.claims import Driver, clock
from stackmark.ledger.rows import Natural, Number, Text
from stackmark.ledger.store import Ledger


class RunProgress(Frozen):
    """How far one run is. Steps count from the beginning of its measured part, rows of a list from that of the list."""

    run_id: str
    workload: str
    # From 1, of how many; the arm's label and the block (from 0) in a comparison.
    number: Natural
    of: Natural
    label: Text = ""
    block: Natural | None = None
    began_unix_s: float
    phase: Text = "starting"
    steps_done: Natural = 0
    steps_expected: Natural | None = None
    # Over the steps that were reported last.
    rate_per_s: Number | None = None
    rate_unit: Text | None = None
    # Of an operator list, or of a training to a quality: what was done last, in words.
    rows_done: Natural = 0
    rows_of: Natural | None = None
    said: Text = ""
    # How long this run still takes, where that is known, from `updated_unix_s` on.
    left_s: float | None = Field(default=None, ge=0)


class StoredProgress(NamedTuple):
    """A row as it was read."""

    experiment_id: str
    progress: RunProgress
    updated_unix_s: float


class Holder(NamedTuple):
    """Who has the claim on an experiment, and for how many seconds more, by the ledger's clock."""

    driver: Driver
    left_s: float


def write(ledger: Ledger, experiment_id: str, progress: RunProgress) -> None:
    """Replace the row. Raises a LedgerError where the ledger is busy."""

    def work(connection: Connection) -> None:
        connection.execute(_mine(experiment_id))
        row = {
            "experiment_id": experiment_id,
            "updated_unix_s": clock(connection),
            "progress": progress.model_dump(mode="json"),
        }
        connection.execute(insert(schema.progress).values(row))

    ledger.writing(work, patient=False)


def clear(ledger: Ledger, experiment_id: str) -> None:
    ledger.writing(lambda connection: connection.execute(_mine(experiment_id)), patient=False)


def read(ledger: Ledger, experiment_ids: Sequence[str]) -> list[StoredProgress]:
    """Return what is running of these experiments, the latest news first. A row that cannot be read is left out."""
    table = schema.progress
    found: list[StoredProgress] = []

    def work(connection: Connection) -> list[StoredProgress]:
        query = select(table).where(table.c.experiment_id.in_(experiment_ids)).order_by(table.c.updated_unix_s.desc())
        for row in connection.execute(query).mappings():
            try:
                progress = RunProgress.model_validate(row["progress"])
            except ValueError:
                continue
            found.append(StoredProgress(row["experiment_id"], progress, row["updated_unix_s"]))
        return found

    return ledger.reading(work)


def holder(ledger: Ledger, experiment_id: str) -> Holder | None:
    """Return who has the claim on an experiment; None where nobody has."""

    def work(connection: Connection) -> Holder | None:
        query = select(schema.claims).where(schema.claims.c.experiment_id == experiment_id)
        row = connection.execute(query).mappings().first()
        if row is None:
            return None
        driver = Driver.model_validate({name: row[name] for name in Driver.model_fields})
        return Holder(driver, row["expires_unix_s"] - clock(connection))

    return ledger.reading(work)


def now(ledger: Ledger) -> float:
    """Return the time by the ledger's clock."""
    return ledger.reading(clock)


def _mine(experiment_id: str) -> Delete:
    return delete(schema.progress).where(schema.progress.c.experiment_id == experiment_id)
