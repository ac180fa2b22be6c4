"""The sections about why one may believe it: what differs, what was held equal, what failed, how it was measured."""

from collections.abc import Sequence

from stackmark.show.report.charts import published
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, badge, bullets, figure, numeric, paragraph, plain, section, table
from stackmark.show.sections import DifferenceRow, Sections, differences_worth
from stackmark.show.stacks import stack_cells
from stackmark.show.wording import letter, say_ratio
from stackmark.units import counted, say_seconds
from stackmark.verdict.examined import Examined, ExaminedRun
from stackmark.verdict.published_pairs import StackLine

# Below this weight a difference is a curiosity, and is folded away where there are others.
CURIOUS = 20


def what_differs(sections: Sections) -> Markup:
    examined = sections.examined
    if len(examined.arms) < 2:
        return NOTHING
    found = sections.differences
    if not found:
        known = all(arm.facts for arm in examined.arms)
        said = paragraph(
            "No fact about the stack differs between the arms, beyond what was asked for."
            if known
            else "It cannot be told: the facts of an arm are not known."
        )
        return section("What differs between the arms", said, name="differences")
    main = differences_worth(found, CURIOUS) or found
    rest = [one for one in found if one not in main]
    lead = paragraph(
        "Ranked by what is known to matter. A fact that differs is a candidate for the cause, not the cause.", "note"
    )
    parts = [lead, _differences(examined, main)]
    if rest:
        name = element("summary", text(f"{counted(len(rest), 'more difference')}, not known to matter"))
        parts.append(element("details", name, _differences(examined, rest)))
    return section("What differs between the arms", *parts, name="differences")


def _differences(examined: Examined, found: Sequence[DifferenceRow]) -> Markup:
    head = [
        ("Fact", False),
        *_arm_heads(examined, False),
        ("Why it may matter", False),
    ]
    rows = []
    for row in found:
        one = row.fact
        tag = element("span", text("effect seen"), class_="tag") if one.shows_effect else NOTHING
        why = join([tag, text(f" {one.why}" if one.shows_effect else one.why)])
        rows.append(
            Row(
                [
                    plain(one.key, one.subject),
                    *(plain("unknown" if value is None else value) for value in row.values),
                    Cell(why),
                ]
            )
        )
    return table(head, rows, "facts")


def _arm_heads(examined: Examined, right: bool) -> list[tuple[str, bool]]:
    return [(f"{letter(arm.index)}  {arm.label}", right) for arm in examined.arms]


def conditions(sections: Sections) -> Markup:
    """Covariates, and the flags that runs carry."""
    examined, flags = sections.examined, sections.flags
    if not sections.conditions and not flags:
        return NOTHING
    head = [
        ("Median over runs", False),
        *_arm_heads(examined, True),
        ("", False),
    ]
    rows = [
        Row([plain(one.words), *map(numeric, one.values), plain(one.remark)])
        for one in sections.conditions
        if not one.quiet
    ]
    shown = table(head, rows) if rows else NOTHING
    names = ", ".join(one.words for one in sections.conditions if one.quiet)
    quiet = paragraph(f"Zero in all arms: {names}.", "note") if names else NOTHING
    moved = bullets(list(examined.associations)) if examined.associations else NOTHING
    flagged = join([element("h3", text("Flags")), bullets(flags)]) if flags else NOTHING
    return section("Conditions while it ran", shown, quiet, moved, flagged, name="conditions")


def neighbours(sections: Sections) -> Markup:
    examined = sections.examined
    if not examined.published and not examined.published_pairs:
        return NOTHING
    head = [("Published", False), ("What", False), ("This one over it", True), ("What differs", False)]
    rows = [
        Row(
            [
                plain(f"{one.value:,g} {one.unit}"),
                plain(one.what, f"{one.source}, {one.date}"),
                numeric(say_ratio(one.ratio), one.arm),
                plain("; ".join(one.differs) or "nothing that is known"),
            ]
        )
        for one in examined.published
    ]
    lead = paragraph(
        "The nearest that others printed. A ratio to a number from another recipe is context, not a result.", "note"
    )
    return section(
        "Published neighbours",
        lead,
        _published_chart(examined),
        table(head, rows) if rows else NOTHING,
        *_stacks(examined),
        name="published",
    )


def _published_chart(examined: Examined) -> Markup:
    pairs = examined.published_pairs
    if not pairs:
        return NOTHING
    wide, narrow = (published.published_bars(pairs, layout) for layout in (published.WIDE, published.NARROW))
    notes = [element("li", text(note)) for note in published.footnotes(published.drawn_pairs(pairs))]
    return join([figure(wide, narrow, published.caption(pairs)), element("ol", *notes, class_="note sources")])


def _stacks(examined: Examined) -> list[Markup]:
    """Show our stack next to the published one, folded, once for arms that agree in it."""
    found: dict[tuple[StackLine, ...], list[str]] = {}
    for pair in examined.published_pairs:
        found.setdefault(pair.stack, []).append(pair.benchmark)
    head = [("Part", False), ("Ours", False), ("Published", False), ("Agreement", False)]
    tables = []
    for lines, names in found.items():
        title = "Our stack and the published one" + (f": {'; '.join(names)}" if len(found) > 1 else "")
        rows = [Row([plain(cell) for cell in cells]) for cells in stack_cells(lines)]
        tables.append(element("details", element("summary", text(title)), table(head, rows)))
    return tables


def held_equal(sections: Sections) -> Markup:
    examined = sections.examined
    if not examined.held and not examined.not_held:
        return NOTHING

    def column(title: str, items: Sequence[str], mark: str, class_: str) -> Markup:
        lines = [element("li", element("span", text(mark)), text(item)) for item in items]
        content = element("ul", *lines, class_=class_) if lines else paragraph("Nothing that is known.", "note")
        return element("div", element("h3", text(title)), content)

    parts = [column("Held equal", examined.held, "✓", "yes"), column("Not held equal", examined.not_held, "✗", "no")]
    return section("What was held equal", element("div", *parts, class_="held"), name="held")


def failures(sections: Sections) -> Markup:
    if not sections.failures:
        return NOTHING
    head = [("Run", False), ("Arm", False), ("Block", True), ("Kind", False), ("What happened", False)]
    rows = [
        Row(
            [
                Cell(element("code", text(one.run.run_id[:14]))),
                Cell(_arm(sections.examined, one.run)),
                numeric(_block(one.run)),
                plain(one.kind),
                plain(one.message, one.hint),
            ]
        )
        for one in sections.failures
    ]
    lead = paragraph("A failure is never a number: these runs are in no rate and in no ratio.", "note")
    return section("Runs that failed", lead, table(head, rows), name="failed")


def how_measured(sections: Sections) -> Markup:
    examined = sections.examined
    name = element("summary", text(f"All {counted(len(examined.runs), 'run')}, one a line"))
    every = element("details", name, _all_runs(sections))
    return section("How it was measured", bullets(sections.method), every, name="method")


def _all_runs(sections: Sections) -> Markup:
    examined = sections.examined
    units = {arm.index: arm.figure_unit for arm in examined.arms}
    head = [
        ("Run", False),
        ("Arm", False),
        ("Block", True),
        (sections.figure_name.capitalize(), True),
        ("Steadiness", False),
        ("Steps used", True),
    ]
    head += [("Launch", True), ("Set-up", True), ("Remarks", False)]
    rows = []
    for run in sorted(examined.runs, key=lambda run: run.started_unix_s):
        remarks: list[str] = [run.role] if run.role != "measured" else []
        remarks += [] if run.counted or run.role != "measured" else [f"{run.status}, not counted"]
        rows.append(
            Row(
                [
                    Cell(element("code", text(run.run_id[:14]))),
                    plain(letter(run.arm)),
                    numeric(_block(run)),
                    numeric(units[run.arm].say(run.rate_per_s) if run.rate_per_s and run.arm in units else "–"),
                    plain(run.steady or "–"),
                    numeric(f"{len(run.step_s) - run.first_step:,} of {len(run.step_s):,}" if run.step_s else "–"),
                    numeric(say_seconds(run.start_s) if run.start_s is not None else "–"),
                    numeric(say_seconds(sum(seconds for _, seconds in run.setup)) if run.setup else "–"),
                    plain("; ".join(remarks)),
                ]
            )
        )
    return table(head, rows)


def _block(run: ExaminedRun) -> str:
    if run.block is None:
        return "–"
    return f"{run.block + 1}" + (f" (attempt {run.attempt + 1})" if run.attempt else "")


def _arm(examined: Examined, run: ExaminedRun) -> Markup:
    return badge(examined.arms[run.arm]) if run.arm < len(examined.arms) else text(letter(run.arm))


def repeat(sections: Sections) -> Markup:
    examined = sections.examined
    look = f"stackmark report {examined.experiment_id}"
    return section(
        "To repeat it",
        element("pre", element("code", text(examined.repeat))),
        element("p", text("This page again, from the ledger: "), element("code", text(look)), class_="note"),
        name="repeat",
    )


SECTIONS = (what_differs, conditions, neighbours, held_equal, failures, how_measured, repeat)
