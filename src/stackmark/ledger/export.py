"""Export runs, or what was sampled next to them, for other programs: CSV, JSON, JSON lines, Parquet.

Rows come from the ledger in batches and leave in batches, so a million runs need no more memory than a few thousand. A
file appears whole or not at all: it is written next to its name and then renamed. JSON keeps the spec and the options as
objects; CSV and Parquet keep them as JSON text, because their keys differ from workload to workload.
"""

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from sqlalchemy import BigInteger, Double, Integer

from stackmark.errors import LedgerError, SpecError, StreamError
from stackmark.events import Event, Phase, Sample, read_event
from stackmark.figures import figure_fields
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.schema import JsonText, runs
from stackmark.ledger.store import Ledger
from stackmark.ranks import MOST_DEVICES
from stackmark.schemas import schema_name, with_schema
from stackmark.verdict.telemetry import measured_part, unit_of

Format = Literal["csv", "json", "jsonl", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
FIGURE = tuple(figure_fields(None, None))
RANKS = "ranks"
COLUMNS = [*(column.name for column in runs.c), *FIGURE, RANKS]
_AS_JSON = {column.name for column in runs.c if isinstance(column.type, JsonText)}
# Rows in one Parquet row group: enough to compress well, a few MiB in memory.
_ROW_GROUP = 10_000

Row = Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """What is exported: its rows, their columns, and what Parquet calls the kinds of those."""

    schema: str
    columns: Sequence[str]
    rows: Callable[[Ledger, RunFilter], Iterator[Row]]
    # Makes pyarrow's fields, given the module.
    fields: Callable[[Any], list[Any]]


def export_to_file(ledger: Ledger, wanted: RunFilter, form: Format, path: Path, *, samples: bool = False) -> int:
    """Write the selected runs, or their samples, into a file, atomically; return the number of rows."""
    # A link stays a link, to the new file; a pipe or a device is written, not replaced.
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                return export_to_stream(ledger, wanted, form, device, samples=samples)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                written = export_to_stream(ledger, wanted, form, out, samples=samples)
                out.flush()
                os.fsync(out.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise SpecError(f"cannot write {path}: {error.strerror}", hint="use another file with -o") from error
    except OSError as error:
        raise LedgerError(
            f"cannot write {path}: {error.strerror}; no file was left", hint="free space on the disk", kind="full"
        ) from error
    return written


def export_to_stream(ledger: Ledger, wanted: RunFilter, form: Format, out: BinaryIO, *, samples: bool = False) -> int:
    """Write the selected runs, or their samples, oldest first, to a binary stream such as standard output; return the number
    of rows."""
    table = SAMPLES if samples else RUNS
    rows = table.rows(ledger, wanted)
    if form == "parquet":
        return _parquet(table, rows, out)
    # JSON may hold half of a surrogate pair; it leaves as it came, `\\ud800`, which is JSON again.
    text = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", newline="", write_through=False)
    try:
        if form == "csv":
            return _csv(table, rows, text)
        return _json(table, rows, text, lines=form == "jsonl")
    finally:
        text.detach()  # flushes, and leaves the stream open: it is not ours


def _runs(ledger: Ledger, wanted: RunFilter) -> Iterator[Row]:
    return (_with_figure(row) for row in ledger.every(wanted))


def _with_figure(row: Row) -> Row:
    """Add the figure in its own terms and the ranks behind the columns of the ledger, from which both are computed."""
    spec = row["spec"]
    ranks = spec.get("ranks") if isinstance(spec, dict) else None
    said = type(ranks) is int and 0 < ranks <= MOST_DEVICES
    return {**row, **figure_fields(row["rate_per_s"], row["rate_unit"]), RANKS: ranks if said else 1}


def _samples(ledger: Ledger, wanted: RunFilter) -> Iterator[Row]:
    """Yield each quantity of each sample: one run in memory at a time."""
    for row in ledger.every(wanted):
        run_id = str(row["id"])
        events = list(_events(ledger.stream(run_id)))
        begin_s, end_s = measured_part(events, 0)
        for event in events:
            if not isinstance(event, Sample) or event.at_s is None:
                continue
            inside = begin_s is not None and end_s is not None and begin_s <= event.at_s <= end_s
            for name, value in event.values.items():
                yield {
                    "run": run_id, "experiment": row["experiment_id"], "workload": row["workload"], "place": row["place"],
                    "arm": row["arm"], "block": row["block"], "rank": event.rank, "at_s": event.at_s, "measured": inside,
                    "name": name, "unit": unit_of(name), "value": value,
                }  # fmt: skip


def _events(lines: Sequence[str]) -> Iterator[Event]:
    """Yield samples and phases up to the line where a stream breaks."""
    for number, line in enumerate(lines, 1):
        try:
            event = read_event(line, number)
        except StreamError:
            return
        if isinstance(event, Sample | Phase):
            yield event


def _fields_of_runs(pyarrow: Any) -> list[Any]:
    kinds = {Double: pyarrow.float64(), BigInteger: pyarrow.int64(), Integer: pyarrow.int64()}
    fields = [
        pyarrow.field(c.name, kinds.get(type(c.type), pyarrow.string()), nullable=bool(c.nullable)) for c in runs.c
    ]
    figure = zip(FIGURE, (pyarrow.float64(), pyarrow.string(), pyarrow.bool_()), strict=True)
    computed = [*(pyarrow.field(name, kind) for name, kind in figure), pyarrow.field(RANKS, pyarrow.int64())]
    return [*fields, *computed]


_SAMPLE_KINDS = {
    "run": "string", "experiment": "string", "workload": "string", "place": "string", "arm": "int64", "block": "int64",
    "rank": "int64", "at_s": "float64", "measured": "bool", "name": "string", "unit": "string", "value": "float64",
}  # fmt: skip


def _fields_of_samples(pyarrow: Any) -> list[Any]:
    return [pyarrow.field(name, pyarrow.type_for_alias(kind)) for name, kind in _SAMPLE_KINDS.items()]


RUNS = Table("export-row", COLUMNS, _runs, _fields_of_runs)
SAMPLES = Table("sample-row", tuple(_SAMPLE_KINDS), _samples, _fields_of_samples)


def _csv(table: Table, rows: Iterator[Row], out: io.TextIOWrapper) -> int:
    # Lines end in CR LF, as RFC 4180 says: only then does Python's writer quote a lone CR and a lone LF in a value.
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(table.columns)
    count = 0
    for row in rows:
        writer.writerow([not_a_formula(_flat(name, row[name])) for name in table.columns])
        count += 1
    return count


def _json(table: Table, rows: Iterator[Row], out: io.TextIOWrapper, *, lines: bool) -> int:
    count = 0
    if not lines:
        out.write("[")
    for row in rows:
        out.write(("" if lines else ",\n" if count else "\n") + _object(table, row))
        if lines:
            out.write("\n")
        count += 1
    if not lines:
        out.write("\n]\n")
    return count


def _object(table: Table, row: Row) -> str:
    try:
        return json.dumps(with_schema(table.schema, row), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        run_id = row.get("id", row.get("run"))
        raise LedgerError(
            f"the run {run_id} contains a non-finite number, which JSON cannot hold",
            hint=f"the ledger was edited manually; export another format, or: stackmark delete {run_id}",
        ) from error


def _parquet(table: Table, rows: Iterator[Row], out: BinaryIO) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SpecError(
            "writing Parquet needs the package pyarrow, which is not installed", hint="pip install 'stackmark[parquet]'"
        ) from error
    if out.isatty():
        raise SpecError("Parquet cannot be printed on a terminal", hint="write a file with -o, or use --format csv")
    schema = pyarrow.schema(table.fields(pyarrow), metadata={"schema": schema_name(table.schema)})
    count = 0
    with pyarrow.parquet.ParquetWriter(
        pyarrow.PythonFile(_Forward(out), mode="w"), schema, compression="zstd"
    ) as writer:
        while group := list(islice(rows, _ROW_GROUP)):
            flat = [{name: _flat(name, row[name]) for name in table.columns} for row in group]
            writer.write_table(pyarrow.Table.from_pylist(flat, schema=schema))
            count += len(group)
    return count


class _Forward(io.RawIOBase):
    """A pipe cannot say where it stands, and Parquet's footer holds offsets: so the bytes are counted here."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self._out.write(data)
        self._written += len(data)
        return len(data)

    def flush(self) -> None:
        self._out.flush()


def _flat(name: str, value: object) -> object:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if name in _AS_JSON else value


# What spreadsheets take for the beginning of a formula, as OWASP's page on CSV injection lists it.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def not_a_formula(value: object) -> object:
    """Put a quote before a text that a spreadsheet would run as a formula; numbers stay numbers.

    A text that has such quotes already gets one more, so that taking one off where `'+[=+-@…]` begins it gives the text back.
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _umask() -> int:
    """Python can read the umask only by setting it."""
    current = os.umask(0)
    os.umask(current)
    return current
