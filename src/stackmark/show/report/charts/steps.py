"""Step times of one run, small: dozens of them stand side by side on one scale, and the odd one is seen.

Thousands of steps become as many columns as there are pixels: a line through the medians, and a band from the shortest to
the longest step of each column, so that a single hiccup is not lost. The steps that count stand on a bar. A scale that
showed the longest step of a warm-up would flatten all others: what lies above the scale is a small mark at its edge.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stackmark.show.report.charts.shapes import Scale, axis_left, box, colour, good, line, padded, picture, ticks, words
from stackmark.show.report.markup import Markup, element, number
from stackmark.units import say_seconds
from stackmark.verdict.examined import ExaminedRun

WIDTH, HEIGHT = 200.0, 104.0
LEFT, RIGHT, TOP, FLOOR = 50.0, 196.0, 8.0, 82.0
# Columns of one picture; more cannot be distinguished at this width.
COLUMNS = 120
# A scale reaches at least so far from the median to both sides: a spread of a thousandth is no drama.
LEAST_SPAN = 0.02
# Above the scale lies what is longer than this many times the 99th percentile's distance from the median.
STRETCH = 2.0


@dataclass(frozen=True)
class Column:
    """Some successive steps: the first one's number, the shortest, the median, the longest."""

    step: int
    low_s: float
    middle_s: float
    high_s: float


def columns_of(step_s: Sequence[float], most: int = COLUMNS) -> list[Column]:
    """Every step is in exactly one column."""
    count = len(step_s)
    edges = [index * count // min(most, count) for index in range(min(most, count) + 1)] if count else [0]
    return [
        Column(first, min(step_s[first:last]), float(median(step_s[first:last])), max(step_s[first:last]))
        for first, last in itertools.pairwise(edges)
    ]


def step_scale(runs: Sequence[ExaminedRun]) -> Scale:
    """One for all runs that are to be compared by eye."""
    lows, highs, middles = [], [], []
    for run in runs:
        if steps := good(run.step_s):
            low, middle, high, longest = np.percentile(steps, (0, 50, 99, 100))
            lows.append(float(low))
            middles.append(float(middle))
            highs.append(float(min(longest, middle + STRETCH * (high - middle))))
    if not middles:
        return Scale(0, 1, FLOOR, TOP)
    centre = float(median(middles))
    low, high = padded(max(min(lows), centre * 0.5), max(*highs, centre), 0.06, LEAST_SPAN * centre)
    return Scale(max(low, 0.0), high, FLOOR, TOP)


def steps(run: ExaminedRun, y: Scale, name: str) -> Markup:
    columns = columns_of(run.step_s)
    count = len(run.step_s)
    x = Scale(0, max(count, 1), LEFT, RIGHT)
    middles = [(x(_centre(columns, index, count)), y.clipped(column.middle_s)) for index, column in enumerate(columns)]
    marks = [(tick, say_seconds(tick)) for tick in ticks(y.low, y.high, 2)]
    first = x(run.first_step)
    return picture(
        WIDTH,
        HEIGHT,
        f"Step times of {name}",
        f"{count} steps, the first {run.first_step} are not counted"
        if run.first_step
        else f"{count} steps, all counted",
        axis_left(y, LEFT, marks, right=RIGHT),
        box(first, TOP, x.end - first, FLOOR - TOP, "steady"),
        _band(columns, x, y, count, run.arm),
        element("path", class_=f"steps {colour(run.arm)}", d=_polyline(middles)),
        *_above(columns, x, y, count),
        *([line(first, TOP, first, FLOOR, "from", "3 2")] if run.first_step else []),
        box(first, FLOOR, x.end - first, 4, f"counts {colour(run.arm)}"),
        line(LEFT, FLOOR, first, FLOOR, "axis"),
        words(LEFT, HEIGHT - 4, "0", "tick", size=10),
        words(RIGHT, HEIGHT - 4, f"{count:,} steps", "tick", "end", 10),
        class_="small",
    )


def _centre(columns: Sequence[Column], index: int, count: int) -> float:
    after = columns[index + 1].step if index + 1 < len(columns) else count
    return (columns[index].step + after) / 2


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    """One decimal: a tenth of a pixel is less than the line is thick, and there are thousands of them."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else "M0 0"


def _band(columns: Sequence[Column], x: Scale, y: Scale, count: int, arm: int) -> Markup:
    """From the shortest to the longest step of each column; nothing where each column is one step."""
    if count <= len(columns):
        return Markup("")
    highs = [(x(_centre(columns, index, count)), y.clipped(column.high_s)) for index, column in enumerate(columns)]
    lows = [(x(_centre(columns, index, count)), y.clipped(column.low_s)) for index, column in enumerate(columns)]
    return element("path", class_=f"band {colour(arm)}", d=_polyline([*highs, *reversed(lows)]) + "Z")


def _above(columns: Sequence[Column], x: Scale, y: Scale, count: int) -> list[Markup]:
    return [
        element("path", class_="above", d=f"M{number(x(_centre(columns, index, count)))} {number(TOP - 5)}l3 5h-6Z")
        for index, column in enumerate(columns)
        if column.high_s > y.high
    ]
