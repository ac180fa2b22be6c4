"""Import logs of MLPerf Training, in the three spellings of its rounds.

    :::MLPv0.5.0 resnet 1541720273.929603577 (file.py:12) run_stop: {"success": true}          seconds
    :::MLL 1560881731.835 run_start: {"value": null, "metadata": {…}}                          seconds
    :::MLLOG {"time_ms": 1594790166560, "key": "run_start", "value": null, "metadata": {…}}    milliseconds

The time of a run is from the first `run_start` to the last `run_stop` with the status success. MiniGo is the exception:
there it is `eval_result`'s timestamp, when the first checkpoint was saved that later, off the clock, beat the target.
Values drift between submitters: accuracies as text or as objects, metadata with single quotes. What is not understood is
left out; only times are insisted on.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.events import Figure
from stackmark.ledger.importers.found import (
    LARGEST,
    BadNumber,
    Failure,
    Found,
    Line,
    LoggedNumber,
    ResultLines,
    name_of,
)
from stackmark.ledger.importers.tensorflow_devices import TensorFlowDevices
from stackmark.ranks import MOST_DEVICES
from stackmark.spec import Scalar
from stackmark.units import END_OF_TIME_UNIX_S

FORMAT = "mlperf-training"
TITLE = "MLPerf Training (:::MLLOG, :::MLL, :::MLPv0.5.0 lines)"
MARK = re.compile(
    r":::MLL [0-9]|:::MLPv0\.[0-9.]+ \w+ [0-9]"
    r'|:::MLLOG \{[^{]*"key": ?"(?:submission_\w+|init_start|run_start|run_stop|block_start|epoch_start|eval_accuracy)"'
)

_OLD = re.compile(r":::MLPv0\.[0-9.]+ (\w+) (\S+) \([^)]{0,300}\) (\w+)(?:: (.*))?$")
# Of lines that end in a brace: what follows the first mark is one object, and nothing is tried twice.
_V06 = re.compile(r":::MLL (\S+) (\w+): (\{.*)$")
_NEW = re.compile(r":::MLLOG (\{.*)$")
# An entry of metadata is a few hundred characters; nobody needs to parse a megabyte of it.
_LONGEST = 64 * 1024
# Accuracies lie one object deep, or two.
_DEEPEST = 4
# A day has 1440 minutes; no run of a submission took a year.
LONGEST_S = 366 * 86400.0
SHORTEST_S = 1e-6


@dataclass(frozen=True)
class TrainingLog:
    """One run of one benchmark, from its log."""

    benchmark: str | None
    # None where the run failed, and then `failure` says why.
    seconds: float | None
    failure: Failure | None
    # From the first init_start to run_start.
    init_s: float | None
    quality: float | None
    evaluations: int
    batch: int | None
    platform: str | None
    organisation: str | None
    accelerator: str | None
    devices: int
    framework: str | None
    started_unix_s: float | None
    ruleset: str
    # What the submission says of its stack (driver, cuda, os, memory …), by the names of `_STACK`.
    stack: tuple[tuple[str, str], ...] = ()


class MlperfTrainingImporter:
    def __init__(self) -> None:
        self._kept = ResultLines()
        self._reader = LogReader()
        self._gpus = TensorFlowDevices()

    def feed(self, line: Line) -> list[Found]:
        self._gpus.feed(line)
        if ":::ML" not in line.text:
            return []
        ended = self.end() if self._reader.starts_next_run(line) else []
        if self._reader.feed(line):
            self._kept.add(line)
        return ended

    def end(self) -> list[Found]:
        reader, self._reader = self._reader, LogReader()
        return [_found(reader.log(), self._kept, self._gpus.chip())] if reader.begun else []


def training_logs(lines: Iterable[Line]) -> list[TrainingLog]:
    """Return the runs in a log, whichever rank wrote each line."""
    found, reader = [], LogReader()
    for line in lines:
        if ":::ML" not in line.text:
            continue
        if reader.starts_next_run(line):
            found.append(reader.log())
            reader = LogReader()
        reader.feed(line)
    return [*found, reader.log()] if reader.begun else found


class LogReader:
    """Reads the lines of one run."""

    def __init__(self) -> None:
        self.begun = False
        self._first: dict[str, float] = {}
        self._last_stop: float | None = None
        self._status = ""
        self._values: dict[str, JsonValue] = {}
        self._quality: float | None = None
        self._evaluations = 0
        self._checkpoint_s: float | None = None
        self._bad: BadNumber | None = None
        self._ruleset = ""

    def starts_next_run(self, line: Line) -> bool:
        """Return whether this line starts the next run of a file with several."""
        ended = self._last_stop is not None or self._checkpoint_s is not None
        return ended and bool(re.search(r"\bsubmission_benchmark\b|\binit_start\b", line.text))

    def feed(self, line: Line) -> bool:
        try:
            event = _event(line)
        except BadNumber as error:
            self._bad = self._bad or error
            return True
        if event is None:
            return False
        self.begun = True
        ruleset, at, key, value, metadata = event
        self._ruleset = self._ruleset or ruleset
        self._first.setdefault(key, at)
        if key == "run_stop":
            self._last_stop = at
            self._status = _status(value, metadata)
        elif key == "eval_accuracy":
            self._evaluations += 1
            self._quality = _accuracy(value)
        elif key == "eval_result":
            stamp = metadata.get("timestamp")
            if isinstance(stamp, int | float) and (moment := _finite(stamp)) is not None:
                self._checkpoint_s = moment
        elif key.startswith("submission_") or key in ("global_batch_size", "benchmark"):
            self._values.setdefault(key, value)
        return True

    def log(self) -> TrainingLog:
        entry = _spelled(self._values.get("submission_entry") or "")
        devices = _devices(entry)
        seconds, failure = self._outcome(devices)
        start, init = self._first.get("run_start"), self._first.get("init_start")
        batch = self._values.get("global_batch_size")
        return TrainingLog(
            benchmark=_text(self._values.get("submission_benchmark") or self._values.get("benchmark")),
            seconds=seconds,
            failure=failure,
            init_s=start - init if start is not None and init is not None and start >= init else None,
            quality=self._quality,
            evaluations=self._evaluations,
            batch=batch if isinstance(batch, int) and 0 < batch <= LARGEST else None,
            platform=_text(self._values.get("submission_platform")),
            organisation=_text(self._values.get("submission_org")),
            accelerator=_quoted(entry, "accelerator"),
            devices=devices if devices <= MOST_DEVICES else 1,
            framework=_quoted(entry, "framework"),
            started_unix_s=start,
            ruleset=self._ruleset,
            stack=tuple(_stack(entry)),
        )

    def _outcome(self, devices: int) -> tuple[float | None, Failure | None]:
        if self._bad:
            return None, Failure(self._bad.kind, str(self._bad))
        if "run_start" not in self._first:
            return None, Failure("cut_off", "the log has no run_start: the run ended before its clock started")
        if self._checkpoint_s is not None:
            seconds = self._checkpoint_s
        elif self._last_stop is None:
            return None, Failure("cut_off", "the log has no run_stop: the run was stopped, or the log is incomplete")
        elif self._status != "success":
            return None, Failure("aborted", f"run_stop has the status {self._status!r}, not success")
        else:
            seconds = self._last_stop - self._first["run_start"]
        if not SHORTEST_S <= seconds < LONGEST_S:
            return None, Failure("bad_number", f"the run would have taken {seconds:.6g} s by its own clock")
        if devices > MOST_DEVICES:
            said = f"the log claims {devices:,} accelerators; at most {MOST_DEVICES:,} are accepted"
            return None, Failure("bad_number", said)
        return seconds, None


Parsed = tuple[str, float, str, JsonValue, dict[str, JsonValue]]


def _event(line: Line) -> Parsed | None:
    """Ruleset, unix seconds, key, value and metadata of a line; None where it is none of ours."""
    whole = line.text.endswith("}")
    if whole and (match := _V06.search(line.text)):
        body = _object(match[3])
        return "0.6", _time(match[1], line), match[2], body.get("value"), _metadata(body)
    if whole and (match := _NEW.search(line.text)):
        body = _object(match[1])
        key, at = body.get("key"), body.get("time_ms")
        if not isinstance(key, str) or not isinstance(at, int | float):
            return None
        return "0.7 or later", _time(_spelled(at), line, unit_s=1e-3), key, body.get("value"), _metadata(body)
    if match := _OLD.search(line.text):
        body = _object(match[4] or "")
        key = match[3]
        if key == "run_final":
            return None
        return "0.5", _time(match[2], line), key, body.get("value", match[4]), body
    return None


def _time(text: str, line: Line, unit_s: float = 1.0) -> float:
    """Unix seconds. Milliseconds where seconds belong lie past the year 9999, and are refused with the rest."""
    try:
        at = float(text) * unit_s
    except ValueError:
        at = math.nan
    if not (math.isfinite(at) and 0 < at < END_OF_TIME_UNIX_S):
        raise BadNumber(f"line {line.number}: the time is {text[:40]!r}, which is not a date before the year 10000")
    return at


def _spelled(value: object) -> str:
    try:
        return str(value)[:_LONGEST]
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, a list nested too deeply
        return ""


def _finite(value: object) -> float | None:
    """A number that may stand as text, where it is one that a double holds."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None


def _object(text: str) -> dict[str, JsonValue]:
    """JSON, or the same with Python's quotes, as one submitter wrote it."""
    if len(text) > _LONGEST:
        return {}
    for read in (json.loads, ast.literal_eval):
        try:
            with warnings.catch_warnings():  # what Python thinks of the style of a broken line
                warnings.simplefilter("ignore")
                found = read(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, dict):
            return {key: value for key, value in found.items() if isinstance(key, str)}
    return {}


def _metadata(body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _status(value: JsonValue, metadata: dict[str, JsonValue]) -> str:
    if "success" in metadata:  # as v0.5 wrote it
        return "success" if metadata["success"] is True else "aborted"
    return _spelled(metadata.get("status", value if isinstance(value, str) else "none"))[:40]


def _accuracy(value: JsonValue, depth: int = 0) -> float | None:
    """A number, a number as text, or an object of which the smallest counts: each of them had to reach its target."""
    if isinstance(value, dict):
        inner = value.get("accuracy", value) if depth < _DEEPEST else None
        parts = inner.values() if isinstance(inner, dict) else [inner]
        numbers = [number for part in parts if (number := _accuracy(part, depth + 1)) is not None]
        return min(numbers) if numbers else None
    return _finite(value)


def _text(value: JsonValue) -> str | None:
    return value.strip()[:200] or None if isinstance(value, str) else None


def _quoted(entry: str, name: str) -> str | None:
    """A field of the submission's entry, which is Python's spelling of a dictionary inside another's."""
    match = re.search(rf"'{name}': \\?['\"]([^'\"\\]+)", entry)
    return match[1].strip() or None if match and match[1].strip() not in ("", "N/A") else None


# Which field of a submission's entry holds which part of the stack.
_STACK = {
    "driver": "cuda_driver_version", "cuda": "cuda_version", "cudnn": "cudnn_version", "nccl": "nccl_version", "os": "os",
    "memory": "sys_mem_size",
}  # fmt: skip


def _stack(entry: str) -> Iterator[tuple[str, str]]:
    for name, field in _STACK.items():
        if said := _quoted(entry, field):
            yield name, said[:200]
    # Disks come in any order, also in logs of one machine.
    disks = " + ".join(sorted(disk.strip() for disk in (_quoted(entry, "sys_storage_size") or "").split("+")))
    if said := ", ".join(part for part in (_quoted(entry, "sys_storage_type"), disks) if part):
        yield "storage", said[:200]


def _devices(entry: str) -> int:
    each, nodes = _quoted(entry, "num_accelerators") or "", _quoted(entry, "num_nodes") or "1"
    if not re.fullmatch(r"[0-9]{1,6}", each) or not re.fullmatch(r"[0-9]{1,6}", nodes):
        return 1
    return max(int(each) * int(nodes), 1)


def _found(log: TrainingLog, kept: ResultLines, chip: str | None) -> Found:
    params: dict[str, Scalar] = {"global_batch": log.batch} if log.batch else {}
    said = []
    if log.quality is not None:
        said.append(LoggedNumber("quality", log.quality, "", True))
    if log.init_s is not None:
        said.append(LoggedNumber("init_s", log.init_s, "s", False))
    said.append(LoggedNumber("evaluations", float(log.evaluations), "", False))
    minutes = None if log.seconds is None else log.seconds / 60
    facts = {"platform": log.platform, "submitter": log.organisation, "ruleset": log.ruleset, **dict(log.stack)}
    return Found(
        workload=name_of("fit", log.benchmark) if log.benchmark else None,
        params=params,
        program=FORMAT,
        figure=None if minutes is None else Figure(name="time to target", value=minutes, unit="min", higher_is_better=False),
        failure=log.failure,
        ranks=log.devices,
        chip=log.accelerator or chip,
        framework=log.framework,
        sample="run",
        wall_s=log.seconds,
        said=tuple(said),
        facts=tuple((name, value) for name, value in facts.items() if value),
        when_unix_s=log.started_unix_s,
        lines=kept.taken(),
    )  # fmt: skip
