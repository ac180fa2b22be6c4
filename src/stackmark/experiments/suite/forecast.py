"""Forecast how long a suite takes, before anything runs: from earlier runs in the ledger, else from its settings.

A run of the same workload, place, batch and precision on this machine tells what it takes around its measured part; the measured
part is as long as it is asked for. Where nothing was run before, the defaults of `run` and an allowance for the start are added,
and it is called a guess. A list of operators and a user's own program have no such settings: their time is not known.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from stackmark.experiments.arms import ArmRequest
from stackmark.experiments.compare import BLOCKS, PRIMER_S
from stackmark.experiments.design import whole_blocks
from stackmark.experiments.driver import machine_name
from stackmark.experiments.run import CPU_RUNS, GPU_RUNS
from stackmark.experiments.suite.plan import PlannedRow, SuitePlan
from stackmark.ledger.rows import RunFilter, RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine.busy import gpu_count
from stackmark.workloads.registry import find

LOOKED_AT = 100
# As `run` chooses them (workloads/train/impl/choose.py): measured part and warm-up on a GPU, and on a CPU.
GPU_MEASURED_S, CPU_MEASURED_S, WARM_UP_S = 10.0, 30.0, 5.0
# Starting a process, loading the framework, building the model: about that on the machines in docs/performance.md.
START_S = 8.0


@dataclass(frozen=True)
class SuiteForecast:
    """What the missing runs take. `seconds` counts the cells whose time is known or guessed; `unknown` those without."""

    seconds: float
    runs: int
    cells: int
    # Cells whose time comes from runs on this machine.
    measured_before: int
    unknown: int


def runs_of(plan: SuitePlan, row: PlannedRow) -> int:
    """Return how many runs each cell of a row has."""
    if len(row.arms) > 1:
        return whole_blocks(len(row.arms), plan.blocks or BLOCKS)
    return plan.blocks or (GPU_RUNS if gpu_count() else CPU_RUNS)


def forecast(plan: SuitePlan, ledger: Ledger | None, rows: Iterable[PlannedRow] | None = None) -> SuiteForecast:
    """Forecast a plan, or those rows of it that are missing. Without a ledger nothing is known from before."""
    seconds, runs, cells, before, unknown = 0.0, 0, 0, 0, 0
    known: dict[tuple[str, str], list[RunRow]] = {}
    for row in plan.rows if rows is None else rows:
        count = runs_of(plan, row)
        for arm in row.read():
            key = (row.workload, arm.place)
            if key not in known:
                known[key] = _earlier(ledger, *key) if ledger else []
            cells, runs = cells + 1, runs + count
            found = _run_s(row, arm, known[key])
            if found is None:
                unknown += 1
                continue
            run_s, measured = found
            before += measured
            # Of a comparison, the probe and the primer of each arm.
            extra_s = (max(run_s - _measured_s(row, arm), START_S) + PRIMER_S) if len(row.arms) > 1 else START_S
            seconds += count * run_s + extra_s
    return SuiteForecast(seconds, runs, cells, before, unknown)


def _earlier(ledger: Ledger, workload: str, place: str) -> list[RunRow]:
    wanted = RunFilter(workload=workload, place=place, status="done")
    here = machine_name()
    return [
        row
        for row in ledger.runs(wanted, limit=LOOKED_AT)
        if row.machine_id == here and row.role == "measured" and row.ended_unix_s
    ]


def _run_s(row: PlannedRow, arm: ArmRequest, earlier: Iterable[RunRow]) -> tuple[float, bool] | None:
    """Return what a run takes, and whether runs on this machine tell; None where nothing does."""
    typed = {**row.params, **arm.typed}
    alike = [
        one
        for one in earlier
        if all(typed.get(name) in (None, "auto", getattr(one, name)) for name in ("batch", "precision"))
    ]
    length = typed.get("seconds")
    times = []
    for one in alike:
        whole = (one.ended_unix_s or one.started_unix_s) - one.started_unix_s
        asked = isinstance(length, int | float) and one.wall_s is not None
        times.append(whole - (one.wall_s or 0.0) + float(length) if asked and length else whole)
    if times:
        return median(times), True
    if find(row.workload)[1].timed != "steps" or typed.get("steps"):
        return None
    return _measured_s(row, arm) + WARM_UP_S + START_S, False


def _measured_s(row: PlannedRow, arm: ArmRequest) -> float:
    length = {**row.params, **arm.typed}.get("seconds")
    if isinstance(length, int | float) and length:
        return float(length)
    return GPU_MEASURED_S if gpu_count() else CPU_MEASURED_S
