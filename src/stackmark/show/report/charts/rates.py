"""The figure of every run, block by block, in the order in which they ran: is there a drift, an outlier, a jump?

It is drawn in its own terms: of a time, lower is better. Where the arms' figures lie far apart each is drawn as its difference
from its own arm's mean, since on one axis nothing but the distance of the arms could be seen. The axis does not begin at zero,
and the picture says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.figures import FigureUnit
from stackmark.show.report.charts.shapes import (
    DASHES,
    Scale,
    axis_left,
    box,
    colour,
    cross,
    decimals_of,
    fitted,
    good,
    line,
    padded,
    picture,
    round_step,
    sign,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element, number
from stackmark.show.wording import letter, measured_runs, signed
from stackmark.verdict.examined import Examined, ExaminedRun

# Beyond this ratio between the arms' rates each arm is drawn against its own mean.
MOST_APART = 1.25
# Two letters at the end of their lines stand at least so far from each other.
LETTER_PX = 13.0


@dataclass(frozen=True)
class Layout:
    width: float
    height: float = 236
    left: float = 66
    right: float = 34
    top: float = 22
    bottom: float = 24


WIDE = Layout(width=860)
NARROW = Layout(width=340, height=220, left=58, right=26)


@dataclass(frozen=True)
class Point:
    run: ExaminedRun
    # Which column, and where in it from 0 to 1.
    column: int
    within: float
    # None where the run has no rate, or does not count.
    value: float | None


def rates(examined: Examined, layout: Layout = WIDE) -> Markup:
    points, columns = rate_points(examined)
    apart = against_own_mean(examined)
    x, y = rate_scales(examined, points, columns, layout)
    floor = layout.height - layout.bottom
    blocks = bool(examined.order)
    unit = next((arm.figure_unit for arm in examined.arms), FigureUnit(""))
    own = f"{unit.name}{unit.direction}"
    about = (
        f"difference from the arm's own mean, %{unit.direction}" if apart else f"{own} (the axis does not begin at 0)"
    )
    step = round_step(y.high - y.low, 5)
    marks = [
        (tick, signed(tick, decimals_of(step)) if apart else _plain(tick, step)) for tick in ticks(y.low, y.high, 5)
    ]
    stripes = [
        box(x(column), layout.top, x(column + 1) - x(column), floor - layout.top, "stripe")
        for column in range(0, columns, 2)
    ]
    return picture(
        layout.width,
        layout.height,
        "Figure of every run, in the order in which they ran",
        "; ".join(_told(examined, arm.index, arm.label) for arm in examined.arms),
        *(stripes if blocks else ()),
        axis_left(y, layout.left, marks, right=layout.width - layout.right),
        words(0, 12, fitted(about, layout.width, 11), "quiet", size=11),
        *_means(examined, y, layout, apart),
        *(_path(points, arm.index, x, y) for arm in examined.arms),
        *(_mark(examined, point, x, y, floor) for point in points),
        line(layout.left, floor, layout.width - layout.right, floor, "axis"),
        *_columns(x, columns, floor),
        words(layout.left - 6, floor + 16, "block" if blocks else "run", "quiet", "end", 11),
        class_="rates",
    )


def _mean_figures(examined: Examined) -> dict[int, float]:
    return {arm.index: arm.figure_unit.value(arm.throughput.rate_per_s) for arm in examined.arms if arm.throughput}


def _figure(examined: Examined, run: ExaminedRun) -> str:
    unit = next((arm.figure_unit for arm in examined.arms if arm.index == run.arm), FigureUnit(""))
    return unit.number(run.rate_per_s) if run.rate_per_s else "none"


def against_own_mean(examined: Examined) -> bool:
    means = list(_mean_figures(examined).values())
    units = {arm.unit for arm in examined.arms}
    return len(means) > 1 and (len(units) > 1 or max(means) / min(means) > MOST_APART)


def rate_points(examined: Examined) -> tuple[list[Point], int]:
    """Where each run stands: its block, and its turn in it; or its number where there are no blocks."""
    apart = against_own_mean(examined)
    means, units = _mean_figures(examined), {arm.index: arm.figure_unit for arm in examined.arms}
    runs = measured_runs(examined)
    points = []
    for place, run in enumerate(runs):
        known = run.counted and run.rate_per_s and run.arm in units
        value = units[run.arm].value(run.rate_per_s) if known and run.rate_per_s else None
        if value is not None and apart:
            value = 100 * (value / means[run.arm] - 1) if run.arm in means else None
        if run.block is None or not examined.order:
            points.append(Point(run, place, 0.5, value))
            continue
        order = examined.order[run.block] if run.block < len(examined.order) else tuple(range(len(examined.arms)))
        turn = order.index(run.arm) if run.arm in order else 0
        points.append(Point(run, run.block, (turn + 0.5) / max(len(order), 1), value))
    blocks = [run.block for run in runs if run.block is not None]
    columns = max([*blocks, len(examined.order) - 1], default=0) + 1 if examined.order else max(len(runs), 1)
    return points, columns


def rate_scales(examined: Examined, points: Sequence[Point], columns: int, layout: Layout) -> tuple[Scale, Scale]:
    """Across at least the margin on both sides, so that a spread far below it looks like one."""
    values = good(point.value for point in points) or [0.0]
    middle = sum(values) / len(values)
    least = 200 * examined.margin if against_own_mean(examined) else 2 * examined.margin * abs(middle)
    low, high = padded(min(values), max(values), 0.1, least)
    x = Scale(0, columns, layout.left, layout.width - layout.right)
    return x, Scale(low, high, layout.height - layout.bottom, layout.top)


def _means(examined: Examined, y: Scale, layout: Layout, apart: bool) -> list[Markup]:
    """A level line for each arm's mean, with its letter at the end; where all are at zero there is one line, without."""
    right = layout.width - layout.right
    levels = [(y.clipped(mean), arm) for arm, mean in _mean_figures(examined).items()]
    if apart:
        return [line(layout.left, y(0.0), right, y(0.0), "axis")]
    drawn = [line(layout.left, at, right, at, f"mean {colour(arm)}", DASHES[arm % 9]) for at, arm in levels]
    lowest = layout.top - LETTER_PX
    for at, arm in sorted(levels):
        lowest = max(at, lowest + LETTER_PX)
        drawn.append(words(right + 6, lowest + 4, letter(arm), f"strong ink {colour(arm)}", size=12))
    return drawn


def _path(points: Sequence[Point], arm: int, x: Scale, y: Scale) -> Markup:
    mine = [point for point in points if point.run.arm == arm and point.value is not None]
    if len(mine) < 2:
        return Markup("")
    spots = [f"{number(x(p.column + p.within))} {number(y.clipped(p.value or 0.0))}" for p in mine]
    return element("path", class_=f"trail {colour(arm)}", d="M" + "L".join(spots))


def _mark(examined: Examined, point: Point, x: Scale, y: Scale, floor: float) -> Markup:
    at = x(point.column + point.within)
    name = f"{letter(point.run.arm)}, {'block' if point.run.block is not None else 'run'} {point.column + 1}"
    if point.value is not None:
        figure = _figure(examined, point.run)
        return sign(point.run.arm, at, y.clipped(point.value), 4.5, about=f"{name}: {figure}")
    return cross(at, floor - 8, 4, f"{name}: {point.run.failure_kind or point.run.status}, not counted")


def _columns(x: Scale, columns: int, floor: float) -> list[Markup]:
    every = -(-columns // max(1, int((x.end - x.start) / 34)))
    return [
        words(x(column + 0.5), floor + 16, str(column + 1), "tick", "middle", 11) for column in range(0, columns, every)
    ]


def _plain(tick: float, step: float) -> str:
    return f"{tick:,.{decimals_of(step)}f}"


def _told(examined: Examined, arm: int, label: str) -> str:
    runs = [run for run in measured_runs(examined) if run.arm == arm and run.counted and run.rate_per_s]
    said = ", ".join(_figure(examined, run) for run in runs[:24])
    return f"{letter(arm)} ({label}): {said or 'no run that counts'}"
