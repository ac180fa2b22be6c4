"""The figures of a suite as bars in groups: a group a row, a bar an arm, each with its 95 % interval.

Bars begin at zero. Rows of one unit and one scale have one axis. Where units differ, or one row is many times another, each row
is drawn relative to its reference, and the picture says so; the figures themselves stand next to the bars. A suite that compares
nothing has one bar a row, and an axis for each unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.figures import FigureUnit
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    box,
    colour,
    decimals_of,
    fitted,
    line,
    one_line,
    picture,
    round_step,
    ticks,
    two_lines,
    whisker,
    words,
)
from stackmark.show.report.markup import Markup, element, join, text
from stackmark.show.suite_sections import CellText, SuiteSections
from stackmark.verdict.suite import SuiteCell, SuiteResult, SuiteRow

# Beyond this ratio between the rows' largest figures, the bars of the smaller rows could not be compared by eye.
MOST_APART = 8.0
AXIS = 44.0


@dataclass(frozen=True)
class Layout:
    """Wide: the row's name to the left, figures to the right. Narrow: the name above, and each figure above its bar."""

    width: float
    left: float
    right: float
    # Between groups.
    between: float
    # From bar to bar, where in that a bar begins, and its height.
    pitch: float
    above: float
    bar: float


WIDE = Layout(width=860, left=210, right=200, between=12, pitch=18, above=0, bar=15)
NARROW = Layout(width=340, left=4, right=14, between=28, pitch=26, above=14, bar=9)


@dataclass(frozen=True)
class Panel:
    """Rows with one axis. `unit` is None where bars are relative to the reference."""

    rows: tuple[SuiteRow, ...]
    unit: FigureUnit | None


def drawable(result: SuiteResult) -> bool:
    return any(cell.throughput for cell in result.cells)


def panels_of(result: SuiteResult) -> list[Panel]:
    """Decide which rows share an axis, and whether it is absolute."""
    rows = [row for row in result.rows if any(cell.throughput for cell in row.cells)]
    units = list(dict.fromkeys(cell.unit for row in rows for cell in row.cells if cell.throughput))
    if result.compared:
        alike = len(units) == 1 and _apart(rows) <= MOST_APART
        return [Panel(result.rows, _unit(rows) if alike else None)]
    # A row without a number has no unit; it stands with the first.
    return [
        Panel(
            tuple(row for row in result.rows if (row.cells[0].unit if row in rows else units[0]) == unit), _unit(mine)
        )
        for unit in units
        for mine in [[row for row in rows if row.cells[0].unit == unit]]
    ]


def _apart(rows: Sequence[SuiteRow]) -> float:
    """How many times the largest figure of a row is that of another."""
    tops = [
        max(cell.figure_unit.value(cell.throughput.rate_per_s) for cell in row.cells if cell.throughput) for row in rows
    ]
    return max(tops) / min(tops)


def _unit(rows: Sequence[SuiteRow]) -> FigureUnit:
    known = [cell for row in rows for cell in row.cells if cell.throughput]
    return known[0].figure_unit.scaled(max(cell.throughput.rate_per_s for cell in known if cell.throughput))


def is_relative(result: SuiteResult) -> bool:
    return any(panel.unit is None for panel in panels_of(result))


def say_axis(result: SuiteResult) -> str:
    """Say what the bars show."""
    if is_relative(result):
        return (
            f"Rates relative to {result.arm_name(result.reference)} in the same row, since the rows have different units or "
            "scales; more is better. The figures stand next to the bars."
        )
    unit = next((panel.unit for panel in panels_of(result) if panel.unit), FigureUnit(""))
    return f"From zero{unit.direction}."


def grouped_bars(result: SuiteResult, layout: Layout = WIDE) -> Markup:
    sections = SuiteSections(result)
    parts: list[Markup] = []
    y = 6.0
    for panel in panels_of(result):
        drawn, height = _panel(sections, panel, layout, y)
        parts.append(drawn)
        y += height
    about = "; ".join(
        f"{result.cell_name(row, cell)}: {sections.cell(row, cell).rate}" for row in result.rows for cell in row.cells
    )
    return picture(layout.width, y, "Figure of each cell, from zero", f"{about}.", *parts, class_="grouped")


def _panel(sections: SuiteSections, panel: Panel, layout: Layout, top: float) -> tuple[Markup, float]:
    scale = bar_scale(panel, layout)
    parts: list[Markup] = []
    y = top
    for row in panel.rows:
        drawn, height = _group(sections, panel, row, scale, layout, y)
        parts.append(drawn)
        y += height
    marks = _marks(panel, scale)
    name = panel.unit.name + panel.unit.direction if panel.unit else f"% of {sections.reference}"
    axis = axis_below(scale, y, marks, top=top)
    said = words(scale.end, y + 32, fitted(name, scale.end - scale.start, 11), "quiet", "end", 11)
    zero = line(scale.start, top, scale.start, y, "axis")
    return join([axis, *parts, zero, said]), y - top + AXIS


def _marks(panel: Panel, scale: Scale) -> list[tuple[float, str]]:
    shown = 1.0 if panel.unit else 100.0
    about = max(2, int((scale.end - scale.start) / 80))
    step = round_step(scale.high * shown, about)
    return [(tick / shown, f"{tick:,.{decimals_of(step)}f}") for tick in ticks(0, scale.high * shown, about)]


def value_of(panel: Panel, row: SuiteRow, rate: float) -> float:
    """Return how long a bar is: the figure, or its share of the reference's rate."""
    return panel.unit.value(rate) if panel.unit else rate / _base(row)


def _base(row: SuiteRow) -> float:
    """The rate that is 100 %: the reference's; where that has none, the first that there is."""
    known = [cell for cell in row.cells if cell.throughput]
    chosen = next((cell for cell in known if cell.is_reference), known[0])
    assert chosen.throughput
    return chosen.throughput.rate_per_s


def bar_scale(panel: Panel, layout: Layout) -> Scale:
    """From zero to the longest bar; an interval may reach further, up to half as far again."""
    cells = [(row, cell.throughput) for row in panel.rows for cell in row.cells if cell.throughput]
    longest = max(value_of(panel, row, rate.rate_per_s) for row, rate in cells)
    reach = max(
        (end for row in panel.rows for cell in row.cells if (found := bounds_of(panel, row, cell)) for end in found),
        default=longest,
    )
    return Scale(0, min(max(longest, reach), 1.5 * longest) * 1.03, layout.left, layout.width - layout.right)


def bounds_of(panel: Panel, row: SuiteRow, cell: SuiteCell) -> tuple[float, float] | None:
    """Return the ends of the interval on the axis, the smaller first."""
    rate = cell.throughput
    if rate is None or rate.low_per_s is None or rate.high_per_s is None:
        return None
    ends = sorted(value_of(panel, row, end) for end in (rate.low_per_s, rate.high_per_s))
    return ends[0], ends[1]


def _group(
    sections: SuiteSections, panel: Panel, row: SuiteRow, scale: Scale, layout: Layout, top: float
) -> tuple[Markup, float]:
    height = len(row.cells) * layout.pitch + layout.between
    bars = top + (20 if layout is NARROW else layout.between / 2)
    name = sections.result.row_name(row)
    if layout is NARROW:
        parts = [words(layout.left, top + 14, one_line(name, layout.width - 8), "strong")]
    else:
        middle = bars + len(row.cells) * layout.pitch / 2
        lines = two_lines(name, layout.left - 14)
        first = middle + 3 - 7 * (len(lines) - 1)
        parts = [words(0, first + 14 * turn, said, "strong") for turn, said in enumerate(lines)]
    for place, cell in enumerate(row.cells):
        arm = sections.result.arms.index(cell.arm) if cell.arm in sections.result.arms else place
        y = bars + place * layout.pitch
        parts.append(_bar(panel, row, sections.cell(row, cell), arm, scale, layout, y))
    return join(parts), height


def _fitted_rate(panel: Panel, said: CellText, width: float, size: float) -> str:
    """Say the rate in less where it does not fit: the whisker has the interval, the axis the unit, unless it is in per cent.

    A mark is never cut.
    """
    shorter = f"{said.number} {said.marks}".strip() if said.number else said.rate
    with_unit = f"{said.figure} {said.marks}".strip() if said.figure else said.rate
    texts = (said.rate, said.bare_rate, shorter) if panel.unit else (said.rate, with_unit, said.bare_rate, shorter)
    return next((one for one in texts if fitted(one, width, size) == one), fitted(shorter, width, size))


def _bar(panel: Panel, row: SuiteRow, said: CellText, arm: int, scale: Scale, layout: Layout, y: float) -> Markup:
    cell = said.cell
    title = element("title", text(f"{cell.arm}: {said.rate} {said.verdict}".strip(": ")))
    at = y + layout.above
    if cell.throughput is None:
        left = scale.start + 6
        return element(
            "g", title, words(left, at + 10, _fitted_rate(panel, said, scale.end - left, 11), "quiet", size=11)
        )
    end = scale.clipped(value_of(panel, row, cell.throughput.rate_per_s))
    parts = [
        box(scale.start, at, end - scale.start, layout.bar, f"bar {colour(arm)}"),
        whisker(bounds_of(panel, row, cell), scale, at + layout.bar / 2, 0.3 * layout.bar),
    ]
    if layout is NARROW:
        parts.append(
            words(layout.left, y + 11, _fitted_rate(panel, said, layout.width - layout.left, 11), "quiet", size=11)
        )
    else:
        right = layout.width - layout.right + 12
        parts.append(words(right, y + 12, _fitted_rate(panel, said, layout.right - 14, 10.5), "", size=11))
    return element("g", title, *parts, class_="row")
