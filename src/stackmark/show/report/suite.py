"""The report of a suite: the sentence over the whole, what to do, the table, pictures, what failed, the method; then each row.

A row's page is that of its experiment (html.py), folded, with anchors of its own. The engine puts the words that
Holm decided over the whole suite into it, so that a row never says something else than the table.
"""

from collections.abc import Iterator

from stackmark.show.load_curve import curve_lines, curve_picture, say_knee
from stackmark.show.report.charts import grouped, heatmap
from stackmark.show.report.heading import NO_HEADING, Heading
from stackmark.show.report.html import experiment, footer, head, nested, page
from stackmark.show.report.markdown import experiment_parts, fenced, heading_parts, inline, items, plain, unlinked
from stackmark.show.report.markdown import prose as markdown_prose
from stackmark.show.report.markdown import table as markdown_table
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.measured import MOST_PICTURES
from stackmark.show.report.tables import (
    Cell,
    Row,
    badge_of,
    bullets,
    figure,
    paragraph,
    prose,
    section,
    table,
    unbroken,
)
from stackmark.show.report.tables import plain as plain_cell
from stackmark.show.sections import SIGNS, Sections
from stackmark.show.suite_sections import CellText, SuiteSections
from stackmark.show.wording import measured_runs, sentence, stopped
from stackmark.units import counted, say_minute, say_span
from stackmark.verdict.examined import Examined
from stackmark.verdict.suite import SuiteResult, SuiteRow

# Rows whose reports are printed: each is some six pages, and nothing is folded on paper.
MOST_PRINTED = 6


def _when(result: SuiteResult) -> str:
    if result.ended_unix_s is None or result.ended_unix_s < result.created_unix_s:
        return say_minute(result.created_unix_s)
    return say_span(result.created_unix_s, result.ended_unix_s)


# --- HTML --------------------------------------------------------------------------------------------------------------------


def render_suite_html(
    result: SuiteResult,
    *,
    generated_unix_s: float,
    version: str,
    heading: Heading = NO_HEADING,
    most_pages: int | None = None,
) -> str:
    """Return the whole page. It depends on nothing but its arguments and the time zone: the same data give the same bytes.

    Where more rows than `most_pages` have a page, all of these are left out: paper cannot fold them.
    """
    title = heading.title or SuiteSections(result).title
    content = suite(result, heading, most_pages=most_pages)
    return page(title, element("main", content, footer(generated_unix_s, version)))


def suite(result: SuiteResult, heading: Heading = NO_HEADING, *, most_pages: int | None = None) -> Markup:
    """Return everything about a suite: its head, its answer, its table, and the report of each row."""
    sections = SuiteSections(result)
    found = sum(row.examined is not None for row in result.rows)
    folded = most_pages is None or found <= most_pages
    parts = [_answer(sections), _table(sections, linked=folded)]
    parts += [shown(sections) for shown in (_load, _heat, _bars, _failed, _missing, _method)]
    parts += [_rows(sections) if folded else _left_out(sections), _repeat(sections)]
    shape = f"suite {result.name} · {counted(len(result.rows), 'row')}, {counted(len(result.cells), 'cell')}"
    return join([head(f"{shape} · {_when(result)}", heading.title or sections.title, heading), *parts])


def _answer(sections: SuiteSections) -> Markup:
    result, first = sections.result, sections.headline
    card = element(
        "div",
        element("p", text(sentence(result.sentence)), class_="word whole-answer"),
        paragraph(stopped(sections.words) if result.comparisons else "", "precise"),
        class_=f"verdict {first.colour}",
    )
    state = ""
    if result.is_open:
        state = f"Cells are missing: `stackmark resume {result.experiment_id}` goes on."
    if result.stopped:
        state = f"{sentence(result.stopped)} {state}".strip()
    unfinished = element("p", element("b", text("Not finished. ")), prose(state), class_="state") if state else NOTHING
    todo = (
        element("p", element("b", text("What to do: ")), prose(sections.what_to_do), class_="do")
        if sections.what_to_do
        else NOTHING
    )
    scope = (
        element("p", element("b", text("Scope: ")), text(sections.scope), class_="scope") if sections.scope else NOTHING
    )
    return element(
        "section", card, unfinished, todo, _beware(sections), paragraph(_holm(sections), "note"), scope,
        id="verdict", aria_label="Verdict",
    )  # fmt: skip


def _holm(sections: SuiteSections) -> str:
    if sections.family < 2:
        return ""
    return (
        f"{sections.family} comparisons with {sections.reference}: Holm's procedure decided each word; the intervals "
        "are not adjusted."
    )


def _beware(sections: SuiteSections) -> Markup:
    if not sections.cautions:
        return NOTHING
    found = [
        element("li", prose(stopped(one.text)), class_="grave" if one.severity == "high" else None)
        for one in sections.cautions
    ]
    return element("div", element("h2", text("Beware")), element("ul", *found), class_="beware", role="note")


def anchor(row: SuiteRow) -> str:
    return f"row{row.number + 1}"


def _table(sections: SuiteSections, *, linked: bool) -> Markup:
    result = sections.result
    heads = [("", False), *((_arm_head(result, arm), False) for arm in result.arms)]
    rows = []
    for row in result.rows:
        name = text(result.row_name(row))
        shown = element("a", name, href=f"#{anchor(row)}") if row.examined and linked else name
        rows.append(Row([Cell(shown), *map(_cell, sections.line(row))]))
    marks = "; ".join(f"{mark} {said}" for mark, said in sections.legend)
    note = f"{sentence(sections.reading)} {sentence(marks)}".strip()
    return section("The table", table(heads, rows, "suite"), paragraph(note, "note"), name="table")


def _arm_head(result: SuiteResult, arm: str) -> str:
    if not arm:
        return "Figure, 95 % interval"
    name = result.arm_name(arm)
    return f"{name} (reference)" if arm == result.reference else name


def _cell(said: CellText) -> Cell:
    if not said.figure:
        state = element("span", text(f"{said.marks} {said.state}".strip()), class_=f"verdict-word {said.colour}")
        return Cell(state)
    rate = element("span", text(unbroken(said.rate)), class_="whole")
    if not said.verdict:
        return Cell(rate)
    judged = element("span", text(unbroken(f"{said.sign} {said.change}")), class_=f"verdict-word {said.colour}")
    return Cell(join([rate, element("small", judged, text(f" {said.word}"))]))


def _load(sections: SuiteSections) -> Markup:
    curve = sections.result.loads
    if curve is None:
        return NOTHING
    drawn = curve_picture(curve)
    table = [paragraph(f"{name} {said}") for name, said in curve_lines(curve)]
    return section("Latency against load", figure(drawn, drawn, f"Knee: {say_knee(curve)}."), *table, name="load")


def _heat(sections: SuiteSections) -> Markup:
    result = sections.result
    if not heatmap.drawable(result):
        return NOTHING
    caption = (
        f"Each cell against {sections.reference}: the change with its 95 % interval below; more is better. "
        "= equivalent, ▼ slower, ▲ faster, ? not decided."
    )
    drawn = figure(heatmap.heatmap(result), heatmap.heatmap(result, heatmap.NARROW), caption)
    return section("Where it differs", drawn, name="heat")


def _bars(sections: SuiteSections) -> Markup:
    result = sections.result
    if not grouped.drawable(result):
        return NOTHING
    caption = (
        f"{grouped.say_axis(result)} Lines over the bars are 95 % intervals over each cell's own runs. "
        "Whether two arms differ is not read from them: the table compares block by block."
        if result.comparisons
        else f"{grouped.say_axis(result)} Lines over the bars are 95 % intervals over each cell's own runs."
    )
    drawn = figure(grouped.grouped_bars(result), grouped.grouped_bars(result, grouped.NARROW), caption)
    legend = (
        element(
            "p", *(badge_of(index, result.arm_name(arm)) for index, arm in enumerate(result.arms)), class_="about note"
        )
        if result.compared
        else NOTHING
    )
    return section("How fast each cell is", legend, drawn, name="bars")


def _failed(sections: SuiteSections) -> Markup:
    if not sections.failures:
        return NOTHING
    rows = [
        Row(
            [
                plain_cell(", ".join(one.names)),
                plain_cell(one.kind or "–"),
                plain_cell(sentence(one.message), sentence(one.hint)),
            ]
        )
        for one in sections.failures
    ]
    lead = paragraph("A failed cell has no number, and is part of no comparison.", "note")
    heads = [("Cells", False), ("Kind", False), ("What happened, and what to do", False)]
    return section("Cells that failed", lead, table(heads, rows, "facts"), name="failed")


def _missing(sections: SuiteSections) -> Markup:
    said = [sentence(one) for one in sections.result.missing]
    return section("What is missing", bullets(said), name="missing") if said else NOTHING


def _method(sections: SuiteSections) -> Markup:
    axes = [
        Row([plain_cell(axis.name), plain_cell(", ".join(axis.values)), plain_cell(_role(sections.result, axis.name))])
        for axis in sections.result.axes
    ]
    matrix = table([("Axis", False), ("Values", False), ("", False)], axes)
    scopes = NOTHING
    if len(sections.scopes) > 1:
        name = element(
            "summary", text(f"{counted(len(sections.scopes), 'scope')}: where and when each row was measured")
        )
        scopes = element("details", name, bullets(sections.scopes))
    return section("How it was measured", bullets(sections.method), matrix, scopes, name="method")


def _role(result: SuiteResult, axis: str) -> str:
    if axis == result.compared:
        return f"compared; the reference is {result.reference}"
    return "makes rows" if axis in result.row_axes else "the same in all rows"


def _rows(sections: SuiteSections) -> Markup:
    """A folded page for each row. Step times are drawn until the page has as many small pictures as one may have."""
    room = MOST_PICTURES
    parts = []
    for row in sections.result.rows:
        examined = row.examined
        if examined is None:
            parts.append(element("p", text(f"{sections.result.row_name(row)}: {row.state}, no page."), class_="note"))
            continue
        pictures = len(measured_runs(examined))
        drawn = pictures <= room
        room -= pictures if drawn else 0
        parts.append(_row_page(sections, row, examined, steps=drawn))
    if not parts:
        return NOTHING
    lead = paragraph("The whole report of each comparison; a click on a name in the table opens it.", "note")
    return section("Each row", lead, *parts, name="rows")


def _left_out(sections: SuiteSections) -> Markup:
    said = (
        f"The report of each row is in the HTML file: `stackmark report {sections.result.experiment_id} -o suite.html`."
    )
    return section("Each row", paragraph(said), name="rows")


def _row_page(sections: SuiteSections, row: SuiteRow, examined: Examined, *, steps: bool) -> Markup:
    words = [one.word for cell in row.cells if (one := cell.comparison)]
    marks = ", ".join(f"{SIGNS[word][0]} {word}" for word in dict.fromkeys(words))
    name = element("summary", text(sections.result.row_name(row)), element("small", text(f" {marks}" if marks else "")))
    left_out = (
        ""
        if steps
        else f"Step times are not drawn here, to keep this page small: `stackmark report {examined.experiment_id}` has them."
    )
    content = nested(experiment(Sections(examined), steps=steps), anchor(row), 2)
    return element(
        "details", name, element("div", content, paragraph(left_out, "note"), class_="row-page", id=anchor(row))
    )


def _repeat(sections: SuiteSections) -> Markup:
    result = sections.result
    look = element("code", text(f"stackmark report {result.experiment_id}"))
    return section(
        "To repeat it",
        element("pre", element("code", text(result.command))),
        element("p", text("This page again, from the ledger: "), look, class_="note"),
        name="repeat",
    )


# --- Markdown ----------------------------------------------------------------------------------------------------------------


def suite_markdown(result: SuiteResult) -> str:
    """Return the sentence, the table and what failed, for a pull request."""
    sections = SuiteSections(result)
    return "\n\n".join(part for part in _short_parts(sections) if part) + "\n"


def _short_parts(sections: SuiteSections) -> list[str]:
    first = sections.headline
    return [
        f"**{first.sign} {plain(sentence(first.sentence))}**",
        _markdown_table(sections),
        "\n".join(f"- {inline(f'{name} {said}')}" for name, said in curve_lines(sections.result.loads))
        if sections.result.loads
        else "",
        f"<sub>{inline(_notes(sections))}</sub>",
        _markdown_failures(sections),
    ]


def _notes(sections: SuiteSections) -> str:
    marks = "; ".join(f"{mark} {said}" for mark, said in sections.legend)
    return " ".join(sentence(said) for said in (sections.reading, marks, _holm(sections)) if said)


def _markdown_table(sections: SuiteSections) -> str:
    result = sections.result
    heads = ["", *(plain(_arm_head(result, arm)) for arm in result.arms)]
    rows = []
    for row in result.rows:
        cells = []
        for said in sections.line(row):
            judged = f"<br>{said.sign} {said.change} **{said.word}**" if said.verdict else ""
            cells.append(f"{inline(said.rate)}{judged}")
        rows.append([plain(result.row_name(row)), *cells])
    return markdown_table(heads, [False] * len(heads), rows)


def _markdown_failures(sections: SuiteSections) -> str:
    said = []
    for one in sections.failures:
        kind = f"{one.kind}: " if one.kind else ""
        hint = f" {sentence(one.hint)}" if one.hint else ""
        said.append(f"{', '.join(one.names)}: {kind}{stopped(one.message)}{hint}")
    return items("Cells that failed:", said)


def render_suite_markdown(result: SuiteResult, heading: Heading = NO_HEADING) -> str:
    """Return the report as Markdown; the rows are folded as far as the reader's program can fold."""
    sections = SuiteSections(result)
    first, *others = _short_parts(sections)
    parts = [
        *heading_parts(heading.title or sections.title, heading, level=2),
        first,
        f"**Not finished:** {plain(sentence(result.stopped))}" if result.stopped else "",
        f"**What to do:** {markdown_prose(sections.what_to_do)}" if sections.what_to_do else "",
        items("**Beware:**", [stopped(one.text) for one in sections.cautions]),
        f"**Scope:** {plain(sections.scope)}" if sections.scope else "",
        *others,
        items("**What is missing:**", [sentence(one) for one in result.missing]),
        items("How it was measured:", sections.method),
        *_folded(sections),
        "To repeat it:",
        fenced(result.command),
        f"<sub>Suite {plain(result.experiment_id)}.</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _folded(sections: SuiteSections) -> Iterator[str]:
    for row in sections.result.rows:
        if examined := row.examined:
            name = unlinked(text(sections.result.row_name(row)))
            yield f"<details><summary>{name}</summary>"
            yield from experiment_parts(Sections(examined))
            yield "</details>"
