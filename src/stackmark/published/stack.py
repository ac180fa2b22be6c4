"""Compare the stack of a run with that of a published system, part by part.

Most published numbers come without their stack: a row names the chip, the count and perhaps the framework. A system that
was described elsewhere (MLPerf's logs carry a description of the whole system) has a row in `published_systems.csv`, which
names the rows it belongs to by the beginning of their `at`. What neither states is "not stated": a guess would look like a
fact.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from pydantic import JsonValue

from stackmark.errors import LedgerError
from stackmark.published.chips import chip_distance, normalise_chip, parse_chip
from stackmark.published.table import Published
from stackmark.remarks import Remark
from stackmark.units import MIB, say_size
from stackmark.verdict.fact_values import say_cudnn
from stackmark.verdict.published_pairs import Agreement, StackLine

SYSTEMS_NAME = "published_systems.csv"
# In the order in which people ask.
PARTS = ("chip", "count", "driver", "CUDA", "cuDNN", "NCCL", "framework", "OS", "memory", "storage")
_VERSION = re.compile(r"v?\d+(\.\d+)*", re.I)

Stack = Mapping[str, str]
Facts = Mapping[str, Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class PublishedSystem:
    """The stack of a published system. `rows_at` begins the `at` of the rows it belongs to; `at` is where it is described."""

    rows_at: str
    driver: str
    cuda: str
    cudnn: str
    nccl: str
    framework: str
    os: str
    memory: str
    storage: str
    at: str


FIELDS = tuple(column.name for column in fields(PublishedSystem))


@cache
def load_systems() -> tuple[PublishedSystem, ...]:
    """Return the descriptions of published systems that ship with the package."""
    try:
        text = files("stackmark.published").joinpath("data", SYSTEMS_NAME).read_text(encoding="utf-8")
        return parse_systems(text)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise LedgerError(
            f"the table of published systems cannot be read: {error}",
            hint="the file belongs to the package: install stackmark again",
        ) from error


def parse_systems(text: str) -> tuple[PublishedSystem, ...]:
    """Read the table; raise `ValueError` with the line of the first error."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    if tuple(next(reader, [])) != FIELDS:
        raise ValueError(f"{SYSTEMS_NAME}, line 1: the header is not {','.join(FIELDS)}")
    found = []
    for cells in reader:
        if len(cells) != len(FIELDS) or not cells[0] or not cells[-1]:
            raise ValueError(f"{SYSTEMS_NAME}, line {reader.line_num}: a cell is missing")
        found.append(PublishedSystem(*cells))
    return tuple(found)


def system_of(row: Published) -> PublishedSystem | None:
    """Return the description of the system that a row was measured on; None for most rows."""
    return next((one for one in load_systems() if row.at.startswith(one.rows_at)), None) if row.at else None


def stack_of_row(row: Published) -> Stack:
    """Return what is stated about the stack of a published row."""
    stated = {"chip": row.chip, "count": str(row.count), "framework": row.framework}
    stated |= {"CUDA": _text(row.extra.get("cuda")), "cuDNN": _text(row.extra.get("cudnn"))}
    if not stated["CUDA"] and (named := re.search(r"\bCUDA (\d[\d.]*\d)|\b(ROCm \d[\d.]*\d)", row.framework)):
        stated["CUDA"] = named[1] or named[2]
    if system := system_of(row):
        described = {
            "driver": system.driver, "CUDA": system.cuda, "cuDNN": system.cudnn, "NCCL": system.nccl,
            "framework": system.framework, "OS": system.os, "memory": system.memory, "storage": system.storage,
        }  # fmt: skip
        stated |= {name: value for name, value in described.items() if value}
    return {name: value for name, value in stated.items() if value}


def stack_of_facts(facts: Facts, chip: str | None, count: int, framework: str | None) -> Stack:
    """Return the stack of a run: from the worker's facts, or from what an imported log says of itself."""
    found = {"chip": chip or "", "count": str(count), "framework": framework or ""}
    software, gpu, amd, host = (facts.get(name, {}) for name in ("software", "gpu", "gpu_amd", "host"))
    logged = facts.get("import", {})
    on_cpu = chip is not None and chip == facts.get("cpu", {}).get("model")
    cudnn, memory_mib = software.get("cudnn"), facts.get("memory", {}).get("total_mib")
    if not on_cpu:
        found["driver"] = _text(gpu.get("driver") or amd.get("driver"))
        found["CUDA"] = _text(software.get("cuda")) or (f"ROCm {software['hip']}" if software.get("hip") else "")
        found["cuDNN"] = say_cudnn(cudnn) if isinstance(cudnn, int) and software.get("cuda") else ""
        found["NCCL"] = _text(software.get("nccl"))
    found["OS"] = _text(host.get("distribution"))
    if found["OS"] and facts.get("container", {}).get("engine"):
        found["OS"] += " (in the container)"
    found["memory"] = say_size(memory_mib * MIB) if isinstance(memory_mib, int | float) else ""
    for name in PARTS[2:]:
        found[name] = found.get(name) or _text(logged.get(name.lower()))
    return {name: value for name, value in found.items() if value}


def _text(value: object) -> str:
    return str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def stack_lines(ours: Stack, theirs: Stack) -> tuple[StackLine, ...]:
    """Put the two stacks next to each other, one line for each part."""
    return tuple(
        StackLine(name, ours.get(name), theirs.get(name), _agreement(name, ours.get(name), theirs.get(name)))
        for name in PARTS
    )


def stack_differences(lines: Sequence[StackLine]) -> tuple[Remark, ...]:
    """Say each part that differs, theirs first, as the differences of a recipe are said."""
    return tuple(
        Remark(f"{one.name} {one.theirs} instead of {one.ours}", f"stack-{one.name.lower()}")
        for one in lines
        if one.agreement == "differs"
    )


def _agreement(name: str, ours: str | None, theirs: str | None) -> Agreement:
    if ours is None or theirs is None:
        return "not stated"
    return "same" if _alike(name, ours, theirs) else "differs"


def _alike(name: str, ours: str, theirs: str) -> bool:
    """Compare as far as both state it: 10.1 and 10.1.163 agree, 10.1 and 10.10 do not."""
    if name == "chip":
        return (
            normalise_chip(ours) == normalise_chip(theirs) or chip_distance(parse_chip(ours), parse_chip(theirs)) == 0
        )
    if _VERSION.fullmatch(ours) and _VERSION.fullmatch(theirs):
        pairs = zip(ours.lstrip("vV").split("."), theirs.lstrip("vV").split("."), strict=False)
        return all(one == other for one, other in pairs)
    return " ".join(ours.split()).casefold() == " ".join(theirs.split()).casefold()
