"""The figure of each arm as a bar that begins at zero, with its 95 % interval: how fast is it, before how they compare.

Each bar is labelled by letter, name and number, so that they are distinguished on black and white paper.
"""

from dataclasses import dataclass

from stackmark.figures import FigureUnit
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    box,
    colour,
    decimals_of,
    fitted,
    line,
    picture,
    round_step,
    ticks,
    whisker,
    words,
)
from stackmark.show.report.markup import Markup, element, text
from stackmark.show.wording import letter, say_arm_rate, say_spread
from stackmark.verdict.examined import Examined, ExaminedArm

BAR = 22.0


@dataclass(frozen=True)
class Layout:
    """Wide: name, bar and number in one row. Narrow: name and number above their bar."""

    width: float
    left: float
    right: float
    row: float
    # Where in a row its bar begins.
    bar: float
    top: float = 6


WIDE = Layout(width=860, left=196, right=190, row=40, bar=9)
NARROW = Layout(width=340, left=4, right=14, row=54, bar=22)


def drawable(examined: Examined) -> list[ExaminedArm]:
    """Return the arms with a figure; none unless two or more have one in the same unit."""
    arms = [arm for arm in examined.arms if arm.throughput]
    return arms if len(arms) > 1 and len({arm.unit for arm in arms}) == 1 else []


def bars(examined: Examined, layout: Layout = WIDE) -> Markup:
    arms = drawable(examined)
    unit = _unit(arms)
    scale = bar_scale(arms, unit, layout)
    bottom = layout.top + layout.row * len(arms)
    step = round_step(scale.high, 5)
    digits = decimals_of(step)
    marks = [(tick, f"{tick:,.{digits}f}") for tick in ticks(0, scale.high, 5)]
    about = "; ".join(f"{arm.label}: {say_arm_rate(arm)}" for arm in arms)
    return picture(
        layout.width,
        bottom + 40,
        f"{'Rate' if unit.higher_is_better else 'Figure'} of each arm, from zero",
        f"{about}{unit.direction}.",
        axis_below(scale, bottom, marks, top=layout.top),
        *(_row(arm, unit, scale, layout.top + layout.row * place, layout) for place, arm in enumerate(arms)),
        line(scale.start, layout.top, scale.start, bottom, "axis"),
        words(
            scale.end,
            bottom + 34,
            fitted(f"{unit.name}{unit.direction}", 0.9 * (scale.end - scale.start), 11),
            "quiet",
            "end",
            11,
        ),
        class_="bars",
    )


def bar_scale(arms: list[ExaminedArm], unit: FigureUnit, layout: Layout) -> Scale:
    """From zero to the longest bar; an interval may reach further, up to half as far again."""
    longest = max(unit.value(arm.throughput.rate_per_s) for arm in arms if arm.throughput)
    reach = max((bounds[1] for arm in arms if (bounds := _bounds(arm, unit))), default=longest)
    return Scale(0, min(max(longest, reach), 1.5 * longest) * 1.03, layout.left, layout.width - layout.right)


def _unit(arms: list[ExaminedArm]) -> FigureUnit:
    largest = max(arm.throughput.rate_per_s for arm in arms if arm.throughput)
    return arms[0].figure_unit.scaled(largest)


def _bounds(arm: ExaminedArm, unit: FigureUnit) -> tuple[float, float] | None:
    rate = arm.throughput
    if rate is None or rate.low_per_s is None or rate.high_per_s is None:
        return None
    return unit.bounds(rate.low_per_s, rate.high_per_s)


def _row(arm: ExaminedArm, unit: FigureUnit, scale: Scale, top: float, layout: Layout) -> Markup:
    assert arm.throughput
    rate = arm.throughput.rate_per_s
    y = top + layout.bar
    end = scale.clipped(unit.value(rate))
    spread = say_spread(arm.throughput) or "one run: no interval"
    return element(
        "g",
        element("title", text(f"{arm.label}: {say_arm_rate(arm)}")),
        box(scale.start, y, end - scale.start, BAR, f"bar {colour(arm.index)}"),
        whisker(_bounds(arm, unit), scale, y + BAR / 2),
        *_names(arm, unit.say(rate), spread, top, layout),
        class_="row",
    )


def _names(arm: ExaminedArm, figure: str, spread: str, top: float, layout: Layout) -> list[Markup]:
    name = f"{letter(arm.index)}  {arm.label}"
    if layout is NARROW:
        said = fitted(f"{figure} {spread}", 0.6 * layout.width, 11)
        room = layout.width - layout.left - 8 - len(said) * 6.4
        return [
            words(layout.left, top + 16, fitted(name, room), "strong"),
            words(layout.width - 4, top + 16, said, "quiet", "end", 11),
        ]
    right = layout.width - layout.right + 14
    return [
        words(0, top + layout.bar + 16, fitted(name, layout.left - 16), "strong"),
        words(right, top + layout.bar + 9, fitted(figure, layout.right - 14), "strong"),
        words(right, top + layout.bar + 24, fitted(spread, layout.right - 14, 11), "quiet", size=11),
    ]
