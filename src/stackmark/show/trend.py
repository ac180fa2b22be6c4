"""The series of a baseline and its checks over time: a table with a small trend, JSON, and a picture (SVG, or PNG).

Figures are in their own terms: of a time, lower is better. In the table time goes down, and the trend column marks where each
figure lies: left is less, the shaded part is the margin around the baseline, the bar its mean.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

from rich.console import Console

from stackmark.experiments.trend import Trend, TrendChange, TrendPoint
from stackmark.figures import FigureUnit, figure_fields, figure_unit
from stackmark.schemas import schema_name
from stackmark.show.plot import WIDTH, WORDS, png_of, whole
from stackmark.show.report.charts.shapes import (
    LETTER_WIDTH,
    Scale,
    axis_left,
    box,
    decimals_of,
    fitted,
    line,
    padded,
    round_step,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element, join, number, text
from stackmark.show.sections import SIGNS
from stackmark.show.terminal import Column, print_grid, print_table
from stackmark.show.verdict import COLOURS
from stackmark.show.wording import say_spread
from stackmark.units import counted, say_moment, say_rate
from stackmark.verdict.changes import ENOUGH_SERIES
from stackmark.verdict.needed import percent
from stackmark.verdict.series import ADVICE, ENOUGH

# --- in a terminal ------------------------------------------------------------------------------------------------------

COLUMNS = (
    Column("series", style="cyan"),
    Column("figure", right=True),
    Column("95 %"),
    Column("runs", right=True, drop=1),
    Column("change", right=True, drop=3),
    Column("trend", drop=2),
    Column("verdict"),
)
TREND_WIDTH = 17
# Of a history a screen or two.
MOST_ROWS = 40
DIFFERENCES_SHOWN = 5
BAND, MEAN, POINT = "░", "│", "●"


def print_trends(name: str, trends: Sequence[Trend], console: Console) -> None:
    for number_, trend in enumerate(trends):
        if number_:
            console.print()
        unit = figure_unit(trend.unit)
        mean = trend.baseline.rate_per_s
        saved = counted(sum(point.kind == "baseline" for point in trend.points), "series")
        spread = say_spread(trend.baseline)
        figure = f"{unit.say(mean)}{f' {spread}' if spread else ''}{unit.direction}"
        about = f"{figure} ({saved}); changes are to the first of them"
        lines = [("workload", trend.label), ("baseline", about)]
        print_grid(console, lines, {"workload": "cyan"})
        rows = [_cells(trend, point, unit) for point in trend.points]
        styles = [COLOURS.get(point.word or "", "dim") for point in trend.points]
        columns = [
            replace(column, name=unit.name) if column.name == "figure" and unit.name else column for column in COLUMNS
        ]
        print_table(console, columns, rows, styles)
    print_grid(console, _after(name, trends), {"next": "dim", "note": "yellow"})


def print_history(workload: str, trends: Sequence[Trend], console: Console) -> None:
    """Print the changes of each trend first and last: the table between them may be long."""
    for number_, trend in enumerate(trends):
        if number_:
            console.print()
        unit = figure_unit(trend.unit)
        changes = [("changed", line) for line in map(partial(say_change, unit=unit), trend.changes)]
        lines = [("workload", f"{trend.label} {trend.about}"), *(changes or [("changed", say_no_change(trend))])]
        print_grid(console, lines, {"workload": "cyan", "changed": "bold yellow" if changes else "green"})
        shown = trend.points[-MOST_ROWS:]
        if len(shown) < len(trend.points):
            console.print(f"the last {len(shown)} of {counted(len(trend.points), 'series')}")
        named = {trend.points[change.change.first]: change for change in trend.changes}
        rows = [
            [
                *_cells(trend, point, unit)[:-1],
                f"◂ {unit.say_shift(named[point].change.ratio)[0]}" if point in named else "",
            ]
            for point in shown
        ]
        styles = ["bold yellow" if point in named else "dim" for point in shown]
        columns = [
            replace(column, name={"figure": unit.name or "figure", "verdict": "since"}.get(column.name, column.name))
            for column in COLUMNS
        ]
        print_table(console, columns, rows, styles)
        behind = [line for change in trend.changes for line in _behind(change)]
        print_grid(console, [*behind, *changes], {"changed": "bold yellow"})
    print_grid(console, [("next", f"stackmark trend {workload} -o trend.svg")], {"next": "dim"})


def say_change(one: TrendChange, unit: FigureUnit) -> str:
    """Say a change in a line: `−2.1 % (95 %: −2.6 % to −1.7 %) between 2026-11-02 04:00 and 2026-11-03 04:00; p 0.0005, …`."""
    change = one.change
    low, high = (unit.say_shift(end)[0] for end in (change.low, change.high))
    days = [say_moment(moment, "%Y-%m-%d %H:%M") for moment in (one.after_unix_s, one.until_unix_s)]
    return (
        f"{unit.say_shift(change.ratio)[0]} (95 %: {low} to {high}) between {days[0]} and {days[1]}; "
        f"p {change.p:.2g}, {change.series_before} series before, {change.series_after} after"
    )


def change_lines(one: TrendChange, unit: FigureUnit) -> list[str]:
    """Say a change, what changed in the stack with it, and what else differs, in a line each."""
    return [say_change(one, unit), *(f"{name}: {line}" for name, line in _behind(one))]


def say_no_change(trend: Trend) -> str:
    count = len(trend.points)
    if count < ENOUGH_SERIES:
        return f"not known: a change needs {ENOUGH_SERIES} series, and here are {count}"
    return f"no: {counted(count, 'series')} without a change of more than {percent(trend.margin)}"


def _behind(one: TrendChange) -> list[tuple[str, str]]:
    """Say what changed in the stack with a change, and what else differs."""
    found = [("stack", line) for line in one.stack] or [("stack", "nothing of driver, firmware, kernel and versions")]
    named = ", ".join(f"{fact.subject}.{fact.key}" for fact in one.differs[:DIFFERENCES_SHOWN])
    return [*found, *([("differs", named)] if named else [])]


def _after(name: str, trends: Sequence[Trend]) -> list[tuple[str, str]]:
    lines = []
    if any(sum(point.kind == "baseline" for point in trend.points) < ENOUGH for trend in trends):
        lines.append(("note", f"{ADVICE}: stackmark baseline save {name}"))
    lines.append(("next", f"stackmark baseline plot {name} -o trend.svg"))
    return lines


def _cells(trend: Trend, point: TrendPoint, unit: FigureUnit) -> list[str]:
    rate = point.throughput
    change = "" if point is trend.points[0] else unit.say_shift(point.ratio_to_first)[0]
    return [
        say_moment(point.began_unix_s, "%Y-%m-%d %H:%M"), unit.number(rate.rate_per_s), say_spread(rate), str(rate.runs),
        change, _strip(trend, point, unit), point.word or point.kind,
    ]  # fmt: skip


def _strip(trend: Trend, point: TrendPoint, unit: FigureUnit) -> str:
    """Draw where a figure lies among all of them: `   ●  ░░│░░`."""
    low, high = _reach(trend, unit)
    scale = Scale(low, high, 0, TREND_WIDTH - 1)
    edges = [round(scale(edge)) for edge in _margin(trend, unit)]
    cells = [BAND if edges[0] <= at <= edges[1] else " " for at in range(TREND_WIDTH)]
    cells[round(scale(unit.value(trend.baseline.rate_per_s)))] = MEAN
    cells[round(scale.clipped(unit.value(point.throughput.rate_per_s)))] = POINT
    return "".join(cells)


def _margin(trend: Trend, unit: FigureUnit) -> tuple[float, float]:
    """Return the ends of the margin around the baseline's mean, the smaller first."""
    mean, share = trend.baseline.rate_per_s, 1 - trend.margin
    return unit.bounds(mean * share, mean / share)


def _reach(trend: Trend, unit: FigureUnit) -> tuple[float, float]:
    values = [unit.value(point.throughput.rate_per_s) for point in trend.points]
    return padded(min(*values, *_margin(trend, unit)), max(*values, *_margin(trend, unit)))


# --- for programs -------------------------------------------------------------------------------------------------------


def trends_json(name: str, margin: float, trends: Sequence[Trend]) -> dict[str, Any]:
    return {
        "schema": schema_name("baseline-trend"),
        "baseline": name,
        "margin": margin,
        "workloads": _workloads_json(trends),
    }


def history_json(workload: str, margin: float, trends: Sequence[Trend]) -> dict[str, Any]:
    found = _workloads_json(trends)
    for one, trend in zip(found, trends, strict=True):
        one |= {"about": trend.about, "changes": [_change_json(change, trend.unit) for change in trend.changes]}
    return {"schema": schema_name("trend"), "workload": workload, "margin": margin, "trends": found}


def _change_json(one: TrendChange, unit: str) -> dict[str, Any]:
    return {
        **asdict(one.change),
        "change": figure_unit(unit).say_shift(one.change.ratio)[0],
        "after_unix_s": one.after_unix_s,
        "until_unix_s": one.until_unix_s,
        "stack_changed": list(one.stack),
        "differs": [f"{fact.subject}.{fact.key}" for fact in one.differs],
    }


def _workloads_json(trends: Sequence[Trend]) -> list[dict[str, Any]]:
    return [
        {
            "workload": trend.workload,
            "label": trend.label,
            "place": trend.place,
            "unit": trend.unit,
            "before": asdict(trend.baseline) | figure_fields(trend.baseline.rate_per_s, trend.unit),
            "series": [_point_json(point, trend.unit) for point in trend.points],
        }
        for trend in trends
    ]


def _point_json(point: TrendPoint, unit: str) -> dict[str, Any]:
    return {
        "kind": point.kind,
        "began_unix_s": point.began_unix_s,
        "experiments": list(point.experiment_ids),
        **asdict(point.throughput),
        **figure_fields(point.throughput.rate_per_s, unit),
        "ratio_to_first": point.ratio_to_first,
        "ratio_to_baseline": point.ratio_to_baseline,
        "word": point.word,
    }


# --- the picture: a point with its interval for each series, around the baseline and the margin -------------------------

LEFT, RIGHT, HEIGHT = 70.0, 14.0, 250.0
# Two points stand at least so far from each other; else the axis is in their order and not in time.
LEAST_APART = 9.0
DATES = 6
DAY_S = 86_400.0
# An interval of two runs may be wider than anything else: it is cut at this many times the reach of the figures.
WIDEST = 0.6
# Words that the shapes say well enough.
UNNAMED = ("EQUIVALENT", "INCONCLUSIVE")


def trends_svg(name: str, trends: Sequence[Trend], what: str = "Baseline") -> str:
    parts: list[Markup] = [words(0, 34, fitted(f"{what} {name}", WIDTH, 18), "strong", size=18)]
    parts.append(_legend(trends, 58))
    y = 76.0
    for trend in trends:
        unit = figure_unit(trend.unit)
        where = f" {trend.about}" if trend.about else ""
        title = fitted(f"{trend.label}{where}: {unit.name}{unit.direction}", WIDTH, 13)
        parts += [words(0, y + 12, title, "strong", size=13), _panel(trend, unit, y + 22, y + 22 + HEIGHT)]
        y += HEIGHT + 66
    return whole(join(parts), y)


def trends_png(name: str, trends: Sequence[Trend]) -> bytes:
    return png_of(trends_svg(name, trends))


def _legend(trends: Sequence[Trend], y: float) -> Markup:
    parts: list[Markup] = []
    x = 0.0
    of_baseline = any(point.kind == "baseline" for trend in trends for point in trend.points)
    seen = dict.fromkeys(point.word or "" for trend in trends for point in trend.points)
    for word in sorted(seen):
        name: str = word or ("series of the baseline" if of_baseline else "series")
        parts += [_shape(word, x + 6, y - 4, 5), words(x + 16, y, name, "quiet", size=11)]
        x += 32 + _wide(name)
    margin = max((trend.margin for trend in trends), default=0.0)
    known = "95 % interval of the baseline" if of_baseline else "95 % interval of the first level"
    for class_, said in (("margin", f"margin {percent(margin)}"), ("", known)):
        # Of two or more series the baseline has an interval.
        if not class_ and not any(trend.baseline.low_per_s for trend in trends):
            continue
        parts += [_band(x, y - 10, 18, 10, class_), words(x + 24, y, said, "quiet", size=11)]
        x += 40 + _wide(said)
    return join(parts)


def _wide(said: str) -> float:
    """Return about how many pixels a text of the legend takes; capitals are wider."""
    return 11 * (LETTER_WIDTH * len(said) + 0.1 * sum(letter.isupper() for letter in said))


def _band(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    if class_:
        return box(x, y, width, height, class_)
    return element("rect", x=x, y=y, width=width, height=max(height, 1.0), fill="#1f5fae", fill_opacity="0.18")


def _panel(trend: Trend, unit: FigureUnit, top: float, floor: float) -> Markup:
    low, high = _drawn_reach(trend, unit)
    y = Scale(low, high, floor, top)
    right = WIDTH - RIGHT
    step = round_step(high - low, 6)
    marks = [(tick, _tick(tick, step)) for tick in ticks(low, high, 6)]
    lower, upper = _margin(trend, unit)
    mean = y(unit.value(trend.baseline.rate_per_s))
    parts = [box(LEFT, y(upper), right - LEFT, y(lower) - y(upper), "margin")]
    if trend.baseline.low_per_s is not None and trend.baseline.high_per_s is not None:
        ends = [y.clipped(end) for end in unit.bounds(trend.baseline.low_per_s, trend.baseline.high_per_s)]
        parts.append(_band(LEFT, ends[1], right - LEFT, ends[0] - ends[1], ""))
    parts += [
        axis_left(y, LEFT, marks, right=right),
        line(LEFT, mean, right, mean, "one"),
        line(LEFT, floor, right, floor, "axis"),
    ]
    places, in_time = _places(trend, right)
    parts.append(_dates(trend, places, floor, in_time))
    for change in trend.changes:
        first = change.change.first
        parts.append(_mark((places[first - 1] + places[first]) / 2, top, floor, unit.say_shift(change.change.ratio)[0]))
    before = ""
    for point, at in zip(trend.points, places, strict=True):
        word = point.word or ""
        # Each word is written where it begins: ten slow nights in a row have one.
        parts.append(_drawn(point, at, y, unit, named=word not in ("", *UNNAMED, before)))
        before = word
    return join(parts)


def _mark(x: float, top: float, floor: float, said: str) -> Markup:
    """Draw where a level ends and another begins."""
    near_end = x > WIDTH - RIGHT - 60
    return join(
        [
            element("line", class_="thin", stroke=_ink("SLOWER"), stroke_dasharray="4 3", x1=x, y1=top, x2=x, y2=floor),
            words(x + (-4 if near_end else 4), top + 11, said, "strong", "end" if near_end else "start", 11),
        ]
    )


def _drawn_reach(trend: Trend, unit: FigureUnit) -> tuple[float, float]:
    low, high = _reach(trend, unit)
    least, most = low - WIDEST * (high - low), high + WIDEST * (high - low)
    for point in trend.points:
        rate = point.throughput
        if rate.low_per_s is not None and rate.high_per_s is not None:
            ends = unit.bounds(rate.low_per_s, rate.high_per_s)
            low, high = max(min(low, ends[0]), least), min(max(high, ends[1]), most)
    return padded(low, high, 0.04)


def _tick(value: float, step: float) -> str:
    return f"{value:,.{decimals_of(step)}f}" if step < 1 else say_rate(value) if value >= 1e6 else f"{value:,.0f}"


def _places(trend: Trend, right: float) -> tuple[list[float], bool]:
    """Return where each point stands, and whether that is in time: where points would lie on each other, it is their order."""
    moments = [point.began_unix_s for point in trend.points]
    air = 26.0
    if len(moments) > 1 and moments[-1] > moments[0]:
        x = Scale(moments[0], moments[-1], LEFT + air, right - air)
        found = [x(moment) for moment in moments]
        if all(after - before >= LEAST_APART for before, after in pairwise(found)):
            return found, True
    step = (right - LEFT) / max(len(moments), 1)
    return [LEFT + step * (index + 0.5) for index in range(len(moments))], False


def _dates(trend: Trend, places: Sequence[float], floor: float, in_time: bool) -> Markup:
    """Write dates below as many points as have room for one."""
    points = trend.points
    within_days = points[-1].began_unix_s - points[0].began_unix_s < 3 * DAY_S
    form, wide = ("%d %b %H:%M", 84.0) if within_days else ("%Y-%m-%d", 76.0)
    parts, last = [], -wide
    for point, at in zip(points, places, strict=True):
        if at - last >= wide:
            parts.append(line(at, floor, at, floor + 4, "axis"))
            parts.append(words(at, floor + 16, say_moment(point.began_unix_s, form), "tick", "middle", 11))
            last = at
    if not in_time:
        parts.append(words(LEFT, floor + 32, "in the order of time, not to scale", "quiet", size=11))
    return join(parts)


def _drawn(point: TrendPoint, x: float, y: Scale, unit: FigureUnit, *, named: bool) -> Markup:
    rate, word = point.throughput, point.word or ""
    ink = _ink(word)
    parts: list[Markup] = []
    ends = [y(unit.value(rate.rate_per_s))]
    if rate.low_per_s is not None and rate.high_per_s is not None:
        ends = [y.clipped(end) for end in unit.bounds(rate.low_per_s, rate.high_per_s)]
        parts.append(element("line", class_="thin", stroke=ink, x1=x, y1=ends[0], x2=x, y2=ends[1]))
    at = y(unit.value(rate.rate_per_s))
    said = f"{say_moment(point.began_unix_s, '%Y-%m-%d %H:%M')} {point.kind}: {unit.say(rate.rate_per_s)} {say_spread(rate)}"
    parts.append(_shape(word, x, at, 5, f"{said} {word}".strip()))
    if named:
        # Above the interval, or below it at the top of the picture.
        above, below = min(at - 6, *ends) - 6, max(at + 6, *ends) + 13
        near_end = x > WIDTH - RIGHT - 60
        parts.append(
            words(
                x + (5 if near_end else 0), above if above - y.end > 8 else below, word, f"word {SIGNS[word][1]}",
                "end" if near_end else "middle", 11,
            )
        )  # fmt: skip
    return join(parts)


def _ink(word: str) -> str:
    return WORDS[SIGNS[word][1]] if word else WORDS["plain"]


def _shape(word: str, x: float, y: float, size: float, about: str = "") -> Markup:
    """Draw a circle; a triangle on its tip for slower, on its base for faster; a hollow circle for INCONCLUSIVE."""
    title = (element("title", text(about)),) if about else ()
    ink, kind = _ink(word), SIGNS[word][1] if word else ""
    if kind not in ("slower", "faster"):
        fill = "#ffffff" if kind == "open" else ink
        return element("circle", *title, cx=x, cy=y, r=size, fill=fill, stroke=ink, stroke_width=1.5)
    tip = size * 1.3 if kind == "slower" else -size * 1.3
    corners = ((x - size * 1.2, y - tip * 0.7), (x + size * 1.2, y - tip * 0.7), (x, y + tip))
    path = "M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "Z"
    return element("path", *title, d=path, fill=ink)
