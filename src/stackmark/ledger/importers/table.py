"""Read tables: a header and one row for each result, as spreadsheets and scripts write them. Every row becomes a run.

table_columns.py finds the column of each field. Commas, semicolons and tabs separate cells. A comma inside a number is a
decimal comma only where semicolons separate, since `1,247` may also be a thousand: in any other table it is refused before
anything is stored. A row with an impossible number is a failed run with its line, as in a log; a row with too few or too many
cells, or without a workload, is named and left out. Cells are text: one that looks like a formula is stored as it is.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from stackmark.errors import SpecError
from stackmark.events import Figure
from stackmark.figures import TIME_UNITS
from stackmark.ledger.importers.found import (
    BadNumber,
    Failure,
    Found,
    Line,
    cut_line,
    name_of,
    number,
    scalar_of,
    whole_number,
)
from stackmark.ledger.importers.reading import Log
from stackmark.ledger.importers.table_columns import Columns, TableOptions, find_columns, normal_unit
from stackmark.ranks import MOST_DEVICES
from stackmark.spec import Scalar
from stackmark.units import END_OF_TIME_UNIX_S

FORMAT = "table"
TITLE = "a table (CSV)"
LARGEST_BYTES = 64 * 1024**2
MOST_ROWS = 10_000
LONGEST_CELL = 64 * 1024
# At most this many rows that cannot be read are named; the others are counted.
MOST_NAMED = 20

_DELIMITERS = ",;\t"
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?")
_WORKLOAD = re.compile(r"[a-z][a-z0-9-]*/[a-z0-9][a-z0-9._-]*")
_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2})(-[0-9]{2})?"
    r"(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?) ?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_PLACE = re.compile(r"[a-z][a-z0-9._-]{0,39}")
# What people write where there is no figure.
_NOTHING = frozenset({"", "-", "--", "–", "—", "n/a", "na", "none", "null"})
_NOT_UNITS = frozenset({"%", "percent", "x", "times"})
_OUT_OF_MEMORY = frozenset({"oom", "out of memory"})
_PRECISIONS = {"float32": "fp32", "float": "fp32", "single": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
               "float64": "fp64", "double": "fp64"}  # fmt: skip
_TRAINS = re.compile(r"train|fine-?tun", re.IGNORECASE)
_OPERATORS = re.compile(r"operator|kernel|gemm|convolution", re.IGNORECASE)
_INFERS = re.compile(r"infer|forward|serv|eval", re.IGNORECASE)


@dataclass(frozen=True)
class BadRow:
    """A row that cannot become a run, and why."""

    line: int
    message: str


@dataclass(frozen=True)
class Table:
    found: list[Found]
    bad: tuple[BadRow, ...]
    # How the columns were read, and what else a person should know, a sentence each.
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    line: Line
    cells: Sequence[str]


def read_table(log: Log, options: TableOptions) -> Table:
    """Read a whole table. Refuse one without a single result: then the columns were not understood."""
    if log.size_bytes > LARGEST_BYTES:
        raise SpecError(
            f"{log.name} is larger than {LARGEST_BYTES >> 20} MiB, the limit for a table",
            hint="import it in parts",
        )
    text, notes = _text(log)
    pieces = list(io.StringIO(text, newline=""))
    header, rows, delimiter = _rows(pieces, log.name)
    columns = find_columns(header.cells, options, log.name)
    reader = _Reader(columns, header, _decimal_comma(rows, columns, delimiter, log.name))
    found: list[Found] = []
    bad: list[BadRow] = []
    for row in rows:
        one = reader.read(row)
        if isinstance(one, Found):
            found.append(one)
        else:
            bad.append(one)
    if not any(one.figure for one in found):
        failed = [one.failure.message for one in found if one.failure]
        why = failed[0] if failed else f"line {bad[0].line}: {bad[0].message}" if bad else "it has no rows"
        raise SpecError(
            f"{log.name} has no row with a result: {why}",
            hint=f"columns were read so: {', '.join(columns.taken)}; name others with --map FIELD=COLUMN",
        )
    return Table(found, tuple(bad), (f"columns: {', '.join(columns.taken)}", *notes))


def _text(log: Log) -> tuple[str, list[str]]:
    data = log.path.read_bytes()
    if log.encoding == "utf-16":
        return data.decode("utf-16", "replace"), []
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        said = f"{log.name} is not UTF-8: it was read as Windows-1252, which spreadsheets write"
        return data.decode("cp1252", "replace"), [said]


def _rows(pieces: list[str], name: str) -> tuple[_Row, list[_Row], str]:
    """The header, the rows that are not empty, and what separates cells."""
    first = next((i for i, piece in enumerate(pieces) if piece.strip()), len(pieces))
    if first < len(pieces) and (said := re.fullmatch(r"sep=([,;\t])\s*", pieces[first])):
        delimiter, first = said[1], first + 1  # Excel's own way to say it
    else:
        delimiter = _sniffed(pieces[first : first + 1])
    rows = _parsed(pieces, first, delimiter, name)
    header = next(rows, None)
    if header is None:
        raise SpecError(f"{name} is empty: it has no header", hint="the first line names the columns")
    found: list[_Row] = []
    for row in rows:
        if len(found) == MOST_ROWS:
            raise SpecError(f"{name} has more than {MOST_ROWS:,} rows", hint="import it in parts")
        found.append(row)
    return header, found, delimiter


def _sniffed(head: Sequence[str]) -> str:
    """What separates the header's cells: the sign that it has most of, outside quotes."""
    bare = re.sub(r'"[^"]*"', "", head[0]) if head else ""
    return max(_DELIMITERS, key=bare.count)


def _parsed(pieces: list[str], first: int, delimiter: str, name: str) -> Iterator[_Row]:
    reader = csv.reader(iter(pieces[first:]), delimiter=delimiter, strict=True)
    begun = first
    try:
        for cells in reader:
            ended = first + reader.line_num
            if any(cell.strip() for cell in cells):
                raw = "".join(pieces[begun:ended]).rstrip("\r\n")
                if max(map(len, cells)) > LONGEST_CELL:
                    raise SpecError(f"{name}, line {begun + 1}: a cell is larger than {LONGEST_CELL >> 10} KiB")
                yield _Row(Line(begun + 1, raw, ""), cells)
            begun = ended
    except csv.Error as error:
        raise SpecError(
            f"{name}, line {begun + 1}: this is not CSV: {error}",
            hint="is a quotation mark missing in or after that line?",
        ) from error


def _decimal_comma(rows: Sequence[_Row], columns: Columns, delimiter: str, name: str) -> bool:
    """Whether numbers have a decimal comma; refused where that cannot be known."""
    at = columns.index[columns.figure]
    cells = [(row.line.number, row.cells[at].strip()) for row in rows if at < len(row.cells)]
    with_comma = next(((line, cell) for line, cell in cells if _DECIMAL_COMMA.fullmatch(cell)), None)
    if with_comma is None:
        return False
    line, cell = with_comma
    if delimiter != ";":
        raise SpecError(
            f"{name}, line {line}: {cell[:40]!r} has a comma, which may be a decimal comma or separate thousands",
            hint="write numbers with a point and without separators, or separate the cells with semicolons",
        )
    if point := next(((line, cell) for line, cell in cells if re.search(r"[0-9]\.[0-9]", cell)), None):
        raise SpecError(
            f"{name} has both decimal commas ({cell[:40]!r}, line {line}) and points ({point[1][:40]!r}, line {point[0]})",
            hint="write all numbers in one way",
        )
    return True


class _Reader:
    """Makes a result of each row."""

    def __init__(self, columns: Columns, header: _Row, decimal_comma: bool) -> None:
        self._columns, self._header, self._decimal_comma = columns, header, decimal_comma
        self._kept_header = cut_line(header.line)

    def read(self, row: _Row) -> Found | BadRow:
        expected, cells = len(self._header.cells), list(row.cells)
        if len(cells) > expected and not any(cell.strip() for cell in cells[expected:]):
            cells = cells[:expected]
        if len(cells) != expected:
            also = "; does a number have a decimal comma?" if len(cells) > expected else ""
            return BadRow(row.line.number, f"{len(cells)} cells, but the header has {expected}{also}")
        said = {name: cells[i].strip() for name, i in self._columns.index.items()}
        place = said.get("arm") or said.get("place") or ""
        if "arm" in said and not said["arm"]:
            return BadRow(row.line.number, "the arm is empty")
        if place and (slug := _slug(place)) is None:
            return BadRow(
                row.line.number, f"{place[:80]!r} cannot be the name of a place: a to z, 0 to 9, - _ and ., at most 40"
            )
        if (named := said.get("workload")) and not re.search(r"[a-z0-9]", named.lower()):
            # All such names would become one workload.
            return BadRow(row.line.number, f"the workload {named[:80]!r} has no letter from a to z and no digit")
        params = {name: scalar_of(cells[i].strip()) for name, i in self._columns.params.items() if cells[i].strip()}
        return self._found(said, params, slug if place else None, row.line)

    def _found(self, said: dict[str, str], params: dict[str, Scalar], place: str | None, line: Line) -> Found:
        unit = normal_unit(said.get("unit", "")) or self._columns.unit or ""
        family, mode = _family(said.get("task", ""), unit)
        figure: Figure | None = None
        failure: Failure | None = None
        ranks = 1
        date = said.get("date", "")
        when = _moment(date)
        named: dict[str, Scalar] = {}
        if mode:
            named["mode"] = mode
        if precision := said.get("precision", "").casefold():
            named["precision"] = _PRECISIONS.get(precision, precision)
        try:
            if batch := said.get("batch"):
                named["batch"] = whole_number(self._plain(batch), line, "the batch")
            if said.get("ranks"):
                ranks = _ranks(self._plain(said["ranks"]), line)
            figure = self._figure(said[self._columns.figure], unit, line)
        except BadNumber as error:
            failure = Failure(error.kind, str(error), "correct the table and import it again")
        return Found(
            workload=_workload(said.get("workload", ""), family),
            params={**named, **params},
            program=FORMAT,
            figure=figure,
            failure=failure,
            ranks=ranks,
            chip=said.get("chip") or None,
            framework=said.get("framework") or None,
            sample=unit.removesuffix("s/s") if unit.endswith("s/s") else "run",
            when_unix_s=when,
            facts=(("date", date[:100]),) if date else (),
            flags=(f"date-not-read: {date[:100]!r} is not written like 2020-10-23",) if date and when is None else (),
            place=place,
            label=said.get("label") or said.get("arm", ""),
            lines=(self._kept_header, cut_line(line)),
        )

    def _plain(self, cell: str) -> str:
        """A number as a program writes it."""
        return cell.replace(",", ".") if self._decimal_comma and _DECIMAL_COMMA.fullmatch(cell) else cell

    def _figure(self, cell: str, unit: str, line: Line) -> Figure:
        what = self._header.cells[self._columns.index[self._columns.figure]].strip()[:80] or "the figure"
        if cell.casefold() in _NOTHING:
            raise BadNumber(f"line {line.number}: {what} is empty", "no_figure")
        if cell.casefold() in _OUT_OF_MEMORY:
            raise BadNumber(f"line {line.number}: {what} is {cell!r}", "out_of_device_memory")
        if not unit:
            raise BadNumber(f"line {line.number}: the unit is empty")
        if unit.casefold() in _NOT_UNITS:
            raise BadNumber(
                f"line {line.number}: {what} is in {unit!r}, which is neither a rate nor a time", "no_figure"
            )
        lower = self._columns.figure == "time" or unit in TIME_UNITS
        return Figure(
            name=what, value=number(self._plain(cell), line, what), unit=unit[:40], higher_is_better=not lower
        )


def _slug(text: str) -> str | None:
    """A place's name of what people write: `Bare metal` is bare-metal."""
    slug = re.sub(r"\s+", "-", text.strip().casefold())
    return slug if _PLACE.fullmatch(slug) else None


def _family(task: str, unit: str) -> tuple[str, str]:
    """The family of a workload that a table names by its model alone, and the mode that its task is."""
    mode = "train" if _TRAINS.search(task) else "forward" if _INFERS.search(task) else ""
    if unit in ("queries/s", "requests/s"):
        return "serve", ""
    if unit in ("min", "h"):
        return "fit", ""
    return ("op", "") if unit.endswith("FLOP/s") or _OPERATORS.search(task) else ("train", mode)


def _workload(cell: str, family: str) -> str | None:
    if not cell:
        return None
    return cell if _WORKLOAD.fullmatch(cell) else name_of(family, cell)


def _ranks(cell: str, line: Line) -> int:
    ranks = whole_number(cell, line, "the number of ranks")
    if ranks > MOST_DEVICES:
        raise BadNumber(f"line {line.number}: ranks must be at most {MOST_DEVICES:,}, got {ranks:,}")
    return ranks


def _moment(cell: str) -> float | None:
    """The moment that a cell names, as the ISO writes it; None for any other spelling, since 3/4/2020 is two days."""
    match = _DATE.fullmatch(cell)
    if match is None:
        return None
    month, day, clock, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{month}{day or '-01'}T{clock or '00:00'}")
        offset = datetime.strptime(zone.replace(":", ""), "%z").tzinfo if zone and zone != "Z" else timezone.utc
        unix_s = moment.replace(tzinfo=offset).timestamp()
    except (ValueError, OverflowError):
        return None
    return unix_s if 0 <= unix_s < END_OF_TIME_UNIX_S else None
