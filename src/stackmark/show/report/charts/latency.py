"""Latency curves: percentile against latency, a line for each arm.

The percentiles stand at the logarithm of what lies beyond them, so that each further nine (90, 99, 99.9) has the same width: the
tail, by which a server is judged, is as wide as everything before it. Latencies are logarithmic too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    axis_left,
    colour,
    factor_ticks,
    picture,
    sign,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element
from stackmark.units import say_seconds
from stackmark.verdict.examined import ExaminedArm, LatencyCurve

PERCENTS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
# A curve has the sign of its arm at these percentiles, so that arms can be distinguished without colours.
SIGNED = (50.0, 90.0, 99.0)


@dataclass(frozen=True)
class Layout:
    width: float
    height: float = 300
    left: float = 66
    right: float = 20
    top: float = 16
    bottom: float = 44


WIDE = Layout(width=860)
NARROW = Layout(width=340, height=260)


def names(curves: Sequence[LatencyCurve]) -> list[str]:
    """Return the kinds of latency that there are, each of which has a picture of its own."""
    return list(dict.fromkeys(one.name for one in curves))


def curves_of(curves: Sequence[LatencyCurve], name: str, arms: Sequence[ExaminedArm], layout: Layout = WIDE) -> Markup:
    """Draw one kind of latency of all arms."""
    shown = [one for one in curves if one.name == name]
    farthest = max(percent for one in shown for percent, _ in one.points)
    x = Scale(0.0, max(1.0, _nines(farthest)), layout.left, layout.width - layout.right)
    times = [max(seconds, 1e-9) for one in shown for _, seconds in one.points]
    floor = layout.height - layout.bottom
    y = Scale(0.8 * min(times), 1.25 * max(times), floor, layout.top, log=True)
    labels = {arm.index: arm.label for arm in arms}
    return picture(
        layout.width,
        layout.height,
        f"{name} by percentile",
        "; ".join(f"{labels.get(one.arm, '')}: {one.queries:,} queries" for one in shown),
        axis_left(y, layout.left, [(tick, say_seconds(tick)) for tick in _ticks(y)], right=x.end),
        axis_below(x, floor, [(_nines(percent), f"p{percent:g}") for percent in PERCENTS if x.shows(_nines(percent))]),
        *(part for one in shown for part in _curve(one, x, y, labels.get(one.arm, ""))),
        words((layout.left + x.end) / 2, layout.height - 6, "percentile", "quiet", "middle", 11),
        class_="latency",
    )


def _ticks(y: Scale) -> list[float]:
    """Return round times; of latencies that are nearly alike, ones that are closer to each other than 1, 2, 5."""
    found = factor_ticks(y.low, y.high)
    return found if len(found) > 1 else ticks(y.low, y.high, 4)


def _nines(percent: float) -> float:
    return -math.log10(max(1 - percent / 100, 1e-12))


def _curve(one: LatencyCurve, x: Scale, y: Scale, label: str) -> list[Markup]:
    points = [(x(_nines(percent)), y(max(seconds, 1e-9))) for percent, seconds in one.points]
    path = "M" + "L".join(f"{at:.1f} {up:.1f}" for at, up in points)
    drawn = [element("path", class_=f"steps {colour(one.arm)}", d=path)]
    for wanted in SIGNED:
        if wanted <= one.points[-1][0]:
            percent, seconds = min(one.points, key=lambda point: abs(_nines(point[0]) - _nines(wanted)))
            about = f"{label}: p{percent:.4g} {say_seconds(seconds)}"
            drawn.append(sign(one.arm, x(_nines(percent)), y(max(seconds, 1e-9)), 4.5, kind="point", about=about))
    return drawn
