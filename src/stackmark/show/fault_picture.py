"""Step times over time, with the time of the fault shaded: a gap is seen as a spike, a slower loop as a step up."""

from itertools import pairwise

from stackmark.errors import SpecError
from stackmark.show.faults import say_gap, say_log, say_part, say_ratio
from stackmark.show.plot import png_of, whole
from stackmark.show.report.charts.scale import Scale, factor_ticks, ticks
from stackmark.show.report.charts.shapes import axis_below, axis_left, fitted, picture, words
from stackmark.show.report.markup import Markup, element, join, number
from stackmark.units import say_seconds
from stackmark.verdict.fault import FaultFinding

WIDTH, HEIGHT = 860.0, 300.0
LEFT, RIGHT, TOP, FLOOR = 70.0, 838.0, 10.0, 262.0
# More steps than this are drawn as the longest and shortest of each column of pixels.
MOST_POINTS = 1500
SHADE = "#fbe3c8"


def fault_svg(found: FaultFinding) -> str:
    if len(found.step_ends_t) < 2:
        raise SpecError("there is no picture: no step was measured")
    head = [words(0, 30, f"{say_part(found)} while {found.workload}", "strong", size=16)]
    y = 52.0
    for line in _said(found):
        head.append(words(0, y, fitted(line, WIDTH), size=12))
        y += 18
    drawn = Markup(steps_over_time(found).replace("<svg ", f'<svg y="{number(y)}" ', 1))
    return whole(join([*head, drawn]), y + HEIGHT + 12)


def fault_png(found: FaultFinding) -> bytes:
    return png_of(fault_svg(found))


def _said(found: FaultFinding) -> list[str]:
    seen = found.interruption
    lines = []
    if found.fault_s is not None:
        lines.append(f"shaded: the {found.part} was gone for {say_seconds(found.fault_s)} (by {found.means})")
    if seen is not None:
        lines.append(say_gap(seen))
        lines.append(f"rate against before: during {say_ratio(seen.during_ratio)}, after {say_ratio(seen.after_ratio)}")
    return [*lines, say_log(found.log)]


def steps_over_time(found: FaultFinding) -> Markup:
    """Each step at the moment it ended, by its length; seconds count from the first measured step."""
    ends = found.step_ends_t
    start, last = ends[0], ends[-1]
    lengths = [(b - start, b - a) for a, b in pairwise(ends)]
    shown = _thinned(lengths)
    low, high = min(s for _, s in shown), max(s for _, s in shown)
    until = max(last, found.end_t or last) - start
    x = Scale(0.0, max(until, 1e-9), LEFT, RIGHT)
    y = Scale(low * 0.8, max(high, low * 1.5) * 1.25, FLOOR, TOP, log=True)
    shade: list[Markup] = []
    if found.begin_t is not None and found.end_t is not None:
        begin, end = x.clipped(found.begin_t - start), x.clipped(found.end_t - start)
        shade = [
            element("rect", x=begin, y=TOP, width=max(end - begin, 1.0), height=FLOOR - TOP, fill=SHADE),
            words(begin + 4, TOP + 14, fitted(found.part, max(end - begin, 60.0)), "quiet", size=11),
        ]
    marks = [(tick, say_seconds(tick)) for tick in factor_ticks(y.low, y.high)]
    times = [(tick, f"{tick:g} s") for tick in ticks(x.low, x.high, 8)]
    # A step is as wide as it is long, so that a gap is seen as the time that nothing happened in.
    path = "M" + "L".join(
        f"{x.clipped(at - seconds):.1f} {y.clipped(seconds):.1f}L{x(at):.1f} {y.clipped(seconds):.1f}"
        for at, seconds in shown
    )
    return picture(
        WIDTH,
        HEIGHT,
        f"Step times of {found.workload} while {found.part} was gone",
        f"{len(lengths)} steps, the longest took {say_seconds(high)}",
        *shade,
        axis_left(y, LEFT, marks, right=RIGHT),
        axis_below(x, FLOOR, times),
        element("path", class_="steps a0", d=path, fill="none"),
        words(
            LEFT,
            HEIGHT - 4,
            "seconds since the first measured step; the height is how long a step took",
            "tick",
            size=10,
        ),
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of many steps the shortest and the longest of each small stretch: no spike is lost."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        part = points[first : first + size]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept
