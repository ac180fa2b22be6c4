"""The ratio of each comparison with its intervals, against the margin: the picture of the verdict.

Drawn over the logarithm, in which the margin [1−m, 1/(1−m)] is symmetric and a ratio of two is as far as one of a half.
The 90 % interval, by which the margin is judged, is the thick bar, the 95 % interval the thin line; the blocks' own ratios
lie above as small signs. An interval of two blocks may reach over orders of magnitude: it is cut, with an arrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    box,
    decimals_of,
    factor_ticks,
    fitted,
    good,
    line,
    picture,
    round_step,
    sign,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element, join, number, text
from stackmark.show.wording import (
    arms_of,
    block_ratios,
    letter,
    say_change,
    say_interval,
    say_ratio,
    signed,
)
from stackmark.verdict.comparison import Comparison, Interval
from stackmark.verdict.examined import Examined
from stackmark.verdict.needed import percent

# An interval may widen the picture to this many times what the ratios and the margin need.
MOST_WIDENED = 3.0
# In logarithms; no ratio of two rates lies beyond, and its exponential is still a number.
FAR = 600.0
# Per cent on the axis up to a span of this factor, factors beyond.
PER_CENT_SPAN = 1.6


@dataclass(frozen=True)
class Layout:
    """Wide: name, picture and numbers side by side. Narrow: one above the other."""

    width: float
    left: float
    right: float
    row: float
    # Where in a row its interval and its blocks stand.
    middle: float
    dots: float
    # From where to where in a row the margin is shaded.
    shade: tuple[float, float]
    top: float = 26


WIDE = Layout(width=860, left=196, right=190, row=62, middle=40, dots=16, shade=(0, 62))
NARROW = Layout(width=340, left=10, right=10, row=92, middle=54, dots=32, shade=(22, 68))


def forest(examined: Examined, layout: Layout = WIDE) -> Markup:
    shown = [c for c in examined.comparisons if c.ratio > 0 and math.isfinite(c.ratio)]
    scale = forest_scale(examined, shown, layout)
    bottom = layout.top + layout.row * len(shown)
    tops = [layout.top + index * layout.row for index in range(len(shown))]
    about = "; ".join(
        f"{c.b} over {c.a}: {say_ratio(c.ratio)}, 90 % interval {say_interval(c.interval_90)}" for c in shown
    )
    return picture(
        layout.width,
        bottom + 44,
        "Ratio with its intervals, against the margin",
        f"{about}. Margin {percent(examined.margin)}.",
        *(_ground(examined.margin, scale, top, layout) for top in tops),
        axis_below(scale, bottom, _marks(scale)),
        words(scale(1), layout.top - 10, f"margin ± {percent(examined.margin)}", "quiet", "middle", 11),
        words(scale.start, bottom + 36, "← slower", "quiet", "start", 11),
        words(scale.end, bottom + 36, "faster →", "quiet", "end", 11),
        *(_row(examined, c, scale, top, layout) for c, top in zip(shown, tops, strict=True)),
        class_="forest",
    )


def forest_scale(examined: Examined, shown: Sequence[Comparison], layout: Layout) -> Scale:
    """From the margin, the ratios and the blocks; widened by the intervals, but not to where nothing else can be seen."""
    needed = [math.log(edge) for edge in (1 - examined.margin, 1 / (1 - examined.margin))]
    needed += [math.log(c.ratio) for c in shown]
    needed += [math.log(pair.ratio) for c in shown for pair in block_ratios(examined, c)]
    low, high = min(needed), max(needed)
    reach = (high - low) * MOST_WIDENED / 2
    middle = (low + high) / 2
    edges = [
        edge for c in shown for i in (c.interval_90, c.interval_95) if i for edge in good((i.low, i.high)) if edge > 0
    ]
    logs = [math.log(edge) for edge in edges]
    low = max(min([low, *logs]), min(low, middle - reach))
    high = min(max([high, *logs]), max(high, middle + reach))
    air = (high - low) * 0.06
    return Scale(
        math.exp(max(low - air, -FAR)),
        math.exp(min(high + air, FAR)),
        layout.left,
        layout.width - layout.right,
        log=True,
    )


def _marks(scale: Scale) -> list[tuple[float, str]]:
    room = int((scale.end - scale.start) / 70)
    factors = factor_ticks(scale.low, scale.high, room) if scale.high / scale.low > PER_CENT_SPAN else []
    # One tick alone is no axis.
    if len(factors) > 1:
        return [(tick, f"{tick:g}×") for tick in factors]
    low, high = 100 * (scale.low - 1), 100 * (scale.high - 1)
    digits = decimals_of(round_step(high - low, room))
    return [(1 + tick / 100, f"{signed(tick, digits)} %") for tick in ticks(low, high, room)]


def _ground(margin: float, scale: Scale, top: float, layout: Layout) -> Markup:
    """What a row is drawn on: the margin, its edges, and the line of no difference."""
    low, high = scale(1 - margin), scale(1 / (1 - margin))
    above, below = (top + edge for edge in layout.shade)
    edges = [line(x, above, x, below, "margin-edge", "4 3") for x in (low, high)]
    return join(
        [box(low, above, high - low, below - above, "margin"), *edges, line(scale(1), above, scale(1), below, "one")]
    )


def _row(examined: Examined, comparison: Comparison, scale: Scale, top: float, layout: Layout) -> Markup:
    a, b = arms_of(examined, comparison)
    y = top + layout.middle
    known = b if b is not None else 0
    spots = [
        sign(known, scale.clipped(pair.ratio), top + layout.dots, 3, kind="hollow",
             about=f"block {pair.block + 1}: {say_ratio(pair.ratio)}")
        for pair in block_ratios(examined, comparison)
    ]  # fmt: skip
    about = f"{comparison.b} over {comparison.a}: {say_ratio(comparison.ratio)}"
    return element(
        "g",
        element("title", text(f"{about}, 90 % interval {say_interval(comparison.interval_90)}")),
        _bar(scale, comparison.interval_95, y, f"thin a{known % 9}"),
        _bar(scale, comparison.interval_90, y, f"thick a{known % 9}"),
        *spots,
        sign(known, scale.clipped(comparison.ratio), y, 7, kind="point"),
        _names(comparison, a, b, top, layout),
        class_="row",
    )


def _bar(scale: Scale, interval: Interval | None, y: float, class_: str) -> Markup:
    """A line from end to end; an end that lies outside the picture is an arrow."""
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return Markup("")
    ends = (scale.clipped(interval.low), scale.clipped(interval.high))
    parts = [line(ends[0], y, ends[1], y, class_)]
    for x, value, way in ((ends[0], interval.low, -1), (ends[1], interval.high, 1)):
        if scale.shows(value):
            parts.append(line(x, y - 4, x, y + 4, class_) if class_.startswith("thin") else Markup(""))
        else:
            arrow = f"M{number(x + way * 7)} {number(y)}l{-way * 8} -5v10Z"
            parts.append(element("path", class_=f"arrow {class_.split()[-1]}", d=arrow))
    return join(parts)


def _names(comparison: Comparison, a: int | None, b: int | None, top: float, layout: Layout) -> Markup:
    letters = f"{letter(b)} / {letter(a)}" if a is not None and b is not None else ""
    numbers = f"{say_ratio(comparison.ratio)}  ({say_change(comparison.ratio)})"
    interval = say_interval(comparison.interval_90)
    if layout is NARROW:
        name = fitted(f"{letters}  {comparison.b} / {comparison.a}".strip(), layout.width - 130)
        return join(
            [
                words(layout.left, top + 16, name, "strong"),
                words(layout.width - layout.right, top + 16, comparison.word, "strong", "end", 11),
                words(layout.left, top + 84, f"{numbers}, 90 %: {interval}", "quiet", size=11),
            ]
        )
    right = layout.width - layout.right + 14
    room = layout.left - 16
    name = f"{comparison.b} / {comparison.a}"
    names = [name] if fitted(name, room) == name else [fitted(comparison.b, room), fitted(f"/ {comparison.a}", room)]
    above = top + (30 if len(names) == 1 else 20)
    return join(
        [
            *(words(0, above + 16 * index, part, "strong") for index, part in enumerate(names)),
            words(0, top + (48 if len(names) == 1 else 54), _quietly(letters, comparison.word), "quiet", size=11),
            words(right, top + 30, numbers, "strong"),
            words(right, top + 48, f"90 %: {interval}", "quiet", size=11),
        ]
    )


def _quietly(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
