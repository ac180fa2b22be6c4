"""Charts of these pages, drawn with the report's own scales and shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.api.browsing import RunRow, StepsOfRun
from stackmark.figures import figure_unit
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    axis_left,
    box,
    decimals_of,
    line,
    padded,
    picture,
    round_step,
    sign,
    ticks,
    words,
)
from stackmark.show.report.charts.steps import columns_of
from stackmark.show.report.markup import NOTHING, Markup, element
from stackmark.show.report.tables import figure
from stackmark.units import counted, say_moment, say_seconds

HEIGHT, TOP, FLOOR, LEFT, AIR = 260.0, 12.0, 224.0, 66.0, 12.0
WIDE, NARROW = 900.0, 340.0
# Columns of a picture of steps; a trend has a point for each run.
MOST_COLUMNS = 400


def step_chart(steps: StepsOfRun, name: str) -> Markup:
    """Draw the times of a run's steps: medians as a line, from the shortest to the longest as a band, what counts shaded."""
    caption = (
        f"{counted(len(steps.step_s), 'step')}; the first {steps.first_step} do not count. "
        if steps.first_step
        else f"{counted(len(steps.step_s), 'step')}, all of which count. "
    ) + "The line is the median of neighbouring steps, the band their shortest and longest."
    return figure(_steps(steps, name, WIDE), _steps(steps, name, NARROW), caption)


def _steps(steps: StepsOfRun, name: str, width: float) -> Markup:
    columns = columns_of(steps.step_s, MOST_COLUMNS if width == WIDE else MOST_COLUMNS // 3)
    if not columns:
        return NOTHING
    counted_s = sorted(steps.step_s[steps.first_step :] or steps.step_s)
    middle, late = counted_s[len(counted_s) // 2], counted_s[int(len(counted_s) * 0.99)]
    # A scale that showed the longest step of a warm-up would flatten all others.
    low, high = padded(counted_s[0], max(min(counted_s[-1], middle + 2 * (late - middle)), middle), 0.08, 0.02 * middle)
    y = Scale(max(low, 0.0), high, FLOOR, TOP)
    x = Scale(0, len(steps.step_s), LEFT, width - AIR)
    ends = [*(column.step for column in columns[1:]), len(steps.step_s)]
    centres = [x((column.step + end) / 2) for column, end in zip(columns, ends, strict=True)]
    band = [(at, y.clipped(column.high_s)) for at, column in zip(centres, columns, strict=True)]
    band += [(at, y.clipped(column.low_s)) for at, column in reversed(list(zip(centres, columns, strict=True)))]
    first = x(steps.first_step)
    medians = [(at, y.clipped(column.middle_s)) for at, column in zip(centres, columns, strict=True)]
    above = [
        element("path", class_="above", d=f"M{at - 3:.1f} {TOP - 6:.1f}l3 5l3 -5Z")
        for at, column in zip(centres, columns, strict=True)
        if column.high_s > y.high
    ]
    return picture(
        width, HEIGHT, f"Step times of {name}", f"{len(steps.step_s)} steps, the median is {say_seconds(middle)}",
        box(first, TOP, x.end - first, FLOOR - TOP, "steady"),
        axis_left(y, LEFT, [(tick, say_seconds(tick)) for tick in ticks(y.low, y.high, 4)], right=width - AIR),
        element("path", class_="band a0", d=_way(band) + "Z") if len(columns) < len(steps.step_s) else NOTHING,
        element("path", class_="steps a0", d=_way(medians)),
        *above,
        line(first, TOP, first, FLOOR, "from", "3 2") if steps.first_step else NOTHING,
        axis_below(x, FLOOR, [(tick, f"{tick:,.0f}") for tick in ticks(0, len(steps.step_s), 6 if width == WIDE else 3)]),
        words(width - AIR, HEIGHT - 2, "step", "tick", "end", 11),
    )  # fmt: skip


def _way(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


@dataclass(frozen=True)
class Series:
    """Runs that did the same work in the same way: one colour of a trend."""

    label: str
    runs: tuple[RunRow, ...]


def trend_chart(series: Sequence[Series], unit: str, name: str) -> Markup:
    """Draw the figure of each run over time."""
    caption = f"{figure_unit(unit).name}{figure_unit(unit).direction}; a point for each run, in the order of time."
    return figure(_trend(series, unit, name, WIDE), _trend(series, unit, name, NARROW), caption)


def _trend(series: Sequence[Series], unit: str, name: str, width: float) -> Markup:
    own = figure_unit(unit)
    points = [
        (index, run, own.value(run.rate_per_s))
        for index, one in enumerate(series)
        for run in one.runs
        if run.rate_per_s
    ]
    if not points:
        return NOTHING
    times = [run.started_unix_s for _, run, _ in points]
    values = [value for _, _, value in points]
    low, high = padded(min(values), max(values), 0.08, 0.02 * max(values))
    y = Scale(max(low, 0.0) if low < 0 else low, high, FLOOR, TOP)
    x = Scale(*padded(min(times), max(times), 0.03, 60.0), LEFT, width - AIR)
    step = round_step(y.high - y.low, 4)
    marks = [(tick, f"{tick:,.{decimals_of(step)}f}") for tick in ticks(y.low, y.high, 4)]
    days = max(times) - min(times) > 3 * 86_400
    count = 5 if width == WIDE else 2
    places = [x.low + (x.high - x.low) * (index + 0.5) / count for index in range(count)]
    dates = [(at, say_moment(at, "%Y-%m-%d" if days else "%d %b %H:%M")) for at in places]
    shapes = [
        sign(
            index,
            x(run.started_unix_s),
            y(value),
            4,
            about=f"{say_moment(run.started_unix_s)}: {own.say(run.rate_per_s or 0)}",
        )
        for index, run, value in points
    ]
    return picture(
        width, HEIGHT, f"{name} over time", counted(len(points), "run"),
        axis_left(y, LEFT, marks, right=width - AIR), axis_below(x, FLOOR, dates), *shapes,
    )  # fmt: skip
