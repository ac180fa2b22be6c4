"""The limits of a machine for people: a line each, the vendor's figure next to it, what they were measured on below."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.experiments.ceilings import MeasuredCeilings
from stackmark.show.facts import say_stack
from stackmark.show.safe import safe, safe_line
from stackmark.show.terminal import Column, Line, grid, is_screen, print_table
from stackmark.units import counted, say_count, say_local, say_percent, say_rate, say_seconds
from stackmark.verdict.ceilings import BYTES_PER_S, COLD, LAUNCH, MATRIX, OPERATIONS_PER_S, TRANSFER, Ceilings, Limit

COLUMNS = (
    Column("limit"),
    Column("measured", right=True),
    Column("95 % interval", drop=3),
    Column("cold", right=True, drop=4),
    Column("vendor says", right=True),
    Column("share", right=True),
    Column("with", drop=1),
)
NAMES = {"copy": "memory, copied", "read": "memory, read"}
LAUNCHES = {"eager": "launch, one by one", "graph": "launch, in a graph"}
# From wide to narrow, whatever came first in the run.
ORDER = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
NAME_WIDTH = 12


def print_ceilings(kept: MeasuredCeilings, console: Console) -> None:
    print_table(console, COLUMNS, table_rows(kept.ceilings))
    print(file=console.file)
    lines = [*_about(kept), *_where(kept)]
    if is_screen(console):
        console.print(grid(lines, {"missing": "red", "note": "yellow"}))
        return
    for name, text in lines:
        for index, part in enumerate(safe(text).split("\n")):
            print(f"{safe_line(name) if index == 0 else '':<{NAME_WIDTH}}{part}", file=console.file)


def table_rows(found: Ceilings) -> list[list[str]]:
    cold = {limit.precision: limit for limit in found.limits if limit.what == MATRIX and limit.state == COLD}
    shown = [limit for limit in found.limits if limit.what != MATRIX or limit.state != COLD]
    shown += [limit for precision, limit in cold.items() if precision not in found.matrix]
    return [_cells(limit, cold.get(limit.precision)) for limit in sorted(shown, key=_place)]


def _place(limit: Limit) -> tuple[int, int]:
    if limit.what != MATRIX:
        return 1, 0
    return 0, ORDER.index(limit.precision) if limit.precision in ORDER else len(ORDER)


def _cells(limit: Limit, cold: Limit | None) -> list[str]:
    share = say_percent(limit.vendor_share, 0) if limit.vendor_share else ""
    if limit.what == MATRIX and cold and cold.vendor_share and limit.state != COLD:
        share += f" (cold {say_percent(cold.vendor_share, 0)})"
    vendor = say_value(limit.vendor, limit) if limit.vendor else ""
    if limit.what == TRANSFER and limit.allowed:
        vendor, share = f"{say_value(limit.allowed, limit)} (link)", say_percent(limit.value / limit.allowed, 0)
    return [
        name_of(limit),
        say_value(limit.value, limit) if limit.state != COLD else "",
        say_interval(limit),
        say_value(cold.value, cold) if cold else "",
        vendor,
        share,
        limit.size,
    ]


def name_of(limit: Limit) -> str:
    if limit.what == MATRIX:
        sums = f", sums in {limit.accumulate}" if limit.accumulate not in ("", limit.precision) else ""
        return f"matrix, {limit.precision}{sums}"
    if limit.what == LAUNCH:
        return LAUNCHES.get(limit.state, f"launch, {limit.state}")
    return limit.state if limit.what == TRANSFER else NAMES.get(limit.what, limit.what)


def say_value(value: float, limit: Limit) -> str:
    if limit.unit == OPERATIONS_PER_S:
        number, _, prefix = say_count(value).partition(" ")
        return f"{number} {prefix}{'OP' if limit.precision == 'int8' else 'FLOP'}/s"
    return f"{say_rate(value / 1e9)} GB/s" if limit.unit == BYTES_PER_S else say_seconds(value)


def say_interval(limit: Limit) -> str:
    if limit.low is None or limit.high is None:
        return ""
    low, high = say_value(limit.low, limit), say_value(limit.high, limit)
    # The unit once, where it is the same.
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} to {high}"


def _about(kept: MeasuredCeilings) -> list[Line]:
    found = kept.ceilings
    lines: list[Line] = []
    if found.matrix:
        lines.append(
            (
                "measured",
                "matrix rates sustained, after seconds of work; cold: the first 20 ms (0.3 s of a CPU) after a rest",
            )
        )
    if kept.runs > 1:
        lines.append(("interval", f"Student's, over {counted(kept.runs, 'run')}"))
    elif found.limits:
        lines.append(
            ("interval", "of the median within one run; how far the next run would be from it: --runs 3 or more")
        )
    lines += _vendor(kept)
    links = dict.fromkeys(
        limit.allowed_words for limit in found.limits if limit.what == TRANSFER and limit.allowed_words
    )
    lines += [("link", words) for words in links]
    lines += [("missing", f"{gone.what} {gone.precision}: {gone.message}") for gone in found.missing]
    lines += [("note", text) for text in _notes(found.limits)]
    return lines


def _vendor(kept: MeasuredCeilings) -> list[Line]:
    if kept.vendor is None:
        return [("vendor", f"no figure of {kept.ceilings.chip or 'this chip'} is in our table")]
    note = f"; {kept.vendor.note}" if kept.vendor.note else ""
    return [("vendor", f"{kept.vendor.source}: dense, at the boost clock{note}")]


def _notes(limits: Sequence[Limit]) -> list[str]:
    """One that many rows share is said once."""
    rows: dict[str, list[str]] = {}
    for limit in limits:
        state = f", {limit.state}" if limit.what == MATRIX else ""
        for note in limit.notes:
            rows.setdefault(note, []).append(f"{name_of(limit).partition(', sums')[0]}{state}")
    return [note if len(names) > 3 else f"{'; '.join(names)}: {note}" for note, names in rows.items()]


def _where(kept: MeasuredCeilings) -> list[Line]:
    """Say what it was measured on and where it is kept."""
    ceilings = kept.ceilings
    threads = f", {counted(ceilings.threads, 'thread')}" if ceilings.threads else ""
    stored = f"{say_local(ceilings.measured_unix_s)}, experiment {kept.experiment_id}, run {ceilings.run_id}"
    lines: list[Line] = [
        ("chip", f"{ceilings.chip or 'unknown'}{threads}"),
        ("place", kept.place),
        ("stack", say_stack(kept.facts, kept.framework)),
        ("stored", stored),
    ]
    return [line for line in lines if line[1]]


def ceilings_json(kept: MeasuredCeilings) -> dict[str, Any]:
    return {
        "experiment": kept.experiment_id,
        "runs": kept.runs,
        "place": kept.place,
        **{name: value for name, value in asdict(kept.ceilings).items() if name != "limits"},
        "limits": [{**asdict(limit), "vendor_share": limit.vendor_share} for limit in kept.ceilings.limits],
        "vendor": asdict(kept.vendor) if kept.vendor else None,
        "facts": kept.facts,
    }
