"""What the runs of a network that answers queries show next to their figure: percentiles of latency, and LoadGen's verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.experiments.progress import StepTimes
from stackmark.figures import rate_of
from stackmark.ledger.rows import RunRow
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known


@dataclass(frozen=True)
class MetricOverRuns:
    """A metric over runs; of one that is better when it is lower, `rates` has the reciprocals, as of a figure."""

    metric: MetricType
    rates: Throughput


@dataclass(frozen=True)
class ServingResult:
    metrics: tuple[MetricOverRuns, ...]
    # Runs that LoadGen calls valid, of how many; None where LoadGen did not send the load.
    valid: int | None
    runs: int
    # Of a search for the highest rate, the last run's: the lowest rate that failed in all its tests, and how many tests it took.
    rate_fails: float | None = None
    tests: int = 0
    # Of the start of a server: the least and the largest share of its files that was in memory before.
    cached: tuple[float, float] | None = None


def served(times: StepTimes, workload: str, good: Sequence[RunRow]) -> ServingResult | None:
    """Sum up runs; None where the workload names no further metrics, or no run gave a number."""
    definition = known(workload)
    if definition is None or not definition.compared or not good:
        return None
    each = [times.metrics(row) for row in good]
    found = []
    for metric in definition.compared:
        values = [said[metric.name] for said in each if said.get(metric.name, 0.0) > 0]
        if len(values) == len(good):
            rates = [rate_of(value, higher_is_better=metric.higher_is_better) for value in values]
            found.append(MetricOverRuns(metric, throughput_over_runs(rates)))
    last = each[-1]
    valid = sum(said.get("valid") == 1.0 for said in each) if any("valid" in said for said in each) else None
    shares = [said["cached_share"] for said in each if "cached_share" in said]
    cached = (min(shares), max(shares)) if shares else None
    return ServingResult(tuple(found), valid, len(good), last.get("rate_fails"), round(last.get("tests", 0)), cached)
