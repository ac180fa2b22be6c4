"""Networks that answer queries, in words: percentiles of latency, LoadGen's verdict, and by what two arms differ in them."""

from collections.abc import Callable, Sequence

from stackmark.experiments.serving import MetricOverRuns, ServingResult
from stackmark.figures import FigureUnit
from stackmark.show.terminal import Line
from stackmark.show.wording import say_change, say_changes, say_spread
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.examined import ComparedMetric, Examined
from stackmark.verdict.suite import SuiteResult
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known

# The lines next to the figure, and which metrics stand in each: latencies of whole answers, of tokens, and qualities.
SHOWN: dict[str, Callable[[MetricType], bool]] = {
    "latency": lambda one: one.name.endswith("_latency"),
    "tokens": lambda one: one.name.endswith(("_ttft", "_tpot")),
    "accuracy": lambda one: one.unit == "%",
}


def served_lines(found: ServingResult) -> list[Line]:
    """Return what stands next to the figure of a `run`: percentiles with their intervals, and whether the load was valid."""
    lines: list[Line] = []
    for name, wanted in SHOWN.items():
        if metrics := [_say_metric(one) for one in found.metrics if wanted(one.metric)]:
            lines.append((name, ", ".join(metrics)))
    lines.append(("LoadGen", f"valid in {found.valid} of {counted(found.runs, 'run')}"))
    if found.rate_fails:
        last = " of the last run" if found.runs > 1 else ""
        said = f"it held in 3 of 3 tests; {say_rate(found.rate_fails)} queries/s failed in 3 of 3"
        lines.append(("search", f"{said}; {counted(found.tests, 'test')}{last}"))
    return lines


def _say_metric(one: MetricOverRuns) -> str:
    unit = FigureUnit(one.metric.unit, one.metric.higher_is_better)
    spread = say_spread(one.rates)
    return f"{short_name(one.metric.name)} {_say(unit, one.rates.rate_per_s)}{f' {spread}' if spread else ''}"


def short_name(name: str) -> str:
    return name.removesuffix("_latency").replace("_", " ")


def _say(unit: FigureUnit, rate: float) -> str:
    return _say_value(unit, unit.value(rate))


def _say_value(unit: FigureUnit, value: float) -> str:
    return say_seconds(value) if unit.name == "s" else f"{value:.4g} {unit.name}"


def compared_lines(examined: Examined) -> list[Line]:
    """Return a line for each metric that is judged next to the figure, and each pair of arms; of one arm its values."""
    several = len(examined.arms) > 2
    if len(examined.arms) == 1:
        return [(short_name(one.name), say_value(one, value)) for one in examined.compared for value in one.values]
    return [
        (short_name(one.name), (f"{pair.b} / {pair.a}: " if several else "") + said)
        for one in examined.compared
        for pair, said in zip(one.pairs, _pairs(examined, one), strict=True)
    ]


def _pairs(examined: Examined, one: ComparedMetric) -> Sequence[str]:
    values = {arm.label: value for arm, value in zip(examined.arms, one.values, strict=False)}
    said = []
    for pair, (word, change) in zip(one.pairs, pair_words(one), strict=True):
        both = ", ".join(f"{label} {say_value(one, values[label])}" for label in (pair.a, pair.b) if label in values)
        said.append(f"{word}: {both}; {change}")
    return said


def say_value(one: ComparedMetric, value: float) -> str:
    return _say_value(FigureUnit(one.unit, one.higher_is_better), value)


def pair_words(one: ComparedMetric) -> list[tuple[str, str]]:
    """Return the verdict of each pair of arms on a metric, and the change with its interval."""
    unit = FigureUnit(one.unit, one.higher_is_better)
    said: list[tuple[str, str]] = []
    for pair in one.pairs:
        interval = pair.interval_90
        bounds = sorted(map(unit.own_ratio, (interval.low, interval.high))) if interval else []
        sure = f" (90 %: {say_changes(bounds[0], bounds[1])})" if bounds else ""
        said.append((pair.word, f"{say_change(unit.own_ratio(pair.ratio))}{sure}"))
    return said


def suite_lines(result: SuiteResult) -> list[Line]:
    """Return a line for each row of a suite whose runs answered queries: what its figure is, percentiles, LoadGen's verdict."""
    lines: list[Line] = []
    for row in result.rows:
        definition = known(row.workload)
        if definition is None or not definition.compared or row.examined is None or not row.examined.arms:
            continue
        examined = row.examined
        metric = definition.metric_by(examined.arms[0].params)
        said = [_in_suite(one) for one in examined.compared]
        counted_runs = [run for run in examined.runs if run.counted]
        valid = sum(run.covariates.get("valid") == 1.0 for run in counted_runs)
        parts = [metric.name if metric else "", ", ".join(said), _say_valid(valid, len(counted_runs))]
        lines.append(("served", f"{result.row_name(row)}: {'; '.join(part for part in parts if part)}"))
    return lines


def _in_suite(one: ComparedMetric) -> str:
    """`p50 2.91 µs`; of arms `p50 EQUIVALENT −0.2 % (90 %: …)`, of three and more for each pair."""
    if not one.pairs:
        return f"{short_name(one.name)} {', '.join(say_value(one, value) for value in one.values)}"
    return f"{short_name(one.name)} {', '.join(f'{word} {change}' for word, change in pair_words(one))}"


def _say_valid(valid: int, runs: int) -> str:
    return f"LoadGen: valid in {valid} of {counted(runs, 'run')}" if runs else ""
