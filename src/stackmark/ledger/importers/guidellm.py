"""Import GuideLLM's report (JSON, or YAML): one run for each of its benchmarks, which are its load points.

Two of its names mean something else than elsewhere. Its "inter-token latency" is a mean for each request, (last token − first
token) / (tokens − 1), which others call time per output token; its "time per output token" includes the time to the first
token. So the first is imported as TPOT, and the second as the latency per token.
"""

import re

from stackmark.ledger.importers.documents import Node, first_line, read_yaml
from stackmark.ledger.importers.found import Found, Line, LoggedNumber
from stackmark.ledger.importers.load_point import LoadPoint, counted, filled
from stackmark.ledger.importers.reading import Log

FORMAT = "guidellm"
TITLE = "GuideLLM (its JSON or YAML report)"
MARK = re.compile(r'"type_": ?"generative_benchmark"|^\s*-? *type_: generative_benchmark\s*$|"guidellm_version": ?"')
# Its metrics, their names here, and the seconds in their unit.
_LATENCIES = (
    ("time_to_first_token_ms", "ttft", 1e-3),
    ("inter_token_latency_ms", "tpot", 1e-3),
    ("request_latency", "latency", 1.0),
)
_STATISTICS = (
    ("mean", "mean"), ("median", "p50"), ("percentiles.p90", "p90"), ("percentiles.p95", "p95"), ("percentiles.p99", "p99"),
    ("percentiles.p999", "p99.9"),
)  # fmt: skip
_MOST_WARNINGS = 5


def read(log: Log) -> list[Found]:
    lines = first_line(log)
    found = []
    for report in read_yaml(log):
        found += [_found(report, one, lines) for one in report["benchmarks"].items()]
    return found


def _found(report: Node, one: Node, lines: tuple[Line, ...]) -> Found:
    point = LoadPoint(FORMAT, version=report["metadata"]["guidellm_version"].text())
    return filled(point, lambda: _fill(point, report, one), lines)


def _fill(point: LoadPoint, report: Node, one: Node) -> None:
    config = one["config"]
    _load(point, config, report)
    metrics = one["metrics"]
    totals = metrics["request_totals"]
    point.completed = totals["successful"].count("the number of answers")
    point.errors = counted({"errored": totals["errored"].number("the number of errors", zero=True)})
    # Requests that its time limit or its end cut off are neither answers nor errors.
    point.count("incomplete", totals["incomplete"].count("the number of requests that were cut off"), "requests", False)
    point.first_error = _first_error(one)
    point.duration_s = one["duration"].number("the duration")
    if (start := one["start_time"].number("the start")) is not None and start < 1e11:
        point.when_unix_s = start
    point.requests_per_s = _mean(metrics, "requests_per_second")
    point.output_per_s = _mean(metrics, "output_tokens_per_second", of="total")
    point.total_per_s = _mean(metrics, "tokens_per_second", of="total")
    for theirs, ours, scale in _LATENCIES:
        for path, statistic in _STATISTICS:
            point.latency(ours, statistic, metrics[theirs]["successful"].at(path), scale)
    for path, statistic in _STATISTICS[:2]:
        value = metrics["time_per_output_token_ms"]["successful"].at(path).number("the latency per token", zero=True)
        if value:
            point.numbers.append(LoggedNumber(f"{statistic}_latency_per_token", value * 1e-3, "s", False))
    for theirs, ours in (("prompt_token_count", "prompt_tokens"), ("output_token_count", "output_tokens")):
        point.count(ours, metrics[theirs]["successful"]["mean"].number("the tokens", zero=True) or None, "tokens")
    for warning in one["warnings"].items()[:_MOST_WARNINGS]:
        if text := warning["message"].text():
            point.flags.append(f"guidellm: {text}")


def _load(point: LoadPoint, config: Node, report: Node) -> None:
    """Take what was asked for: the strategy of this benchmark, and what all of them send."""
    strategy = config["strategy"]
    kind = strategy["type_"].text()
    spec = report["config"]["spec"]
    backend = config["backend"] if config["backend"].there else spec["backend"]
    point.model = backend["model"].text()
    route = backend["request_format"].text()
    point.protocol = "chat" if "chat" in route else "completions" if "completions" in route else ""
    if kind == "concurrent":
        point.concurrency = strategy["streams"].count("the concurrency")
    elif kind == "synchronous":
        point.concurrency = 1
    elif kind in ("constant", "poisson"):
        point.rate, point.arrivals = strategy["rate"].number("the rate"), kind
    elif kind == "throughput":
        point.concurrency = strategy["max_concurrency"].count("the concurrency")
    if kind:
        point.facts["strategy"] = kind
    for data in spec["data"].items()[:1]:
        if not (data["prompt_tokens_stdev"].there or data["output_tokens_stdev"].there):
            point.prompt = data["prompt_tokens"].count("the prompt's length")
            point.generate = data["output_tokens"].count("the answer's length")
    for limit in spec["constraints"].items()[:10]:
        if limit["kind"].text() == "max_requests":
            point.requests = limit["count"].count("the number of requests")


def _mean(metrics: Node, name: str, of: str = "successful") -> float | None:
    return metrics[name][of]["mean"].number(name.replace("_", " "), zero=True)


def _first_error(one: Node) -> str:
    for request in one["requests"]["errored"].items()[:1]:
        if text := request["info"]["error"].last_line() or request["scheduler_info"]["error"].last_line():
            return text
    return ""
