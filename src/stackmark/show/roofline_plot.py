"""The roofline: operations a second over operations a byte, both in the logarithm, under the machine's own ceilings.

Read in black and white: a precision has its own line and its name at the end of it; the sustained rate is drawn through, the
cold one dashed; a run has a letter and a sign of its own. The sign stands where its operators, as they are called, put it; the
bar to its right ends where the fewest bytes would. Of many points only groups are distinguished, by their signs, and each point's
name is its tooltip in the SVG.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stackmark.show.plot import WIDTH, png_of, whole
from stackmark.show.report.charts.shapes import Scale, factor_ticks, fitted, line, sign, words, wrapped
from stackmark.show.report.markup import NOTHING, Markup, element, join, number
from stackmark.show.roofline import CALLED, LEAST, labels, say_ceilings_from
from stackmark.show.wording import LETTERS, letter
from stackmark.units import say_count
from stackmark.verdict.roofline import ALIKE, Point, Roofline, Standing, say_bound, say_operations, say_share

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


# --- who is who, and what stands below ----------------------------------------------------------------------------------


# More points than there are signs are drawn as groups.
MOST_NAMED = len(LETTERS)


@dataclass(frozen=True)
class Group:
    """Points under one sign, and what the legend says of them."""

    index: int
    said: str
    points: tuple[tuple[str, Standing], ...]


def groups_of(found: Roofline) -> list[Group]:
    names = labels(found.points)
    pairs = [(name, found.standing(point)) for name, point in zip(names, found.points, strict=True)]
    if len(pairs) <= MOST_NAMED:
        return [
            Group(index, f"{letter(index)}  {name}: {say_one(standing)}", ((name, standing),))
            for index, (name, standing) in enumerate(pairs)
        ]
    gathered: dict[str, list[tuple[str, Standing]]] = {}
    for point, pair in zip(found.points, pairs, strict=True):
        gathered.setdefault(_group_of(point), []).append(pair)
    return [
        Group(index, f"{name}: {_say_many(members)}", tuple(members))
        for index, (name, members) in enumerate(gathered.items())
    ]


def _group_of(point: Point) -> str:
    return ", ".join(filter(None, (point.workload, point.work.precision, point.details.get("arm", ""))))


def say_one(standing: Standing) -> str:
    """What the long sentence says, in few words."""
    bound, parts = say_bound(standing), []
    if standing.matrix_share is not None:
        parts.append(f"{say_share(standing.matrix_share)} of the {standing.work.precision} matrix rate")
    least, called = standing.least_share, standing.called_share
    if least is not None and called is not None:
        parts.append(f"{say_share(least).removesuffix(' %')} to {say_share(called)} of copy")
    elif least is not None:
        parts.append(f"{say_share(least)} of copy")
    done = say_operations(standing.operations_per_s, standing.work.precision)
    return ", ".join([done, *filter(None, [bound]), *parts])


def _say_many(members: Sequence[tuple[str, Standing]]) -> str:
    shares = sorted(share for _, one in members if (share := one.matrix_share) is not None)
    if not shares:
        return f"{len(members)} points"
    reach = f"{say_share(shares[0]).removesuffix(' %')} to {say_share(shares[-1])} of the matrix rate"
    return f"{len(members)} points, {reach}, half of them above {say_share(shares[len(shares) // 2])}"


def caption_of(found: Roofline) -> Iterator[str]:
    bars = any(point.work.called_bytes for point in found.points)
    if bars:
        yield "A sign stands at its intensity as the operators are called; its bar ends where the fewest bytes would put it."
        yield f"Bytes {CALLED}."
    yield f"Bytes {LEAST}."
    yield (
        "Slope: a copy within the device's memory. Level: the matrix rate of each precision, sustained; dashed: cold; dotted: of "
        "precisions that nothing here computes in."
    )
    yield from found.left_out


# --- between the axes: the grid, the roof, the signs of the points ------------------------------------------------------


# Right of the picture the ceilings have their names, where nothing lies under them.
LEFT, RIGHT, NAMES = 66.0, 668.0, 692.0
# Around the points and the corners of the roof, as a factor.
AIR = 2.5
# An axis shows at least so much, as a factor, or a single point would stand on a scale of nothing.
LEAST_SPAN = 100.0
LABEL_PX = 13.0
# Dashes: of a cold rate, and of precisions that no point has.
COLD, OTHER = "7 4", "2 3"


@dataclass(frozen=True)
class Axes:
    x: Scale
    y: Scale
    memory_bytes_per_s: float | None

    def ridge(self, per_s: float) -> float:
        """Where the memory's slope meets a level line; the left end where there is no slope."""
        return per_s / self.memory_bytes_per_s if self.memory_bytes_per_s else self.x.low


def plot_of(found: Roofline, groups: Sequence[Group], top: float, floor: float) -> Markup:
    axes = _axes(found, top, floor)
    drawn = join([_grid(axes), _roof(found, axes)])
    marks = _marks(groups, axes)
    return join([drawn, *marks])


def _axes(found: Roofline, top: float, floor: float) -> Axes:
    standings = [found.standing(point) for point in found.points]
    memory = standings[0].memory_bytes_per_s
    rates = [found.ceilings.matrix[one] for one in found.precisions if one in found.ceilings.matrix]
    ends = [end for one in standings for end in (one.intensity_called, one.intensity_least) if end]
    used = {point.work.precision for point in found.points}
    corners = [rate.sustained_per_s / memory for name, rate in found.ceilings.matrix.items() if memory and name in used]
    low_x, high_x = _span([*ends, *corners])
    highs = [*(one.operations_per_s for one in standings), *(rate.cold_per_s for rate in rates)]
    low_y, high_y = _span([*highs, *(one.operations_per_s for one in standings)])
    return Axes(Scale(low_x, high_x, LEFT, RIGHT, log=True), Scale(low_y, high_y, floor, top, log=True), memory)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values) / AIR, max(values) * AIR
    missing = math.sqrt(max(1.0, LEAST_SPAN / (high / low)))
    return low / missing, high * missing


def _grid(axes: Axes) -> Markup:
    x, y = axes.x, axes.y
    parts: list[Markup] = []
    for tick in factor_ticks(x.low, x.high, 10):
        parts += [
            line(x(tick), y.end, x(tick), y.start, "grid"),
            words(x(tick), y.start + 16, _say(tick), "tick", "middle", 11),
        ]
    for tick in factor_ticks(y.low, y.high, 10):
        parts += [
            line(x.start, y(tick), x.end, y(tick), "grid"),
            words(x.start - 6, y(tick) + 4, _say(tick), "tick", "end", 11),
        ]
    parts += [line(x.start, y.start, x.end, y.start, "axis"), line(x.start, y.end, x.start, y.start, "axis")]
    parts.append(words(x.end, y.start + 34, "operations a byte: FLOP/B", "quiet", "end", 11))
    parts.append(words(0, y.end - 8, "operations a second: FLOP/s", "quiet", "start", 11))
    return join(parts)


def _say(value: float, figures: int = 6) -> str:
    """`0.5`, `2,000`, `10 G`, `2 T`."""
    if value < 10_000:
        return f"{value:,.{figures}g}"
    power = min(int(math.log10(value * 1.0001) // 3), 5)
    return f"{value / 1000**power:.{figures}g} {'kMGTP'[power - 1]}"


def _roof(found: Roofline, axes: Axes) -> Markup:
    used = {point.work.precision for point in found.points}
    parts: list[Markup] = []
    levels: list[tuple[float, str]] = []
    for precision, rate in found.ceilings.matrix.items():
        mine = precision in used
        said = f"{precision} {say_operations(rate.sustained_per_s, precision)}"
        parts.append(_level(axes, rate.sustained_per_s, "one" if mine else "axis", None if mine else OTHER))
        if mine and rate.cold_per_s > rate.sustained_per_s * (1 + ALIKE):
            parts.append(_level(axes, rate.cold_per_s, "axis", COLD))
            said += f", cold {_say(rate.cold_per_s, 3)}"
        levels.append((rate.sustained_per_s, said))
    for y, at, said in _apart([(axes.y(per_s), said) for per_s, said in levels if axes.y.shows(per_s)]):
        parts += [line(RIGHT, at, NAMES - 4, y, "axis"), words(NAMES, y + 4, said, size=11)]
    highest = max((per_s for per_s, _ in levels), default=axes.y.high)
    return join([*parts, _slope(axes, highest)])


def _level(axes: Axes, per_s: float, class_: str, dash: str | None) -> Markup:
    start = max(axes.ridge(per_s), axes.x.low)
    if start >= axes.x.high or not axes.y.shows(per_s):
        return NOTHING
    return line(axes.x(start), axes.y(per_s), RIGHT, axes.y(per_s), class_, dash)


def _apart(names: Sequence[tuple[float, str]]) -> list[tuple[float, float, str]]:
    """Where each name stands and where its line ends: names that would lie on each other move up, and keep their order."""
    placed: list[tuple[float, float, str]] = []
    for at, said in sorted(names, reverse=True):
        placed.append((min(at, placed[-1][0] - LABEL_PX) if placed else at, at, said))
    return placed


def _slope(axes: Axes, highest: float) -> Markup:
    """From the left or the floor up to the highest level."""
    memory, x, y = axes.memory_bytes_per_s, axes.x, axes.y
    if not memory:
        return NOTHING
    low, high = max(x.low, y.low / memory), min(x.high, min(highest, y.high) / memory)
    if low >= high:
        return NOTHING
    start, end = (x(low), y(low * memory)), (x(high), y(high * memory))
    drawn = line(*start, *end, "one")
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
    if math.hypot(end[0] - start[0], end[1] - start[1]) < 130:
        return drawn
    said = words(0, -6, f"copy {say_count(memory)}B/s", "", "middle", 11)
    turned = element("g", said, transform=f"translate({number(middle[0])} {number(middle[1])}) rotate({number(angle)})")
    return join([drawn, turned])


def _marks(groups: Sequence[Group], axes: Axes) -> list[Markup]:
    many = sum(len(group.points) for group in groups) > MOST_NAMED
    bars, signs, letters = [], [], []
    taken: list[tuple[float, float]] = []
    for group in groups:
        for name, standing in group.points:
            if standing.intensity is None:
                continue
            at, height = axes.x(standing.intensity), axes.y(standing.operations_per_s)
            bars.append(_bar(group.index, standing, axes))
            about = f"{name}: {say_one(standing)}"
            signs.append(
                sign(group.index, at, height, 3.2 if many else 6, kind="hollow" if many else "point", about=about)
            )
            taken += [(at, height), *_along(standing, axes)]
            if not many:
                letters.append((group.index, at, height))
    spots = _spots(letters, taken, axes)
    named = [words(x, y, letter(index), "strong", "middle", 13) for index, x, y in spots]
    return [*bars, *signs, *named]


def _bar(index: int, standing: Standing, axes: Axes) -> Markup:
    called, least = standing.intensity_called, standing.intensity_least
    if not called or not least:
        return NOTHING
    start, end, y = axes.x(called), axes.x(least), axes.y(standing.operations_per_s)
    class_ = f"thin a{index % MOST_NAMED}"
    return join([line(start, y, end, y, class_), line(end, y - 5, end, y + 5, class_)])


def _along(standing: Standing, axes: Axes) -> list[tuple[float, float]]:
    """Points of a bar, near enough to each other that no letter fits between them."""
    called, least = standing.intensity_called, standing.intensity_least
    if not called or not least:
        return []
    start, end, y = axes.x(called), axes.x(least), axes.y(standing.operations_per_s)
    return [(start + 12 * step, y) for step in range(1, int((end - start) / 12) + 1)]


def _spots(
    letters: Sequence[tuple[int, float, float]], taken: Sequence[tuple[float, float]], axes: Axes
) -> list[tuple[int, float, float]]:
    """Place each letter next to its sign, above if it can be: the first place that no sign and no other letter has."""
    busy = list(taken)
    found = []
    for index, x, y in letters:
        places = [(x, y - 11), (x, y + 21), (x - 15, y + 5), (x + 15, y + 5), (x - 13, y - 9), (x + 13, y + 19)]
        inside = [
            (a, b) for a, b in places if axes.x.start + 8 < a < RIGHT - 8 and axes.y.end + 12 < b < axes.y.start - 2
        ]
        spot = next(
            (
                one
                for one in inside
                if all(math.hypot(one[0] - a, one[1] - 4 - b) > 13 for a, b in busy if (a, b) != (x, y))
            ),
            (inside or places)[0],
        )
        busy.append((spot[0], spot[1] - 4))
        found.append((index, *spot))
    return found
