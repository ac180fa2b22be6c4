"""Networks that answer queries, in words: percentiles of latency, LoadGen's verdict, and by what two arms differ in them."""

from collections.abc import Sequence

from stackmark.experiments.serving import MetricOverRuns, ServingResult
from stackmark.figures import FigureUnit
from stackmark.show.terminal import Line
from stackmark.show.wording import say_change, say_changes, say_spread
from stackmark.units import counted, say_rate, say_seconds
from stackmark.verdict.examined import ComparedMetric, Examined


def served_lines(found: ServingResult) -> list[Line]:
    """Return what stands next to the figure of a `run`: percentiles with their intervals, and whether the load was valid."""
    lines: list[Line] = []
    if found.metrics:
        title = "phases" if all(one.metric.name.endswith("_s") for one in found.metrics) else "latency"
        lines.append((title, ", ".join(map(_say_metric, found.metrics))))
    if found.cached:
        least, most = (f"{100 * share:.0f} %" for share in found.cached)
        share = least if least == most else f"{least} to {most}"
        lines.append(("page cache", f"{share} of the files named in --cmd was in memory before the start"))
    if found.valid is not None:
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
    return name.removesuffix("_latency").removesuffix("_s").replace("_", " ")


def _say(unit: FigureUnit, rate: float) -> str:
    return say_seconds(unit.value(rate)) if unit.name == "s" else unit.say(rate)


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
        both = ", ".join(f"{label} {say_seconds(values[label])}" for label in (pair.a, pair.b) if label in values)
        sure = f" (90 %: {say_changes(bounds[0], bounds[1])})" if bounds else ""
        said.append(f"{pair.word}: {both}; {say_change(unit.own_ratio(pair.ratio))}{sure}")
    return said
