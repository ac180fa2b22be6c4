"""Results next to published numbers: for each benchmark two bars from zero, ours and theirs, and the difference in words.

Benchmarks may count in different units, and a time may be two hundred times another: then each benchmark has a scale of its
own, and the numbers stand next to the bars. Where all count in one unit and are of one size, they share a scale with an axis.
Names and remarks have lines of their own, so that they wrap instead of meeting a bar.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import (
    LETTER_WIDTH,
    Scale,
    axis_below,
    box,
    decimals_of,
    fitted,
    line,
    picture,
    round_step,
    ticks,
    words,
    wrapped,
)
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.units import counted, say_rate
from stackmark.verdict.needed import percent
from stackmark.verdict.published_pairs import PublishedPair

BAR = 16.0
# Bars of one scale where the longest of a benchmark are within this factor of each other.
ONE_SCALE = 12.0
# Beyond these a picture is too long to be looked at; the JSON of `verdict` has all.
MOST_DRAWN = 24
# All differences are listed; the longest list that was seen takes five lines.
MOST_LINES = 12
# Bold letters are wider than `wrapped` assumes.
BOLD = 1.12


@dataclass(frozen=True)
class Layout:
    """Wide: label, bar and number in one row. Narrow: label and number above the bar."""

    width: float
    left: float
    right: float
    # From one bar to the next.
    row: float
    # Where in a row its bar begins.
    bar: float
    small: float = 11


WIDE = Layout(width=860, left=112, right=320, row=24, bar=4)
NARROW = Layout(width=340, left=4, right=14, row=38, bar=18)


def drawn_pairs(pairs: Sequence[PublishedPair]) -> Sequence[PublishedPair]:
    return pairs[:MOST_DRAWN]


def footnotes(pairs: Sequence[PublishedPair]) -> list[str]:
    """Return each source once, in the order of its first use; its number is its place, from 1."""
    return list(dict.fromkeys(pair.footnote for pair in pairs))


def published_bars(pairs: Sequence[PublishedPair], layout: Layout = WIDE) -> Markup:
    """Draw the pairs; numbers in brackets are those of `footnotes`."""
    shown = drawn_pairs(pairs)
    notes = footnotes(shown)
    shared = _one_scale(shown)
    parts: list[Markup] = []
    y = 4.0
    for pair in shown:
        scale = Scale(0, _reach(shown if shared else [pair]), layout.left, layout.width - layout.right)
        drawn, y = _benchmark(pair, notes.index(pair.footnote) + 1, scale, y, layout)
        parts.append(drawn)
        y += 16
    if shared:
        parts.append(_axis(shown, layout, y))
        y += 40
    about = "; ".join(
        f"{pair.benchmark}: ours {_say(pair, pair.ours)}, published {_say(pair, pair.theirs)}" for pair in shown
    )
    return picture(layout.width, y, "Ours and published, per benchmark", f"{about}.", *parts, class_="published")


def _one_scale(pairs: Sequence[PublishedPair]) -> bool:
    longest = [max(pair.ours, pair.theirs) for pair in pairs]
    one_unit = len({(pair.unit, pair.higher_is_better) for pair in pairs}) == 1
    return one_unit and max(longest) <= ONE_SCALE * min(longest)


def _reach(pairs: Sequence[PublishedPair]) -> float:
    """Return the end of a scale: the longest bar; an interval may reach further, up to half as far again."""
    longest = max(max(pair.ours, pair.theirs) for pair in pairs)
    far = max(max([pair.high or 0.0, *pair.runs]) for pair in pairs)
    return min(max(longest, far), 1.5 * longest) * 1.03


def _axis(pairs: Sequence[PublishedPair], layout: Layout, y: float) -> Markup:
    scale = Scale(0, _reach(pairs), layout.left, layout.width - layout.right)
    unit = pairs[0].figure_unit
    digits = decimals_of(round_step(scale.high, 5))
    marks = [(tick, f"{tick:,.{digits}f}") for tick in ticks(0, scale.high, 5)]
    name = fitted(f"{unit.name}{unit.direction}", 0.9 * (scale.end - scale.start), 11)
    return join([axis_below(scale, y, marks), words(scale.end, y + 34, name, "quiet", "end", 11)])


def _benchmark(pair: PublishedPair, note: int, scale: Scale, y: float, layout: Layout) -> tuple[Markup, float]:
    """Draw one benchmark from y on; return it and where it ends."""
    parts = []
    for part in wrapped(pair.benchmark, layout.width / BOLD, 13, 3):
        y += 16
        parts.append(words(0, y, part, "strong", size=13))
    y += 5
    for label, value, class_, spread in (
        ("ours", pair.ours, "bar a0", _spread(pair)),
        (f"published [{note}]", pair.theirs, "bar theirs", ""),
    ):
        mine = label == "ours"
        at = y + layout.bar
        parts.append(box(scale.start, at, scale(value) - scale.start, BAR, class_, f"{label}: {_say(pair, value)}"))
        if mine:
            parts.append(_whisker(pair, scale, at + BAR / 2))
        parts += _labels(label, _say(pair, value), spread, y, layout)
        y += layout.row
        if mine or layout is NARROW:
            # One line for both bars, unless a label stands between them.
            bottom = at + BAR + 2 if layout is NARROW else y + layout.bar + BAR + 2
            parts.append(line(scale.start, at - 2, scale.start, bottom, "axis"))
    for said, class_ in _remarks(pair):
        room = layout.width / (BOLD if class_ == "strong" else 1)
        for part in wrapped(said, room, layout.small, MOST_LINES):
            y += 15
            parts.append(words(0, y, part, class_, size=layout.small))
    about = element("title", text(f"{pair.benchmark}: {pair.sentence}"))
    return element("g", about, *parts, class_="row"), y


def _labels(label: str, value: str, spread: str, y: float, layout: Layout) -> list[Markup]:
    if layout is NARROW:
        said = fitted(f"{value} ({spread})" if spread else value, 0.72 * layout.width, 11)
        return [words(0, y + 13, label), words(layout.width - 4, y + 13, said, "quiet", "end", 11)]
    x = layout.width - layout.right + 12
    value = fitted(value, (layout.right - 12) / BOLD, 12)
    value_width = len(value) * 12 * LETTER_WIDTH * BOLD + 10
    room = layout.right - 12 - value_width
    after = [words(x + value_width, y + layout.bar + 12, fitted(spread, room, 11), "quiet", size=11)] if spread else []
    return [words(0, y + layout.bar + 12, label), words(x, y + layout.bar + 12, value, "strong"), *after]


def _say(pair: PublishedPair, value: float) -> str:
    # MLPerf prints hundredths of a minute.
    return f"{value:,.2f} min" if pair.unit == "min" else f"{say_rate(value)} {pair.unit}"


def _spread(pair: PublishedPair) -> str:
    """Say what the whisker is: the interval, or the runs themselves where there is none."""
    if pair.low is not None and pair.high is not None:
        return f"{say_rate(pair.low)} to {say_rate(pair.high)}"
    return "one run" if len(pair.runs) == 1 else counted(len(pair.runs), "run")


def _whisker(pair: PublishedPair, scale: Scale, y: float) -> Markup:
    """Draw the 95 % interval; without one a mark for each run, unless there is only one."""
    if pair.low is None or pair.high is None:
        marks = [scale.clipped(value) for value in pair.runs] if len(pair.runs) > 1 else []
        return (
            join(line(x, y - 5, x, y + 5, class_) for class_ in ("rim", "whisker") for x in marks) if marks else NOTHING
        )
    low, high = scale.clipped(pair.low), scale.clipped(pair.high)
    ends = [x for x, value in ((low, pair.low), (high, pair.high)) if scale.shows(value)]
    parts = []
    for class_ in ("rim", "whisker"):
        parts.append(line(low, y, high, y, class_))
        parts += [line(x, y - 5, x, y + 5, class_) for x in ends]
    return join(parts)


def _remarks(pair: PublishedPair) -> list[tuple[str, str]]:
    """Say the difference first, then what it is worth: never a headline where the recipe is another one."""
    first = f"{pair.sentence[0].upper()}{pair.sentence[1:]}"
    if pair.context:
        first += ": context, not a verdict"
    elif pair.word and pair.margin is not None:
        first += f": {pair.word} at a margin of {percent(pair.margin)}"
    else:
        first += "; the same recipe, as far as stated; no verdict"
    found = [(first, "strong")]
    found += [(f"{note[0].upper()}{note[1:]}", "open") for note in pair.notes]
    if pair.differs:
        found.append((f"Differs: {'; '.join(pair.differs)}", "quiet"))
    return found


def caption(pairs: Sequence[PublishedPair]) -> str:
    """Say how to read the chart."""
    scale = (
        "All bars have one scale, from 0."
        if _one_scale(drawn_pairs(pairs))
        else "Each benchmark has its own scale, from 0; bars are comparable only within a benchmark."
    )
    if any(pair.low is not None for pair in pairs):
        thin = "The thin line is the 95 % interval of ours over its runs."
    elif any(len(pair.runs) > 1 for pair in pairs):
        thin = "Small marks are single runs of ours."
    else:
        thin = "Ours is one run each, without an interval."
    left_out = len(pairs) - len(drawn_pairs(pairs))
    more = f" {counted(left_out, 'more benchmark')} could not be shown." if left_out else ""
    return f"{scale} {thin} The published values are of unknown uncertainty.{more}"
