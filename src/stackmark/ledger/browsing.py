"""Pages of a ledger, in both directions, for a person who leafs through a million runs.

A page begins at an edge, a row of the page before or after it (no OFFSET, which would count through all the pages before).
"""

from sqlalchemy import Connection

from stackmark.ledger import queries
from stackmark.ledger.rows import Edge, ExperimentFilter, ExperimentRow, RunFilter, RunRow
from stackmark.ledger.store import Ledger, run_of, with_counts


def experiments(
    ledger: Ledger, wanted: ExperimentFilter, limit: int, edge: Edge | None = None, *, oldest_first: bool = False
) -> list[ExperimentRow]:
    """Return the experiments that follow an edge, in the order of time or against it."""

    def work(connection: Connection) -> list[ExperimentRow]:
        query = queries.experiments_page(connection, wanted, limit, edge=edge, oldest_first=oldest_first)
        return with_counts(connection, connection.execute(query).mappings().all())

    return ledger.reading(work)


def runs(
    ledger: Ledger, wanted: RunFilter, limit: int, edge: Edge | None = None, *, oldest_first: bool = False
) -> list[RunRow]:
    """Return the runs that follow an edge, in the order of time or against it."""

    def work(connection: Connection) -> list[RunRow]:
        values = queries.resolve(connection, wanted)
        query = queries.runs_page(wanted, values, limit, edge, oldest_first=oldest_first)
        return [run_of(row) for row in connection.execute(query).mappings()]

    return ledger.reading(work)


def runs_by_rate(ledger: Ledger, wanted: RunFilter, limit: int, *, lowest_first: bool = False) -> list[RunRow] | None:
    """Return the runs with the highest or lowest rates; None where too many match to be sorted while somebody waits."""

    def work(connection: Connection) -> list[RunRow] | None:
        values = queries.resolve(connection, wanted)
        if not queries.few(connection, wanted, values):
            return None
        query = queries.figures_page(wanted, values, limit, ascending=lowest_first)
        return [run_of(row) for row in connection.execute(query).mappings()]

    return ledger.reading(work)
