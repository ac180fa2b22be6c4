"""Summarise each experiment for a list: its kind, workload and arms, its progress, and its verdict.

A verdict is not stored, it is computed from the runs. So it is computed for the page that is shown and no further, and only while
what must be read for it is small: the rest of a page says that it was not computed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.errors import LedgerError, SpecError
from stackmark.experiments.check import words_of_check
from stackmark.experiments.design import stored_design
from stackmark.experiments.examine import examine
from stackmark.experiments.group_tables import tabulate_import
from stackmark.experiments.groups import examine_imported_arms, has_imported_arms
from stackmark.experiments.kinds import CHECK, NOISE, OPERATOR_LIST, RUN, SUITE, kind_of
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.operator_list import read_list
from stackmark.experiments.run import asked_runs, missing_runs
from stackmark.experiments.suite.carry_out import begun_rows, plan_of
from stackmark.experiments.suite.examine import examine_suite
from stackmark.ledger import baselines
from stackmark.ledger.rows import Experiment, ExperimentRow, Status
from stackmark.ledger.store import Ledger
from stackmark.verdict.noise import noise_floor

# Of the compressed output of all runs on one page: about a second for each MiB.
MOST_READ_BYTES = 4 * 2**20

# `open`: runs are missing, and `resume` goes on. `short`: too many runs failed. `empty`: it has no run.
State = Literal["done", "open", "short", "failed", "running", "empty"]


@dataclass(frozen=True)
class ListedExperiment:
    """One line of a list. `verdicts` has the word of each pair of arms; it is None where it was not computed.

    `smallest_margin` is what a noise experiment can decide; the word of two equal arms says less.
    """

    id: str
    created_unix_s: float
    kind: str
    workloads: tuple[str, ...]
    arms: tuple[str, ...]
    verdicts: tuple[str, ...] | None
    state: State
    # How many runs there are of each status, without primers; `asked` is None where nothing says how many were asked for.
    runs: dict[Status, int]
    asked: int | None
    command: str
    smallest_margin: float | None = None


def overview(
    ledger: Ledger, rows: Sequence[ExperimentRow], most_read_bytes: int | None = None
) -> list[ListedExperiment]:
    """Say of each experiment on a page what it is and shows; verdicts for which more must be read are not computed."""
    left, found = MOST_READ_BYTES if most_read_bytes is None else most_read_bytes, []
    for row in rows:
        if kind_of(row.experiment) is SUITE:
            listed, costs = _suite(ledger, row.experiment, left)
            left -= costs
            found.append(listed)
            continue
        costs = _costs(ledger, row)
        readable = costs <= left
        left -= costs if readable else 0
        found.append(_listed(ledger, row, readable))
    return found


def _suite(ledger: Ledger, suite: Experiment, left: int) -> tuple[ListedExperiment, int]:
    """Summarise a suite by its rows; also return how many bytes were read for its verdicts."""
    rows = ledger.rows_of(suite.id)
    runs: Counter[Status] = Counter()
    for row in rows:
        runs.update(row.runs)
    costs = sum(row.stored_bytes for row in rows)
    verdicts: tuple[str, ...] | None = None
    workloads: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    state: State = "empty"
    costs = costs if costs <= left else 0
    try:
        plan = plan_of(suite)
        workloads = tuple(dict.fromkeys(row.workload for row in plan.rows))
        arms = tuple(arm for arm in plan.arms if arm)
        is_whole = len(begun_rows(ledger, suite)) == len(plan.rows)
        is_whole = is_whole and all(_listed(ledger, row, False).state in ("done", "failed", "short") for row in rows)
        if costs or not sum(runs.values()):
            result = examine_suite(ledger, suite)
            verdicts, is_whole = tuple(one.word for one in result.comparisons), not result.is_open
        state = "running" if runs["running"] else "done" if is_whole else "open"
    except (LedgerError, SpecError):
        costs = 0  # one that was damaged hides no other
    listed = ListedExperiment(
        id=suite.id,
        created_unix_s=suite.created_unix_s,
        kind=suite.kind,
        workloads=workloads,
        arms=arms,
        verdicts=verdicts,
        state=state,
        runs=dict(runs),
        asked=None,
        command=suite.command,
    )
    return listed, costs


def _costs(ledger: Ledger, row: ExperimentRow) -> int:
    """Return how many bytes are read for a line: its own runs, and of a check about as many for each series of its baseline."""
    if _is_check(row):
        name = row.experiment.request.get("baseline")
        series = (
            len(baselines.experiments_of(ledger, name))
            if isinstance(name, str) and baselines.exists(ledger, name)
            else 0
        )
        return row.stored_bytes * (1 + series)
    return row.stored_bytes if _has_verdict(row) or _is_list(row) else 0


def _is_check(row: ExperimentRow) -> bool:
    return kind_of(row.experiment) is CHECK


def _has_verdict(row: ExperimentRow) -> bool:
    return kind_of(row.experiment).has_blocks or has_imported_arms(row.experiment)


def _is_list(row: ExperimentRow) -> bool:
    return kind_of(row.experiment) is RUN and any(map(is_list, row.workloads))


def _listed(ledger: Ledger, row: ExperimentRow, readable: bool) -> ListedExperiment:
    experiment = row.experiment
    arms, asked = row.places, asked_runs(experiment)
    verdicts: tuple[str, ...] | None = ()
    floor = None
    state = _state_of_runs(ledger, row, asked)
    if _has_verdict(row):
        verdicts = None
        try:
            design = stored_design(experiment)
            if has_imported_arms(experiment):
                arms = _imported_arms(experiment)
            if design:
                arms, asked = tuple(arm.label for arm in design.arms), len(design.arms) * design.blocks
            if readable and row.runs:
                imported = has_imported_arms(experiment)
                seen = examine_imported_arms(ledger, experiment) if imported else examine(ledger, experiment.id)
                table = tabulate_import(ledger, experiment) if imported and not seen.comparisons else None
                verdicts = tuple(pair.word for pair in (table or seen).comparisons)
                floor = noise_floor(seen) if kind_of(experiment) is NOISE else None
                state = "running" if state == "running" else seen.state
            elif asked and sum(row.runs.values()) < asked and state != "running":
                state = "open"
        except (LedgerError, SpecError):
            pass  # one experiment that was damaged hides no other; `verdict` says what is wrong with it
    elif _is_check(row) and row.runs and state == "done":
        verdicts = words_of_check(ledger, experiment) if readable else None
    elif _is_list(row) and readable and state != "running":
        state = "done" if read_list(ledger, experiment).whole else "open"
    return ListedExperiment(
        id=experiment.id,
        created_unix_s=experiment.created_unix_s,
        kind=OPERATOR_LIST.name if _is_list(row) else experiment.kind,
        workloads=row.workloads or _asked_workload(row),
        arms=arms,
        verdicts=verdicts,
        state=state,
        runs=row.runs,
        asked=asked,
        command=experiment.command,
        smallest_margin=floor.smallest_margin if floor else None,
    )


def _imported_arms(experiment: Experiment) -> tuple[str, ...]:
    """Return the places of imported arms in the order in which they were named."""
    arms = experiment.request.get("arms")
    found = [arm.get("place") for arm in arms if isinstance(arm, dict)] if isinstance(arms, list) else []
    return tuple(map(str, found))


def _asked_workload(row: ExperimentRow) -> tuple[str, ...]:
    name = row.experiment.request.get("workload")
    return (name,) if isinstance(name, str) else ()


def _state_of_runs(ledger: Ledger, row: ExperimentRow, asked: int | None) -> State:
    """Tell how far an experiment came by the numbers of its runs."""
    if row.runs.get("running"):
        return "running"
    made = sum(row.runs.values())
    short = kind_of(row.experiment) is RUN and asked is not None and row.runs.get("done", 0) < asked
    if short and asked and missing_runs(asked, ledger.runs_of(row.experiment.id)):
        return "open"
    if not made:
        return "empty"
    return "done" if row.runs.get("done") else "failed"
