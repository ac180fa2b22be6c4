"""The ratios of a suite as a table of colours: which cells differ from the reference, seen at once.

Each cell has its sign and its number too, so that nothing rests on colour alone. Red is slower, blue is faster, and what lies
within the margin is neutral. A cell that is not decided is hatched and has no colour of its ratio: −8 % ± 12 % must not look like
a loss. The reference's own rate stands to the left of the ratios, since a ratio says nothing about how fast it is.

Axes that the suite wants as columns are groups of columns. Columns that do not fit next to each other go on below.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import (
    BOLD_WIDTH,
    FONT_PX,
    box,
    fitted,
    hatch,
    line,
    one_line,
    picture,
    two_lines,
    words,
)
from stackmark.show.report.markup import Markup, element, join, number, text
from stackmark.show.suite_sections import MARKS, CellText, SuiteSections, shift_parts
from stackmark.verdict.needed import percent
from stackmark.verdict.suite import SuiteCell, SuiteResult, SuiteRow

# Changes at which the colour deepens, after the margin; the second list where a ratio is a factor.
CHANGES = (0.02, 0.05, 0.1, 0.2)
FACTORS = (0.1, 0.5, 1.0, 4.0)
# Beyond this change the steps are factors.
LARGE = 1.0
STEPS = 5
ROW, GAP, LEGEND = 34.0, 2.0, 46.0


@dataclass(frozen=True)
class Layout:
    """Wide: names to the left of their cells. Narrow: each name above them."""

    width: float
    left: float
    # Of a cell.
    least: float
    most: float


WIDE = Layout(width=860, left=210, least=92, most=170)
NARROW = Layout(width=340, left=0, least=80, most=170)


@dataclass(frozen=True)
class Column:
    """One column of ratios or rates: a value of the column axes (`bf16`), and an arm."""

    group: str
    arm: str
    is_reference: bool


@dataclass(frozen=True)
class Grid:
    """Rows and columns as they are drawn; a cell that the suite leaves out is missing."""

    columns: tuple[Column, ...]
    rows: tuple[str, ...]
    cells: dict[tuple[str, Column], tuple[SuiteRow, SuiteCell]]


def drawable(result: SuiteResult) -> bool:
    return bool(result.comparisons)


def grid_of(result: SuiteResult) -> Grid:
    """Lay a suite out: the axes in `columns` make groups of columns, the others make rows."""
    chosen = [name for name in result.row_axes if name in result.columns]
    others = [name for name in result.row_axes if name not in chosen]
    if chosen and not others:  # every row would have the same name
        others, chosen = chosen[:1], chosen[1:]
    cells: dict[tuple[str, Column], tuple[SuiteRow, SuiteCell]] = {}
    for row in result.rows:
        name, group = result.name_by(row, others), result.name_by(row, chosen)
        for cell in row.cells:
            key = (name, Column(group, cell.arm, cell.is_reference))
            if key in cells:  # two rows with one name: each keeps its own line
                key = (f"{name} ({row.number + 1})", key[1])
            cells[key] = (row, cell)
    columns = tuple(dict.fromkeys(column for _, column in cells))
    return Grid(_in_order(result, columns), tuple(dict.fromkeys(name for name, _ in cells)), cells)


def _in_order(result: SuiteResult, columns: Sequence[Column]) -> tuple[Column, ...]:
    """By group, and in it in the order of the arms: a row may lack some of them."""
    groups = list(dict.fromkeys(column.group for column in columns))
    arms = {arm: place for place, arm in enumerate(result.arms)}
    return tuple(sorted(columns, key=lambda column: (groups.index(column.group), arms.get(column.arm, len(arms)))))


# --- colours -----------------------------------------------------------------------------------------------------------------


def edges_of(result: SuiteResult) -> list[float]:
    """Return the changes at which the colour deepens: the margin first, then rounder and rounder ones."""
    far = max((max(one.ratio, 1 / one.ratio) - 1 for one in result.comparisons if one.ratio > 0), default=0.0)
    steps = FACTORS if far > LARGE else CHANGES
    return [result.margin, *(step for step in steps if step > 1.3 * result.margin)]


def level(ratio: float, edges: Sequence[float]) -> int:
    """Return how deep the colour of a ratio is: 0 within the margin, negative where it is slower."""
    margin, *others = edges
    if 1 - margin <= ratio <= 1 / (1 - margin):
        return 0
    faster = ratio > 1
    change = ratio - 1 if faster else 1 / ratio - 1 if edges[-1] >= LARGE else 1 - ratio
    depth = 1 + sum(change > edge for edge in others)
    return depth if faster else -depth


def class_of(depth: int) -> str:
    return "heat0" if depth == 0 else f"{'fast' if depth > 0 else 'slow'}{min(abs(depth), STEPS)}"


# --- the picture -------------------------------------------------------------------------------------------------------------


def heatmap(result: SuiteResult, layout: Layout = WIDE) -> Markup:
    sections = SuiteSections(result)
    grid, edges = grid_of(result), edges_of(result)
    parts: list[Markup] = []
    y = 0.0
    for columns in _panels(grid, layout):
        drawn, height = _panel(sections, grid, columns, edges, layout, y)
        parts.append(drawn)
        y += height + 16
    parts.append(_legend(result, edges, layout, y))
    about = "; ".join(
        f"{result.cell_name(row, cell)}: {_told(cell)}"
        for row in result.rows
        for cell in row.cells
        if not cell.is_reference
    )
    y += LEGEND + (20 if layout is NARROW else 0)
    return picture(
        layout.width, y, f"Ratio of each cell to {sections.reference}", f"{about}.", *parts, class_="heatmap"
    )  # fmt: skip


def _told(cell: SuiteCell) -> str:
    return f"{' '.join(shift_parts(cell.comparison))}, {cell.comparison.word}" if cell.comparison else "no ratio"


def _panels(grid: Grid, layout: Layout) -> list[list[Column]]:
    """Split the columns into panels that fit; a group stays together where it can."""
    most = max(1, int((layout.width - layout.left) / (layout.least + GAP)))
    panels: list[list[Column]] = [[]]
    for group in dict.fromkeys(column.group for column in grid.columns):
        mine = [column for column in grid.columns if column.group == group]
        if panels[-1] and len(panels[-1]) + len(mine) > most:
            panels.append([])
        for column in mine:
            if len(panels[-1]) == most:
                panels.append([])
            panels[-1].append(column)
    return panels


def _panel(
    sections: SuiteSections, grid: Grid, columns: Sequence[Column], edges: Sequence[float], layout: Layout, top: float
) -> tuple[Markup, float]:
    """Draw the heads, then the rows; return the picture and its height."""
    wide = min(layout.most, (layout.width - layout.left) / len(columns)) - GAP
    parts: list[Markup] = []
    y = top + 4
    if any(column.group for column in columns):
        y += 14
        parts += _group_heads(columns, layout.left, wide, y)
        y += 4
    y += 14
    names = [_head(sections.result, column) for column in columns]
    heads = [two_lines(name, wide - 4, 11) for name in names]
    tall = max(map(len, heads))
    for place, lines in enumerate(heads):
        x = layout.left + place * (wide + GAP)
        lowest = y + 13 * (tall - len(lines))
        parts += [
            words(x + wide / 2, lowest + 13 * turn, said, "strong", "middle", 11) for turn, said in enumerate(lines)
        ]
    y += 7 + 13 * (tall - 1)
    for row in grid.rows:
        if layout is NARROW:
            y += 18
            parts.append(words(0, y - 5, one_line(row, layout.width, 11), "strong", size=11))
        else:
            lines = two_lines(row, layout.left - 12)
            first = y + ROW / 2 + (4 if len(lines) == 1 else -3)
            parts += [words(0, first + 14 * turn, said, "strong") for turn, said in enumerate(lines)]
        for place, column in enumerate(columns):
            found = grid.cells.get((row, column))
            if found:
                x = layout.left + place * (wide + GAP)
                parts.append(_cell(sections, *found, edges, x, y, wide))
        y += ROW + GAP
    return join(parts), y - top


def _head(result: SuiteResult, column: Column) -> str:
    name = result.arm_name(column.arm)
    return f"{name} (reference)" if column.is_reference else name


def _group_heads(columns: Sequence[Column], left: float, wide: float, y: float) -> list[Markup]:
    parts = []
    for group in dict.fromkeys(column.group for column in columns):
        places = [place for place, column in enumerate(columns) if column.group == group]
        first, last = left + places[0] * (wide + GAP), left + places[-1] * (wide + GAP) + wide
        parts.append(words((first + last) / 2, y, fitted(group, last - first), "strong", "middle"))
        parts.append(line(first + 2, y + 5, last - 2, y + 5, "axis"))
    return parts


def _cell(
    sections: SuiteSections, row: SuiteRow, cell: SuiteCell, edges: Sequence[float], x: float, y: float, wide: float
) -> Markup:
    said = sections.cell(row, cell)
    title = element("title", text(f"{sections.result.cell_name(row, cell)}: {said.rate} {said.verdict}".rstrip()))
    if cell.comparison is None:
        return element("g", title, *_without_ratio(said, x, y, wide), class_="cell")
    undecided = cell.comparison.word == "INCONCLUSIVE"
    class_ = "undecided" if undecided else class_of(level(cell.comparison.ratio, edges))
    # Text on a coloured ground.
    ink = f"on ink-{class_}"
    parts = [box(x, y, wide, ROW, class_)]
    if undecided:
        parts += _hatched(x, y, wide, class_)
    change, interval = shift_parts(cell.comparison)
    marks = f" {said.marks}" if said.marks else ""
    parts.append(_signed(said.sign, f"{change}{marks}", x + wide / 2, y + 14, ink))
    parts.append(words(x + wide / 2, y + 28, fitted(interval or "no interval", wide - 4, 10), ink, "middle", 10))
    return element("g", title, *parts, class_="cell")


def _signed(sign: str, said: str, x: float, y: float, ink: str) -> Markup:
    """A number with its sign before it. Triangles are drawn, since not every bold font has them."""
    if sign not in ("▼", "▲"):
        return words(x, y, f"{sign} {said}", f"strong {ink}", "middle")
    left = x + 6 - len(said) * FONT_PX * BOLD_WIDTH / 2 - 12
    way = 1 if sign == "▼" else -1
    middle = y - 4.5
    path = f"M{number(left)} {number(middle - way * 4)}h9l-4.5 {way * 8}Z"
    return join([element("path", class_=f"glyph {ink}", d=path), words(x + 6, y, said, f"strong {ink}", "middle")])


def _hatched(x: float, y: float, wide: float, class_: str) -> list[Markup]:
    """Lines across a cell, and a plain field in its middle on which a number can be read."""
    field = min(wide - 8, 76.0)
    return [hatch(x, y, wide, ROW, 7.0), box(x + (wide - field) / 2, y + 2, field, ROW - 4, class_)]


def _without_ratio(said: CellText, x: float, y: float, wide: float) -> list[Markup]:
    """The reference's rate; or why there is no ratio."""
    middle = x + wide / 2
    if said.figure:
        marks = f" {said.marks}" if said.marks else ""
        below = said.spread or "one run"
        if not said.cell.is_reference:
            below = "not compared"
        figure = f"{said.figure}{marks}"
        size = 11.0 if fitted(figure, wide - 4, 11) == figure else 10.0
        if fitted(figure, wide - 4, size) != figure:  # rather the number whole, and the unit as far as there is room
            unit = said.figure.removeprefix(said.number).strip()
            figure, below = f"{said.number}{marks}", f"{below} · {unit}"
        return [
            box(x, y, wide, ROW, "stripe"),
            words(middle, y + 14, fitted(figure, wide - 4, size), "", "middle", size),
            words(middle, y + 28, fitted(below, wide - 4, 10), "quiet", "middle", 10),
        ]
    failed = "failed" in said.cell.marks
    state = said.state.removeprefix("failed: ") if failed else said.state
    sign = MARKS["failed" if failed else "open"][0]
    head = f"{sign} failed" if failed else sign
    return [
        box(x, y, wide, ROW, "broken" if failed else "empty"),
        *_hatched(x, y, wide, "broken" if failed else "empty"),
        words(middle, y + 14, head, "strong", "middle", 11),
        words(middle, y + 28, fitted("" if state == "failed" else state, wide - 4, 10), "quiet", "middle", 10),
    ]


def _legend(result: SuiteResult, edges: Sequence[float], layout: Layout, y: float) -> Markup:
    """The colours from slowest to fastest with the changes between them, and what hatching means."""
    depths = range(-len(edges), len(edges) + 1)
    wide = min(44.0, (layout.width - 40) / len(depths))
    large = edges[-1] >= LARGE
    parts = []
    for place, depth in enumerate(depths):
        parts.append(box(20 + place * wide, y, wide - 1, 12, class_of(depth)))
    for place, depth in enumerate(range(-len(edges), len(edges))):
        edge = edges[-depth - 1] if depth < 0 else edges[depth]
        said = _say_edge(edge, faster=depth >= 0, large=large)
        parts.append(words(20 + (place + 1) * wide, y + 25, said, "tick", "middle", 10))
    hatched = f"neutral: within {percent(result.margin)} · hatched: not decided, failed or not run"
    if layout is NARROW:
        parts.append(words(0, y + 44, fitted(hatched, layout.width, 10), "quiet", size=10))
    else:
        parts.append(words(20 + len(depths) * wide + 16, y + 10, hatched, "quiet", size=11))
    return join(parts)


def _say_edge(edge: float, *, faster: bool, large: bool) -> str:
    if large and edge >= 0.5:
        return f"{'×' if faster else '÷'}{1 + edge:g}"
    return f"{'+' if faster else '−'}{100 * edge:.3g} %"
