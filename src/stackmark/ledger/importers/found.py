"""The results of an importer: one result, or the reason why there is none, and only what the log itself says.

A parameter that the log does not name is absent, never a default: whoever compares two runs must be able to see that it
was not known. Numbers are read strictly. A rate of `nan`, a negative time or one that no machine reaches makes the run a
failed one with the line it stands in, since a log with one such number is no witness for the others.
"""

import math
import re
from dataclasses import dataclass
from typing import Protocol

from stackmark.events import Figure
from stackmark.spec import Scalar, Spec

# Past any rate, time in nanoseconds or count of operations that a log may truly hold; below it a product stays finite.
LARGEST = 1e18
# Below any time in seconds or rate that a log may truly hold; above it a reciprocal stays finite.
SMALLEST = 1e-18
# What is kept of a log with each result: a person reads no more, and the file is still where it was.
LINES_KEPT = 1000
LINE_KEPT = 4096
# Rows that a program displayed on its way, with one result. Past them only the last is kept.
MOST_ROWS = 20_000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# Of a name that stands in a log, what may stand in the name of a workload.
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


class BadNumber(ValueError):
    """An impossible number; the sentence names the line."""

    def __init__(self, message: str, kind: str = "bad_number") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Line:
    """A line of a log: `raw` as in the file, `text` without colours and without what a log reader put before it.

    `source` is who printed it, where the log reader says so: one file may hold the output of several pods.
    """

    number: int
    raw: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Failure:
    kind: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class LoggedNumber:
    """An additional number in the log besides its figure."""

    name: str
    value: float
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class Found:
    """One result of a log, with a `figure`, a `failure`, or a worker's own `events`."""

    # None where the log does not say what was run.
    workload: str | None
    params: dict[str, Scalar]
    # The program that printed it, as `--format` names it.
    program: str
    figure: Figure | None = None
    failure: Failure | None = None
    ranks: int = 1
    chip: str | None = None
    framework: str | None = None
    # What one of the things that the figure counts is: an image, a call, a query.
    sample: str = "sample"
    operations_per_sample: float | None = None
    # The measured part as a whole, where the log tells how long it took.
    wall_s: float | None = None
    # Seconds of each step, only where the log has every one of them.
    step_s: tuple[float, ...] = ()
    samples_per_step: int = 1
    # The rows that the program displayed on its way, as they are.
    rows: tuple[dict[str, float], ...] = ()
    said: tuple[LoggedNumber, ...] = ()
    # Why the program itself calls its result invalid, and what else is odd about it, a sentence each.
    invalid: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    facts: tuple[tuple[str, Scalar], ...] = ()
    when_unix_s: float | None = None
    # Where it ran and what to call it, where the source says so for each of its results: a row of a table.
    place: str | None = None
    label: str = ""
    # A worker of ours: its own events as they came, and the spec that it says it ran. There is neither figure nor failure then.
    events: tuple[str, ...] = ()
    spec: Spec | None = None
    lines: tuple[Line, ...] = ()


class Importer(Protocol):
    """Reads the lines of one source, and returns its results at the end."""

    def feed(self, line: Line) -> list[Found]: ...
    def end(self) -> list[Found]: ...


def cut_line(line: Line) -> Line:
    """Return a line as it is stored with a result."""
    return Line(line.number, line.raw[:LINE_KEPT], "", line.source)


class ResultLines:
    """The lines that belong to a result, up to a number; of a very long log the first and the last."""

    def __init__(self) -> None:
        self._first: list[Line] = []
        self._last: list[Line] = []

    def add(self, line: Line) -> None:
        line = cut_line(line)
        if len(self._first) < LINES_KEPT // 2:
            self._first.append(line)
            return
        self._last.append(line)
        if len(self._last) > LINES_KEPT:
            del self._last[: LINES_KEPT // 2]

    def taken(self) -> tuple[Line, ...]:
        lines = (*self._first, *self._last[-LINES_KEPT // 2 :])
        self._first, self._last = [], []
        return lines


def number(text: str, line: Line, what: str, *, zero: bool = False) -> float:
    """Parse a finite number above zero (or zero, where allowed)."""
    if not _NUMBER.fullmatch(text):
        kind = "not_finite" if text.lower().lstrip("+-") in ("nan", "inf", "infinity") else "bad_number"
        raise BadNumber(f"line {line.number}: {what} is {text[:40]!r}, which is not a number", kind)
    value = float(text)
    if math.isinf(value) or value > LARGEST:
        raise BadNumber(f"line {line.number}: {what} is {text[:40]}, more than any machine reaches")
    if value < 0 or (value == 0 and not zero):
        raise BadNumber(f"line {line.number}: {what} must be above 0, got {text[:40]}")
    if 0 < value < SMALLEST:
        raise BadNumber(f"line {line.number}: {what} must be at least {SMALLEST:g}, got {text[:40]}")
    return value


def whole_number(text: str, line: Line, what: str) -> int:
    value = number(text, line, what)
    if value != int(value):
        raise BadNumber(f"line {line.number}: {what} must be a whole number, got {text[:40]}")
    return int(value)


def scalar_of(text: str) -> Scalar:
    """Return the value of a parameter as a person writes it: a number where possible, else text."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", text):
        return float(text)
    return text


def name_of(family: str, text: str) -> str:
    """Return a workload's name from what a log calls it: `fit/mask_rcnn`."""
    name = _NOT_IN_NAMES.sub("-", text.strip().lower())[:80].strip("-._") or "unnamed"
    return f"{family}/{name}"
