"""Import aiperf's results: profile_export_aiperf.json, or .csv. A file is one load point.

Its "inter-token latency" is (latency − TTFT) / (tokens − 1) for each request, which others call time per output token, and is
imported as TPOT; its "inter-chunk latency" is the time between chunks, and is imported as ITL. Its tokens are counted by a
tokenizer of the client unless `--use-server-token-count` was given; what the server said stands next to them, and a difference
is a flag. The CSV has no settings: no model, no load; `--param` adds them.
"""

import re
from datetime import datetime

from stackmark.ledger.importers.documents import Node, first_line, read_csv, read_json
from stackmark.ledger.importers.found import Found, Line
from stackmark.ledger.importers.load_point import LoadPoint, counted, filled
from stackmark.ledger.importers.reading import Log

FORMAT = "aiperf"
TITLE = "aiperf (profile_export_aiperf.json)"
MARK = re.compile(r'"aiperf_version": ?"')
CSV_FORMAT = "aiperf-csv"
CSV_TITLE = "aiperf (profile_export_aiperf.csv)"
CSV_MARK = re.compile(r"^Metric,avg,min,max,(?:sum,)?p1,p5,")
_LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "latency",
}
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_STATISTICS = {"avg": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_CSV_NAME = re.compile(r"^(.{1,80}?)(?: \(([^()]{1,30})\))?$")
_MOST_ERRORS = 1000


def read(log: Log) -> list[Found]:
    lines = first_line(log)
    return [_found(FORMAT, one, lines) for one in read_json(log) if one["aiperf_version"].there]


def read_table(log: Log) -> list[Found]:
    """Read the CSV as if it were the JSON: its metrics have the same names, with spaces and capitals."""
    said: dict[str, object] = {}
    header: list[str] = []
    for row in read_csv(log):
        if not row or not row[0].strip():
            header = []
        elif row[0] == "Metric":
            header = row
        elif header and header[0] == "Metric" and (match := _CSV_NAME.match(row[0].strip())):
            cells = {name.strip(): cell for name, cell in zip(header[1:], row[1:], strict=False) if cell.strip()}
            if "Value" in cells:
                cells = {"avg": cells["Value"]}
            name = re.sub(r"[^a-z0-9]+", "_", match[1].lower()).strip("_")
            said.setdefault(name, {"unit": match[2] or "", **cells})
    return [_found(CSV_FORMAT, Node(said), first_line(log))] if said else []


def _found(form: str, said: Node, lines: tuple[Line, ...]) -> Found:
    point = LoadPoint(form, version=said["aiperf_version"].text())
    return filled(point, lambda: _fill(point, said), lines)


def _fill(point: LoadPoint, said: Node) -> None:
    _load(point, said["input_config"])
    answered = said["request_count"]["avg"].count("the number of answers")
    failed = said["error_request_count"]["avg"].number("the number of errors", zero=True)
    point.completed = answered if answered is not None or failed is None else 0
    point.errors = counted({"all": failed})
    for error in said["error_summary"].items()[:_MOST_ERRORS]:
        details = error["error_details"]
        point.first_error = point.first_error or details["message"].last_line() or details["type"].text()
    point.duration_s = _average(said, "benchmark_duration", "the duration")
    point.when_unix_s = _moment(said["start_time"].text())
    point.requests_per_s = _average(said, "request_throughput", "the request throughput")
    point.output_per_s = _average(said, "output_token_throughput", "the output throughput")
    point.total_per_s = _average(said, "total_token_throughput", "the token throughput")
    for theirs, ours in _LATENCIES.items():
        scale = _UNITS.get(said[theirs]["unit"].text())
        for statistic, name in _STATISTICS.items() if scale else ():
            point.latency(ours, name, said[theirs][statistic], scale or 1.0)
    counts = {name: _average(said, name, "the tokens") for name in ("total_osl", "total_usage_completion_tokens")}
    counts["total_osl"] = counts["total_osl"] or _average(said, "total_output_sequence_length", "the tokens")
    client, server = counts["total_osl"], counts["total_usage_completion_tokens"]
    point.count("output_tokens_total", client, "tokens")
    point.count("server_output_tokens", server, "tokens")
    point.compare_counts(client, server)
    if said["was_cancelled"].value is True:
        point.flags.append("cancelled: the run was ended before its time")


def _average(said: Node, name: str, what: str) -> float | None:
    return said[name]["avg"].number(what, zero=True) or None


def _load(point: LoadPoint, config: Node) -> None:
    for model in config["models"]["items"].items()[:1]:
        point.model = model["name"].text()
    kind = config["endpoint"]["type"].text()
    point.protocol = kind if kind in ("chat", "completions") else ""
    for phase in config["phases"].items():
        if phase["name"].text() in ("warmup", "") and len(config["phases"].items()) > 1:
            continue
        point.concurrency = phase["concurrency"].count("the concurrency") or None
        point.rate = phase["rate"].number("the rate") if phase["rate"].there else None
        point.requests = phase["requests"].count("the number of requests") or None
        kind = phase["type"].text()
        if kind in ("poisson", "constant") and point.rate:
            point.arrivals = kind
        if kind:
            point.facts["strategy"] = kind
    for data in config["datasets"].items()[:1]:
        prompts = data["prompts"]
        point.prompt = prompts["isl"]["mean"].count("the prompt's length") or None
        point.generate = prompts["osl"]["mean"].count("the answer's length") or None


def _moment(text: str) -> float | None:
    """Return a time; its files have the machine's own, without a zone, which is then unknown."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None and 1970 < moment.year < 9999 else None
