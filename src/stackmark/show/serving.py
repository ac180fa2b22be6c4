"""Networks and servers that answer, in words: percentiles of latency, the load's verdict, and by what two arms differ in them."""

from collections.abc import Callable, Mapping, Sequence

from stackmark.experiments.serving import MetricOverRuns, ServingResult
from stackmark.figures import FigureUnit
from stackmark.show.terminal import Line
from stackmark.show.wording import say_change, say_changes, say_spread
from stackmark.units import counted, say_percent, say_rate, say_seconds
from stackmark.verdict.examined import ComparedMetric, Examined
from stackmark.verdict.suite import SuiteResult
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known
from stackmark.workloads.serve.endpoint import CLIENT_TIMES, WORKLOAD

# The lines next to the figure, and which metrics stand in each: latencies of whole answers, of tokens, qualities, and the phases
# of a server's start.
SHOWN: dict[str, Callable[[MetricType], bool]] = {
    "latency": lambda one: one.name.endswith("_latency"),
    "tokens": lambda one: one.name.endswith(("_ttft", "_tpot")),
    "accuracy": lambda one: one.unit == "%",
    "phases": lambda one: one.name.endswith("_s"),
}


def served_lines(found: ServingResult) -> list[Line]:
    """Return what stands next to the figure of a `run`: percentiles with their intervals, and whether the load was valid."""
    lines = _latency_lines(found) if found.client is None else _client_lines(found, found.client)
    if found.rate_fails:
        last = " of the last run" if found.runs > 1 else ""
        what = "queries" if found.client is None else "requests"
        said = f"it held in 3 of 3 tests; {say_rate(found.rate_fails)} {what}/s failed in 3 of 3"
        lines.append(("search", f"{said}; {counted(found.tests, 'test')}{last}"))
    return lines


def _latency_lines(found: ServingResult) -> list[Line]:
    """Return percentiles of latency or the phases of a start, what the page cache held, and LoadGen's verdict."""
    lines: list[Line] = []
    for name, wanted in SHOWN.items():
        if metrics := [_say_metric(one) for one in found.metrics if wanted(one.metric)]:
            lines.append((name, ", ".join(metrics)))
    if found.cached:
        least, most = (f"{100 * share:.0f} %" for share in found.cached)
        share = least if least == most else f"{least} to {most}"
        lines.append(("page cache", f"{share} of the files named in --cmd was in memory before the start"))
    if found.valid is not None:
        lines.append(("LoadGen", f"valid in {found.valid} of {counted(found.runs, 'run')}"))
    return lines


def _client_lines(found: ServingResult, said: Mapping[str, float]) -> list[Line]:
    """Return what a client counted: times, requests and failures, tokens, cost, and whether it kept up itself."""
    lines: list[Line] = []
    for name in CLIENT_TIMES:
        of_name = [one for one in found.metrics if one.metric.name.endswith(f"_{name}")]
        if of_name:
            lines.append((name, ", ".join(_say_metric(one).replace(f" {name}", "", 1) for one in of_name)))
    answered, failed, late = (round(found.runs * said.get(name, 0.0)) for name in ("answered", "failed", "late"))
    parts = [f"{say_rate(said.get('requests_per_s', 0.0))} a second", f"{answered:,} answered", f"{failed:,} failed"]
    if "slo_share" in said:
        parts.append(f"{say_percent(said['slo_share'])} within the SLO")
    lines.append(("requests", ", ".join(parts)))
    if "output_per_s" in said:
        lines.append(("tokens", _say_tokens(said)))
    costs = [(name, said.get(f"cost_per_million_{name}")) for name in ("output", "prompt", "total")]
    if known := [f"{cost:.4g} for {name}" for name, cost in costs if cost is not None]:
        lines.append(("cost", f"per million tokens, as if only these were paid: {', '.join(known)}"))
    if "energy_per_output_token" in said:
        lines.append(("energy", _say_energy(said)))
    cpu = say_percent(said.get("client_cpu", 0.0))
    number = round(said.get("client_processes", 1.0))
    processes = "1 process" if number == 1 else f"{number} processes, the busiest"
    valid = "" if found.valid == found.runs else f"; it kept up in {found.valid} of {counted(found.runs, 'run')}"
    lines.append(("client", f"{processes} with {cpu} of a core; {late:,} sent late{valid}"))
    return lines


def _say_energy(said: Mapping[str, float]) -> str:
    """Say joules per output token, gross and without idle power, and whose counters they come from."""
    gpus = [name.removeprefix("energy_gpu") for name in said if name.startswith("energy_gpu")]
    whose = f"GPU {'+'.join(gpus)}, {'its own counter' if len(gpus) == 1 else 'their own counters'}"
    gross = f"{said['energy_per_output_token']:.3g} J per output token ({whose})"
    if "energy_per_output_token_net" not in said or "idle_power" not in said:
        return f"{gross}, idle power included"
    net, error = said["energy_per_output_token_net"], said.get("energy_per_output_token_net_error", 0.0)
    idle = f"the {said['idle_power']:.4g} W of idling"
    return f"{gross}; {net:.3g} ± {error:.2g} J without {idle}"


def _say_tokens(said: Mapping[str, float]) -> str:
    parts = []
    for name, what in (("prompt", "a prompt"), ("output", "an answer")):
        if (mean := said.get(f"{name}_tokens")) is not None:
            asked = f" ({said[f'{name}_asked']:,.4g} asked)" if said.get(f"{name}_asked") else ""
            parts.append(f"{what} {mean:,.4g}{asked}")
    rate = f"output {say_rate(said['output_per_s'])}/s"
    if "prompt_per_s" in said:
        rate += f", prompts {say_rate(said['prompt_per_s'])}/s"
    if said.get("cached_tokens_total") and said.get("prompt_tokens_total"):
        parts.append(f"{say_percent(said['cached_tokens_total'] / said['prompt_tokens_total'])} of the prompts cached")
    return f"{rate}; {', '.join(parts)}"


def _say_metric(one: MetricOverRuns) -> str:
    unit = FigureUnit(one.metric.unit, one.metric.higher_is_better)
    spread = say_spread(one.rates)
    return f"{short_name(one.metric.name)} {_say(unit, one.rates.rate_per_s)}{f' {spread}' if spread else ''}"


def short_name(name: str) -> str:
    """Name a percentile of latency, or a phase of a server's start (`first_http_s`)."""
    return name.removesuffix("_s").removesuffix("_latency").replace("_", " ")


def _say(unit: FigureUnit, rate: float) -> str:
    return _say_value(unit, unit.value(rate))


def _say_value(unit: FigureUnit, value: float) -> str:
    return say_seconds(value) if unit.name == "s" else f"{value:.4g} {unit.name}"


def compared_lines(examined: Examined) -> list[Line]:
    """Return a line for each metric that is judged next to the figure, and each pair of arms; of one arm its values."""
    several = len(examined.arms) > 2
    if len(examined.arms) == 1:
        return [
            (name_among(one, examined.compared), say_value(one, value))
            for one in examined.compared
            for value in one.values
        ]
    return [
        (
            name_among(one, examined.compared),
            (f"{pair.b} / {pair.a}: " if several else "") + said,
        )
        for one in examined.compared
        for pair, said in zip(one.pairs, _pairs(examined, one), strict=True)
    ]


def name_among(one: ComparedMetric, others: Sequence[ComparedMetric]) -> str:
    """Name a metric: `p50` where all are percentiles of one time, else `p50 latency` next to `p50 ttft`."""
    kinds = {other.name.partition("_")[2] for other in others}
    return short_name(one.name) if len(kinds) == 1 else one.name.removesuffix("_s").replace("_", " ")


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
        said = [_in_suite(name_among(one, examined.compared), one) for one in examined.compared]
        by_loadgen = [
            run for run in examined.runs if run.counted and "valid" in run.covariates and row.workload != WORKLOAD
        ]
        valid = sum(run.covariates["valid"] == 1.0 for run in by_loadgen)
        parts = [metric.name if metric else "", ", ".join(said), _say_valid(valid, len(by_loadgen))]
        lines.append(("served", f"{result.row_name(row)}: {'; '.join(part for part in parts if part)}"))
    return lines


def _in_suite(name: str, one: ComparedMetric) -> str:
    """`p50 2.91 µs`; of arms `p50 EQUIVALENT −0.2 % (90 %: …)`, of three and more for each pair."""
    if not one.pairs:
        return f"{name} {', '.join(say_value(one, value) for value in one.values)}"
    return f"{name} {', '.join(f'{word} {change}' for word, change in pair_words(one))}"


def _say_valid(valid: int, runs: int) -> str:
    return f"LoadGen: valid in {valid} of {counted(runs, 'run')}" if runs else ""
