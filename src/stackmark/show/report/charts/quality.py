"""Quality against time on the run's clock: a line for each run, and the target as a dashed line.

Each evaluation is a dot. A run that reached its target ends with its arm's sign, one that did not with a cross. With two targets
(boxes and masks) there is a picture for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.quality import chosen, say_qualities, say_target
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    axis_left,
    colour,
    cross,
    line,
    padded,
    picture,
    sign,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element
from stackmark.units import say_seconds
from stackmark.verdict.time_to_quality import QualityResult, TrainedRun


@dataclass(frozen=True)
class Layout:
    width: float
    height: float = 300
    left: float = 52
    right: float = 20
    top: float = 26
    bottom: float = 44


WIDE = Layout(width=860)
# Of one run; more cannot be distinguished.
MOST_POINTS = 250
NARROW = Layout(width=340, height=260)


def curves(arms: Sequence[QualityResult | None], name: str, layout: Layout = WIDE) -> Markup:
    """Draw one quality of all runs of all arms."""
    results = [one for one in arms if one is not None]
    runs = [run for result in results for run in result.runs if run.evaluations]
    target = results[0].target[name]
    points = [(one.clock_s, one.quality[name]) for run in runs for one in run.evaluations]
    x = Scale(0.0, 1.04 * max(clock_s for clock_s, _ in points), layout.left, layout.width - layout.right)
    floor = layout.height - layout.bottom
    values = [target, *(value for _, value in points)]
    y = Scale(*padded(min(0.0, *values), max(values), 0.04), floor, layout.top)
    return picture(
        layout.width,
        layout.height,
        f"{name} against time",
        "; ".join(say_target(one) for one in results),
        axis_left(y, layout.left, [(tick, f"{tick:.4g}") for tick in ticks(y.low, y.high, 5)], right=x.end),
        axis_below(x, floor, [(tick, say_seconds(tick) if tick else "0") for tick in ticks(x.low, x.high, 6)]),
        line(layout.left, y(target), x.end, y(target), "one", "6 4"),
        words(
            layout.left + 6,
            y(target) - 5,
            f"target {say_qualities({name: target}, results[0].units)}",
            "quiet",
            size=11,
        ),
        *(part for run in runs for part in _run(run, name, x, y)),
        words((layout.left + x.end) / 2, layout.height - 6, "time on the run's clock", "quiet", "middle", 11),
        class_="quality",
    )


def _run(run: TrainedRun, name: str, x: Scale, y: Scale) -> list[Markup]:
    points = [(x(one.clock_s), y(one.quality[name])) for one in chosen(run.evaluations, MOST_POINTS)]
    drawn = [
        element("path", class_=f"steps {colour(run.arm)}", d="M" + "L".join(f"{at:.1f} {up:.1f}" for at, up in points))
    ]
    drawn += [element("circle", class_=f"ink {colour(run.arm)}", cx=at, cy=up, r=1.8) for at, up in points[:-1]]
    last, said = points[-1], f"{run.run_id}: {say_seconds(run.time_s)}, {run.epochs:.4g} epochs"
    end = (
        sign(run.arm, *last, 4.5, kind="point", about=said)
        if run.reached
        else cross(*last, 4.5, f"{said}, target not reached")
    )
    return [*drawn, end]


def drawable(arms: Sequence[QualityResult | None]) -> list[str]:
    """Return the qualities of which there is something to draw."""
    results = [one for one in arms if one is not None]
    return list(results[0].target) if any(run.evaluations for one in results for run in one.runs) else []
