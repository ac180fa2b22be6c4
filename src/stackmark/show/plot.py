"""The main picture of an experiment on its own: the ratio against the margin, and below it every run. SVG, or PNG.

A picture of its own has its own colours, on white, since nobody knows what it will be pasted into. For PNG the SVG is drawn
by resvg (an extra), with a font that is part of this package: a machine that has no fonts, as most servers and containers,
draws the same picture, and not one without words. Letters that the font lacks come from the machine's fonts.
"""

from collections.abc import Sequence
from importlib.resources import as_file, files

from stackmark.errors import SpecError
from stackmark.show.answer import answers, title_of
from stackmark.show.report.charts import forest, latency, quality, rates
from stackmark.show.report.charts.scaling import scaling_chart
from stackmark.show.report.charts.shapes import box, fitted, sign, words, wrapped
from stackmark.show.report.html import arm_rules
from stackmark.show.report.markup import Markup, element, join, number
from stackmark.show.sections import Headline, Sections
from stackmark.show.wording import LETTERS, say_arm_rate, stopped
from stackmark.verdict.examined import Examined

WIDTH, SIDE = 860.0, 28.0
# As in the page, in light.
COLOURS = ["#1f5fae", "#c05207", "#0b7a69", "#7a3aa3", "#a51d4d", "#6a6100", "#44515f", "#0879a0", "#84552a"]
WORDS = {"same": "#10703a", "slower": "#b3261e", "faster": "#1b5cb8", "open": "#8a5a00", "plain": "#3a4652"}
# Our copy of DejaVu Sans has a name of its own, so that no other version of it on a machine is taken instead.
FONT = "Stackmark DejaVu"
# Pixels of a PNG for each pixel of the SVG: sharp on a screen of today and in print at half a page's width.
ZOOM = 2


def plot_svg(examined: Examined) -> str:
    """Verdict, forest plot, rates over blocks, and who is who, as an SVG file."""
    parts: list[Markup] = []
    y = 34.0
    sections = Sections(examined)
    parts.append(words(0, y, fitted(title_of(examined), WIDTH, 15), "strong", size=15))
    y += 30
    heads = [Headline(sections.words, "", "plain", "")] if sections.is_summed_up else sections.headlines
    told = answers(sections)
    for place, head in enumerate(heads):
        parts.append(words(0, y, head.word, f"word {head.colour}", size=18))
        said = told[place] if len(told) == len(heads) else ". ".join(told)
        for line in wrapped(stopped(said), WIDTH, 13):
            y += 20
            parts.append(words(0, y, line, size=13))
        y += 28
    parts.append(words(0, y - 4, fitted(examined.scope, WIDTH, 11), "quiet", size=11))
    y += 14
    for arm in examined.arms:
        said = fitted(f"{LETTERS[arm.index % 9]}  {arm.label}: {say_arm_rate(arm)}", WIDTH - 20)
        parts += [sign(arm.index, 6, y + 4, 5), words(20, y + 8, said)]
        y += 20
    y += 12
    for title, drawn, height in _charts(examined):
        parts.append(words(0, y + 8, title, "strong", size=13))
        parts.append(moved(drawn, y + 20))
        y += 20 + height + 18
    return whole(join(parts), y)


def quality_svg(examined: Examined) -> str:
    """Draw the curves of quality against time of every run, with the target, as an SVG file."""
    drawn = ((name, quality.curves(examined.quality, name)) for name in quality.drawable(examined.quality))
    return _curves(examined, [(f"{name} against time", curves, picture_height(curves)) for name, curves in drawn])


def latency_svg(examined: Examined) -> str:
    """Draw the latencies of each arm by percentile, as an SVG file."""
    return _curves(examined, _latency_charts(examined))


def _curves(examined: Examined, charts: Sequence[tuple[str, Markup, float]]) -> str:
    """Draw charts below each other, under the arms with their signs."""
    parts = [words(0, 34, fitted(title_of(examined), WIDTH, 15), "strong", size=15)]
    y = 60.0
    for arm in examined.arms:
        said = fitted(f"{LETTERS[arm.index % 9]}  {arm.label}: {say_arm_rate(arm)}", WIDTH - 20)
        parts += [sign(arm.index, 6, y + 4, 5), words(20, y + 8, said)]
        y += 20
    y += 12
    for title, drawn, height in charts:
        parts.append(words(0, y + 8, title, "strong", size=13))
        parts.append(moved(drawn, y + 20))
        y += 20 + height + 18
    return whole(join(parts), y)


def _latency_charts(examined: Examined) -> list[tuple[str, Markup, float]]:
    found = []
    for name in latency.names(examined.latencies):
        drawn = latency.curves_of(examined.latencies, name, examined.arms)
        found.append((f"{name} by percentile, all runs of an arm together", drawn, picture_height(drawn)))
    return found


def _charts(examined: Examined) -> list[tuple[str, Markup, float]]:
    found = []
    if examined.scaling and examined.scaling.is_drawable:
        drawn = scaling_chart(examined.scaling)
        found.append(
            ("Speed-up, with 95 % interval, against ideal (the line above each column)", drawn, picture_height(drawn))
        )
    elif examined.comparisons:
        drawn = forest.forest(examined)
        found.append(("Ratio, with 90 % (thick) and 95 % (thin) interval", drawn, picture_height(drawn)))
    if any(run.counted and run.rate_per_s for run in examined.runs):
        drawn = rates.rates(examined)
        found.append(("Every run", drawn, picture_height(drawn)))
    return [*found, *_latency_charts(examined)]


def picture_height(drawn: Markup) -> float:
    """Return the height of a picture, from its own first attributes."""
    return float(drawn.split(' height="', 1)[1].split('"', 1)[0])


def moved(drawn: Markup, y: float) -> Markup:
    """Place a picture inside another, from y on: nested SVG."""
    return Markup(drawn.replace("<svg ", f'<svg y="{number(y)}" ', 1))


def whole(content: Markup, height: float, rules: str = "") -> str:
    """Return an SVG file around what was drawn. `rules` are those of the style sheet that only this picture needs."""
    width = WIDTH + 2 * SIDE
    inner = element("g", content, transform=f"translate({number(SIDE)} 0)")
    file = element(
        "svg", Markup(f"<style>{_style()}{rules}</style>"), box(0, 0, width, height, "paper"), inner,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {number(width)} {number(height)}", width=width, height=height,
    )  # fmt: skip
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{file}\n'


def _style() -> str:
    ink = "\n".join(f".{name} {{ fill: {colour}; }}" for name, colour in WORDS.items())
    return f"""
text {{ font-family: "{FONT}", "DejaVu Sans", system-ui, sans-serif; fill: #1a1f26; }}
.paper {{ fill: #ffffff; }} .quiet, .tick {{ fill: #57616d; }} .strong, .word {{ font-weight: bold; }}
{ink}
.axis {{ stroke: #57616d; }} .grid {{ stroke: #e8ecf0; }} .margin {{ fill: #dcefe2; }} .margin-edge {{ stroke: #10703a; }}
.one {{ stroke: #1a1f26; stroke-width: 1.25; }} .thin {{ stroke-width: 1.5; }} .thick {{ stroke-width: 7; }}
.stripe {{ fill: #f4f6f8; }} .cross {{ stroke: #b3261e; stroke-width: 2; fill: none; }}
.mean {{ opacity: 0.8; }} .trail {{ opacity: 0.45; }}
{arm_rules(COLOURS)}
svg .sign.point {{ stroke: #ffffff; stroke-width: 1.5; }} svg .sign.hollow {{ fill: #ffffff; stroke-width: 1.2; }}
"""


def plot_png(examined: Examined) -> bytes:
    return png_of(plot_svg(examined))


def png_of(svg: str) -> bytes:
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise SpecError(
            "drawing PNG needs the package resvg-py, which is not installed",
            hint="pip install 'stackmark[plot]', or give a file that ends in .svg",
        ) from error
    with as_file(files("stackmark.show.report").joinpath("fonts")) as folder:
        return svg_to_bytes(
            svg_string=svg, zoom=ZOOM, font_dirs=[str(folder)], font_family=FONT, sans_serif_family=FONT
        )
