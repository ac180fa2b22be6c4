"""Speed-up against the number of ranks: measured, ideal, and what the rest was lost to.

A column is as high as perfect scaling. Its lowest part is the speed-up with its 95 % interval; above it stands what the exchange
took, what waiting for the slowest rank took, and what is left over. A dashed mark is a speed-up that somebody published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import Scale, axis_left, box, colour, fitted, line, picture, ticks, words
from stackmark.show.report.markup import Markup
from stackmark.show.scaling import WORDS, parts_of, say_point
from stackmark.verdict.scaling import Scaling, ScalingPoint

# The colours of the parts: those of arms far from each other; what is left over is pale.
PARTS = (colour(0), colour(1), colour(3), "")
REST = "stripe"


@dataclass(frozen=True)
class Layout:
    width: float
    height: float = 300
    left: float = 44
    right: float = 16
    top: float = 40
    bottom: float = 40
    # Of a column's place, the column.
    share: float = 0.5


WIDE = Layout(width=860)
NARROW = Layout(width=340, height=260, left=34, right=8)


def scaling_chart(scaling: Scaling, layout: Layout = WIDE) -> Markup:
    points = [point for point in scaling.points if point.speedup]
    most = max((max(point.ranks, point.high * point.ranks if point.high else 0.0) for point in points), default=1.0)
    floor = layout.height - layout.bottom
    y = Scale(0.0, most * 1.06, floor, layout.top)
    x = Scale(0.0, float(max(len(points), 1)), layout.left, layout.width - layout.right)
    marks = [(tick, f"{tick:g}") for tick in ticks(0.0, most, 5)]
    return picture(
        layout.width,
        layout.height,
        "Speed-up by the number of ranks",
        "; ".join(f"{point.label}: {say_point(point)}" for point in points),
        axis_left(y, layout.left, marks, right=layout.width - layout.right),
        *_key(points, layout),
        *(part for number, point in enumerate(points) for part in _column(point, number, x, y, floor, layout)),
        *_published(scaling, points, x, y, layout),
        line(layout.left, floor, layout.width - layout.right, floor, "axis"),
        class_="scaling",
    )


def _key(points: Sequence[ScalingPoint], layout: Layout) -> list[Markup]:
    shown = [0, 1, 2, 3] if any(point.losses for point in points) else [0, 3]
    names = [WORDS[part] if part < 3 or len(shown) > 2 else "lost" for part in shown]
    drawn = []
    step = (layout.width - layout.left - layout.right) / max(len(shown), 1)
    for place, (part, name) in enumerate(zip(shown, names, strict=True)):
        at = layout.left + place * min(step, 150.0)
        drawn += [box(at, 8, 10, 10, _class(part)), words(at + 14, 17, fitted(name, step - 16, 11), size=11)]
    return drawn


def _class(part: int) -> str:
    return f"bar {PARTS[part]}" if PARTS[part] else REST


def _column(point: ScalingPoint, number: int, x: Scale, y: Scale, floor: float, layout: Layout) -> list[Markup]:
    place = x(number + 1) - x(number)
    width = place * layout.share
    left = x(number) + (place - width) / 2
    middle = left + width / 2
    drawn, below = [], 0.0
    for part, until in enumerate(parts_of(point)):
        if until > below:
            drawn.append(
                box(left, y(until), width, y(below) - y(until), _class(part), f"{WORDS[part]}: {until - below:.2f}")
            )
            below = until
    drawn.append(line(left - 6, y(point.ranks), left + width + 6, y(point.ranks), "one"))
    if point.low and point.high:
        low, high = y(point.low * point.ranks), y(point.high * point.ranks)
        drawn += [line(middle, low, middle, high, "one")]
        drawn += [line(middle - 5, end, middle + 5, end, "one") for end in (low, high)]
    said = f"{point.speedup:.2f}" if point.speedup else ""
    efficiency = f" ({100 * point.efficiency:.0f} %)" if point.efficiency and point.ranks > 1 else ""
    drawn.append(words(middle, floor + 16, fitted(point.label, place), "tick", "middle", 11))
    drawn.append(words(middle, floor + 31, f"{said}{efficiency}", "strong", "middle", 12))
    return drawn


def _published(scaling: Scaling, points: Sequence[ScalingPoint], x: Scale, y: Scale, layout: Layout) -> list[Markup]:
    drawn = []
    for one in scaling.published:
        number = next((number for number, point in enumerate(points) if point.ranks == one.ranks), None)
        if number is not None:
            at = y(one.efficiency * one.ranks)
            first, last = x(number + 0.08), x(number + 0.92)
            drawn += [line(first, at, last, at, "axis", "4 3"), words(last, at + 11, "published", "quiet", "end", 10)]
    return drawn
