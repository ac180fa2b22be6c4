"""Read the time to train from the MLPerf log that a user's own program wrote: run_start to run_stop, as the rules have it.

Only what a figure needs is read: the two lines, the status and the last quality. `stackmark import` reads whole logs of others.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from stackmark.events import LARGEST, Figure
from stackmark.workloads.workload import Metric, WorkloadFailure

# `:::MLLOG {…}` has milliseconds, `:::MLL SECONDS KEY: {…}` of v0.6 seconds. A rank may stand before either.
_NEW = re.compile(r":::MLLOG (\{.*\})\s*$")
_V06 = re.compile(r":::MLL ([0-9.]{1,30}) (\w{1,60}): (\{.*\})\s*$")
# Of a folder: what a submission calls its logs, else any log.
_PATTERNS = ("result_*.txt", "*.log", "*.txt", "*.out")
LONGEST_LINE = 64 * 1024
MOST_BYTES = 256 * 2**20
# File systems keep times in steps of up to two seconds.
TIME_STEP_S = 2.0
SLACK_S = 1.0


def time_to_train(path: Path, started_unix_s: float, wall_s: float) -> tuple[Figure, list[Metric]]:
    """Return the minutes of the run that a program has just made, and its last quality; raise WorkloadFailure."""
    files = _written_since(path, started_unix_s)
    first, last, status, quality = math.inf, -math.inf, "", math.nan
    for at, key, value, metadata in (entry for file in files for entry in _entries(file)):
        if key == "run_start":
            first = min(first, at)
        elif key == "run_stop" and at >= last:
            last, status = at, str(metadata.get("status", value))[:40]
        elif key == "eval_accuracy":
            quality = _number(value)
    named = ", ".join(file.name for file in files[:3])
    if math.isinf(first) or math.isinf(last):
        missing = "run_start" if math.isinf(first) else "run_stop"
        raise _no_figure(f"{named} has no {missing} line: the training did not get there")
    if status != "success":
        raise _no_figure(f"{named}: run_stop has the status {status!r}, not success: the target was not reached")
    seconds = last - first
    if not 0 < seconds <= wall_s * 1.01 + SLACK_S:
        raise _no_figure(f"{named} has a run of {seconds:.6g} s, but the program ran for {wall_s:.6g} s")
    figure = Figure(name="time to target", value=seconds / 60, unit="min", higher_is_better=False)
    good = math.isfinite(quality) and abs(quality) <= LARGEST
    return figure, [Metric("quality", quality, "", True)] if good else []


def _no_figure(message: str) -> WorkloadFailure:
    return WorkloadFailure("no_figure", message, "look at the log, or measure the wall time: leave out --mlperf-log")


def _written_since(path: Path, started_unix_s: float) -> list[Path]:
    """Return the logs of this run: a file that is named, or those of a folder that were written since it began."""
    if path.is_dir():
        groups = (sorted(path.rglob(pattern)) for pattern in _PATTERNS)
        named = next((files for group in groups if (files := [file for file in group if file.is_file()])), [])
    else:
        named = [path] if path.is_file() else []
    fresh = [file for file in named if file.stat().st_mtime >= started_unix_s - TIME_STEP_S]
    if not fresh:
        older = f": {named[0].name} is older than this run" if named else ""
        raise _no_figure(f"the program wrote no MLPerf log to {path}{older}")
    return fresh


Entry = tuple[float, str, object, dict[str, object]]


def _entries(file: Path) -> Iterator[Entry]:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from _read(iter(lambda: lines.readline(LONGEST_LINE), ""), file)
    except OSError as error:
        raise _no_figure(f"{file} cannot be read: {error.strerror}") from error


def _read(lines: Iterable[str], file: Path) -> Iterator[Entry]:
    size = 0
    for line in lines:
        size += len(line)
        if size > MOST_BYTES:
            raise _no_figure(f"{file} is larger than {MOST_BYTES // 2**20} MiB")
        if ":::ML" not in line:
            continue
        if found := _NEW.search(line):
            body = _object(found[1])
            seconds, key = _number(body.get("time_ms")) / 1000, body.get("key")
        elif found := _V06.search(line):
            body, key = _object(found[3]), found[2]
            seconds = _number(found[1])
        else:
            continue
        metadata = body.get("metadata")
        if isinstance(key, str) and math.isfinite(seconds):
            yield seconds, key, body.get("value"), metadata if isinstance(metadata, dict) else {}


def _number(value: object) -> float:
    """Return a quality; of several by name (boxes and masks of Mask R-CNN) the smallest, as each had to reach its target."""
    if isinstance(value, dict):
        inner = value.get("accuracy", value)
        parts = (
            [_number(part) for part in inner.values() if not isinstance(part, dict)] if isinstance(inner, dict) else []
        )
        return min(parts, default=math.nan)
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
