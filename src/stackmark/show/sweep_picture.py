"""The picture of a sweep: a dot a device, node by node, around the median, with the margin as a band.

Read in black and white: a good device is a filled circle, a slow one a triangle on its tip, a suspected one a hollow diamond, one
that failed a cross at the bottom; colour only helps. The scale is the ratio to the cohort's median, in percent; where a cohort
holds two kinds of devices, to that of the fastest, so that the others are seen below it.
"""

from collections.abc import Sequence

from stackmark.show.plot import WIDTH, png_of, whole
from stackmark.show.report.charts.scale import Scale, decimals_of, padded, round_step, ticks
from stackmark.show.report.charts.shapes import axis_left, box, cross, fitted, line, sign, words, wrapped
from stackmark.show.report.markup import Markup, join
from stackmark.show.sweep import say_state
from stackmark.units import say_rate
from stackmark.verdict.needed import percent
from stackmark.verdict.outliers import say_cohort
from stackmark.verdict.swept import Line, Swept, headline

LEFT, RIGHT, HEIGHT = 56.0, 14.0, 300.0
# Signs of an arm: circle, diamond, triangle on its tip.
SIGNS = {
    "ok": (0, ""),
    "measured": (0, "hollow"),
    "flagged": (3, "hollow"),
    "SLOW": (4, ""),
    "slow group": (4, "hollow"),
}
LEGEND = {
    "ok": "like the others",
    "measured": "measured, too few to judge",
    "SLOW": "SLOW, confirmed",
    "slow group": "in a slow group",
    "flagged": "flagged, not confirmed",
}
# Names of nodes are written while each has so many pixels.
NAME_PX = 15.0
LONGEST_NAME = 18


def sweep_svg(swept: Swept) -> str:
    parts: list[Markup] = []
    y = 34.0
    colour = "slower" if swept.in_state("SLOW", "slow group") else "same" if swept.in_state("ok") else "open"
    for index, text in enumerate(wrapped(headline(swept), WIDTH, 17)):
        parts.append(words(0, y + 22 * index, text, f"word {colour}", size=17))
        y += 22 if index else 0
    y += 22
    for cohort in swept.cohorts[:4]:
        parts.append(words(0, y, fitted(say_cohort(cohort, swept.unit), WIDTH, 12), "quiet", size=12))
        y += 18
    parts.append(words(0, y, fitted(f"{swept.workload} · {swept.experiment_id}", WIDTH, 11), "quiet", size=11))
    y += 20
    parts.append(_legend(swept, y))
    y += 18
    names = _names_height(swept)
    parts.append(_dots(swept, y, y + HEIGHT))
    return whole(join(parts), y + HEIGHT + names + 14)


def sweep_png(swept: Swept) -> bytes:
    return png_of(sweep_svg(swept))


def _legend(swept: Swept, y: float) -> Markup:
    parts, x = [], 0.0
    for state, said in LEGEND.items():
        if any(found.state == state for found in swept.lines):
            form, kind = SIGNS[state]
            parts += [sign(form, x + 6, y - 4, 5, kind=kind), words(x + 18, y, said, "quiet", size=11)]
            x += 30 + 7 * len(said)
    if swept.in_state("failed"):
        parts += [cross(x + 6, y - 4, 4, "failed"), words(x + 18, y, "failed", "quiet", size=11)]
        x += 80
    parts.append(box(x, y - 10, 18, 10, "margin"))
    parts.append(words(x + 24, y, f"within {percent(swept.margin)} of the median", "quiet", size=11))
    return join(parts)


def _columns(swept: Swept) -> list[tuple[str, list[Line]]]:
    nodes: dict[str, list[Line]] = {}
    for found in swept.lines:
        nodes.setdefault(found.visit.node, []).append(found)
    return list(nodes.items())


def _dots(swept: Swept, top: float, floor: float) -> Markup:
    columns = _columns(swept)
    ratios = [100 * ratio for found in swept.lines if (ratio := swept.of_fastest(found))] or [100.0]
    edges = (100 * (1 - swept.margin), 100 / (1 - swept.margin))
    low, high = padded(min(*ratios, edges[0]), max(*ratios, edges[1]), 0.08, 400 * swept.margin)
    y = Scale(low, high, floor - 22, top + 6)
    x = Scale(0, max(1, len(columns)), LEFT, WIDTH - RIGHT)
    step = round_step(high - low, 6)
    marks = [(tick, f"{tick:.{decimals_of(step)}f} %") for tick in ticks(low, high, 6)]
    parts = [
        box(LEFT, y(edges[1]), WIDTH - RIGHT - LEFT, y(edges[0]) - y(edges[1]), "margin"),
        axis_left(y, LEFT, marks, right=WIDTH - RIGHT),
        line(LEFT, y(100), WIDTH - RIGHT, y(100), "one"),
        line(LEFT, floor - 6, WIDTH - RIGHT, floor - 6, "axis"),
    ]
    wide = x(1) - x(0)
    size = min(4.5, max(1.6, wide / 2.5))
    for number, (node, found) in enumerate(columns):
        if wide >= NAME_PX:
            parts.append(line(x(number), top, x(number), floor - 6, "grid"))
            parts.append(_name(node, (x(number) + x(number + 1)) / 2, floor + 8))
        for index, one in enumerate(found):
            at = x(number + (index + 1) / (len(found) + 1))
            parts.append(_mark(one, swept.of_fastest(one), at, y, floor - 14, size, swept.unit))
    if wide < NAME_PX:
        parts.append(words(LEFT, floor + 10, f"{len(columns)} nodes, in the order of their names", "quiet", size=11))
    return join(parts)


def _mark(found: Line, ratio: float | None, x: float, y: Scale, floor: float, size: float, unit: str) -> Markup:
    visit = found.visit
    if ratio is None:
        return cross(x, floor, min(4.0, size), f"{visit.node} {visit.device}: {say_state(found)}")
    form, kind = SIGNS[found.state]
    rate = f"{say_rate(visit.rate_per_s or 0)} {unit}"
    about = f"{visit.node} {visit.device}: {rate}, {100 * ratio:.2f} % of the median"
    larger = 1.5 if found.state in ("SLOW", "flagged") else 1.0
    return sign(form, x, y.clipped(100 * ratio), larger * size, kind=kind, about=about)


def _name(node: str, x: float, y: float) -> Markup:
    """Upright to the reader's left: names of nodes are long and columns narrow."""
    said = node if len(node) <= LONGEST_NAME else f"…{node[-LONGEST_NAME + 1 :]}"
    turned = words(0, 0, said, "tick", "end", 11)
    return Markup(turned.replace("<text ", f'<text transform="translate({x:.1f} {y:.1f}) rotate(-40)" ', 1))


def _names_height(swept: Swept) -> float:
    columns: Sequence[tuple[str, list[Line]]] = _columns(swept)
    if (WIDTH - RIGHT - LEFT) / max(1, len(columns)) < NAME_PX:
        return 20.0
    return 18.0 + 4.6 * min(LONGEST_NAME, max((len(node) for node, _ in columns), default=0))
