"""Read the shipped tables of published results, one number per row, each with its source.

A table is read with the csv module from the package's own data, because the first is consulted at the end of every run, on
machines where nothing but the driver is installed. Reading all of it takes some tens of milliseconds, so it is neither
compressed nor indexed: a wheel is a zip file anyway, and plain CSV can be read by everybody. What belongs to a row that few
rows have (a GEMM's shape, a submitter, the single runs behind a time) is JSON in `extra`.

DeepBench's timings of single operators are a second table of the same columns, six times as long, which is only read where
somebody asks for operators, or searches.

Which rows come nearest to a result is in published_near.py, which are of an operator's problem in published_operators.py,
which answer a few words in published_search.py, what is refused from a user in published_checks.py, and a user's own rows are
kept by added.py.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from stackmark.errors import LedgerError
from stackmark.published.chips import normalise_chip

# Of rows of MLPerf Training, whose model is the name of the task.
TO_TARGET = "training to target"
TASKS = frozenset({"training", "fine-tuning", TO_TARGET, "inference", "operator"})
PRECISIONS = frozenset({"fp32", "tf32", "mixed", "bf16", "fp16", "fp8", "fp4", "int8", "several", "unknown"})
UNITS = frozenset(
    {
        "images/s",
        "sequences/s",
        "samples/s",
        "tokens/s",
        "queries/s",
        "samples/query",
        "TFLOP/s",
        "ms",
        "us",
        "min",
        "W",
    }
)
DATA = frozenset({"synthetic", "real", "unknown"})
# How else people write a unit.
UNIT_SPELLINGS = {
    "img/s": "images/s", "imgs/s": "images/s", "images/sec": "images/s", "images_per_s": "images/s", "fps": "images/s",
    "seq/s": "sequences/s", "sequences/sec": "sequences/s", "samples/sec": "samples/s", "tok/s": "tokens/s",
    "tokens/sec": "tokens/s", "query/s": "queries/s", "qps": "queries/s", "TFLOPS": "TFLOP/s", "TFLOPs": "TFLOP/s",
    "minutes": "min", "µs": "us", "μs": "us", "Watts": "W",
}  # fmt: skip
_DATE = re.compile(r"(19|20)\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", re.ASCII)
_WHOLE = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
NAME, OPERATORS_NAME = "published.csv", "published_deepbench.csv"


@dataclass(frozen=True, slots=True)
class Published:
    """One printed number. `batch` is per device; `value` is the sum over all `count` devices.

    `added` is the id of a row that a user added, and empty in a row that ships.
    """

    workload: str
    model: str
    task: str
    chip: str
    system: str
    count: int
    framework: str
    precision: str
    batch: int | None
    value: float
    unit: str
    data: str
    date: str
    source: str
    at: str
    note: str
    extra: Mapping[str, object] = field(hash=False)
    added: str = field(default="", compare=False)


# The table's columns.
FIELDS = tuple(column.name for column in fields(Published) if column.name != "added")


def as_json(row: Published) -> dict[str, object]:
    """Return the row by its columns; `added` is None for a shipped row."""
    said: dict[str, object] = {name: getattr(row, name) for name in FIELDS}
    return said | {"extra": dict(row.extra), "added": row.added or None}


@cache
def load() -> tuple[Published, ...]:
    """Return the table of whole workloads that ships with the package."""
    return _load(NAME)


@cache
def load_operators() -> tuple[Published, ...]:
    """Return the table of single operators' times that ships with the package."""
    return _load(OPERATORS_NAME)


@cache
def load_all() -> tuple[Published, ...]:
    """Load both tables."""
    return load() + load_operators()


def _load(name: str) -> tuple[Published, ...]:
    try:
        text = files("stackmark.published").joinpath("data", name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"a table of published results cannot be read: {error}", hint=_REINSTALL) from error
    return parse(text, name)


_REINSTALL = "the file belongs to the package: install stackmark again"


def parse(text: str, name: str) -> tuple[Published, ...]:
    """Read and validate a table; raise a `LedgerError` with the line of the first error."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Published] = []
    try:
        header = next(reader, [])
        if tuple(header) != FIELDS:
            raise ValueError(f"the header is not {','.join(FIELDS)}")
        rows.extend(row_of(cells) for cells in reader)
    except (ValueError, csv.Error) as error:
        raise LedgerError(f"{name}, line {max(reader.line_num, 1)}: {error}", hint=_REINSTALL) from error
    return tuple(rows)


def row_of(cells: list[str]) -> Published:
    """Make a row from its cells in the order of FIELDS; raise `ValueError` with what is wrong."""
    if len(cells) != len(FIELDS):
        raise ValueError(f"{len(cells)} cells instead of {len(FIELDS)}")
    (workload, model, task, chip, system, count, framework, precision, batch, value, unit, data, date, source, at, note,
     extra) = cells  # fmt: skip
    for name, cell in (("model", model), ("chip", chip), ("source", source)):
        if not cell:
            raise ValueError(f"{name} is empty")
    for name, cell, allowed in (
        ("task", task, TASKS), ("precision", precision, PRECISIONS), ("unit", unit, UNITS), ("data", data, DATA)
    ):  # fmt: skip
        if cell not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(sorted(allowed))}, got {cell!r}")
    if one_name(chip) != chip:
        raise ValueError(f"chip {chip!r} is not a normalised name ({one_name(chip)!r} is)")
    if not _DATE.fullmatch(date):
        raise ValueError(f"date {date!r} is not YYYY-MM or YYYY-MM-DD")
    return Published(
        workload, model, task, chip, system, _whole("count", count), framework, precision,
        _whole("batch", batch) if batch else None, _positive("value", value), unit, data, date, source, at, note,
        _extra(extra),
    )  # fmt: skip


# Few chips have many rows.
one_name = cache(normalise_chip)


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{name} {text!r} is not a whole number above 0")
    return int(text)


def _positive(name: str, text: str) -> float:
    if not _NUMBER.fullmatch(text) or not 0 < float(text) < math.inf:
        raise ValueError(f"{name} {text!r} is not a number above 0")
    return float(text)


def _extra(text: str) -> Mapping[str, object]:
    if not text:
        return _NOTHING
    try:
        found: object = _JSON.decode(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"extra {text!r} is not a JSON object")
    return found


def _refuse(_constant: str) -> None:
    raise ValueError


# NaN is not JSON. One decoder for all rows: json.loads would make one for each.
_JSON = json.JSONDecoder(parse_constant=_refuse)
_NOTHING: Mapping[str, object] = MappingProxyType({})
