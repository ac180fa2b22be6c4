"""What runs that answer queries show next to their figure: percentiles of latency, LoadGen's verdict, what a client counted.

Latencies of several runs are one distribution: their histograms are added. Percentiles are compared run by run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from stackmark.experiments.progress import StepTimes, with_rates
from stackmark.figures import rate_of, rate_unit_of
from stackmark.histogram import Histogram
from stackmark.ledger.rows import RunDetail, RunRow
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import ComparedMetric, ExaminedRun, LatencyCurve
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known
from stackmark.workloads.serve.definition import SINCE_START
from stackmark.workloads.serve.endpoint import CLIENT_TIMES, PERCENTILES, WORKLOAD


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
    # All queries of all runs together by name, and how many samples were answered in how many seconds.
    latencies: Mapping[str, Histogram] = field(default_factory=dict)
    samples: int = 0
    test_s: float = 0.0
    # Of the start of a server: the least and the largest share of its files that was in memory before.
    cached: tuple[float, float] | None = None
    # Of a server under a load from outside: what the client counted, as means over the runs that say it.
    client: Mapping[str, float] | None = None


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
    sums: dict[str, Histogram] = {}
    for row in good:
        for name, one in times.latencies(row).items():
            sums.setdefault(name, Histogram(name)).add(one)
    last = each[-1]
    valid = sum(said.get("valid") == 1.0 for said in each) if any("valid" in said for said in each) else None
    shares = [said["cached_share"] for said in each if "cached_share" in said]
    return ServingResult(
        tuple(found),
        valid,
        len(good),
        last.get("rate_fails"),
        round(last.get("tests", 0)),
        sums,
        round(sum(said.get("samples", 0.0) for said in each)),
        sum(said.get("test_seconds", 0.0) for said in each),
        cached=(min(shares), max(shares)) if shares else None,
        client=client_means(each) if endpoint else None,
    )


def _client_times() -> list[MetricType]:
    return [MetricType(f"p{percent:g}_{name}", "s", False) for name in CLIENT_TIMES for percent in PERCENTILES]


def client_means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for said in each for name in said)
    values = {name: [said[name] for said in each if name in said] for name in names}
    return {name: _mean(name, those) for name, those in values.items()}


def _mean(name: str, values: Sequence[float]) -> float:
    """Return the mean over runs: of rates and costs the geometric one, as of a figure, so that a screen has one number."""
    if min(values) > 0 and (name.endswith("_per_s") or name.startswith("cost_per_")):
        return geometric_mean(values)
    return sum(values) / len(values)


def compared_metrics(
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    arms: int,
    judge: Callable[[Sequence[RunDetail]], tuple[Comparison, ...]],
) -> tuple[ComparedMetric, ...]:
    """Return the metrics that the workload names next to its figure, each of which all counted runs must have.

    `judge` compares the arms by rows whose rates are the metric's; of one arm there is nothing to compare.
    """
    definition = known(rows[0].workload)
    counted = [run for run in runs if run.counted]
    found = []
    for metric in definition.compared if definition else ():
        values = {run.run_id: run.covariates.get(metric.name, 0.0) for run in counted}
        if not values or min(values.values()) <= 0:
            continue
        unit = rate_unit_of(metric.unit, higher_is_better=metric.higher_is_better)
        rates = {run: rate_of(value, higher_is_better=metric.higher_is_better) for run, value in values.items()}
        pairs = judge([row.model_copy(update={"rate_unit": unit}) for row in with_rates(rows, rates)])
        of_arms = [[values[run.run_id] for run in counted if run.arm == arm] for arm in range(arms)]
        if all(of_arms) and (pairs or arms == 1):
            means = tuple(geometric_mean(of_arm) for of_arm in of_arms)
            found.append(ComparedMetric(metric.name, metric.unit, metric.higher_is_better, means, pairs))
    return tuple(found)


def latency_curves(
    rows: Sequence[RunDetail], runs: Sequence[ExaminedRun], times: StepTimes
) -> tuple[LatencyCurve, ...]:
    """Return the distribution of latencies of each arm, for each kind of latency that its runs sent."""
    sums: dict[tuple[str, int], Histogram] = {}
    for row, run in zip(rows, runs, strict=True):
        for name, one in times.latencies(row).items() if run.counted else ():
            if name == SINCE_START:
                continue
            sums.setdefault((name, run.arm), Histogram(name)).add(one)
    return tuple(
        LatencyCurve(name, arm, one.total, tuple((percent, 1e-9 * ns) for percent, ns in one.curve()))
        for (name, arm), one in sorted(sums.items())
        if one.curve(2)
    )
