"""What a machine did while it ran, small: one quantity over time in each picture, the measured part shaded.

The runs of an arm lie over each other in one picture, each from the beginning of its measured part on, so that a few pictures say
what dozens would: the arms stand side by side on one scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import Scale, axis_left, box, colour, good, line, padded, picture, ticks, words
from stackmark.show.report.markup import Markup, element
from stackmark.show.telemetry import say_value
from stackmark.units import say_seconds
from stackmark.verdict.telemetry import Series, Telemetry, unit_of

WIDTH, HEIGHT = 300.0, 120.0
LEFT, RIGHT, TOP, FLOOR = 66.0, 294.0, 8.0, 96.0
# More lines than this in one picture are a tangle.
MOST_RUNS = 12
# A scale reaches at least over this share of the largest value: a spread of a thousandth is no drama.
LEAST_SPAN = 0.05


@dataclass(frozen=True)
class Sampled:
    """One quantity of one run, with its time counted from the beginning of the measured part."""

    series: Series
    begin_s: float
    length_s: float


def sampled(name: str, runs: Sequence[Telemetry]) -> list[Sampled]:
    """Return the quantity of those runs that have it and were measured to the end."""
    return [
        Sampled(one.series[name], one.begin_s, one.end_s - one.begin_s)
        for one in runs
        if name in one.series and one.begin_s is not None and one.end_s is not None and one.end_s > one.begin_s
    ][:MOST_RUNS]


def value_scale(name: str, arms: Sequence[Sequence[Sampled]]) -> Scale:
    """One for all arms. A share is drawn from 0 to 1."""
    if unit_of(name) == "share":
        return Scale(0.0, 1.0, FLOOR, TOP)
    values = good(value for runs in arms for one in runs for value in one.series.values) or [0.0]
    low, high = padded(min(values), max(values), 0.08, LEAST_SPAN * max(abs(max(values)), 1e-9))
    return Scale(max(low, 0.0) if min(values) >= 0 else low, high, FLOOR, TOP)


def time_scale(arms: Sequence[Sequence[Sampled]]) -> Scale:
    """One for all arms: from the first sample before the measured part to the last one after it."""
    first = min((one.series.at_s[0] - one.begin_s for runs in arms for one in runs), default=0.0)
    last = max((one.series.at_s[-1] - one.begin_s for runs in arms for one in runs), default=1.0)
    # What lies long before the measured part is the set-up, which has a section of its own.
    longest = max((one.length_s for runs in arms for one in runs), default=1.0)
    first = max(first, -longest)
    return Scale(first, max(last, first + 1e-3), LEFT, RIGHT)


def over_time(name: str, runs: Sequence[Sampled], arm: int, x: Scale, y: Scale, title: str) -> Markup:
    """Draw one quantity of an arm's runs."""
    longest = max((one.length_s for one in runs), default=0.0)
    start, end = x.clipped(0.0), x.clipped(longest)
    marks = [(tick, say_value(name, tick)) for tick in ticks(y.low, y.high, 2)]
    return picture(
        WIDTH,
        HEIGHT,
        title,
        f"{len(runs)} runs; the measured part is shaded, {say_seconds(longest)} long",
        axis_left(y, LEFT, marks, right=RIGHT),
        box(start, TOP, end - start, FLOOR - TOP, "steady"),
        *[element("path", class_=f"steps {colour(arm)}", d=_path(one, x, y)) for one in runs],
        line(start, TOP, start, FLOOR, "from", "3 2"),
        line(LEFT, FLOOR, RIGHT, FLOOR, "axis"),
        words(start, HEIGHT - 8, "0", "tick", "middle", 10),
        words(RIGHT, HEIGHT - 8, say_seconds(x.high), "tick", "end", 10),
        class_="small",
    )


def _path(one: Sampled, x: Scale, y: Scale) -> str:
    """One decimal, as in the pictures of steps."""
    points = [
        (x(at - one.begin_s), y.clipped(value))
        for at, value in zip(one.series.at_s, one.series.values, strict=True)
        if x.low <= at - one.begin_s <= x.high
    ]
    return "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in points) if points else "M0 0"
