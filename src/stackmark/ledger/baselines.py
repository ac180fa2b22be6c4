"""Named sets of experiments that a later one is compared with: what was measured before the upgrade.

A baseline holds experiments, not numbers: each is (part of) one series of one workload, and everything is computed from its
runs. An experiment that is deleted leaves its baselines too, by the database's own rule. A check is an experiment of the kind
`check` whose note is the baseline's name.
"""

import re
import time

from sqlalchemy import Connection, delete, func, insert, select

from stackmark.errors import SpecError, nearest_names
from stackmark.frozen import Frozen
from stackmark.ledger.rows import Json, RunDetail
from stackmark.ledger.schema import baselines, experiments, runs
from stackmark.ledger.store import Ledger

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Listed(Frozen):
    """A baseline in a list."""

    name: str
    experiments: int
    workloads: list[str]
    first_unix_s: float
    last_unix_s: float


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a valid name for a baseline",
            hint="use letters, digits, . _ and -, starting with a letter or digit, at most 80: before-driver-580",
        )
    return name


def save(ledger: Ledger, name: str, experiment_id: str) -> bool:
    """Add an experiment to a baseline; False where it already contains it."""
    check_name(name)

    def work(connection: Connection) -> bool:
        there = select(baselines.c.name).where(baselines.c.name == name, baselines.c.experiment_id == experiment_id)
        if connection.execute(there).first() is not None:
            return False
        row: Json = {"name": name, "experiment_id": experiment_id, "saved_unix_s": time.time()}
        connection.execute(insert(baselines).values(row))
        return True

    return ledger.writing(work)


def exists(ledger: Ledger, name: str) -> bool:
    query = select(baselines.c.name).where(baselines.c.name == name).limit(1)
    return ledger.reading(lambda connection: connection.execute(query).first() is not None)


def experiments_of(ledger: Ledger, name: str) -> list[str]:
    """Return the experiments of a baseline, in the order saved; raise a sentence for an unknown name."""
    query = (
        select(baselines.c.experiment_id)
        .where(baselines.c.name == name)
        .order_by(baselines.c.saved_unix_s, baselines.c.experiment_id)
    )
    found = ledger.reading(lambda connection: [str(row.experiment_id) for row in connection.execute(query)])
    if not found:
        known = [one.name for one in every(ledger)]
        raise SpecError(
            f"the ledger {ledger.where} has no baseline {name!r}{nearest_names(name, known)}",
            hint=f"save one with: stackmark baseline save {name if NAME.fullmatch(name) else 'NAME'} train/resnet50",
        )
    return found


def every(ledger: Ledger) -> list[Listed]:
    """Return all baselines, by name."""

    def work(connection: Connection) -> list[Listed]:
        query = select(
            baselines.c.name,
            func.count(baselines.c.experiment_id).label("experiments"),
            func.min(experiments.c.created_unix_s).label("first_unix_s"),
            func.max(experiments.c.created_unix_s).label("last_unix_s"),
        )
        query = query.join(experiments, experiments.c.id == baselines.c.experiment_id).group_by(baselines.c.name)
        of = (
            select(baselines.c.name, runs.c.workload)
            .join(runs, runs.c.experiment_id == baselines.c.experiment_id)
            .distinct()
            .order_by(runs.c.workload)
        )
        workloads: dict[str, list[str]] = {}
        for row in connection.execute(of):
            workloads.setdefault(row.name, []).append(row.workload)
        return [
            Listed.model_validate({**row, "workloads": workloads.get(row["name"], [])})
            for row in connection.execute(query.order_by(baselines.c.name)).mappings()
        ]

    return ledger.reading(work)


def remove(ledger: Ledger, name: str) -> int:
    """Forget a baseline and return how many experiments it had; they and their runs stay in the ledger."""
    count = len(experiments_of(ledger, name))
    ledger.writing(lambda connection: connection.execute(delete(baselines).where(baselines.c.name == name)))
    return count


def checked_runs(ledger: Ledger, name: str, spec_digest: str) -> list[RunDetail]:
    """Return the successful runs of a spec that checks of a baseline made, oldest first."""
    query = (
        select(runs)
        .join(experiments, experiments.c.id == runs.c.experiment_id)
        .where(
            experiments.c.kind == "check",
            experiments.c.note == name,
            runs.c.spec_digest == spec_digest,
            runs.c.status == "done",
            runs.c.role == "measured",
        )
        .order_by(runs.c.started_unix_s, runs.c.id)
    )
    return ledger.reading(
        lambda connection: [RunDetail.model_validate(dict(row)) for row in connection.execute(query).mappings()]
    )
