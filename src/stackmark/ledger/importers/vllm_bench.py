"""Import the results of `vllm bench serve`: its JSON file (`--save-result`, also with `--append-result`), and its printed table.

The file holds each request too where `--save-detailed` asked for it. Its lengths of prompts and answers are taken as asked for
only where all requests had the same. `request_rate` is "inf" where all requests were sent at once, or as `--max-concurrency`
let them. Latencies are in milliseconds; where all requests failed they are 0.0, which does not mean that it answered at once.
"""

import re
from collections import Counter

from stackmark.ledger.importers.documents import Node, first_line, read_json
from stackmark.ledger.importers.found import Found, Line, ResultLines
from stackmark.ledger.importers.load_point import LoadPoint, error_name, filled, whole_mean
from stackmark.ledger.importers.reading import Log

FORMAT = "vllm-bench"
TITLE = "vllm bench serve (its JSON result)"
MARK = re.compile(r'"(?:burstiness|request_goodput)" ?:')
LOG_FORMAT = "vllm-bench-log"
LOG_TITLE = "vllm bench serve (its printed table)"
LOG_MARK = re.compile(r"^=+ Serving Benchmark Result =+$")

_KINDS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "latency"}
_PERCENTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,3})?)_(ttft|tpot|itl|e2el)_ms")
_MS = 1e-3


def read(log: Log) -> list[Found]:
    """Return the load points of a file: one, or one for each line."""
    lines = first_line(log)
    found = []
    for one in read_json(log):
        runs = one.items() or [one]
        found += [_found(run, lines) for run in runs if run["request_throughput"].there]
    return found


def _found(said: Node, lines: tuple[Line, ...]) -> Found:
    point = LoadPoint(FORMAT, model=said["model_id"].text())
    return filled(point, lambda: _fill(point, said), lines)


def _fill(point: LoadPoint, said: Node) -> None:
    backend = said["endpoint_type"].text() or said["backend"].text()
    point.protocol = "chat" if "chat" in backend else "completions" if backend in ("vllm", "openai") else ""
    point.concurrency = said["max_concurrency"].count("the concurrency")
    if said["request_rate"].text() != "inf":
        point.rate = said["request_rate"].number("the rate")
    point.arrivals = _arrivals(said, point)
    point.requests = said["num_prompts"].count("the number of requests") or None
    point.duration_s = said["duration"].number("the duration")
    point.completed = said["completed"].count("the number of answers")
    point.errors, point.first_error = _errors(said, point.completed)
    point.requests_per_s = said["request_throughput"].number("the request throughput", zero=True)
    point.output_per_s = said["output_throughput"].number("the output throughput", zero=True)
    point.total_per_s = said["total_token_throughput"].number("the token throughput", zero=True)
    total_in, total_out = (
        said[f"total_{way}_tokens"].number(f"the {way} tokens", zero=True) for way in ("input", "output")
    )
    point.prompt = _each_length(said["input_lens"], total_in, point.completed)
    point.generate = _each_length(said["output_lens"], total_out, point.completed)
    point.count("prompt_tokens_total", total_in, "tokens")
    point.count("output_tokens_total", total_out, "tokens")
    goodput = said["request_goodput"].number("the goodput", zero=True)
    point.count("goodput", goodput or None, "requests/s")
    for ours, theirs in ((ours, theirs) for theirs, ours in _KINDS.items()):
        point.latency(ours, "mean", said[f"mean_{theirs}_ms"], _MS)
        point.latency(ours, "p50", said[f"median_{theirs}_ms"], _MS)
    for key in said.keys()[:1000]:
        if (match := _PERCENTILE.fullmatch(key)) and float(match[1]) != 50:
            point.latency(_KINDS[match[2]], f"p{float(match[1]):g}", said[key], _MS)
    for name in ("date", "label", "tokenizer_id"):
        if text := said[name].text():
            point.facts[name] = text


def _arrivals(said: Node, point: LoadPoint) -> str:
    if point.rate is None:
        return ""
    burstiness = said["burstiness"].number("the burstiness") if said["burstiness"].text() != "inf" else None
    # Its Poisson arrivals are stretched so that the last one comes exactly at requests/rate (docs/other-load-generators.md).
    return "poisson" if burstiness in (None, 1.0) else "gamma"


def _each_length(lengths: Node, total: float | None, completed: int | None) -> int | None:
    """Return the tokens of each request, where all have the same number; requests that failed are 0 there."""
    seen = {node.value for node in lengths.items() if isinstance(node.value, int) and node.value}
    if not seen:
        return whole_mean(total, completed)
    return int(min(seen)) if len(seen) == 1 and 0 < min(seen) < 10**9 else None


def _errors(said: Node, completed: int | None) -> tuple[dict[str, int], str]:
    """Return the failed requests: counted by the tool, or what is missing of those that were to be sent."""
    failed = said["failed"].count("the number of failed requests")
    asked = said["num_prompts"].count("the number of requests")
    if failed is None:
        failed = max(asked - completed, 0) if asked is not None and completed is not None else 0
    texts = [text for node in said["errors"].items() if (text := node.last_line())]
    kinds = Counter(map(_kind, texts))
    first = texts[0] if texts else ""
    if sum(kinds.values()) != failed:
        return ({"all": failed} if failed else {}), first
    return dict(kinds.most_common(5)), first


def _kind(error: str) -> str:
    """Return the class of the exception in the last line of a trace."""
    name = re.match(r"(?:[A-Za-z_]\w{0,60}\.){0,9}([A-Za-z_]\w{0,60}(?:Error|Timeout|Exception|Disconnected))\b", error)
    return error_name(name[1]) if name else "other"


class VllmTableImporter:
    """Reads the tables that `vllm bench serve` prints; each is a run."""

    _NAMES = {
        "Successful requests": "completed",
        "Failed requests": "failed",
        "Maximum request concurrency": "max_concurrency",
        "Request rate configured (RPS)": "request_rate",
        "Benchmark duration (s)": "duration",
        "Total input tokens": "total_input_tokens",
        "Total generated tokens": "total_output_tokens",
        "Request throughput (req/s)": "request_throughput",
        "Request goodput (req/s)": "request_goodput",
        "Output token throughput (tok/s)": "output_throughput",
        "Total token throughput (tok/s)": "total_token_throughput",
        "Total Token throughput (tok/s)": "total_token_throughput",
    }
    _ROW = re.compile(r"^([A-Z][^:]{1,60}): {1,60}(\S{1,60})\s*$")
    _LATENCY = re.compile(r"(Mean|Median|P[0-9.]{1,6}) (TTFT|TPOT|ITL|E2EL) \(ms\)")
    _SETTINGS = re.compile(r"\bNamespace\(.*\bbackend='([^']{1,60})'.*\bmodel='([^']{1,300})'")
    _BURSTINESS = re.compile(r"^Burstiness factor: ([0-9.]{1,20}) ")

    def __init__(self) -> None:
        self._kept = ResultLines()
        self._said: dict[str, object] | None = None
        self._before: dict[str, object] = {}

    def feed(self, line: Line) -> list[Found]:
        if LOG_MARK.search(line.text):
            found = self.end()
            self._said = dict(self._before)
        elif self._said is None:
            if settings := self._SETTINGS.search(line.text):
                self._before |= {"endpoint_type": settings[1], "model_id": settings[2]}
            elif burstiness := self._BURSTINESS.match(line.text):
                self._before["burstiness"] = burstiness[1]
            return []
        elif re.fullmatch(r"=+", line.text):
            self._kept.add(line)
            return self.end()
        else:
            found = []
            if row := self._ROW.match(line.text):
                self._row(row[1], row[2])
        self._kept.add(line)
        return found

    def _row(self, name: str, value: str) -> None:
        assert self._said is not None
        if key := self._NAMES.get(name):
            self._said.setdefault(key, value)
        elif match := self._LATENCY.fullmatch(name):
            statistic = match[1].lower()
            self._said.setdefault(f"{statistic}_{match[2].lower()}_ms", value)

    def end(self) -> list[Found]:
        if self._said is None:
            return []
        said, self._said = self._said, None
        said.setdefault("request_rate", "inf")
        said.setdefault("burstiness", "1")
        one = _found(Node(said), self._kept.taken())
        return [one]
