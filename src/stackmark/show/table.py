"""A table for people: as many columns as the screen has room for; all of them, a row a line, where there is no screen.

Rich folds every column of a table that is too wide, down to a letter a line. Here whole columns are left out, the least
important first, and it is said which.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stackmark.show.console import is_screen
from stackmark.show.safe import safe_line

GAP = 2
# The last column is prose and folds; below this it would be a ribbon.
LAST_AT_LEAST = 18


@dataclass(frozen=True)
class Column:
    """`drop` is when it goes for want of room: 1 first, 0 never."""

    name: str
    right: bool = False
    drop: int = 0
    style: str = ""


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> None:
    """`styles` colours the last cell of each row."""
    cells = [[safe_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, (column.name, *texts))) for column, *texts in zip(columns, *cells, strict=True)]
    kept = fitting(columns, widths, console.width) if is_screen(console) else list(range(len(columns)))
    if not is_screen(console) or not kept:
        # Where even the most important columns do not fit, their lines wrap.
        kept = kept or [i for i, column in enumerate(columns) if not column.drop]
        for row in [[column.name for column in columns], *cells]:
            print(_plain(columns, widths, row, kept), file=console.file)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for index in kept:
        last = index == len(columns) - 1
        table.add_column(
            columns[index].name,
            justify="right" if columns[index].right else "left",
            style=columns[index].style,
            no_wrap=not last,
            overflow="fold",
        )
    for number, row in enumerate(cells):
        last_style = styles[number] if styles else ""
        table.add_row(*(Text(row[i], style=last_style if i == len(columns) - 1 else "") for i in kept))
    console.print(table)
    left_out = [column.name for index, column in enumerate(columns) if index not in kept]
    if left_out:
        console.print(Text(f"left out for want of room: {', '.join(left_out)}", style="dim"))


def fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The columns there is room for; none where even those that never go do not fit."""
    kept = list(range(len(columns)))
    for going in [*sorted((i for i in kept if columns[i].drop), key=lambda i: columns[i].drop), None]:
        if sum(widths[i] + GAP for i in kept[:-1]) + min(widths[-1], LAST_AT_LEAST) <= room:
            return kept
        if going is not None:
            kept.remove(going)
    return []


def _plain(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str], kept: Sequence[int]) -> str:
    padded = []
    for i in kept:
        space = " " * (widths[i] - cell_len(row[i]))
        padded.append(space + row[i] if columns[i].right else row[i] + space)
    return (" " * GAP).join(padded).rstrip()
