"""The curve of a suite that puts one server under several loads: read from the runs of its rows."""

from collections.abc import Sequence

from stackmark.experiments.progress import StepTimes
from stackmark.ledger.store import Ledger
from stackmark.verdict.load_curve import LoadCurve, LoadPoint, load_curve
from stackmark.verdict.suite import SuiteRow
from stackmark.workloads.serve.endpoint import WORKLOAD

LOADS = ("concurrency", "rate")


def curve_of(ledger: Ledger, rows: Sequence[SuiteRow]) -> LoadCurve | None:
    """Return latency against load; None where the rows differ in anything else, or are of something else."""
    if len(rows) < 3 or any(row.workload != WORKLOAD for row in rows):
        return None
    several = [key for key in rows[0].values if len({str(row.values.get(key)) for row in rows}) > 1]
    if len(several) != 1 or several[0] not in LOADS:
        return None
    times = StepTimes(ledger)
    points = [point for row in rows if (point := _point(ledger, times, row, several[0])) is not None]
    return load_curve(several[0], points)


def _point(ledger: Ledger, times: StepTimes, row: SuiteRow, name: str) -> LoadPoint | None:
    runs = [run for run in ledger.runs_of(row.experiment_id) if run.status == "done"] if row.experiment_id else []
    each = [times.metrics(run) for run in runs]
    if not each:
        return None

    def mean(key: str) -> float | None:
        values = [said[key] for said in each if key in said]
        return sum(values) / len(values) if len(values) == len(each) else None

    keys = [f"p{percent}_{kind}" for kind in ("ttft", "tpot", "latency") for percent in (50, 90, 99)]
    return LoadPoint(
        float(str(row.values[name])),
        mean("requests_per_s") or 0.0,
        mean("output_per_s"),
        mean("failed_share") or 0.0,
        {key: value for key in keys if (value := mean(key)) is not None},
    )
