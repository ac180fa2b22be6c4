"""Published rows as tables for people: whole workloads in one, the times of each operator in one of its own."""

from collections.abc import Sequence

import click
from rich.cells import cell_len
from rich.console import Console

from stackmark.published.lookup import Source
from stackmark.published.shapes import OperatorTable, is_timing, table_of
from stackmark.published.table import Published
from stackmark.show.safe import safe_line
from stackmark.show.terminal import GAP, Column, grid, is_screen, print_left_out, print_table, standard_output

# The columns of an operator's times, and those that go where they do not fit, the last of them first.
ORDER = ("ms", "chip", "precision", "sizes", "notes", "date", "source", "framework")
LESS = ("date", "source", "framework")
# All sizes of a convolution are half a line; folded, they get this much of it at least.
FOLDED = 40
SOURCE_COLUMNS = (
    Column("rows", right=True), Column("dates"), Column("chips", right=True, drop=2), Column("units", drop=1),
    Column("source"),
)  # fmt: skip


def print_found(rows: Sequence[Published]) -> None:
    """Whole workloads in one table, then the times of each operator in one of its own: their sizes are other columns."""
    timings = [row for row in rows if is_timing(row)]
    others = [row for row in rows if not is_timing(row)]
    if others:
        _print_rows(others)
    for place, workload in enumerate(dict.fromkeys(row.workload for row in timings)):
        if others or place:
            click.echo()
        _print_timings(table_of([row for row in timings if row.workload == workload]))


def _print_rows(rows: list[Published]) -> None:
    columns = (
        Column("value", right=True), Column("unit"), Column("what"), Column("chip"), Column("precision", drop=4),
        Column("batch", right=True, drop=3), Column("framework", drop=1), Column("date", drop=2), Column("source"),
    )  # fmt: skip
    cells = [
        [f"{row.value:,.10g}", row.unit, _what(row), f"{row.count} × {row.chip}" if row.count > 1 else row.chip,
         row.precision, str(row.batch or ""), row.framework, row.date, _source(row)]
        for row in rows
    ]  # fmt: skip
    print_table(standard_output(), columns, cells, ["yellow" if row.added else "" for row in rows])


def _print_timings(table: OperatorTable) -> None:
    console = standard_output()
    click.echo(safe_line(table.title))
    order = _order(table, console.width if is_screen(console) else None)
    columns = [Column(name, right=name == "ms") for name in order]
    cells = [[str(getattr(line, name)) for name in order] for line in table.lines]
    print_table(console, columns, cells, ["yellow" if line.added else "" for line in table.lines])
    if not is_screen(console):
        click.echo("".join(f"{letter}  {safe_line(words)}\n" for letter, words in table.notes), nl=False)
        return
    console.print(grid(table.notes, {}))
    if left_out := [name for name in LESS if name not in order]:
        print_left_out(console, left_out)


def _order(table: OperatorTable, room: int | None) -> list[str]:
    """The columns there is room for. Sizes that are long come last, where they fold."""
    need = {
        name: max(map(cell_len, (name, *(str(getattr(line, name)) for line in table.lines)))) + GAP for name in ORDER
    }
    there = [
        name for name in ORDER if name not in ("sizes", "notes") or any(getattr(line, name) for line in table.lines)
    ]
    if room is None:
        return there
    kept = [name for name in there if name not in LESS]
    folds = "sizes" in kept and sum(need[name] for name in kept) - GAP > room
    if folds:
        kept.remove("sizes")
        room -= min(need["sizes"], FOLDED)
    for name in LESS:
        if sum(need[one] for one in [*kept, name]) - GAP <= room:
            kept.append(name)
    return [*kept, "sizes"] if folds else kept


def _what(row: Published) -> str:
    """Our name where the row has one: it says which ResNet-50, and whether it was trained."""
    return row.workload if row.workload and row.task != "operator" else f"{row.model}, {row.task}"


def _source(row: Published) -> str:
    who = row.extra.get("submitter")
    more = [str(who)] if who else []
    more += [f"added by you, {row.added}"] if row.added else []
    return row.source + (f" ({', '.join(more)})" if more else "")


def print_sources(sources: Sequence[Source], console: Console) -> None:
    cells = [
        [f"{one.rows:,}", one.first if one.first == one.last else f"{one.first} to {one.last}", str(one.chips),
         ", ".join(one.units), one.source + (" (added by you)" if one.added else "")]
        for one in sources
    ]  # fmt: skip
    print_table(console, SOURCE_COLUMNS, cells)
