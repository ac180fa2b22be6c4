"""The roofline: operations a second over operations a byte, both in the logarithm, under the machine's own ceilings.

Read in black and white: a precision has its own line and its name at the end of it; the sustained rate is drawn through, the
cold one dashed; a run has a letter and a sign of its own. The sign stands where its operators, as they are called, put it; the
bar to its right ends where the fewest bytes would. Of many points only groups are told apart, by their signs, and each point's
name is its tooltip in the SVG.
"""

from stackmark.show.plot import WIDTH, png_of, whole
from stackmark.show.report.charts.shapes import fitted, sign, words, wrapped
from stackmark.show.report.markup import Markup, join
from stackmark.show.roofline import say_ceilings_from
from stackmark.show.roofline_legend import MOST_NAMED, caption_of, groups_of
from stackmark.show.roofline_plot import plot_of
from stackmark.verdict.roofline import Roofline

# Of the plot, from the legend to its floor; and what the names of its ticks and its axis take below.
HEIGHT, FLOOR_ROOM = 440.0, 56.0


def roofline_svg(found: Roofline) -> str:
    parts: list[Markup] = [
        words(
            0, 32, fitted(f"Roofline of {found.ceilings.chip or found.ceilings.device}", WIDTH, 18), "strong", size=18
        ),
        words(0, 52, fitted(f"ceilings {say_ceilings_from(found.ceilings)}", WIDTH, 11), "quiet", size=11),
    ]
    groups = groups_of(found)
    kind = "hollow" if len(found.points) > MOST_NAMED else ""
    y = 76.0
    for group in groups[:MOST_NAMED]:
        parts.append(sign(group.index, 6, y - 4, 5, kind=kind))
        for part in wrapped(group.said, WIDTH - 20, most=2):
            parts.append(words(20, y, part, size=12))
            y += 16
        y += 3
    if len(groups) > MOST_NAMED:
        parts.append(
            words(20, y, f"and {len(groups) - MOST_NAMED} groups more, under the same signs", "quiet", size=11)
        )
        y += 18
    top, floor = y + 18, y + HEIGHT
    parts.append(plot_of(found, groups, top, floor))
    y = floor + FLOOR_ROOM
    for said in caption_of(found):
        for part in wrapped(said, WIDTH, 11):
            parts.append(words(0, y, part, "quiet", size=11))
            y += 15
    return whole(join(parts), y + 4)


def roofline_png(found: Roofline) -> bytes:
    return png_of(roofline_svg(found))
