"""Read a user's file of published rows: the columns of the shipped table, in any order and in people's spellings.

The reader is generous about spelling (`img/s`, `Tesla V100-SXM2-16GB`, `amp`) and strict about what makes a number worth
keeping: a unit, a source, a date, how many devices. It does not stop at the first thing wrong: a file is repaired quicker
when all of it is known. Whether rows go together (scaling) is in published_checks.py.
"""

import csv
import io
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import SpecError, nearest_names
from stackmark.published.checks import Finding, date_trouble
from stackmark.published.table import (
    DATA,
    FIELDS,
    PRECISIONS,
    TASKS,
    UNIT_SPELLINGS,
    UNITS,
    Published,
    one_name,
    row_of,
)

NEEDED = ("model", "task", "chip", "count", "value", "unit", "date", "source")
# The shipped table has 1,600 rows in 0.6 MB; what is far beyond it is another kind of file.
MOST_BYTES = 16 * 2**20
MOST_ROWS = 50_000
# A cell is a name or a sentence; `extra` may hold the single runs behind a number.
MOST_CHARACTERS, MOST_EXTRA = 1000, 10_000
_CHOICES = {"task": TASKS, "precision": PRECISIONS, "unit": UNITS, "data": DATA}
_SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "unit": UNIT_SPELLINGS,
    "precision": {"amp": "mixed", "mixed precision": "mixed", "float16": "fp16", "float32": "fp32", "bfloat16": "bf16"},
    "task": {"train": "training", "infer": "inference", "finetuning": "fine-tuning"},
}
_DEFAULTS = {"precision": "unknown", "data": "unknown"}
TEMPLATE_ROWS = (
    {"workload": "train/resnet50_v1.5", "model": "resnet50", "task": "training", "chip": "Tesla V100-SXM2-16GB",
     "count": "1", "framework": "PyTorch 2.4", "precision": "mixed", "batch": "256", "value": "1325.5",
     "unit": "images/s", "data": "synthetic", "date": "2024-09-30", "source": "Example: our lab's report",
     "at": "https://example.org/report.pdf#page=7", "note": "", "extra": '{"layout": "nhwc"}'},
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """The content of a file: its good rows with their lines, and the errors of the others."""

    rows: tuple[Published, ...]
    lines: tuple[int, ...]
    findings: tuple[Finding, ...]


def template() -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, FIELDS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(TEMPLATE_ROWS)
    return out.getvalue()


def read_file(path: Path, workloads: Collection[str]) -> Reading:
    """Read a file of rows. `workloads` are the allowed names; raise a sentence for a file that is not such a table."""
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Published] = []
    lines: list[int] = []
    findings: list[Finding] = []
    try:
        columns = _columns(next(reader, []), path)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num
            if len(lines) + len(findings) >= MOST_ROWS:
                raise SpecError(f"{path} has more than {MOST_ROWS:,} rows, the limit", hint="split the file")
            if len(cells) != len(columns):
                findings.append(Finding(line, f"{len(cells)} cells instead of the header's {len(columns)}"))
                continue
            row = _row(dict(zip(columns, (cell.strip() for cell in cells), strict=True)), workloads)
            if isinstance(row, Published):
                rows.append(row)
                lines.append(line)
            else:
                findings += [Finding(line, reason) for reason in row]
    except csv.Error as error:
        raise SpecError(f"{path}, line {reader.line_num}: {error}", hint=_TEMPLATE) from error
    if not rows and not findings:
        raise SpecError(f"{path} has a header but no rows", hint=_TEMPLATE)
    return Reading(tuple(rows), tuple(lines), tuple(findings))


_TEMPLATE = "a header and an example: stackmark published template"


def _text(path: Path) -> str:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise SpecError(f"{path} is not a file", hint=_TEMPLATE)
        if about.st_size > MOST_BYTES:
            raise SpecError(f"{path} has {about.st_size:,} bytes; the limit is {MOST_BYTES:,}", hint="split the file")
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise SpecError(f"{str(path)!r} is not a file name: {error}") from error
    if not data.strip():
        raise SpecError(f"{path} is empty", hint=_TEMPLATE)
    if b"\0" in data:
        raise SpecError(f"{path} is not text: it contains bytes that CSV files do not have", hint=_TEMPLATE)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path}, line {line}: it is not UTF-8",
            hint="save it as UTF-8, or: iconv -f latin1 -t utf-8 FILE > NEW",
        ) from error


def _columns(header: list[str], path: Path) -> list[str]:
    columns = [name.strip() for name in header]
    unknown = [name for name in columns if name not in FIELDS]
    missing = [name for name in NEEDED if name not in columns]
    if unknown and len(unknown) == len(columns):
        raise SpecError(f"{path}, line 1: this is not the header of a table of published results", hint=_TEMPLATE)
    if unknown:
        near = nearest_names(unknown[0], [name for name in FIELDS if name not in columns])
        raise SpecError(f"{path}, line 1: unknown column {unknown[0][:80]!r}{near}", hint=_TEMPLATE)
    if len(set(columns)) != len(columns):
        raise SpecError(f"{path}, line 1: a column appears twice", hint=_TEMPLATE)
    if missing:
        raise SpecError(
            f"{path}, line 1: the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing",
            hint=_TEMPLATE,
        )
    return columns


def _row(given: Mapping[str, str], workloads: Collection[str]) -> Published | list[str]:
    """The row in the table's own spelling, or everything that is wrong with it."""
    cell = {name: given.get(name, "") or _DEFAULTS.get(name, "") for name in FIELDS}
    for name, spellings in _SPELLINGS.items():
        spelled = cell[name]
        by_case = {known.lower(): known for known in (*_CHOICES[name],)}
        by_case |= {other.lower(): known for other, known in spellings.items()}
        cell[name] = by_case.get(spelled.lower(), spelled)
    if cell["chip"]:
        printed, cell["chip"] = cell["chip"], one_name(cell["chip"])
        if not cell["system"] and printed != cell["chip"]:
            cell["system"] = printed
    wrong = list(_wrong(cell, workloads))
    if not wrong:
        cell |= {name: str(int(cell[name])) for name in ("count", "batch") if cell[name]}
        cell["value"] = repr(float(cell["value"]))
        try:
            return row_of([cell[name] for name in FIELDS])
        except ValueError as error:
            wrong = [str(error)]
    return wrong


def _wrong(cell: Mapping[str, str], workloads: Collection[str]) -> Iterator[str]:
    for name in FIELDS:
        most = MOST_EXTRA if name == "extra" else MOST_CHARACTERS
        if len(cell[name]) > most:
            yield f"{name} has {len(cell[name]):,} characters; the limit is {most:,}"
            return
    for name in NEEDED:
        if not cell[name]:
            yield f"{name} is missing"
    for name, allowed in _CHOICES.items():
        if cell[name] and cell[name] not in allowed:
            near = nearest_names(cell[name], sorted(allowed)).removesuffix("?")
            yield f"{name} must be one of {', '.join(sorted(allowed))}, got {cell[name]!r}{near}{'?' if near else ''}"
    if cell["date"] and (trouble := date_trouble(cell["date"])):
        yield trouble
    if cell["workload"] and cell["workload"] not in workloads:
        near = nearest_names(cell["workload"], sorted(workloads))
        yield f"unknown workload {cell['workload']!r}{near or '; leave it empty if stackmark has no such workload'}"
    for name in ("count", "batch"):
        if cell[name] and not (cell[name].isascii() and cell[name].isdigit() and cell[name].strip("0")):
            yield f"{name} {cell[name]!r} is not a whole number above 0"
    if cell["value"] and not _is_positive(cell["value"]):
        yield f"value {cell['value']!r} is not a number above 0"


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf") and "_" not in text
    except ValueError:
        return False
