"""Import LoadGen's mlperf_log_summary.txt and mlperf_log_detail.txt.

Each scenario has its own figure: a latency percentile for SingleStream and MultiStream (in early versions, samples per
query for the latter), samples a second for Server and Offline. Server has two such rates, and which of them is the headline
changed between versions; here it is the completed one wherever it is given. What LoadGen calls INVALID is stored as
invalid: its number is kept and is not a result. Neither file says which model was served, unless the SUT's name does; in a file
with several results, the lines between them may (serving_names.py).
"""

import json
import re

from pydantic import JsonValue

from stackmark.events import Figure
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, LoggedNumber, ResultLines, number
from stackmark.ledger.importers.serving_names import ServedModel, known_model, served
from stackmark.spec import Scalar

FORMAT = "loadgen"
TITLE = "MLPerf LoadGen (mlperf_log_summary.txt, mlperf_log_detail.txt)"
MARK = re.compile(
    r"^MLPerf Results Summary\s*$|^No warnings encountered during test"
    r'|:::MLLOG \{[^{]*"key": ?"(?:loadgen_version|effective_scenario|requested_scenario|result_validity)"'
)

_BEGINS = re.compile(r"MLPerf Results Summary\s*$")
_DETAIL = re.compile(r":::MLLOG (\{.*)$")
_CONSTRAINT = re.compile(r"^\s*(\S.{0,100}? satisfied) *: *NO\b")
# What the two files call the same thing.
_SUMMARY = {
    "SUT name": "sut_name",
    "Scenario": "scenario",
    "Mode": "mode",
    "Result is": "validity",
    "Completed samples per second": "completed",
    "Scheduled samples per second": "scheduled",
    "Samples per second": "offline",
    "Samples per query": "per_query",
    "Tokens per second": "tokens",
    "Completed tokens per second": "tokens",
    "Mean latency (ns)": "mean_ns",
    "target_qps": "target_qps",
    "target_latency (ns)": "target_latency_ns",
    "samples_per_query": "samples_per_query",
}
_DETAILED = {
    "sut_name": "sut_name",
    "effective_scenario": "scenario",
    "effective_test_mode": "mode",
    "result_validity": "validity",
    "result_invalid_reason": "reason",
    "result_completed_samples_per_sec": "completed",
    "result_scheduled_samples_per_sec": "scheduled",
    "result_samples_per_second": "offline",
    "result_tokens_per_second": "tokens",
    "result_mean_latency_ns": "mean_ns",
    "effective_target_qps": "target_qps",
    "effective_target_latency_ns": "target_latency_ns",
    "effective_samples_per_query": "samples_per_query",
}
_PERCENTILE = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?)(th)? percentile latency \(ns\)")
_DETAILED_PERCENTILE = re.compile(r"result_([0-9]{1,2}(?:\.[0-9]+)?)_percentile_(?:per_query_)?latency_ns")
# Percentiles, constraints and errors that are kept of one result; LoadGen prints a dozen of each.
_MOST = 100
# Of one value; the longest that LoadGen writes is a sentence.
_LONGEST = 1000
_SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
# The percentile that a latency scenario is judged by, where the headline does not name it.
_JUDGED = {"SingleStream": 90.0, "MultiStream": 99.0}


class LoadGenImporter:
    def __init__(self) -> None:
        self._kept = ResultLines()
        self._model = ServedModel()
        self._forget()

    def _forget(self) -> None:
        self._said: dict[str, tuple[str, Line]] = {}
        self._percentiles: dict[float, tuple[str, Line]] = {}
        self._judged: float | None = None
        self._constraints: list[str] = []
        self._errors: list[str] = []
        self._begun = False

    def feed(self, line: Line) -> list[Found]:
        found: list[Found] = []
        before = self._model.workload
        if self._model.feed(line.text):
            after, self._model.workload = self._model.workload, before
            found = self.end()  # what was read so far belongs to the name before
            self._model.workload = after
        detail = _DETAIL.search(line.text) if line.text.endswith("}") else None
        if _BEGINS.search(line.text) or (detail and '"loadgen_version"' in line.text):
            found += self.end()
            self._begun = True
        if detail:
            self._detail(detail[1], line)
        elif match := _CONSTRAINT.match(line.text):
            self._constraints[_MOST:] = [match[1].strip()]
        elif ":" in line.text:
            name, _, value = line.text.partition(":")
            self._pair(name.strip(), value.strip(), line)
        elif re.search(r"\bNo warnings encountered during test", line.text):
            self._begun = True
        elif re.match(r"\s*[0-9]+ ERRORS? encountered", line.text):
            self._errors[_MOST:] = [line.text.strip()[:300]]
        self._kept.add(line)
        return found

    def _pair(self, name: str, value: str, line: Line) -> None:
        if match := _PERCENTILE.fullmatch(name):
            if match[2]:  # the headline: the percentile that it is judged by
                self._judged = float(match[1])
            self._percentile(float(match[1]), value, line)
        elif name in _SUMMARY:
            self._said.setdefault(_SUMMARY[name], (value[:_LONGEST], line))

    def _percentile(self, percentile: float, value: str, line: Line) -> None:
        if len(self._percentiles) < _MOST:
            self._percentiles.setdefault(percentile, (value, line))

    def _detail(self, text: str, line: Line) -> None:
        try:
            body: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(body, dict) or not isinstance(key := body.get("key"), str):
            return
        value = body.get("value")
        if match := _DETAILED_PERCENTILE.fullmatch(key):
            # Where queries have several samples, that of the query comes first, and counts.
            self._percentile(float(match[1]), _text(value), line)
        elif key == "effective_target_latency_percentile" and isinstance(value, float) and 0 < value < 1:
            self._judged = round(100 * value, 3)
        elif key in _DETAILED:
            self._begun = True
            self._said[_DETAILED[key]] = (_text(value), line)
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and metadata.get("is_error") is True:
            self._errors[_MOST:] = [_text(value)[:300]]

    def end(self) -> list[Found]:
        if not self._begun:
            self._kept.taken()
            return []
        try:
            found = self._found(self._figure(), None)
        except BadNumber as error:
            found = self._found(None, Failure(error.kind, str(error)))
        except _NoResult as error:
            found = self._found(None, Failure("cut_off", str(error), "only a performance run has a figure"))
        self._forget()
        return [found]

    def _figure(self) -> Figure:
        scenario, mode = self._text("scenario"), self._text("mode")
        if "Accuracy" in mode or (not scenario and not self._percentiles):
            raise _NoResult("the log has no performance result: it is from an accuracy run, or was cut off")
        if scenario not in _SCENARIOS:
            raise _NoResult(f"the log's scenario must be one of {', '.join(_SCENARIOS)}, got {scenario!r}")
        if "per_query" in self._said:
            return Figure(name="samples per query", value=self._number("per_query"), unit="samples/query")
        if scenario in _JUDGED:
            percentile = self._judged or _JUDGED[scenario]
            if percentile not in self._percentiles:
                raise _NoResult(f"the log has no {percentile:g}th percentile of the latency")
            text, line = self._percentiles[percentile]
            ms = number(text, line, "the latency") / 1e6
            return Figure(name=f"p{percentile:g} latency", value=ms, unit="ms", higher_is_better=False)
        name = "offline" if scenario == "Offline" else "completed" if "completed" in self._said else "scheduled"
        if name not in self._said:
            raise _NoResult("the log has no samples per second")
        return Figure(name=f"{name} samples per second", value=self._number(name), unit="samples/s")

    def _found(self, figure: Figure | None, failure: Failure | None) -> Found:
        validity = self._text("validity")
        invalid: tuple[str, ...] = ()
        if figure and validity != "VALID":
            why = self._constraints or [self._text("reason") or "the log does not say why"]
            invalid = (f"LoadGen says {validity or 'nothing about validity'}: {'; '.join(why)}",)
        return Found(
            workload=self._model.workload or self._named_by_sut(),
            params=self._params(),
            program=FORMAT,
            figure=figure,
            failure=failure,
            sample="query",
            said=self._further() if figure else (),
            invalid=invalid,
            flags=tuple(f"loadgen-errors: {error}" for error in self._errors[:5]),
            facts=tuple((name, self._text(name)) for name in ("sut_name", "mode", "validity") if self._text(name)),
            lines=self._kept.taken(),
        )

    def _named_by_sut(self) -> str | None:
        name = known_model(self._text("sut_name"))
        return served(name) if name else None

    def _params(self) -> dict[str, Scalar]:
        params: dict[str, Scalar] = {}
        if scenario := self._text("scenario"):
            params["scenario"] = scenario
        # What a Server run was asked for is part of what it did: its rate follows it.
        names = ("target_qps", "target_latency_ns") if scenario == "Server" else ("samples_per_query",)
        if scenario != "Offline":
            params |= {name: self._text(name) for name in names if self._text(name)}
        return params

    def _further(self) -> tuple[LoggedNumber, ...]:
        """All that it says of latencies and rates, each where it can be read."""
        said = []
        units = {"completed": "samples/s", "scheduled": "samples/s", "offline": "samples/s", "tokens": "tokens/s"}
        for name, unit in units.items():
            if name in self._said:
                said.append(LoggedNumber(f"{name}_per_s", self._number(name), unit, True))
        for percentile, (text, line) in self._percentiles.items():
            said.append(LoggedNumber(f"latency_p{percentile:g}", number(text, line, "the latency") / 1e6, "ms", False))
        if "mean_ns" in self._said:
            said.append(LoggedNumber("latency_mean", self._number("mean_ns") / 1e6, "ms", False))
        return tuple(said)

    def _text(self, name: str) -> str:
        return self._said[name][0] if name in self._said else ""

    def _number(self, name: str) -> float:
        text, line = self._said[name]
        return number(text, line, name.replace("_", " "))


def _text(value: JsonValue) -> str:
    return value[:_LONGEST] if isinstance(value, str) else json.dumps(value)[:_LONGEST]


class _NoResult(ValueError):
    """Why a log has no figure."""
