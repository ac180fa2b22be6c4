"""Verify the latencies, counts and rates that a worker reports of a load: each is compared with the others.

A worker sends its histograms next to the percentiles, counts and rates that are judged and shown. The histograms are drawn and
added over runs, so a run whose numbers contradict them is not a result. Within numbers that agree a program that lies can still
claim any speed, as everywhere.
"""

import re
from collections.abc import Mapping

from stackmark.events import Metric, Result, Stream, histograms
from stackmark.histogram import KEPT, Histogram, cell_of
from stackmark.model import ValidationError
from stackmark.spec import Spec, explain
from stackmark.workloads.definition import MetricType
from stackmark.workloads.registry import known
from stackmark.workloads.serve import endpoint

# Digits may have been rounded.
ROUNDED_SHARE = 1e-5
# The cells of a histogram are 0.1 % wide; the client's percentiles come from the very histogram that it sends.
SAME_SHARE, SAME_S = 0.01, 1e-8
# LoadGen's percentiles and those of stackmark's own clock may differ, if the result says so: beyond 10 % and 100 µs it does.
CLOCKS_SHARE, CLOCKS_S, CLOCKS_FLAG = 0.12, 120e-6, "clocks-disagree"
# Further into the tail the two are not compared: a query in a thousand waits for its thread to wake up.
CLOCKS_PERCENTS = {"50", "90", "99"}
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)_([a-z_]{1,40})")


def impossible_load(stream: Stream, spec: Spec, observed_s: float | None) -> str | None:
    """Return why latencies, counts and rates cannot be; None where they can. The first rank speaks for its group."""
    try:
        sent = histograms(stream.events)
    except ValueError as error:
        return f"the worker sent latencies that cannot be: {error}"
    result, metrics = stream.ended(), [event for event in stream.of(0) if isinstance(event, Metric)]
    said = {event.name: event.value for event in metrics}
    if not isinstance(result, Result):
        return None
    if (definition := known(spec.workload)) and (why := _contradicting(definition.compared, said, result)):
        return why
    for one in sent.values():
        if why := _torn(one):
            return why
    client = spec.workload == endpoint.WORKLOAD
    if why := _other_percentile(sent, said, result, client=client):
        return why
    return _impossible_client(sent, said, spec, result, observed_s) if client else None


def _contradicting(compared: tuple[MetricType, ...], said: Mapping[str, float], result: Result) -> str | None:
    """Hold percentiles of one time against each other: a higher one is at least as long, and the figure is one of them.

    What is in percent lies between 0 and 100.
    """
    lower: dict[str, tuple[str, float]] = {}
    for metric in compared:
        value = said.get(metric.name)
        if value is None:
            continue
        if metric.unit == "%":
            if not 0 <= value <= 100 + ROUNDED_SHARE:
                return f"the worker claims a {metric.name} of {value:.6g} %"
            continue
        time = metric.name.partition("_")[2]
        below, least = lower.get(time, ("", 0.0))
        if not value >= least:
            return f"the worker claims a {metric.name} of {value:.6g} s, which is below its {below} of {least:.6g} s"
        lower[time] = (metric.name, value)
        figure = result.figure
        if (
            figure
            and figure.name.replace(" ", "_") == metric.name
            and abs(1e-3 * figure.value - value) > ROUNDED_SHARE * value
        ):
            return f"the worker's figure is {figure.value:.6g} ms, but its {metric.name} is {1e3 * value:.6g} ms"
    return None


def _torn(one: Histogram) -> str | None:
    """Hold the single times of a histogram against its cells: percentiles of the tail are read from the slowest."""
    name, kept = one.name[:40], min(one.total, KEPT)
    slowest = one.slowest_ns
    if len(one.first_ns) != kept or len(slowest) != kept:
        return (
            f"the worker sent {len(one.first_ns)} first and {len(slowest)} slowest times of {one.total:,} of {name!r}"
        )
    left, cells = kept, list[int]()
    for cell in sorted(one.counts, reverse=True):
        cells += [cell] * min(left, one.counts[cell])
        left = kept - len(cells)
        if not left:
            break
    if cells != [cell_of(value) for value in slowest]:
        return f"the worker's slowest times of {name!r} are not those of its histogram"
    return None


def _other_percentile(
    sent: Mapping[str, Histogram], said: Mapping[str, float], result: Result, *, client: bool
) -> str | None:
    """Hold percentiles against the histogram of the same time. A client's come from it; LoadGen has a clock of its own."""
    if not client and any(flag.startswith(CLOCKS_FLAG) for flag in result.flags):
        return None
    share, slack_s = (SAME_SHARE, SAME_S) if client else (CLOCKS_SHARE, CLOCKS_S)
    for name, value in said.items():
        found = _PERCENTILE.fullmatch(name)
        one = sent.get(found[2]) if found else None
        if found and one is None and client and found[2] in endpoint.CLIENT_TIMES:
            return f"the worker claims a {name} of {value:.6g} s, but sent no histogram of it"
        if not found or one is None or not (client or found[1] in CLOCKS_PERCENTS):
            continue
        own_ns = one.percentile_ns(float(found[1]))
        if own_ns is None and client:
            return f"the worker claims a {name} of {value:.6g} s, but {one.total:,} times do not show it"
        if own_ns is not None and abs(1e-9 * own_ns - value) > share * max(1e-9 * own_ns, value) + slack_s:
            return f"the worker claims a {name} of {value:.6g} s, but its histogram has {1e-9 * own_ns:.6g} s"
    return None


# The figures of a client with the metric that each repeats, and by how much their units differ.
_FIGURES = {
    "output throughput": ("output_per_s", 1.0),
    "throughput": ("requests_per_s", 1.0),
    "goodput": ("goodput", 1.0),
    "p50 latency": ("p50_latency", 1e3),
    "rate within the SLO": ("rate_holds", 1.0),
}
# The rates of a client with the count of what each is made of.
_TOTALS = {
    "output_per_s": "output_tokens_total",
    "prompt_per_s": "prompt_tokens_total",
    "requests_per_s": "answered",
    "goodput": "answered",
}


def _impossible_client(
    sent: Mapping[str, Histogram], said: Mapping[str, float], spec: Spec, result: Result, observed_s: float | None
) -> str | None:
    """Hold the counts, rates and the figure of a client against each other and against the time in which it ran."""
    try:
        params, figure = endpoint.EndpointParams.model_validate(spec.params), result.figure
    except ValidationError as error:
        return f"the spec of the run cannot be: {explain(error)}"
    answered, latency = said.get("answered", 0.0), sent.get("latency", Histogram())
    if latency.total != round(answered):
        return f"the worker sent {latency.total:,} latencies of {answered:,.0f} answers"
    if figure and figure.name in _FIGURES:
        metric, factor = _FIGURES[figure.name]
        own = factor * said.get(metric, 0.0)
        if abs(own - figure.value) > ROUNDED_SHARE * abs(own):
            return f"the worker's figure is {figure.value:.6g} {figure.unit[:40]}, but its {metric} is {own:.6g}"
    longest_s = 1e-9 * max(latency.slowest_ns, default=0)
    if observed_s is not None:
        if longest_s > observed_s + 1:
            return f"the worker claims a latency of {longest_s:.4g} s, but ran for {observed_s:.3g} s by the driver's clock"
        # Each client of a closed loop waits for one answer at a time.
        busy_s = 1e-9 * (latency.mean_ns or 0.0) * latency.total
        if params.concurrency and busy_s > params.concurrency * (observed_s * (1 + SAME_SHARE) + 1):
            return (
                f"the worker claims {busy_s:.4g} s of waiting for answers, but ran for {observed_s:.3g} s with "
                f"{params.concurrency} at a time"
            )
    return _too_much(said, params, _window_s(params, longest_s), answered)


def _window_s(params: endpoint.EndpointParams, longest_s: float) -> float:
    """Return how long requests were sent at the least: as long as was asked, or until the last answer."""
    if params.seconds:
        return params.seconds if params.find_rate or not params.requests else 0.0
    return longest_s


def _too_much(
    said: Mapping[str, float], params: endpoint.EndpointParams, window_s: float, answered: float
) -> str | None:
    """Hold rates against the counts that they are made of, and tokens against what was asked."""
    tokens = said.get("output_tokens_total", 0.0)
    if not params.prompts and tokens > answered * endpoint.read_lengths(params.generate).high:
        return f"the worker claims {tokens:,.0f} output tokens in {answered:,.0f} answers of at most {params.generate} tokens"
    for rate, total in _TOTALS.items():
        most = said.get(total, 0.0)
        if said.get(rate, 0.0) * window_s > most * (1 + SAME_SHARE):
            return f"the worker claims {said[rate]:.6g} for {rate} in {window_s:.3g} s or more, but {most:,.0f} for {total}"
    return None
