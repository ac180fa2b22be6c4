"""What runs that answer queries show next to their figure: percentiles of latency, LoadGen's verdict, what a client counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackmark.experiments.progress import StepTimes
from stackmark.figures import rate_of
from stackmark.ledger.rows import RunRow
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known
from stackmark.workloads.serve.endpoint import PERCENTILES, WORKLOAD


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
    # Of a server under a load from outside: what the client counted, as means over the runs that say it.
    client: Mapping[str, float] | None = None


# The times that a client takes, in the order in which they are shown.
CLIENT_TIMES = ("ttft", "tpot", "itl", "latency")


def served(times: StepTimes, workload: str, good: Sequence[RunRow]) -> ServingResult | None:
    """Sum up runs; None where the workload names no further metrics, or no run gave a number."""
    definition = known(workload)
    if definition is None or not definition.compared or not good:
        return None
    each = [times.metrics(row) for row in good]
    found = []
    endpoint = workload == WORKLOAD
    for metric in _client_times() if endpoint else definition.compared:
        values = [said[metric.name] for said in each if said.get(metric.name, 0.0) > 0]
        if len(values) == len(good):
            rates = [rate_of(value, higher_is_better=metric.higher_is_better) for value in values]
            found.append(MetricOverRuns(metric, throughput_over_runs(rates)))
    last = each[-1]
    valid = sum(said.get("valid") == 1.0 for said in each) if any("valid" in said for said in each) else None
    shares = [said["cached_share"] for said in each if "cached_share" in said]
    return ServingResult(
        tuple(found),
        valid,
        len(good),
        last.get("rate_fails"),
        round(last.get("tests", 0)),
        cached=(min(shares), max(shares)) if shares else None,
        client=_means(each) if endpoint else None,
    )


def _client_times() -> list[MetricType]:
    return [MetricType(f"p{percent:g}_{name}", "s", False) for name in CLIENT_TIMES for percent in PERCENTILES]


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for said in each for name in said)
    values = {name: [said[name] for said in each if name in said] for name in names}
    return {name: sum(those) / len(those) for name, those in values.items()}
