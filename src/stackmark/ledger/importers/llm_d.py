"""Import llm-d's benchmark report (YAML or JSON, version 0.1 and 0.2): one load point of whichever load generator it wraps.

Version 0.2 has `results.request_performance.aggregate`, and what was run under `scenario`; a part that a load generator wrote
itself (inference-perf's `inference-perf.partial.stage_N.yaml`) has no scenario. Version 0.1 has the same under `metrics`. Units
stand next to each number.
"""

import re
from datetime import datetime

from stackmark.ledger.importers.documents import Node, first_line, read_yaml
from stackmark.ledger.importers.found import Found, Line
from stackmark.ledger.importers.load_point import LoadPoint, counted, filled
from stackmark.ledger.importers.reading import Log

FORMAT = "llm-d"
TITLE = "llm-d's benchmark report (YAML or JSON, version 0.1 and 0.2)"
MARK = re.compile(r'^\s*request_performance:\s*$|"request_performance" ?:|^\s+normalized_time_per_output_token:\s*$')
_LATENCIES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "latency",
}
_UNITS = {"s": 1.0, "s/token": 1.0, "ms": 1e-3, "ms/token": 1e-3, "us": 1e-6}
_STATISTICS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99p9": "p99.9"}
_DURATION = re.compile(r"PT(?:([0-9]{1,6})H)?(?:([0-9]{1,6})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?")


def read(log: Log) -> list[Found]:
    lines = first_line(log)
    return [
        _found(one, lines) for one in read_yaml(log) if one["results"].there or one["metrics"]["latency"].there
    ]  # fmt: skip


def _found(said: Node, lines: tuple[Line, ...]) -> Found:
    point = LoadPoint(FORMAT)
    return filled(point, lambda: _fill(point, said), lines)


def _fill(point: LoadPoint, said: Node) -> None:
    version = said["version"].text() or said["version"].number("the version")  # YAML takes an unquoted 0.2 for a number
    point.facts["report_version"] = str(version or "unknown")
    newer = said.at("results.request_performance.aggregate")
    body = newer if newer.there else said["metrics"]
    _load(point, said["scenario"])
    requests = body["requests"]
    total, failed, cut_off = (
        requests[name].count(f"the number of requests ({name})") for name in ("total", "failures", "incomplete")
    )
    point.errors = counted({"all": failed})
    if total is not None:
        point.completed = max(total - (failed or 0) - (cut_off or 0), 0)
    time = said["run"]["time"] if newer.there else body["time"]
    point.duration_s = _seconds(time["duration"])
    point.when_unix_s = _moment(time["start"])
    rates = body["throughput"]
    point.requests_per_s = _rate(rates, "request_rate", "requests_per_sec")
    point.output_per_s = _rate(rates, "output_token_rate", "output_tokens_per_sec")
    point.total_per_s = _rate(rates, "total_token_rate", "total_tokens_per_sec")
    for theirs, ours in _LATENCIES.items():
        scale = _UNITS.get(body["latency"][theirs]["units"].text())
        for statistic, name in _STATISTICS.items() if scale else ():
            point.latency(ours, name, body["latency"][theirs][statistic], scale or 1.0)
    for theirs, name in (("input_length", "prompt_tokens"), ("output_length", "output_tokens")):
        point.count(name, requests[theirs]["mean"].number("the tokens", zero=True) or None, "tokens")


def _rate(rates: Node, newer: str, older: str) -> float | None:
    node = rates[newer]["mean"] if rates[newer].there else rates[older]
    return node.number(newer.replace("_", " "), zero=True)


def _load(point: LoadPoint, scenario: Node) -> None:
    standard = scenario["load"]["standardized"]
    for name, node in (
        ("load_generator", standard["tool"] if standard.there else scenario["load"]["name"]),
        ("load_generator_version", standard["tool_version"]),
    ):
        if text := node.text():
            point.facts[name] = text
    point.rate = standard["rate_qps"].number("the rate")
    if isinstance(standard["concurrency"].value, int):
        point.concurrency = standard["concurrency"].count("the concurrency") or None
    for node, name in ((standard["input_seq_len"], "prompt"), (standard["output_seq_len"], "generate")):
        if node["distribution"].text() == "fixed":
            setattr(point, name, node["value"].count("the length") or None)
    point.model = scenario["model"]["name"].text()
    for part in scenario["stack"].items()[:100]:
        point.model = point.model or part["standardized"]["model"]["name"].text()


def _seconds(node: Node) -> float | None:
    match = _DURATION.fullmatch(node.text())
    if match is None:
        return node.number("the duration")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds or None


def _moment(node: Node) -> float | None:
    """Return a time in seconds since 1970; YAML may have read it already."""
    try:
        moment = node.value if isinstance(node.value, datetime) else datetime.fromisoformat(node.text())
        return moment.timestamp() if moment.tzinfo is not None and 1970 < moment.year < 9999 else None
    except (ValueError, OverflowError):
        return None
