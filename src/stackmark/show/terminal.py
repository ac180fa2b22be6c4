"""What everything that is printed is made of: the two outputs, names with texts, tables, and notices.

A screen is a terminal that can move its cursor: a dumb one gets plain lines, like a pipe. On a screen lines stand in a panel,
and a table has as many columns as there is room for. In a pipe nothing is wrapped and nothing is cut, so that `grep rate` finds
the whole of it.
"""

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TextIO, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stackmark.show.safe import safe, safe_line

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the BrokenPipeError, which goes on its way


def standard_output() -> Console:
    return _Console(highlight=False, emoji=False)


def standard_error() -> Console:
    return _Console(stderr=True, highlight=False, emoji=False)


def is_screen(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


# --- names and texts, a line each ---------------------------------------------------------------------------------------


Line = tuple[str, str]
NAME_WIDTH = 12


def print_lines(console: Console, title: str, lines: Sequence[Line], styles: Mapping[str, str]) -> None:
    """A line without a name goes on with the line before it."""
    if is_screen(console):
        console.print(_panel(title, lines, styles))
        return
    for name, text in [("workload", title), *lines]:
        for index, part in enumerate(safe(text).split("\n")):
            print(f"{safe_line(name) if index == 0 else '':<{NAME_WIDTH}}{part}", file=console.file)


def print_grid(console: Console, lines: Sequence[Line], styles: Mapping[str, str]) -> None:
    """Print lines under or above a table: names and texts in two columns, without a panel."""
    if is_screen(console):
        console.print(grid(lines, styles))
        return
    # An axis of a suite may have a name that is wider than all of ours.
    width = max([NAME_WIDTH, *(len(name) + 1 for name, _ in lines)])
    for name, text in lines:
        print(f"{name:<{width}}{safe_line(text)}".rstrip(), file=console.file)


def grid(lines: Sequence[Line], styles: Mapping[str, str]) -> Table:
    """For a screen; a name that comes again is left out."""
    table = _two_columns()
    last = ""
    for name, text in lines:
        table.add_row(Text(safe_line(name) if name != last else ""), Text(safe(text), style=styles.get(name, "")))
        last = name
    return table


def print_named(
    console: Console,
    lines: Sequence[Line],
    styles: Mapping[str, str],
    commands: Collection[str] = (),
    cut: Collection[str] = (),
) -> None:
    """Print names and texts in two columns without a frame; a name that comes again is left out on a screen.

    Lines with a name in `commands` are printed without a break, since they are copied; those with a name in `cut` are one line
    of a screen, and the rest of them is left out.
    """
    if not is_screen(console):
        for name, text in lines:
            for index, part in enumerate(safe(text).split("\n")):
                print(f"{safe_line(name) if index == 0 else '':<{NAME_WIDTH}}{part}".rstrip(), file=console.file)
        return
    width = max((cell_len(safe_line(name)) for name, _ in lines), default=0)
    last = ""
    for name, text in lines:
        shown = Text(safe_line(name) if name != last else "", style="bold")
        last = name
        if name in commands:
            shown.pad_right(width + GAP - shown.cell_len)
            console.print(Text.assemble(shown, (safe_line(text), styles.get(name, ""))), soft_wrap=True)
            continue
        if name in cut:
            room = max(console.width - width - GAP, 1)
            text = text if cell_len(safe_line(text)) <= room else f"{set_cell_size(safe_line(text), room - 1)}…"
        table = _two_columns(width)
        table.add_row(shown, Text(safe(text), style=styles.get(name, "")))
        console.print(table)


def _two_columns(width: int | None = None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, width=width)
    table.add_column(overflow="fold")
    return table


def _panel(title: str, lines: Sequence[Line], styles: Mapping[str, str]) -> Panel:
    table = _two_columns()
    style = ""
    for name, text in lines:
        style = styles.get(name, "") if name else style
        table.add_row(Text(safe_line(name)), Text(safe(text), style=style))
    return Panel(table, title=Text(f" {safe_line(title)} ", style="bold cyan"), border_style="cyan")


# --- tables -------------------------------------------------------------------------------------------------------------


GAP = 2
# The last column is prose and folds; below this it would be a ribbon. A column that may go goes before that.
LAST_AT_LEAST = 18
# Where nothing else can go: words of the last column are still readable.
LAST_AT_ALL = 10


@dataclass(frozen=True)
class Column:
    """`drop` is when it goes where columns do not fit: 1 first, 0 never."""

    name: str
    right: bool = False
    drop: int = 0
    style: str = ""


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str] = (),
    *,
    note: bool = True,
) -> None:
    """`styles` colours the last cell of each row. `note` says which columns do not fit on the screen."""
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
    if left_out and note:
        print_left_out(console, left_out)


def print_left_out(console: Console, names: Sequence[str]) -> None:
    """Say which columns of a table do not fit on the screen."""
    console.print(Text(f"columns that do not fit: {', '.join(names)}", style="dim"))


def fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The columns there is room for; none where even those that never go do not fit."""
    kept = list(range(len(columns)))
    for going in [*sorted((i for i in kept if columns[i].drop), key=lambda i: columns[i].drop), None]:
        # Only the last column of all folds; where it is gone, the one before it is as wide as its cells.
        least = LAST_AT_LEAST if going is not None else LAST_AT_ALL
        last = min(widths[-1], least) if kept[-1] == len(columns) - 1 else widths[kept[-1]]
        if sum(widths[i] + GAP for i in kept[:-1]) + last <= room:
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


# --- the answer, again ---------------------------------------------------------------------------------------------------


# Of a screen of 24 lines: the prompt and the command that was typed take the others.
ONE_SCREEN = 20


class _Counted:
    """A file that counts the lines of a screen that are written to it."""

    def __init__(self, file: IO[str], width: int) -> None:
        self._file, self._width, self._begun, self.lines = file, max(width, 1), "", 0

    def write(self, text: str) -> int:
        *ended, self._begun = f"{self._begun}{_ESCAPES.sub('', text)}".split("\n")
        self.lines += sum(max(1, -(-cell_len(line) // self._width)) for line in ended)
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def answer_last(console: Console, answer: Callable[[], None]) -> Iterator[None]:
    """Call `answer` at the end if more was printed than a screen holds: the answer must be visible when a command ends."""
    before = console.file
    seen = _Counted(before, console.width)
    console.file = cast(IO[str], seen)
    try:
        yield
    finally:
        console.file = before
    if seen.lines > ONE_SCREEN:
        answer()


# --- notices ------------------------------------------------------------------------------------------------------------


class Voice:
    """The base of all that tells plain lines while something works."""

    def __init__(self, out: TextIO) -> None:
        self._out: TextIO | None = out

    def _say(self, text: str) -> None:
        try:
            if self._out is not None:
                print(safe_line(text), file=self._out, flush=True)
        except OSError:
            self._out = None  # nobody reads it any more

    def notice(self, sentence: str) -> None:
        self._say(sentence)


def printed(show: Callable[[Console], None]) -> str:
    """Return what a command prints into a pipe."""
    out = io.StringIO()
    show(Console(file=out, force_terminal=False, highlight=False, emoji=False))
    return out.getvalue()
