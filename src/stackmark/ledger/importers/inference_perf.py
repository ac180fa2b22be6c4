"""Import inference-perf's reports: stage_N_lifecycle_metrics.json, one load point, or its summary of all.

Each file is one run; import the stages or summary_lifecycle_metrics.json, not both, since the summary counts the same requests
again. Latencies are in seconds. Its tokens are those of the client's tokenizer (`output_len`); what the server said
(`output_tokens`) stands next to them. It has TPOT and ITL as others do. A file does not say which model was asked, nor the
arrivals: `--param` adds them.
"""

import re

from stackmark.ledger.importers.documents import Node, first_line, read_json
from stackmark.ledger.importers.found import Found, Line
from stackmark.ledger.importers.load_point import LoadPoint, counted, error_name, filled
from stackmark.ledger.importers.reading import Log

FORMAT = "inference-perf"
TITLE = "inference-perf (stage_N_lifecycle_metrics.json, summary_lifecycle_metrics.json)"
MARK = re.compile(r'"(?:benchmark_time_seconds|load_summary)" ?:')
_LATENCIES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "latency",
}
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p99.9"}


def read(log: Log) -> list[Found]:
    lines = first_line(log)
    return [_found(one, lines) for one in read_json(log) if one["load_summary"].there or one["successes"].there]


def _found(said: Node, lines: tuple[Line, ...]) -> Found:
    point = LoadPoint(FORMAT)
    return filled(point, lambda: _fill(point, said), lines)


def _fill(point: LoadPoint, said: Node) -> None:
    load, good, bad = said["load_summary"], said["successes"], said["failures"]
    point.concurrency = load["concurrency"].count("the concurrency") or None
    if point.concurrency is None:  # else its rate is the number of requests, which is not a rate
        point.rate = load["requested_rate"].number("the rate")
    point.completed = good["count"].count("the number of answers")
    labels = bad["by_label"]
    kinds = {error_name(key): labels[key]["count"].number("the errors", zero=True) for key in labels.keys()[:20]}
    for message in labels[next(iter(labels.keys()), "")]["messages"].items()[:1]:
        point.first_error = message["message"].last_line()
    total = bad["count"].number("the number of errors", zero=True)
    point.errors = counted(kinds if sum(value or 0 for value in kinds.values()) == total else {"all": total})
    point.duration_s = said["benchmark_time_seconds"].number("the duration")
    rates = good["throughput"]
    point.requests_per_s = rates["requests_per_sec"].number("the request throughput", zero=True)
    point.output_per_s = rates["output_tokens_per_sec"].number("the output throughput", zero=True)
    point.total_per_s = rates["total_tokens_per_sec"].number("the token throughput", zero=True)
    for theirs, ours in _LATENCIES.items():
        for statistic, name in _STATISTICS.items():
            point.latency(ours, name, good["latency"][theirs][statistic], 1.0)
    achieved = load["achieved_rate"].number("the rate that was sent", zero=True)
    point.count("offered_rate", achieved or None, "requests/s")
    delay = load["schedule_delay"]["p99"]
    # A send that is a little too early is below zero.
    if isinstance(delay.value, float) and delay.value > 0:
        late = delay.number("how late requests were sent")
        point.count("p99_send_delay", late, "s", False)
    client, server = (good[name]["mean"].number("the tokens", zero=True) for name in ("output_len", "output_tokens"))
    point.count("prompt_tokens", good["prompt_tokens"]["mean"].number("the tokens", zero=True) or None, "tokens")
    point.count("output_tokens", client or None, "tokens")
    point.count("mean_server_output_tokens", server or None, "tokens")
    point.compare_counts(client, server)
