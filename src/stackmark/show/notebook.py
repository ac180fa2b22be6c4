"""Results in a notebook: what `_repr_html_` returns. Tables without a style sheet, and pictures that bring their own."""

import base64
from collections.abc import Sequence

from stackmark.show.plot import plot_svg
from stackmark.show.report.markup import Markup, element, join, text
from stackmark.show.safe import safe
from stackmark.show.terminal import Line
from stackmark.show.verdict import verdict_lines
from stackmark.verdict.examined import Examined


def lines_html(title: str, lines: Sequence[Line]) -> str:
    """Return names and texts as a table; a text may have several lines."""
    rows = [element("tr", element("th", text(name), style="text-align:left"), _cell(said)) for name, said in lines]
    return element("div", element("p", element("b", text(title))), element("table", *rows))


def _cell(said: str) -> Markup:
    parts = [text(part) for part in said.split("\n")]
    return element("td", join(parts, Markup("<br>")), style="text-align:left")


def verdict_html(examined: Examined) -> str:
    """Return the picture of an experiment and everything that the terminal says of it."""
    drawn = base64.b64encode(plot_svg(examined).encode()).decode()
    lines = verdict_lines(examined)
    # As an image of its own: the styles in an SVG would hold for the whole notebook.
    picture = element("img", src=f"data:image/svg+xml;base64,{drawn}", alt=lines[0][1], style="max-width:100%")
    return join([picture, Markup(lines_html(examined.workload, lines))])


def text_html(said: str) -> str:
    """Return text as it stands in a terminal."""
    escaped = join([text(line) for line in safe(said).split("\n")], Markup("\n"))
    return element("pre", escaped)
