"""Latency against load, as lines of text and as a picture with the knee marked."""

from dataclasses import asdict
from typing import Any

from stackmark.show.report.charts.shapes import Scale, axis_below, axis_left, line, padded, picture, sign, ticks, words
from stackmark.show.report.markup import Markup, element
from stackmark.show.terminal import Line
from stackmark.units import say_percent, say_rate, say_seconds
from stackmark.verdict.load_curve import RULE, LoadCurve, LoadPoint

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 320.0, 72.0, 150.0, 24.0, 44.0


def curve_lines(curve: LoadCurve) -> list[Line]:
    """Return a line for each load, and one for the knee."""
    return [*(("load", f"{curve.name} {_say_point(point)}") for point in curve.points), ("knee", say_knee(curve))]


def _say_point(point: LoadPoint) -> str:
    said = [f"{point.load:g}: {say_rate(point.requests_per_s)} requests/s"]
    if point.output_per_s is not None:
        said.append(f"{say_rate(point.output_per_s)} tokens/s")
    for kind in ("ttft", "tpot", "latency"):
        times = [
            f"{key.partition('_')[0]} {say_seconds(value)}"
            for key, value in point.times_s.items()
            if key.endswith(f"_{kind}")
        ]
        if times:
            said.append(f"{kind} {' '.join(times)}")
    if point.failed_share:
        said.append(f"{say_percent(point.failed_share)} failed")
    return ", ".join(said)


def say_knee(curve: LoadCurve) -> str:
    """Say where the knee is, or why the loads do not show it, and the rule."""
    best, knee = curve.best, curve.knee
    if knee is not None:
        return f"{curve.name} {knee.load:g}: {RULE}"
    end, way = ("lowest", "lower") if best is curve.points[0] else ("highest", "higher")
    return f"not among these loads: the {end} one, {curve.name} {best.load:g}, is {RULE}; try {way} ones"


def curve_json(curve: LoadCurve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "rule": RULE,
        "knee": curve.knee.load if curve.knee else None,
        "best": curve.best.load,
        "points": [{**asdict(point), "times_s": dict(point.times_s)} for point in curve.points],
    }


def curve_picture(curve: LoadCurve) -> Markup:
    """Draw the median and the highest known percentile of latency against answers per second; the dots are the loads."""
    points = curve.points
    tail = next((key for key in ("p99_latency", "p90_latency") if all(key in point.times_s for point in points)), "")
    lines = [("p50_latency", "median latency"), *([(tail, f"{tail.partition('_')[0]} latency")] if tail else [])]
    x = Scale(0.0, 1.05 * max(point.requests_per_s for point in points), LEFT, WIDTH - RIGHT)
    top = max(point.times_s[key] for point in points for key, _ in lines)
    floor = HEIGHT - BOTTOM
    y = Scale(0.0, padded(0.0, top, 0.06)[1], floor, TOP)
    parts = [
        axis_left(
            y, LEFT, [(tick, say_seconds(tick) if tick else "0") for tick in ticks(y.low, y.high, 5)], right=x.end
        ),
        axis_below(x, floor, [(tick, f"{tick:g}") for tick in ticks(x.low, x.high, 6)]),
    ]
    if curve.knee is not None:
        at = x(curve.knee.requests_per_s)
        parts += [line(at, TOP, at, floor, "one", "6 4"), words(at + 5, TOP + 4, "knee", "quiet", size=11)]
    for index, (key, name) in enumerate(lines):
        drawn = [(x(point.requests_per_s), y(point.times_s[key])) for point in points]
        path = "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in drawn)
        parts.append(element("path", class_=f"steps a{index}", d=path))
        for point, (across, up) in zip(points, drawn, strict=True):
            about = f"{curve.name} {point.load:g}: {name} {say_seconds(point.times_s[key])}"
            kind = "point" if point is curve.knee else ""
            parts.append(sign(index, across, up, 5 if kind else 3.5, kind=kind, about=about))
        parts.append(words(drawn[-1][0] + 10, drawn[-1][1] + 4, name, "quiet", size=11))
    for point in points:
        at, up = x(point.requests_per_s) - 8, y(point.latency_s) + 14
        parts.append(words(at, up, f"{point.load:g}", "quiet", "end", 10))
    below = f"answers per second; at each dot its {curve.name}"
    parts.append(words((LEFT + x.end) / 2, HEIGHT - 6, below, "quiet", "middle", 11))
    return picture(WIDTH, HEIGHT, "latency against load", say_knee(curve), *parts, class_="load")
