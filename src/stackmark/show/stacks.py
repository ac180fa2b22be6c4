"""Our stack next to that of a published system, as a table: in the terminal, in the report, in lines of a result."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console

from stackmark.show.safe import safe_line
from stackmark.show.terminal import GAP, Column, is_screen, print_named, print_table
from stackmark.verdict.published_pairs import NOT_STATED, StackLine

COLUMNS = (Column("part", style="cyan"), Column("ours"), Column("published"), Column("agreement"))
# What stands in the last column. Nothing where one side is not stated: nobody can say.
SAID = {"same": "same", "differs": "differs", NOT_STATED: ""}


def stack_cells(lines: Sequence[StackLine]) -> list[list[str]]:
    """Return a row for each part: its name, ours, theirs, and whether they agree."""
    return [[one.name, one.ours or NOT_STATED, one.theirs or NOT_STATED, SAID[one.agreement]] for one in lines]


def print_stack(lines: Sequence[StackLine], console: Console) -> None:
    """Print the table; where the screen is too narrow for both stacks side by side, a text for each part, which folds."""
    cells = stack_cells(lines)
    widths = [max(map(cell_len, texts)) for texts in zip([column.name for column in COLUMNS], *cells, strict=True)]
    if is_screen(console) and sum(widths) + GAP * (len(widths) - 1) > console.width:
        print_named(console, [(one.name, _said(one)) for one in lines], {})
    else:
        print_table(console, COLUMNS, cells)


def say_stack_lines(lines: Sequence[StackLine]) -> list[str]:
    """Return the parts that either side states, a line each, for a screen of names and texts."""
    return [safe_line(f"{one.name}: {_said(one)}") for one in lines if one.ours or one.theirs]


def _said(one: StackLine) -> str:
    differs = " (differs)" if one.agreement == "differs" else ""
    return f"{one.ours or NOT_STATED}; published: {one.theirs or NOT_STATED}{differs}"
