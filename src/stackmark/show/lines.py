"""Names and texts, a line each: a panel on a screen, plain lines where there is none.

Where it is piped nothing is wrapped and nothing is cut, so that `grep rate` finds the whole of it.
"""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stackmark.show.console import is_screen
from stackmark.show.safe import safe, safe_line

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


def grid(lines: Sequence[Line], styles: Mapping[str, str]) -> Table:
    """For a screen; a name that comes again is left out."""
    table = _two_columns()
    last = ""
    for name, text in lines:
        table.add_row(Text(safe_line(name) if name != last else ""), Text(safe(text), style=styles.get(name, "")))
        last = name
    return table


def _two_columns() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _panel(title: str, lines: Sequence[Line], styles: Mapping[str, str]) -> Panel:
    table = _two_columns()
    style = ""
    for name, text in lines:
        style = styles.get(name, "") if name else style
        table.add_row(Text(safe_line(name)), Text(safe(text), style=style))
    return Panel(table, title=Text(f" {safe_line(title)} ", style="bold cyan"), border_style="cyan")
