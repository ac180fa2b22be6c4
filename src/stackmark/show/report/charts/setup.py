"""Where the time before the first measured step went, by part: a bar for each arm, from the launch to the first step done.

The parts carry numbers, which stand in the table below too, so that no colour has to be remembered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    box,
    decimals_of,
    fitted,
    picture,
    round_step,
    sign,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element, text
from stackmark.show.wording import letter, setup_parts, setup_total_s
from stackmark.units import say_seconds
from stackmark.verdict.examined import ExaminedArm

COLOURS = 8


@dataclass(frozen=True)
class Layout:
    width: float
    left: float
    right: float
    row: float
    bar_top: float
    bar: float = 22
    top: float = 6


WIDE = Layout(width=860, left=196, right=70, row=36, bar_top=7)
NARROW = Layout(width=340, left=6, right=14, row=54, bar_top=24)


def setup(arms: Sequence[ExaminedArm], layout: Layout = WIDE) -> Markup:
    shown = [arm for arm in arms if arm.setup]
    longest_s = max((setup_total_s(arm) for arm in shown), default=0.0) or 1.0
    x = Scale(0, longest_s, layout.left, layout.width - layout.right)
    bottom = layout.top + layout.row * len(shown)
    room = int((x.end - x.start) / 90)
    digits = decimals_of(round_step(longest_s, room))
    marks = [(tick, f"{tick:.{digits}f} s") for tick in ticks(0, longest_s, room)]
    parts = setup_parts(shown)
    return picture(
        layout.width,
        bottom + 24,
        "Set-up by part",
        "; ".join(f"{arm.label}: {say_seconds(setup_total_s(arm))}" for arm in shown),
        axis_below(x, bottom, marks, top=layout.top),
        *(_bar(arm, parts, x, layout.top + index * layout.row, layout) for index, arm in enumerate(shown)),
        class_="setup",
    )


def _bar(arm: ExaminedArm, parts: Sequence[str], x: Scale, top: float, layout: Layout) -> Markup:
    y = top + layout.bar_top
    drawn, passed_s = [], 0.0
    durations = dict(arm.setup)
    for number, name in enumerate(parts):
        seconds = durations.get(name, 0.0)
        if not seconds > 0:
            continue
        begin, width = x(passed_s), x(passed_s + seconds) - x(passed_s)
        # A gap of one pixel between two parts, which is there on black and white paper too.
        drawn.append(
            box(
                begin,
                y,
                max(width - 1, 0.5),
                layout.bar,
                f"part p{number % COLOURS}",
                f"{name}: {say_seconds(seconds)}",
            )
        )
        if width >= 14:
            drawn.append(
                words(begin + (width - 1) / 2, y + 15, str(number + 1), f"on q{number % COLOURS}", "middle", 11)
            )
        passed_s += seconds
    total = say_seconds(setup_total_s(arm))
    if layout is NARROW:
        named = [sign(arm.index, layout.left + 6, top + 12, 4.5)]
        named.append(
            words(layout.left + 18, top + 16, fitted(f"{letter(arm.index)}  {arm.label}", layout.width - 110), "strong")
        )
        named.append(words(layout.width - layout.right, top + 16, total, "strong", "end"))
    else:
        named = [
            sign(arm.index, 6, y + 11, 5),
            words(20, y + 15, fitted(f"{letter(arm.index)}  {arm.label}", layout.left - 34), "strong"),
        ]
        named.append(words(x(passed_s) + 8, y + 15, total, "strong"))
    return element("g", element("title", text(f"{arm.label}: {total}")), *drawn, *named)
