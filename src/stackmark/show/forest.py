"""A ratio and its intervals on one line of text: where it lies against 1 and against the margin.

    container / host     ┊    ─━━●━━─ │        ┊
                       0.99           1       1.01

The scale is logarithmic, so that half as fast and twice as fast are equally far from 1. The thick part is the 90 % interval,
which decides; the thin ends are the 95 % interval, which names a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from stackmark.show.safe import safe_line
from stackmark.verdict.comparison import Comparison

# Of the axis' width, on either side.
PADDING = 0.04
LEAST_WIDTH, MOST_WIDTH = 20, 72
# An interval of two wild runs may reach from 1e-300: past these the arrow says that it goes on.
LEAST_RATIO, MOST_RATIO = 1e-3, 1e3


@dataclass(frozen=True)
class Signs:
    thick: str
    thin: str
    ratio: str
    one: str
    margin: str
    left: str
    right: str


UNICODE = Signs("━", "─", "●", "│", "┊", "◀", "▶")
ASCII = Signs("=", "-", "o", "|", ":", "<", ">")


def forest(comparisons: Sequence[Comparison], width: int, *, ascii_only: bool = False) -> list[str]:
    """A line a comparison, and the axis under them; nothing where there is no room."""
    if not comparisons:
        return []
    signs = ASCII if ascii_only else UNICODE
    names = [safe_line(f"{c.b} / {c.a}") for c in comparisons]
    room = min(max(map(cell_len, names)), max(12, width // 3))
    plot = min(MOST_WIDTH, width - room - 2)
    if plot < LEAST_WIDTH:
        return []
    # An odd number of columns has a middle.
    axis = Axis.over(comparisons, plot - 1 + plot % 2)
    lines = [
        f"{_cut(name, room, ascii_only)}  {_row(c, axis, signs)}" for name, c in zip(names, comparisons, strict=True)
    ]
    return [line.rstrip() for line in [*lines, f"{'':<{room}}  {_labels(axis, comparisons[0].margin)}"]]


def _cut(name: str, room: int, ascii_only: bool) -> str:
    if cell_len(name) <= room:
        return set_cell_size(name, room)
    dots = "..." if ascii_only else "…"
    return set_cell_size(name, room - len(dots)) + dots


@dataclass(frozen=True)
class Axis:
    """In logarithms of the ratio."""

    low: float
    high: float
    width: int

    @classmethod
    def over(cls, comparisons: Sequence[Comparison], width: int) -> "Axis":
        margin = max(c.margin for c in comparisons)
        seen = [1.0, 1 - margin, 1 / (1 - margin)]
        for c in comparisons:
            seen.append(c.ratio)
            interval = c.interval_95 or c.interval_90
            seen += [interval.low, interval.high] if interval else []
        logs = [math.log(min(max(value, LEAST_RATIO), MOST_RATIO)) for value in seen]
        pad = PADDING * (max(logs) - min(logs))
        return cls(min(logs) - pad, max(logs) + pad, width)

    def at(self, ratio: float) -> int:
        """The column; outside the axis where the ratio is."""
        share = (math.log(max(ratio, 1e-300)) - self.low) / (self.high - self.low)
        return math.floor(min(max(share, -1.0), 2.0) * (self.width - 1) + 0.5)


def _row(c: Comparison, axis: Axis, signs: Signs) -> str:
    cells = [" "] * axis.width

    def put(column: int, sign: str) -> None:
        if 0 <= column < axis.width:
            cells[column] = sign

    for interval, sign in ((c.interval_95, signs.thin), (c.interval_90, signs.thick)):
        if interval is None:
            continue
        first, last = axis.at(interval.low), axis.at(interval.high)
        for column in range(max(first, 0), min(last, axis.width - 1) + 1):
            cells[column] = sign
        if first < 0:
            cells[0] = signs.left
        if last >= axis.width:
            cells[-1] = signs.right
    # Over the bar, so that one sees on which side of them it ends.
    for ratio in (1 - c.margin, 1 / (1 - c.margin)):
        put(axis.at(ratio), signs.margin)
    put(axis.at(1.0), signs.one)
    put(axis.at(c.ratio), signs.ratio)
    return "".join(cells)


def _labels(axis: Axis, margin: float) -> str:
    """1 first, then the margin, then the ends of the axis: what would run into another is left out."""
    cells = [" "] * axis.width
    ends = [(math.exp(axis.low), 0), (math.exp(axis.high), axis.width - 1)]
    wanted = [(1.0, axis.at(1.0)), *((ratio, axis.at(ratio)) for ratio in (1 - margin, 1 / (1 - margin))), *ends]
    for ratio, column in wanted:
        text = "1" if ratio == 1.0 else f"{ratio:.4g}"
        begin = min(max(0, column - len(text) // 2), axis.width - len(text))
        around = cells[max(0, begin - 1) : begin + len(text) + 1]
        if begin >= 0 and all(cell == " " for cell in around):
            cells[begin : begin + len(text)] = text
    return "".join(cells)
