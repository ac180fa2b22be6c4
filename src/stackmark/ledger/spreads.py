"""Estimate how far runs and series vary, from the whole ledger, for comparisons with too few of their own."""

from sqlalchemy import Connection, func, select

from stackmark.ledger.rows import RunDetail
from stackmark.ledger.schema import experiments, runs
from stackmark.ledger.store import Ledger

# Good measured runs of ours: a log's runs may be of several machines.
_GOOD = (runs.c.status == "done", runs.c.role == "measured", runs.c.rate_per_s > 0, runs.c.boot_id != "")


def rates_by_arm(ledger: Ledger, workload: str, chip: str | None) -> list[list[float]]:
    """Return the rates of a workload on a chip, one list for each arm (or slot) of each experiment with two runs or more."""
    query = select(runs.c.experiment_id, runs.c.arm, runs.c.slot, runs.c.spec_digest, runs.c.rate_per_s).where(
        *_GOOD, runs.c.workload == workload, runs.c.chip == chip
    )

    def work(connection: Connection) -> list[list[float]]:
        found: dict[tuple[str, int, int | None, str], list[float]] = {}
        for row in connection.execute(query):
            found.setdefault((row.experiment_id, row.arm, row.slot, row.spec_digest), []).append(row.rate_per_s)
        return [rates for rates in found.values() if len(rates) > 1]

    return ledger.reading(work)


def largest_factor(ledger: Ledger) -> float | None:
    """Return the largest ratio of two runs of one arm, over all experiments; None where no arm has two runs."""
    query = (
        select((func.max(runs.c.rate_per_s) / func.min(runs.c.rate_per_s)).label("factor"))
        .where(*_GOOD)
        .group_by(runs.c.experiment_id, runs.c.arm, runs.c.slot, runs.c.spec_digest)
        .having(func.count() > 1)
    )

    def work(connection: Connection) -> float | None:
        return max((float(row.factor) for row in connection.execute(query)), default=None)

    return ledger.reading(work)


def runs_of_spec(ledger: Ledger, spec_digest: str) -> list[RunDetail]:
    """Return the good runs of a spec that `run` and `check` made, oldest first."""
    query = (
        select(runs)
        .join(experiments, experiments.c.id == runs.c.experiment_id)
        .where(*_GOOD, runs.c.spec_digest == spec_digest, experiments.c.kind.in_(["run", "check"]))
        .order_by(runs.c.started_unix_s, runs.c.id)
    )
    return ledger.reading(
        lambda connection: [RunDetail.model_validate(dict(row)) for row in connection.execute(query).mappings()]
    )
