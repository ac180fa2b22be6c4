"""What charts are drawn with: scales with their ticks, and shapes in SVG."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stackmark.show.report.markup import NOTHING, Markup, element, join, number, text
from stackmark.show.safe import cut_middle, safe_line
from stackmark.show.wording import LETTERS

# --- scales -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """`low` stands at `start`, `high` at `end`, in pixels; between them linear, or in the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def clipped(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))

    def shows(self, value: float) -> bool:
        return self.low <= value <= self.high


def round_step(span: float, about: int) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that makes about this many ticks: the nearest in the logarithm."""
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(
        factor * power for factor, limit in ((1, 1.42), (2, 3.17), (5, 7.08), (10, math.inf)) if raw < limit * power
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high, whose distance is at least a millionth of either: every axis here has a least span."""
    step = round_step(high - low, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def factor_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """1, 2, 5, 10 …, or powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [tick for tick in found if low * 0.9999 <= tick <= high * 1.0001]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def decimals_of(step: float) -> int:
    return max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0


def padded(low: float, high: float, share: float = 0.08, least: float = 0.0) -> tuple[float, float]:
    """A little air on both sides, and at least so much from low to high, so that noise does not fill the picture."""
    missing = max(0.0, least - (high - low)) / 2
    low, high = low - missing, high + missing
    air = (high - low) * share or abs(high) * share or 1.0
    return low - air, high + air


def good(values: Iterable[float | None]) -> list[float]:
    """Only what can be drawn."""
    return [value for value in values if value is not None and math.isfinite(value)]


# --- shapes -------------------------------------------------------------------------------------------------------------


FONT_PX = 12
# Of the widths of digits and lower case letters in common sans-serif fonts, in parts of the font's size.
LETTER_WIDTH = 0.58
BOLD_WIDTH = 0.66
DASHES = (None, "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2 1 2", "12 3", "3 5")


def colour(arm: int) -> str:
    """The class that holds an arm's colour."""
    return f"a{arm % len(LETTERS)}"


def sign(arm: int, x: float, y: float, size: float = 5, *, kind: str = "", about: str = "") -> Markup:
    """An arm's sign: circle, square, triangle, diamond …; `kind` is hollow, or point for the one that matters."""
    class_ = f"sign {colour(arm)}{f' {kind}' if kind else ''}"
    title = (element("title", text(about)),) if about else ()
    if arm % 9 == 0:
        return element("circle", *title, class_=class_, cx=x, cy=y, r=size)
    points = _corners(arm % 9, size)
    path = "M" + "L".join(f"{number(x + dx)} {number(y + dy)}" for dx, dy in points) + "Z"
    return element("path", *title, class_=class_, d=path)


def _corners(form: int, size: float) -> list[tuple[float, float]]:
    """Square, triangle, diamond, triangle on its tip, pentagon, hexagon, star, bar."""
    if form == 1:
        side = size * 0.9
        return [(-side, -side), (side, -side), (side, side), (-side, side)]
    if form == 8:
        return [
            (-size * 0.5, -size * 1.2),
            (size * 0.5, -size * 1.2),
            (size * 0.5, size * 1.2),
            (-size * 0.5, size * 1.2),
        ]
    count, first, inner = {
        2: (3, -90, 0),
        3: (4, -90, 0),
        4: (3, 90, 0),
        5: (5, -90, 0),
        6: (6, 0, 0),
        7: (10, -90, 1),
    }[form]
    corners = []
    for index in range(count):
        angle = math.radians(first + index * 360 / count)
        reach = size * (0.5 if inner and index % 2 else 1.25)
        corners.append((reach * math.cos(angle), reach * math.sin(angle)))
    return corners


def cross(x: float, y: float, size: float, about: str) -> Markup:
    path = "".join(
        f"M{number(x - size)} {number(y + s * size)}L{number(x + size)} {number(y - s * size)}" for s in (1, -1)
    )
    return element("path", element("title", text(about)), class_="cross", d=path)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, dash: str | None = None) -> Markup:
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2, stroke_dasharray=dash)


def box(x: float, y: float, width: float, height: float, class_: str, about: str = "", **more: float) -> Markup:
    title = (element("title", text(about)),) if about else ()
    return element("rect", *title, class_=class_, x=x, y=y, width=max(width, 0), height=max(height, 0), **more)


def whisker(bounds: tuple[float, float] | None, scale: Scale, y: float, size: float = 6.0) -> Markup:
    """An interval with its two ends, drawn over a bar in the colour of text with a rim: it is seen on any bar."""
    if bounds is None:
        return NOTHING
    low, high = map(scale.clipped, bounds)
    parts = []
    for class_ in ("rim", "whisker"):
        parts.append(line(low, y, high, y, class_))
        parts += [
            line(x, y - size, x, y + size, class_)
            for x, value in zip((low, high), bounds, strict=True)
            if scale.shows(value)
        ]
    return join(parts)


def hatch(x: float, y: float, width: float, height: float, step: float = 9.0) -> Markup:
    """Lines at 45 degrees across a box. A pattern would need an id, which a page may hold once only."""
    parts = []
    at = step
    while at < width + height:
        start = (min(at, width), max(0.0, at - width))
        end = (max(0.0, at - height), min(at, height))
        parts.append(
            f"M{number(x + start[0])} {number(y + start[1])}L{number(x + end[0])} {number(y + end[1])}",
        )
        at += step
    return element("path", class_="hatch", d="".join(parts))


def words(x: float, y: float, content: str, class_: str = "", anchor: str = "start", size: float = FONT_PX) -> Markup:
    return element("text", text(content), class_=class_ or None, x=x, y=y, text_anchor=anchor, font_size=size)


def fitted(content: str, width: float, size: float = FONT_PX) -> str:
    """Cut to what fits, with an ellipsis. The whole of it stands in a table."""
    most = max(3, int(width / (size * LETTER_WIDTH)))
    return content if len(content) <= most else f"{content[: most - 1].rstrip()}…"


def one_line(content: str, width: float, size: float = FONT_PX) -> str:
    """A bold name that fits; of a longer one the middle is left out, since names differ at their ends."""
    return cut_middle(safe_line(content), max(4, int(width / (size * BOLD_WIDTH))))


def two_lines(content: str, width: float, size: float = FONT_PX) -> list[str]:
    """As `one_line`, in one line or two."""
    content = safe_line(content)
    most = max(4, int(width / (size * BOLD_WIDTH)))
    if len(content) <= most:
        return [content]
    lines = textwrap.wrap(content, most)
    if len(lines) == 2:
        return lines
    cut = cut_middle(content, 2 * most)
    return [cut[:most].rstrip(), cut[most:].lstrip()]


def wrapped(content: str, width: float, size: float = FONT_PX, most: int = 4) -> list[str]:
    """Lines that fit, since text in a picture does not wrap by itself."""
    return textwrap.wrap(content, max(8, int(width / (size * LETTER_WIDTH))), max_lines=most, placeholder=" …")


def axis_below(scale: Scale, y: float, marks: Sequence[tuple[float, str]], *, top: float | None = None) -> Markup:
    """Ticks with their numbers below a picture, and a faint line from each up to `top`."""
    parts = [line(scale.start, y, scale.end, y, "axis")]
    for value, said in marks:
        x = scale(value)
        mark = line(x, y, x, y + 4, "axis") if top is None else line(x, top, x, y, "grid")
        parts += [mark, words(x, y + 16, said, "tick", "middle", 11)]
    return join(parts)


def axis_left(scale: Scale, x: float, marks: Sequence[tuple[float, str]], *, right: float) -> Markup:
    parts = []
    for value, said in marks:
        y = scale(value)
        parts += [line(x, y, right, y, "grid"), words(x - 6, y + 4, said, "tick", "end", 11)]
    return join(parts)


def picture(width: float, height: float, name: str, about: str, *parts: Markup, class_: str = "") -> Markup:
    """An SVG with a name and a description for those who do not see it."""
    return element(
        "svg",
        element("title", text(name)),
        element("desc", text(about)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        role="img",
        class_=f"chart {class_}".strip(),
    )
