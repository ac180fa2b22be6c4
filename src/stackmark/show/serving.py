"""Networks that answer queries, in words: percentiles of latency, LoadGen's verdict, and by what two arms differ in them."""

from collections.abc import Callable, Sequence

from stackmark.experiments.serving import MetricOverRuns, ServingResult
from stackmark.figures import FigureUnit
from stackmark.show.terminal import Line
from stackmark.show.wording import say_change, say_changes, say_spread
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.examined import ComparedMetric, Examined
from stackmark.workloads.definition import MetricType

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
        if said := [_say_metric(one) for one in found.metrics if wanted(one.metric)]:
            lines.append((name, ", ".join(said)))
    lines.append(("LoadGen", f"valid in {found.valid} of {counted(found.runs, 'run')}"))
    if found.rate_fails:
        last = " of the last run" if found.runs > 1 else ""
        said = f"it held in 3 of 3 tests; {say_rate(found.rate_fails)} queries/s failed in 3 of 3"
        lines.append(("search", f"{said}; {counted(found.tests, 'test')}{last}"))
    return lines


def _say_metric(one: MetricOverRuns) -> str:
    unit = FigureUnit(one.metric.unit, one.metric.higher_is_better)
    spread = say_spread(one.rates)
    return f"{_short(one.metric.name)} {_say(unit, one.rates.rate_per_s)}{f' {spread}' if spread else ''}"


def _short(name: str) -> str:
    return name.removesuffix("_latency").replace("_", " ")


def _say(unit: FigureUnit, rate: float) -> str:
    return _say_value(unit, unit.value(rate))


def _say_value(unit: FigureUnit, value: float) -> str:
    return say_seconds(value) if unit.name == "s" else f"{value:.4g} {unit.name}"


def compared_lines(examined: Examined) -> list[Line]:
    """Return a line for each metric that is judged next to the figure, and each pair of arms."""
    several = len(examined.arms) > 2
    return [
        (_short(one.name), (f"{pair.b} / {pair.a}: " if several else "") + said)
        for one in examined.compared
        for pair, said in zip(one.pairs, _pairs(examined, one), strict=True)
    ]


def _pairs(examined: Examined, one: ComparedMetric) -> Sequence[str]:
    unit = FigureUnit(one.unit, one.higher_is_better)
    values = {arm.label: value for arm, value in zip(examined.arms, one.values, strict=False)}
    said = []
    for pair in one.pairs:
        interval = pair.interval_90
        bounds = sorted(map(unit.own_ratio, (interval.low, interval.high))) if interval else []
        both = ", ".join(f"{label} {_say_value(unit, values[label])}" for label in (pair.a, pair.b) if label in values)
        sure = f" (90 %: {say_changes(bounds[0], bounds[1])})" if bounds else ""
        said.append(f"{pair.word}: {both}; {say_change(unit.own_ratio(pair.ratio))}{sure}")
    return said
