"""Published against ours as a picture of its own: the chart, and its sources as footnotes."""

from collections.abc import Sequence

from stackmark.show.plot import WIDTH, moved, picture_height, png_of, whole
from stackmark.show.report.charts.published import caption, drawn_pairs, footnotes, published_bars
from stackmark.show.report.charts.shapes import words, wrapped
from stackmark.show.report.markup import join
from stackmark.units import counted
from stackmark.verdict.published_pairs import PublishedPair

TITLE = "Ours and published"
# In the colours of the page, in light.
RULES = """.theirs { fill: #a3adb8; } .whisker { stroke: #1a1f26; stroke-width: 1.5; } .rim { stroke: #ffffff; stroke-width: 4; }
"""


def published_svg(pairs: Sequence[PublishedPair], title: str = TITLE, missing: Sequence[str] = ()) -> str:
    """Draw the pairs with their sources. `missing` names benchmarks that nobody published a number of."""
    parts = []
    y = 16.0
    for part in wrapped(title, WIDTH / 1.15, 16, 3):
        y += 20
        parts.append(words(0, y, part, "strong", size=16))
    for part in wrapped(caption(pairs), WIDTH, 11):
        y += 17
        parts.append(words(0, y, part, "quiet", size=11))
    y += 10
    drawn = published_bars(pairs)
    parts.append(moved(drawn, y))
    y += picture_height(drawn) + 8
    for number, note in enumerate(footnotes(drawn_pairs(pairs)), 1):
        for part in wrapped(f"[{number}] {note}", WIDTH, 11):
            y += 15
            parts.append(words(0, y, part, "quiet", size=11))
    if missing:
        for part in wrapped(f"Without a published number: {', '.join(missing)}", WIDTH, 11):
            y += 15
            parts.append(words(0, y, part, "quiet", size=11))
    return whole(join(parts), y + 22, RULES)


def published_png(pairs: Sequence[PublishedPair], title: str = TITLE, missing: Sequence[str] = ()) -> bytes:
    return png_of(published_svg(pairs, title, missing))


def title_of_pairs(pairs: Sequence[PublishedPair]) -> str:
    """Name what the picture shows: one benchmark by its name, several by their number."""
    return f"{TITLE}: {pairs[0].benchmark if len(pairs) == 1 else counted(len(pairs), 'benchmark')}"
