"""The scaling of stored runs: a table in a terminal, and JSON. The summary stands first and last."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import JsonValue
from rich.console import Console

from stackmark.experiments.scaling_tables import ScalingRow, ScalingTable
from stackmark.figures import figure_unit
from stackmark.schemas import with_schema
from stackmark.show.result import figure_json
from stackmark.show.safe import safe_line
from stackmark.show.scaling import say_published
from stackmark.show.terminal import Column, Line, is_screen, print_named, print_table
from stackmark.show.verdict import comparison_json, plain_json
from stackmark.show.verdict_summary import COLOURS, COMMANDS, STYLES, coloured
from stackmark.units import counted
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.family import HOLM_NOTE
from stackmark.verdict.needed import percent
from stackmark.verdict.scaling import PublishedScaling

NOTES_SHOWN = 4


def print_scaling_rows(table: ScalingTable, console: Console, *, details: bool = False) -> None:
    """Print the summary, the rows, what to know of them, and the summary again; with `details` a sentence for each row."""
    said = say_scaling_table(table)
    lines = _below(table, details)
    cells = [_cells(row) for row in table.rows]
    styles = [COLOURS.get(row.comparison.word, "") if row.comparison else "" for row in table.rows]
    if not is_screen(console):
        print_named(console, [("verdict", said)], STYLES)
        print_table(console, _columns(table), cells, styles)
        print_named(console, [*lines, ("verdict", said)], STYLES)
        return
    console.print(coloured(safe_line(said)))
    print_table(console, _columns(table), cells, styles)
    print_named(console, lines, STYLES, COMMANDS)
    console.print(coloured(safe_line(said)))


def say_scaling_table(table: ScalingTable) -> str:
    """`2 INCONCLUSIVE (in these runs SCALES) at 10 %: efficiency 95.7 % to 97.0 %; the runs were not interleaved`."""
    compared = table.comparisons
    if not compared:
        return "NO EFFICIENCY: no rank count has runs of one rank with the same settings"
    words = Counter(_word(one) for one in compared)
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    shares = sorted(100 * one.ratio for one in compared)
    spread = f"{shares[0]:.1f}" + (f" to {shares[-1]:.1f}" if len(shares) > 1 else "")
    return f"{counts} at {percent(table.margin)}: efficiency {spread} %; the runs were not interleaved"


def _word(one: Comparison) -> str:
    return f"{one.word} (in these runs {one.word_in_logs})" if one.word_in_logs else one.word


def _columns(table: ScalingTable) -> list[Column]:
    return [
        *(Column(key, style="cyan") for key in table.by),
        Column("ranks", right=True),
        Column("rate", right=True, drop=3),
        Column("speed-up", right=True, drop=2),
        Column("efficiency", right=True),
        Column("90 % interval"),
        Column("runs", right=True, drop=1),
        Column("verdict"),
    ]


def _cells(row: ScalingRow) -> list[str]:
    rate = row.throughput.rate_per_s
    figure = figure_unit(row.unit).scaled(rate).say(rate)
    runs, one = counted(row.throughput.runs, "run"), row.comparison
    if one is None or row.speedup is None:
        return [*row.values, str(row.ranks), figure, "", "", "", runs, row.reason]
    return [
        *row.values, str(row.ranks), figure, f"{row.speedup:.2f}", f"{100 * one.ratio:.1f} %", _interval(one), runs, _word(one),
    ]  # fmt: skip


def _interval(one: Comparison) -> str:
    if one.interval_90 is None:
        return "none"
    said = f"{100 * one.interval_90.low:.1f} to {100 * one.interval_90.high:.1f} %"
    return f"{said} (assumed)" if one.assumed else said


def _below(table: ScalingTable, details: bool) -> list[Line]:
    compared = table.comparisons
    lines: list[Line] = []
    if details:
        told = [(row, row.comparison.sentence if row.comparison else row.reason) for row in table.rows]
        lines += [("row", f"{' '.join([*row.values, str(row.ranks)])}: {said}") for row, said in told if said]
    lines += [("left out", said) for said in table.left_out]
    if len(compared) > 1:
        lines.append(("rows", f"Holm decided over {len(compared)} rows; the intervals are not adjusted"))
    lines += [("warning", said) for said in table.questions]
    notes = dict.fromkeys(note for one in compared for note in one.notes if not note.startswith(HOLM_NOTE))
    kept = list(notes) if details else list(notes)[:NOTES_SHOWN]
    lines += [("note", str(note)) for note in kept]
    lines += [("published", say_published(one)) for one in table.published]
    lines.append(("scope", table.scope))
    return lines


PUBLISHED_COLUMNS = (
    Column("what", style="cyan"),
    Column("data"),
    Column("framework", drop=3),
    Column("devices", right=True),
    Column("one", right=True, drop=5),
    Column("rate", right=True, drop=4),
    Column("speed-up", right=True, drop=6),
    Column("efficiency", right=True),
    Column("date", drop=2),
    Column("source", drop=1),
)
UNSURE = "these are ratios of printed numbers: how far another run would be from them is unknown"


def print_published_scaling(rows: Sequence[PublishedScaling], console: Console) -> None:
    """Print a row for each published rate of several devices, and what it is worth."""
    cells = [
        [
            one.what.replace(f"{one.ranks} × ", ""),
            one.data,
            one.framework,
            str(one.ranks),
            f"{one.one:,.5g}",
            f"{one.several:,.5g} {one.unit}",
            f"{one.ranks * one.efficiency:.2f}",
            f"{100 * one.efficiency:.1f} %",
            one.date,
            one.source,
        ]
        for one in rows
    ]
    print_table(console, PUBLISHED_COLUMNS, cells, note=False)
    print_named(console, [("read", UNSURE)], STYLES)


def scaling_table_json(table: ScalingTable) -> dict[str, JsonValue]:
    """Return the table with a row for each group and rank count."""
    made: dict[str, Any] = {
        "by": list(table.by),
        "margin": table.margin,
        "interleaved": False,
        "rows": [
            {
                "values": dict(zip(table.by, row.values, strict=True)),
                "ranks": row.ranks,
                "figure": figure_json(row.throughput, row.unit, ""),
                "runs": row.throughput.runs,
                "speedup": row.speedup,
                "efficiency": row.comparison.ratio if row.comparison else None,
                "comparison": comparison_json(row.comparison),
                "reason": row.reason or None,
            }
            for row in table.rows
        ],
        "questions": list(table.questions),
        "published": [asdict(one) for one in table.published],
        "left_out": list(table.left_out),
        "scope": table.scope,
        "command": table.command,
    }
    plain = plain_json(with_schema("scaling-table", made))
    assert isinstance(plain, dict)
    return plain
