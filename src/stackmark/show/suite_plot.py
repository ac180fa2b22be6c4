"""A suite as one picture: the heat map of its ratios, or its figures as bars. SVG, or PNG, in the style of plot.py."""

from typing import Literal

from stackmark.errors import SpecError
from stackmark.show.load_curve import curve_picture, say_knee
from stackmark.show.plot import WIDTH, moved, picture_height, png_of, whole
from stackmark.show.report.charts import grouped, heatmap
from stackmark.show.report.charts.shapes import BOLD_WIDTH, LETTER_WIDTH, fitted, sign, words, wrapped
from stackmark.show.report.html import heat_rules
from stackmark.show.report.markup import Markup, join
from stackmark.show.safe import safe_line
from stackmark.show.suite_sections import SuiteSections
from stackmark.show.wording import sentence, stopped
from stackmark.verdict.suite import SuiteResult

SuiteKind = Literal["heatmap", "bars", "load"]
KINDS: tuple[SuiteKind, ...] = ("heatmap", "bars", "load")

# Of a heat map: within the margin, not decided, failed, not run; and from the lightest to the deepest, slower and faster.
HEAT = {
    "heat0": "#dcefe2", "undecided": "#fdf5e3", "broken": "#fdeeec", "empty": "#ffffff",
    "slow1": "#fbe0dc", "slow2": "#f5bdb6", "slow3": "#ea9389", "slow4": "#c4453b", "slow5": "#9c1c15",
    "fast1": "#dfebfb", "fast2": "#b9d3f5", "fast3": "#8bb5ea", "fast4": "#3a72bd", "fast5": "#174f9e",
}  # fmt: skip
# For what only these pictures have.
STYLE = f"""
.bar {{ opacity: 0.9; }} .whisker {{ stroke: #1a1f26; stroke-width: 1.5; }} .rim {{ stroke: #ffffff; stroke-width: 4; }}
.glyph {{ fill: #1a1f26; }} .hatch {{ stroke: #57616d; stroke-width: 0.8; opacity: 0.45; fill: none; }}
{heat_rules(HEAT)}
"""


def default_kind(result: SuiteResult) -> SuiteKind:
    """The heat map where something is compared, and latency against load where that is what differs."""
    if result.loads:
        return "load"
    return "heatmap" if heatmap.drawable(result) else "bars"


def suite_plot_svg(result: SuiteResult, kind: SuiteKind | None = None) -> str:
    """Return the picture as an SVG file: the title, the sentence over the whole, the chart."""
    chosen = kind or default_kind(result)
    check_drawable(result, chosen)
    sections = SuiteSections(result)
    parts = [words(0, 34, fitted(sections.title, WIDTH, 15), "strong", size=15)]
    y = 44.0
    for line in wrapped(safe_line(sentence(result.sentence)), WIDTH * LETTER_WIDTH / BOLD_WIDTH, 13):
        y += 18
        parts.append(words(0, y, line, f"strong {sections.headline.colour}", size=13))
    y += 4
    if chosen == "bars" and result.compared:
        legend, y = _arms(result, y + 14)
        parts.append(legend)
    if chosen == "load":
        assert result.loads is not None
        drawn = curve_picture(result.loads)
    else:
        drawn = heatmap.heatmap(result) if chosen == "heatmap" else grouped.grouped_bars(result)
    for line in wrapped(_caption(sections, chosen), WIDTH, 11):
        y += 16
        parts.append(words(0, y, line, "quiet", size=11))
    y += 12
    parts.append(moved(drawn, y))
    y += picture_height(drawn) + 8
    for said in _remarks(sections):
        for line in wrapped(stopped(said), WIDTH, 11):
            y += 15
            parts.append(words(0, y, line, "quiet", size=11))
    return whole(join(parts), y + 18, STYLE)


def suite_plot_png(result: SuiteResult, kind: SuiteKind | None = None) -> bytes:
    return png_of(suite_plot_svg(result, kind))


def check_drawable(result: SuiteResult, kind: SuiteKind) -> None:
    """Refuse a picture of numbers that are not there."""
    if kind == "heatmap" and not heatmap.drawable(result):
        raise SpecError(
            "a heat map shows ratios to a reference, and this suite has none",
            hint="draw it with --kind bars, or compare an axis of the suite",
        )
    if kind == "load" and not result.loads:
        raise SpecError(
            "latency against load needs three loads or more of one server (serve/endpoint)",
            hint="measure them: --concurrency 1,4,16; or draw it with --kind bars",
        )
    if not grouped.drawable(result):
        raise SpecError(
            "no cell of this suite has a number", hint=f"finish it: stackmark resume {result.experiment_id}"
        )


def _caption(sections: SuiteSections, kind: SuiteKind) -> str:
    if kind == "load":
        assert sections.result.loads is not None
        return f"Latency against load. Knee: {say_knee(sections.result.loads)}."
    if kind == "bars":
        return f"{grouped.say_axis(sections.result)} Lines over the bars: 95 % intervals."
    more = f"; Holm decided over {sections.family} comparisons" if sections.family > 1 else ""
    return f"Changes against {sections.reference}; more is better; ±: 95 % interval, not adjusted{more}."


def _remarks(sections: SuiteSections) -> list[str]:
    """The marks that are in the picture, and the scope."""
    marks = "; ".join(f"{mark} {said}" for mark, said in sections.legend)
    return [said for said in (marks, sections.scope) if said]


def _arms(result: SuiteResult, y: float) -> tuple[Markup, float]:
    """Who is who: the sign and the name of each arm, in lines."""
    parts, x = [], 0.0
    for index, arm in enumerate(result.arms):
        name = fitted(f"{result.arm_name(arm)} (reference)" if arm == result.reference else result.arm_name(arm), 380)
        wide = 34 + 7.4 * len(name)
        if x and x + wide > WIDTH:
            x, y = 0.0, y + 20
        parts += [sign(index, x + 6, y + 4, 5), words(x + 18, y + 8, name)]
        x += wide
    return join(parts), y + 14
