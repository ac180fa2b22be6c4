"""The end of `stackmark suite run`: the answer in one sentence, the table, what failed, what to beware of, and the answer again.

The table has one line a row where the screen is wide enough, else two, else one line a cell. An interval is never what is left
out: a rate or a ratio without it says nothing. In a pipe every row is one line, and nothing is cut.
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stackmark.show.load_curve import curve_lines
from stackmark.show.run_summary import WARNING_AT_MOST, WARNINGS_SHOWN
from stackmark.show.safe import cut_middle, safe_line, short_id
from stackmark.show.serving import suite_lines
from stackmark.show.suite_sections import EXCLUDED, CellText, SuiteSections, shortened
from stackmark.show.terminal import GAP, NAME_WIDTH, Column, Line, is_screen, print_named, print_table
from stackmark.show.verdict_summary import COLOURS
from stackmark.units import counted
from stackmark.verdict.suite import SuiteResult, SuiteRow

STYLES = {"failed": "red", "warning": "yellow", "missing": "yellow", "stopped": "yellow", "scope": "dim", "next": "dim"}
# Styles by the name of a colour in the page.
STYLE_OF = {"same": "green", "slower": "red", "faster": "cyan", "open": "yellow", "plain": ""}
# A row's name next to its numbers is at least as long as this; below, the numbers get lines of their own.
NAME_AT_LEAST, NAME_AT_MOST = 12, 40
# An arm's name at the head of a column, and next to a cell of a narrow screen.
ARM_AT_MOST, ARM_AT_LEAST = 28, 6
FAILURES_SHOWN = 3


def print_suite(result: SuiteResult, console: Console, *, ledger: str = "", details: bool = False) -> None:
    """Print a suite. `ledger` is the option that names it in the commands to type next; `details` adds a line for each row."""
    sections = SuiteSections(result)
    _print_answer(sections, console)
    _print_table(sections, console)
    print_named(console, [*_below(sections, details), *_next(sections, ledger)], STYLES, ("next",), ("scope",))
    _print_answer(sections, console)


def _print_answer(sections: SuiteSections, console: Console) -> None:
    said = safe_line(sections.headline.sentence)
    if is_screen(console):
        word, colour = sections.headline.word, sections.headline.colour
        console.print(Text(said, style=COLOURS.get(word) or f"bold {STYLE_OF[colour]}".strip()))
    else:
        print(f"{'suite':<{NAME_WIDTH}}{said}", file=console.file)


# --- the table -------------------------------------------------------------------------------------------------------------


def _print_table(sections: SuiteSections, console: Console) -> None:
    result = sections.result
    rows = [(row, sections.line(row)) for row in result.rows]
    if not rows:
        return
    if not is_screen(console):
        _print_wide(sections, console, rows, cut=False)
    elif _widths(_wide_cells(sections, rows)) + NAME_AT_LEAST <= console.width:
        _print_wide(sections, console, rows, cut=True)
    elif _widths(_tall_cells(sections, rows)) + NAME_AT_LEAST <= console.width:
        _print_tall(sections, console, rows)
    else:
        _print_cells(sections, console, rows)


_Rows = Sequence[tuple[SuiteRow, Sequence[CellText]]]


def _widths(cells: Sequence[Sequence[str]]) -> int:
    """The room that these columns take, with the gaps before them."""
    return sum(max(map(cell_len, column)) + GAP for column in zip(*cells, strict=True))


def _wide_cells(sections: SuiteSections, rows: _Rows) -> list[list[str]]:
    """The head and the rows, without the rows' names: a column for each rate, and one for each ratio."""
    result = sections.result
    head = []
    for arm in result.arms:
        head.append(cut_middle(safe_line(sections.result.arm_name(arm)), ARM_AT_MOST) or "rate")
        head += [f"against {cut_middle(safe_line(result.arm_name(result.reference)), ARM_AT_MOST)}"] * (
            not _is_reference(result, arm)
        )
    lines = [head]
    for _, cells in rows:
        line = []
        for cell in cells:
            line.append(safe_line(cell.rate))
            line += [cell.verdict] * (not _is_reference(result, cell.cell.arm))
        lines.append(line)
    return lines


def _is_reference(result: SuiteResult, arm: str) -> bool:
    return not result.compared or arm == result.reference


def _print_wide(sections: SuiteSections, console: Console, rows: _Rows, *, cut: bool) -> None:
    head, *lines = _wide_cells(sections, rows)
    names = [sections.result.row_name(row) for row, _ in rows]
    if not cut:
        # The name of a row may be anything; in a pipe it is printed whole.
        columns = [Column("row"), *(Column(name) for name in head)]
        print_table(console, columns, [[name, *line] for name, line in zip(names, lines, strict=True)])
        return
    table = _table(console, sections, names, [head, *lines])
    for name, line, (_, cells) in zip(_fitting(console, names, [head, *lines]), lines, rows, strict=True):
        styles = [style for cell in cells for style in _styles(sections.result, cell)]
        table.add_row(name, *(Text(text, style=style) for text, style in zip(line, styles, strict=True)))
    console.print(table)


def _styles(result: SuiteResult, cell: CellText) -> list[str]:
    """The styles of the rate and, where there is one, of the ratio."""
    rate = "" if cell.figure else STYLE_OF[cell.colour]
    return [rate] if _is_reference(result, cell.cell.arm) else [rate, STYLE_OF[cell.colour]]


def _tall_cells(sections: SuiteSections, rows: _Rows) -> list[list[str]]:
    """The widest text of each cell, where the ratio stands under the rate."""
    head = [cut_middle(safe_line(sections.result.arm_name(arm)), ARM_AT_MOST) or "rate" for arm in sections.result.arms]
    return [head, *([max(safe_line(cell.rate), cell.verdict, key=cell_len) for cell in cells] for _, cells in rows)]


def _print_tall(sections: SuiteSections, console: Console, rows: _Rows) -> None:
    widest = _tall_cells(sections, rows)
    names = [sections.result.row_name(row) for row, _ in rows]
    table = _table(console, sections, names, widest)
    for name, (_, cells) in zip(_fitting(console, names, widest), rows, strict=True):
        table.add_row(name, *(_two_lines(cell) for cell in cells))
    console.print(table)


def _two_lines(cell: CellText) -> Text:
    rate = Text(safe_line(cell.rate), style="" if cell.figure else STYLE_OF[cell.colour])
    return Text("\n").join([rate, Text(cell.verdict, style=STYLE_OF[cell.colour])]) if cell.verdict else rate


def _table(console: Console, sections: SuiteSections, names: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    table.add_column("", style="cyan", no_wrap=True)
    for name in cells[0]:
        table.add_column(name, no_wrap=True)
    return table


def _fitting(console: Console, names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """The names of rows, cut to the room that the columns leave."""
    room = min(NAME_AT_MOST, max(NAME_AT_LEAST, console.width - _widths(cells)))
    return [cut_middle(safe_line(name), room) for name in names]


def _print_cells(sections: SuiteSections, console: Console, rows: _Rows) -> None:
    """One line a cell, under a line with the name of the row and its unit; of a suite without arms one line a row."""
    result = sections.result
    rates = max(cell_len(safe_line(cell.bare_rate)) for _, cells in rows for cell in cells)
    verdicts = max(cell_len(cell.verdict) for _, cells in rows for cell in cells)
    room = console.width - GAP - (rates + GAP) - (verdicts + GAP if verdicts else 0)
    longest = max((cell_len(safe_line(result.arm_name(arm))) for arm in result.arms), default=0)
    arm_width = max(ARM_AT_LEAST, min(longest, room)) if longest else 0
    for row, cells in rows:
        unit = safe_line(sections.unit(row).name)
        name = Text(safe_line(result.row_name(row)), style="bold cyan")
        console.print(Text.assemble(name, (f" ({unit})" if unit else "", "dim")))
        for cell in cells:
            if cell.state == EXCLUDED:
                continue
            label = cut_middle(safe_line(result.arm_name(cell.cell.arm)), arm_width) if arm_width else ""
            line = Text(" " * GAP)
            if label:
                line.append(label).pad_right(arm_width - cell_len(label) + GAP)
            rate = safe_line(cell.bare_rate)
            line.append(rate, style="" if cell.figure else STYLE_OF[cell.colour])
            if cell.verdict:
                line.pad_right(rates - cell_len(rate) + GAP)
                line.append(cell.verdict, style=STYLE_OF[cell.colour])
            console.print(line)


# --- what stands under it ----------------------------------------------------------------------------------------------------


def _below(sections: SuiteSections, details: bool) -> list[Line]:
    result = sections.result
    lines: list[Line] = curve_lines(result.loads) if result.loads else []
    if any(cell.throughput for cell in result.cells):
        lines.append(("read", sections.reading))
    if sections.legend:
        lines.append(("marks", "; ".join(f"{sign} {said}" for sign, said in sections.legend)))
    if sections.family > 1:
        lines.append(("words", f"Holm decided over {sections.family} comparisons; the intervals are not adjusted"))
    lines += suite_lines(result)
    lines += _failures(sections, details)
    lines += _warnings(sections, details)
    lines += [("stopped", result.stopped)] if result.stopped else []
    lines += [("missing", said) for said in result.missing]
    if details:
        lines += [("row", _say_row(sections, row)) for row in result.rows]
    return [*lines, *([("scope", sections.scope)] if sections.scope else [])]


def _failures(sections: SuiteSections, details: bool) -> list[Line]:
    shown = sections.failures if details else sections.failures[:FAILURES_SHOWN]
    lines: list[Line] = []
    for one in shown:
        kind = f"{one.kind}: " if one.kind else ""
        hint = f"\n{one.hint}" if one.hint else ""
        names = ", ".join(one.names) if details else shortened(one.names)
        lines.append(("failed", f"{names}: {kind}{one.message}{hint}"))
    if (more := len(sections.failures) - len(shown)) > 0:
        lines.append(("failed", f"and {counted(more, 'other reason')}: see the report"))
    return lines


def _warnings(sections: SuiteSections, details: bool) -> list[Line]:
    if details:
        return [("warning", one.text) for one in sections.cautions]
    # Marks stand for many cells, so that the warnings of high severity are all shown.
    grave = [one for one in sections.cautions if one.severity == "high"]
    other = [one for one in sections.cautions if one.severity == "medium"]
    shown = [*grave, *other[: max(0, WARNINGS_SHOWN - len(grave))]]
    lines: list[Line] = [("warning", _cut(one.text)) for one in shown]
    if more := len(sections.cautions) - len(shown):
        lines.append(("warning", f"{counted(more, 'further note')} in the report"))
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= WARNING_AT_MOST else f"{text[: WARNING_AT_MOST - 1].rstrip()}…"


def _say_row(sections: SuiteSections, row: SuiteRow) -> str:
    """`resnet50, bf16: x-01m7fa3ec, NVIDIA H200; container: 6 blocks, p 4.3e-08 of a difference beyond 1 %`."""
    chips = dict.fromkeys(cell.chip for cell in row.cells if cell.chip)
    parts = [", ".join([short_id(row.experiment_id) if row.experiment_id else "not begun", *chips])]
    for cell in row.cells:
        if one := cell.comparison:
            known = [
                ("equivalent", one.p_equivalence),
                ("beyond the margin", one.p_outside),
                ("different", one.p_difference),
            ]
            levels = ", ".join(f"p {p:.2g} ({name})" for name, p in known if p is not None)
            parts.append(f"{cell.arm}: {counted(one.count_b, 'block')}{f', {levels}' if levels else ''}")
    return f"{sections.result.row_name(row)}: {'; '.join(parts)}"


def _next(sections: SuiteSections, ledger: str) -> list[Line]:
    return [("next", command) for command in sections.commands(ledger)]
