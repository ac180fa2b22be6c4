"""The problems of an operator list as a table: time, interval and rate of each, in each arm, and what others published.

A list may have hundreds of problems. Those that say most stand first: of two arms the ones that differ, of one arm the ones that
take longest. The whole list follows, folded, in its own order; on paper it is open.
"""

import re
from collections.abc import Callable, Sequence

from stackmark.show.lists import list_ratio_lines
from stackmark.show.operators import say_half_width, say_times
from stackmark.show.report.markup import NOTHING, Markup, element, text
from stackmark.show.report.tables import Row, bullets, numeric, paragraph, plain, section, table
from stackmark.show.sections import Sections
from stackmark.show.wording import letter, stopped
from stackmark.units import counted, say_rate, say_seconds, scale_rate
from stackmark.verdict.examined import Examined, OperatorProblem, PublishedTime
from stackmark.verdict.operators import RowResult

# A list of this many problems or fewer is shown whole.
SHOWN = 12
# A rate that would be printed with zeros in front gets a prefix of its own.
LEAST_SHOWN = 0.1
_NUMBERS = re.compile(r"\d[\d.,]*")
CONTEXT = "After a published time stands how many times as fast the first arm is. Another recipe, so it is context."


def problems(sections: Sections) -> Markup:
    """Return the section; nothing where the workload is not a list."""
    examined = sections.examined
    if not examined.operators:
        return NOTHING
    ordered = _by_importance(examined)
    few, every = ordered[:SHOWN], examined.operators
    parts = [_lead(examined, ordered)]
    if len(every) <= SHOWN:
        parts.append(_table(examined, every))
    else:
        parts.append(_table(examined, few))
        name = element("summary", text(f"All {counted(len(every), 'problem')}, in the order of the list"))
        parts.append(element("details", name, _table(examined, every)))
    parts += [bullets([said for _, said in list_ratio_lines(examined.lists)]), *_published_notes(every)]
    return section("The problems of the list", *parts, name="problems")


def _lead(examined: Examined, ordered: Sequence[OperatorProblem]) -> Markup:
    if len(ordered) <= SHOWN:
        return NOTHING
    differing = len(_differing(examined))
    which = (
        "those that take longest"
        if not differing
        else "those that differ most between the arms, then those that take longest"
    )
    return paragraph(f"{SHOWN} of {counted(len(ordered), 'problem')}: {which}. All of them are below.", "note")


def _differing(examined: Examined) -> dict[int, float]:
    """By its number, how far a problem that differs between arms is from a ratio of 1."""
    found: dict[int, float] = {}
    for row in (row for pair in examined.lists if pair.testable for row in pair.differing):
        found[row.index] = max(found.get(row.index, 0.0), abs(row.ratio - 1))
    return found


def _by_importance(examined: Examined) -> list[OperatorProblem]:
    differing = _differing(examined)
    return sorted(examined.operators, key=lambda one: (-differing.get(one.index, 0.0), -_longest_s(one)))


def _longest_s(one: OperatorProblem) -> float:
    return max((row.seconds for row in one.rows if row and row.seconds), default=0.0)


def _table(examined: Examined, rows: Sequence[OperatorProblem]) -> Markup:
    head, cells = table_of(examined, rows)
    made = [
        Row([plain(name, small), *(numeric(said, below) for said, below in others)]) for (name, small), *others in cells
    ]
    return table(head, made)


Cell = tuple[str, str]


def table_of(examined: Examined, rows: Sequence[OperatorProblem]) -> tuple[list[tuple[str, bool]], list[list[Cell]]]:
    """Return the head of the table (a name, and whether its column holds numbers) and the cells, each with its small print."""
    several = len(examined.arms) > 1
    say = _rate_of(examined)
    head: list[tuple[str, bool]] = [("Problem", False)]
    for arm in examined.arms:
        head.append((f"{letter(arm.index)}  {arm.label}" if several else "Time, 95 % interval", True))
        head += [] if several else [("Rate", True)]
    ratios = _ratios(examined)
    head += [("Ratio", True)] if ratios else []
    chips = list(dict.fromkeys(near.chip for one in examined.operators for near in one.published))
    head += [(f"Published: {chip}", True) for chip in chips]
    precisions = {row.precision for one in examined.operators for row in one.rows if row}
    cells: list[list[Cell]] = []
    for one in rows:
        of = next((row.precision for row in one.rows if row), "") if len(precisions) > 1 else ""
        cells.append([(one.name, " · ".join(filter(None, (f"number {one.index}", of))))])
        for row in one.rows:
            cells[-1] += [(_time(row), _below(row, say) if several else _interval(row))]
            cells[-1] += [] if several else [(say(row) if row else "", "")]
        if ratios:
            cells[-1].append(ratios.get(one.index, ("", "")))
        near = {found.chip: found for found in one.published}
        cells[-1] += [_published(near.get(chip), one.rows[0] if one.rows else None) for chip in chips]
    return head, cells


def _ratios(examined: Examined) -> dict[int, Cell]:
    """Of two arms: by number the ratio of a problem, and whether it is shown to differ. More arms have too many pairs."""
    if len(examined.lists) != 1:
        return {}
    (pair,) = examined.lists
    differing = {row.index for row in pair.differing} if pair.testable else set()
    return {row.index: (f"{row.ratio:.4f}", "differs" if row.index in differing else "") for row in pair.rows}


def _rate_of(examined: Examined) -> Callable[[RowResult | None], str]:
    """Return how a rate is said: with the prefix that suits the largest of its unit, or its own where it is far smaller."""
    largest: dict[str, float] = {}
    for row in (row for one in examined.operators for row in one.rows if row and row.rate):
        largest[row.unit] = max(largest.get(row.unit, 0.0), row.rate or 0.0)

    def say(row: RowResult | None) -> str:
        if row is None or row.rate is None:
            return ""
        factor, unit = scale_rate(row.unit, largest[row.unit])
        if factor * row.rate < LEAST_SHOWN:
            factor, unit = scale_rate(row.unit, row.rate)
        return f"{say_rate(factor * row.rate)} {unit}"

    return say


def _time(row: RowResult | None) -> str:
    if row is None:
        return "not tried"
    if row.seconds is None:
        return f"failed: {row.failure.kind}" if row.failure else "no time"
    return say_seconds(row.seconds)


def _interval(row: RowResult | None) -> str:
    if row is None or row.seconds is None:
        return row.failure.message if row and row.failure else ""
    if row.low_s is None or row.high_s is None:
        return "no interval"
    return f"± {say_half_width(row)}: {say_seconds(row.low_s)} to {say_seconds(row.high_s)}"


def _below(row: RowResult | None, say: Callable[[RowResult | None], str]) -> str:
    if row is None or row.seconds is None:
        return _interval(row)
    width = say_half_width(row)
    return " · ".join(part for part in (f"± {width}" if width else "", say(row)) if part)


def _published(near: PublishedTime | None, row: RowResult | None) -> Cell:
    if near is None:
        return "–", ""
    times = say_times(near.seconds / row.seconds) if row and row.seconds else ""
    return say_seconds(near.seconds), " · ".join(part for part in (near.precision, times) if part)


def published_notes(rows: Sequence[OperatorProblem]) -> list[str]:
    """Say whose the published times are, and what keeps them from being compared to the per cent."""
    every = [near for one in rows for near in one.published]
    if not every:
        return []
    sources = dict.fromkeys(f"{near.chip}: {near.source}, {near.date}" for near in every)
    # Caveats that differ in numbers only are one, in the words of the first.
    caveats: dict[str, str] = {}
    for caveat in (caveat for near in every for caveat in near.caveats):
        caveats.setdefault(_NUMBERS.sub("#", caveat), caveat)
    return [CONTEXT, *map(stopped, (*sources, *caveats.values()))]


def _published_notes(rows: Sequence[OperatorProblem]) -> list[Markup]:
    found = published_notes(rows)
    return [element("div", bullets(found), class_="note")] if found else []
